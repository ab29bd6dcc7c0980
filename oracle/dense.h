// The forward pass of the decoders (llama, olmo2, qwen2, qwen3, qwen3_5, qwen3_5_moe, qwen3_moe, qwen3_next, the text decoder of
// qwen3_vl, and the MTP head of the hybrids) in float64, line by
// line as the published descriptions have it. No program, no nodes: the order of statements is the order of computation.
// Sources: transformers modeling_llama.py, modeling_olmo2.py, modeling_qwen2.py, modeling_qwen3.py,
// modeling_qwen3_vl.py.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dumps/names.h"
#include "engine/forced_experts.h"
#include "oracle/ops.h"
#include "oracle/weights.h"

namespace assay::oracle {

/// A computed value, and from which of the values that a tap named it was made ("layer.3/q_proj", "state:layer.3/k").
struct Value {
  Matrix64 m;                     // [rows of the pass, columns]
  std::vector<std::string> from;  // in the order of their first use, each once
};

/// What one sequence has left behind, per layer. Row p of k and v is position p; layers of a gated DeltaNet have none.
struct Cache64 {
  std::vector<Matrix64> k, v;              // [positions, kv_heads*head_dim]
  std::vector<Matrix64> conv, recurrent;   // [width, channels], oldest input first; [v_heads*d_k, d_v]
  Matrix64 mtp_k, mtp_v;                   // the MTP head's
  int64_t positions = 0;
  int64_t length() const { return positions; }
};

/// One forward call of one sequence.
struct PassInput {
  Pass pass = Pass::prefill;
  int32_t prompt = 0;
  int64_t step = 0;
  int64_t position = 0;             // of the first row
  std::vector<int32_t> ids;         // one per row
  std::vector<int64_t> logit_rows;  // rising; rows whose logits are computed
  Matrix64 hidden;                  // passes of the MTP head: [rows, hidden]
  std::shared_ptr<const ForcedExperts> experts = {};  // taken instead of what the routers choose, as far as they go
};

/// Sees every value right after it was computed, in execution order, and may put another in its place: what the tap
/// leaves there is what the following lines use. A tap that recorded the value, or replaced it, sets `from` to its
/// name.
class Tap {
 public:
  virtual ~Tap() = default;
  virtual void value(const PassInput& pass, int layer, std::string_view phase, Value& value) = 0;
  /// The rows of K and V that are about to be cached (k_rope and v_proj). Default: cached as they are.
  virtual void store(const PassInput& /*pass*/, int /*layer*/, Matrix64& /*k*/, Matrix64& /*v*/) {}
};

/// The name of a value inside a pass: "layer.3/q_proj", "embed"; in passes of the MTP head "mtp.0/q_proj".
std::string value_name(int layer, std::string_view phase, Pass pass = Pass::prefill);
/// Whether a phase's values are ids, which dumps have as I64.
bool is_ids(std::string_view phase);
/// Meaning of a phase's columns, as dumps say it: "hidden", "head*head_dim", "ffn", "vocab".
std::string axes_of(std::string_view phase);
/// The phases of a family's pass in execution order, those of layers once.
std::vector<std::string> phases_of(const Config& config);

/// Runs the rows of `pass` at positions pass.position.. behind `cache`, which grows by them. Returns the logits of
/// pass.logit_rows, [n, vocab]. `threads` 0: all cores. Throws Error{usage} for ids outside the vocabulary,
/// Error{internal} where pass.position is not the cache's length.
/// `hidden`: gets the final norm's rows, which an MTP head reads.
Matrix64 forward(const Weights64& weights, const PassInput& pass, Cache64& cache, Tap& tap, int threads = 0, Matrix64* hidden = nullptr);
/// A pass of the MTP head: row i joins pass.hidden's row i with the token that comes behind it, pass.ids[i]. `hidden`: gets the head's
/// own norm's rows, from which it drafts on.
Matrix64 forward_mtp(const Weights64& weights, const PassInput& pass, Cache64& cache, Tap& tap, int threads = 0, Matrix64* hidden = nullptr);

}  // namespace assay::oracle
