// Where a dump's error comes from. The oracle runs on the subject's own values: every value that the dump holds is
// compared with the float64 result of the ops since the last values it holds, and then put in place of that result. So
// each figure is the error that this window of ops added, free of everything that came before; a subject of any
// precision can be judged by it, and a fault that drowns in accumulated error shows.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "dumps/added.h"
#include "dumps/dump.h"
#include "oracle/dense.h"

namespace assay::oracle {

struct WindowOptions {
  bool accumulated = false;                               // runs the oracle a second time, freely, with the same tokens
  const Dump* oracle_dump = nullptr;                      // or takes its values from here
  int threads = 0;                                        // 0: all cores
  std::function<void(const std::string& pass)> progress;  // "prompt0/decode/3", before it runs
};

/// One NodeError per float tensor of the subject's prefill and decode passes and per k and v of its state that the model
/// computes, in execution order. The cache holds the subject's k_rope and v_proj rows (where it has none, those of the window), rounded as its
/// manifest's options.kv says, from after_prefill on those of its state tensors. Rows tables are aligned first. Throws
/// Error{usage}: the dump has no values, or no ids for a prompt; Error{malformed}: ids outside the vocabulary.
std::vector<NodeError> window_errors(const Weights64& weights, const Dump& subject, const WindowOptions& options = {});
std::vector<NodeError> window_errors(const std::filesystem::path& model, const Dump& subject,
                                     const WindowOptions& options = {});

/// A tensor's values as doubles: [product of all axes but the last, last axis]. Error{usage} where the dump has none.
Matrix64 matrix_of(const DumpTensor& tensor);
/// K or V of a state tensor [kv_head, position, head_dim] as cached rows [position, kv_head*head_dim].
Matrix64 cached_rows(const DumpTensor& state);

}  // namespace assay::oracle
