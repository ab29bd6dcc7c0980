// Added error: what one window of ops (those between two values that a dump holds) does wrong on its own input. The oracle
// computes it (oracle/window.h); here it is a record, and what low-precision engines are judged by.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace assay {

struct NodeError {
  std::string
      name;  // of the subject's tensor: "prompt0/prefill/0/layer.3/q_proj", "prompt0/state/after_prefill/layer.0/k"
  int64_t order = 0;  // as the subject's manifest has it
  /// max_rel of dumps/README.md with the window's float64 result as the baseline. Infinite: `problem` says why.
  double added = 0;
  std::optional<double> accumulated;  // max_rel against the float64 run from the ids
  std::vector<std::string>
      inputs;  // values that the window starts from, of the same pass; "state:layer.0/k": of earlier ones
  int64_t row = -1, column = -1;  // the worst element of `added`,
  double oracle = 0, value = 0;   // its float64 result and what the subject has
  std::string problem;            // "NaN where float64 has 0.3", "shape [3, 5], wanted [3, 6]"
};

/// What the window that ends in `phase` may add where every stored value is rounded by at most `unit` of itself (bfloat16:
/// 2^-8). The factors: dumps/README.md "Added error". `phase`: as of tolerances.
double added_limit(double unit, std::string_view phase);

/// A node_error record (schemas/record.schema.json). `side`: "target" or "base". With a limit the status is pass or fail,
/// else "shown".
nlohmann::ordered_json to_json(const NodeError& e, std::string_view side, std::optional<double> limit = {});

}  // namespace assay
