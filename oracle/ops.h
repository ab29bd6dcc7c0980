// The oracle's arithmetic: every op of a decoder as its paper states it, in float64, over plain row-major matrices.
// Nothing here is shared with engine/ops or numerics.h: sums run in another order, exp, sin, cos and pow are the C
// library's, and stored weights are widened by code of its own. Pure functions: no state, no result depends on the
// number of threads or on the machine's vector width.
//
// Shapes are [rows, columns]; rows are tokens. Preconditions (shapes that fit, positions >= 0) are the callers': a
// shape that does not fit throws Error{internal} with wanted and found.
//
// Sources: RMSNorm arXiv:1910.07467, RoPE arXiv:2104.09864 (pairs (j, j + rotary/2) as in transformers' rotate_half),
// GQA arXiv:2305.13245, SwiGLU arXiv:2002.05202, llama3 scaling: transformers modeling_rope_utils.py,
// _compute_llama3_parameters.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/model.h"  // RopeConfig, WeightType: descriptions, no arithmetic

namespace assay::oracle {

struct Matrix64 {
  int64_t rows = 0, columns = 0;
  std::vector<double> v;  // [rows, columns]
  Matrix64() = default;
  Matrix64(int64_t r, int64_t c) : rows(r), columns(c), v(size_t(r * c)) {}
  double* row(int64_t r) { return v.data() + r * columns; }
  const double* row(int64_t r) const { return v.data() + r * columns; }
  double& at(int64_t r, int64_t c) { return v[size_t(r * columns + c)]; }
  double at(int64_t r, int64_t c) const { return v[size_t(r * columns + c)]; }
};

/// A weight matrix [rows, columns] that is widened a few rows at a time, so that a vocabulary of any size costs no
/// memory. `read` puts rows [first, first + n) into `out` ([n, columns]) and is called from several threads.
struct WeightRows {
  int64_t rows = 0, columns = 0;
  std::function<void(int64_t first, int64_t n, double* out)> read;
};
/// Rows of a matrix that is in memory already; `m` must outlive the result.
WeightRows rows_of(const Matrix64& m);

/// `n` elements of `type` at `data` (any alignment), exactly: f16 and bf16 by their bits, blocks as scale * code +
/// minimum (layouts: engine/formats/quant.h), every one a double without rounding. Whole blocks. Non-finite values stay
/// so.
void widen(WeightType type, const std::byte* data, int64_t n, double* out);

/// Rows of a table: out[r] = table[ids[r]]. Ids below table.rows.
Matrix64 embed(const WeightRows& table, std::span<const int32_t> ids);

/// y[t, n] = sum_k x[t, k] * w[n, k] (+ bias[n]). x [T, K], w [N, K], bias [N] or empty. Each sum runs over k in order,
/// in blocks of 256 whose sums are added. `threads` 0: all cores.
Matrix64 linear(const Matrix64& x, const WeightRows& w, std::span<const double> bias = {}, int threads = 0);
Matrix64 linear(const Matrix64& x, const Matrix64& w, std::span<const double> bias = {}, int threads = 0);
/// sum_k |x[t, k] * w[n, k]|: what rounding bounds of linear are made of (engine/NUMERICS.md "Bounds").
Matrix64 linear_magnitude(const Matrix64& x, const WeightRows& w, int threads = 0);

/// y = x / sqrt(mean(x^2) + eps) * w over each row. x [T, K], w [K]. eps is taken as given: families pass the config's
/// decimal as a double, which is what the official code does in float64; who judges an engine that rounds eps to f32 by
/// kernel passes double(float(eps)).
Matrix64 rms_norm(const Matrix64& x, std::span<const double> w, double eps);
/// The same over each head. x [T, heads*head_dim], w [head_dim].
Matrix64 head_norm(const Matrix64& x, int64_t heads, int64_t head_dim, std::span<const double> w, double eps);

/// Frequencies of the rotary pairs, [rotary/2]: theta^(-2j/rotary), with llama3's scaling where the config asks for it.
std::vector<double> rope_frequencies(const RopeConfig& rope);
/// Turns the pairs (j, j + rotary/2) of every head by position * frequency[j]; columns from `rotary` on pass unchanged.
/// x [T, heads*head_dim], positions [T].
Matrix64 rope(const Matrix64& x, int64_t heads, int64_t head_dim, std::span<const int64_t> positions,
              const RopeConfig& config);

/// softmax(q.k / sqrt(head_dim)) v, causal: row t sees cached positions 0..positions[t]. q [T, heads*head_dim]; k and v
/// [P, kv_heads*head_dim], row p is position p, P > every position. Query head h reads kv head h / (heads / kv_heads).
Matrix64 attention(const Matrix64& q, const Matrix64& k, const Matrix64& v, std::span<const int64_t> positions,
                   int64_t heads, int64_t kv_heads, int64_t head_dim, int threads = 0);
/// What bounds of attention are made of, per row and query head: over the visible positions j the largest sum |q k_j|
/// (not scaled), the largest |score_j| and |score_j - max score| (scaled), and per column sum_j p_j |v_j| / sum_j p_j.
struct AttentionMagnitude {
  Matrix64 qk, score, spread;  // [T, heads] each
  Matrix64 mixed;              // [T, heads*head_dim]
};
AttentionMagnitude attention_magnitude(const Matrix64& q, const Matrix64& k, const Matrix64& v,
                                       std::span<const int64_t> positions, int64_t heads, int64_t kv_heads,
                                       int64_t head_dim, int threads = 0);

/// gate / (1 + exp(-gate)) * up, element by element.
Matrix64 silu_mul(const Matrix64& gate, const Matrix64& up);
Matrix64 add(const Matrix64& a, const Matrix64& b);

// Mixture of experts (arXiv:1701.06538; transformers modeling_qwen3_moe.py). Ids are whole numbers as doubles, -1: none.
/// The `chosen` largest of each row, by falling value, ties to the lower id: ids [T, chosen]. A row with a NaN: all -1.
Matrix64 topk(const Matrix64& logits, int64_t chosen);
/// Of the chosen ones, softmax over all experts, [T, chosen]; `normalised`: divided by their sum. NaN where the id is -1.
Matrix64 topk_weights(const Matrix64& logits, const Matrix64& ids, bool normalised);
/// y[t, r] = w[ids[t, r]] x[t] or, where x has a part per rank, x[t, r]. w [experts*N, K]: all experts behind each other;
/// y [T, chosen*N]; x [T, K] or [T, chosen*K]. NaN where the id is -1. One expert after another, each with its rows only.
Matrix64 expert_linear(const Matrix64& x, const Matrix64& ids, const WeightRows& w, int64_t experts, int threads = 0);
/// The same of |x| and |w|: what rounding bounds are made of.
Matrix64 expert_magnitude(const Matrix64& x, const Matrix64& ids, const WeightRows& w, int64_t experts, int threads = 0);
/// sum_r weights[t, r] x[t, r]. x [T, chosen*N], weights [T, chosen].
Matrix64 expert_sum(const Matrix64& x, const Matrix64& weights);
/// x + shared / (1 + exp(-gate)). gate [T, 1].
Matrix64 gated_add(const Matrix64& gate, const Matrix64& shared, const Matrix64& x);

// Gated DeltaNet and gated attention (gdn.cpp).
Matrix64 sigmoid(const Matrix64& x);
/// a / (1 + exp(-gate)).
Matrix64 sigmoid_mul(const Matrix64& a, const Matrix64& gate);
/// Columns [first, first + count) of x; the same of each of `groups` equal parts of a row, behind each other.
Matrix64 columns(const Matrix64& x, int64_t first, int64_t count);
Matrix64 part_of_groups(const Matrix64& x, int64_t groups, int64_t first, int64_t count);
/// x / sqrt(sum x^2 + eps) * factor over each head.
Matrix64 l2_norm(const Matrix64& x, int64_t heads, double factor, double eps = 1e-6);
/// head_norm(x) times z / (1 + exp(-z)). w [columns / heads].
Matrix64 gated_norm(const Matrix64& x, const Matrix64& z, int64_t heads, std::span<const double> w, double eps);
/// rate * log(1 + exp(a + dt)). a [T, heads], rate and dt [heads].
Matrix64 decay(const Matrix64& a, std::span<const double> rate, std::span<const double> dt);
/// Causal depthwise convolution, then silu. x [T, channels], w [channels, width]; taps [width, channels]: the last inputs, oldest
/// first, of before x, and afterwards of its end.
Matrix64 conv(const Matrix64& x, const Matrix64& w, Matrix64& taps);
/// Row by row S = exp(decay) S; S += k beta (v - k.S); y = q.S. q, k [T, k_heads*d_k], v [T, v_heads*d_v], beta, decay
/// [T, v_heads]; state [v_heads*d_k, d_v]. Value head h reads key head h / (v_heads / k_heads).
Matrix64 delta_rule(const Matrix64& q, const Matrix64& k, const Matrix64& v, const Matrix64& beta, const Matrix64& decay,
                    int64_t k_heads, Matrix64& state);

/// The index of the largest value, ties to the lower one; -1 if a value is NaN.
int64_t argmax(std::span<const double> row);

/// x rounded to the nearest value of a cache type, ties to even; beyond its largest value Inf, NaN stays NaN.
double round_to(KvType type, double x);

}  // namespace assay::oracle
