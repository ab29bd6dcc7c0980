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

/// Runs `base` and each variant of it, capturing hashes: every tensor has the base's bytes, and with capture off ids, last
/// logits and state are the same. The trace must say that the asked kernels ran. `base.out` is chosen here.
CheckOutcome compare_variants(const CheckContext& c, std::shared_ptr<const Model> model, DumpSpec base,
                              const std::vector<Variant>& variants);

/// A run that nobody watched gives what the watched one gave: ids, last logits, and state where both kept it. Three comparisons
/// per request.
void same_answers(CheckOutcome& out, const std::string& where, const DumpRun& watched, const DumpRun& blind);

/// SmolLM2-135M (real weights, fetched by ci/fetch-smollm2): each axis a check of its own, since each takes minutes.
inline constexpr int kSmolAxes = 5;
Check smollm2_equivalence_check(int axis, Activations kind);

}  // namespace assay
