// Where a dump's error comes from. The oracle runs on the subject's own values: every value that the dump holds is
// compared with the float64 result of the ops since the last values it holds, and then put in place of that result. So
// each figure is the error that this window of ops added, free of everything that came before; a subject of any
// precision can be judged by it, and a fault that drowns in accumulated error shows.
#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dumps/dump.h"
#include "oracle/dense.h"

namespace assay::oracle {

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

struct WindowOptions {
  bool accumulated = false;                               // runs the oracle a second time, freely, with the same tokens
  const Dump* oracle_dump = nullptr;                      // or takes its values from here
  int threads = 0;                                        // 0: all cores
  std::function<void(const std::string& pass)> progress;  // "prompt0/decode/3", before it runs
};

/// One NodeError per float tensor of the subject's prefill and decode passes and per k and v of its state, in execution
/// order. The cache holds the subject's k_rope and v_proj rows (where it has none, those of the window), rounded as its
/// manifest's options.kv says, from after_prefill on those of its state tensors. Rows tables are aligned first. Throws
/// Error{usage}: the dump has no values, or no ids for a prompt; Error{malformed}: ids outside the vocabulary.
std::vector<NodeError> window_errors(const Weights64& weights, const Dump& subject, const WindowOptions& options = {});
std::vector<NodeError> window_errors(const std::filesystem::path& model, const Dump& subject,
                                     const WindowOptions& options = {});

/// A node_error record (dumps/schemas/record.schema.json). `side`: "target" or "base". With a limit the status is pass
/// or fail, else "shown".
nlohmann::ordered_json to_json(const NodeError& e, std::string_view side, std::optional<double> limit = {});

/// A tensor's values as doubles: [product of all axes but the last, last axis]. Error{usage} where the dump has none.
Matrix64 matrix_of(const DumpTensor& tensor);
/// K or V of a state tensor [kv_head, position, head_dim] as cached rows [position, kv_head*head_dim].
Matrix64 cached_rows(const DumpTensor& state);

}  // namespace assay::oracle
