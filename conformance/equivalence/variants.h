// What must not matter: the axes along which a run may be cut, placed and computed.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "conformance/check.h"
#include "conformance/runner.h"

namespace assay {

struct Variant {
  std::string name;
  std::function<void(DumpSpec&)> apply;
};

/// One axis at a time, and one variant that changes all.
std::vector<Variant> axis_variants(size_t prompts);
/// Every ISA x threads 1, 2, 7 x chunk 1, 3, 64, all x alone, batched, another slot.
std::vector<Variant> product_variants();
/// A few that change everything at once.
std::vector<Variant> combined_variants();
/// ISAs that this CPU has, and in words those it lacks.
std::vector<Isa> supported_isas();

using VariantRunner = std::function<CheckOutcome(const CheckContext&, std::shared_ptr<const Model>, DumpSpec, const std::vector<Variant>&)>;
/// SmolLM2-135M (real weights, fetched by ci/fetch-smollm2): each axis a check of its own, since each takes minutes.
inline constexpr int kSmolAxes = 5;
Check smollm2_equivalence_check(int axis, VariantRunner runner);

}  // namespace assay
