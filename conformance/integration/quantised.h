// Official cases with quantised weights: converted the way `assay convert` does it, written to a file and read back.
#pragma once
#include <memory>
#include <vector>

#include "conformance/integration/cases.h"

namespace assay {

/// The types that every matrix of a case divides into: all eight where every row is a multiple of 256, else the five
/// with blocks of 32.
std::vector<WeightType> quantised_types(const OfficialCase& oc);
/// Converted into `c.work` and loaded; once per process, case and type.
std::shared_ptr<const Model> quantised_case(const CheckContext& c, const OfficialCase& oc, WeightType type);
/// A few official cases by name. Error{malformed} for one that is not among official_cases().
const OfficialCase& official_case(const std::string& name);
/// A type's name in a check's id: "q4_k".
std::string id_of(WeightType type);

}  // namespace assay
