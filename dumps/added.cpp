#include "dumps/added.h"

#include "dumps/json.h"

namespace assay {

namespace {

/// How often the published code rounds between two phases, each time by at most one unit of what enters the result.
double roundings(std::string_view phase) {
  if (phase == "q_rope" || phase == "k_rope") return 3;  // cos and sin, two products, their sum
  if (phase == "ffn_act" || phase.ends_with("norm"))
    return 2;  // silu, then the product; the row over its RMS, then the weight
  // Scores that are rounded before the softmax put |score| units into the exponent (eager attention; flash attention
  // keeps them in float32 and stays below 2.5).
  if (phase == "attn_context") return 16;
  return 1.25;  // a product or a sum that is rounded once at the end
}

}  // namespace

double added_limit(double unit, std::string_view phase) {
  return roundings(phase) * unit;
}

nlohmann::ordered_json to_json(const NodeError& e, std::string_view side, std::optional<double> limit) {
  using Json = nlohmann::ordered_json;
  Json j = {{"record", "node_error"},
            {"side", side},
            {"name", e.name},
            {"order", e.order},
            {"added", json_number(e.added)},
            {"accumulated", e.accumulated ? json_number(*e.accumulated) : Json(nullptr)},
            {"limit", limit ? json_number(*limit) : Json(nullptr)},
            {"status", !limit              ? "shown"
                       : e.added <= *limit ? "pass"
                                           : "fail"},
            {"inputs", e.inputs},
            {"worst",
             {{"row", std::max<int64_t>(0, e.row)},
              {"column", std::max<int64_t>(0, e.column)},
              {"oracle", json_number(e.oracle)},
              {"value", json_number(e.value)}}}};
  if (!e.problem.empty()) j["reason"] = e.problem;
  return j;
}

}  // namespace assay
