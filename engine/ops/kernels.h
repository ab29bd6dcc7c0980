// The table of CPU kernels: one set per instruction set, chosen at run time, all byte-identical (engine/NUMERICS.md).
// An op's meaning, its order of sums and its forms stand in ops/<op>.cpp. That file is compiled once per instruction set, with
// ASSAY_ISA naming the namespace; it defines one function per op there, collected by ops/isa_table.cpp.
//
// Every kernel works on a range [begin, end) of work items, so that a thread pool may cut it anywhere: no item's bits depend
// on the cut. Preconditions are the caller's (cpu_backend.cpp); kernels check nothing.
#pragma once
#include <cstdint>

#include "engine/model.h"

namespace assay {

enum class Isa : uint8_t { scalar, avx2, avx512, avx512vnni, neon };   // avx2: with FMA and F16C; avx512: F, BW, DQ, VL; + VNNI
/// The sets of this build, slowest first. The CPU may have fewer (isa_supported).
#if defined(__x86_64__)
inline constexpr Isa kBuiltIsas[] = {Isa::scalar, Isa::avx2, Isa::avx512, Isa::avx512vnni};
#elif defined(__aarch64__)
inline constexpr Isa kBuiltIsas[] = {Isa::scalar, Isa::neon};
#else
inline constexpr Isa kBuiltIsas[] = {Isa::scalar};
#endif

/// y[t][n] = sum over k of w[n][k] * x[t][k], by the float rule (quantised rows are widened first), + bias[n].
/// Items: output rows n.
struct LinearArgs {
  Matrix w;                 // [n, k]
  const float* bias;        // [n] or null
  const float* x;           // [tokens, k]
  float* y;                 // [tokens, n]
  int64_t tokens;
};
/// Activation rows as 16 or 8 bit integers in groups of 32 along K: what quantise writes and quant_linear reads.
struct QuantisedRows {
  Activations kind;         // s16 or s8: how fine the codes are
  int code_bytes;           // how they are stored, by what the product wants (code_bytes_for)
  int64_t rows, columns;    // columns: a multiple of 32
  std::byte* codes;         // 2: int16 [rows][columns]; 1: int8 [rows][columns], columns 1 and 2 of every four swapped
  float* scales;            // [rows][columns / 32]; NaN where the group holds an Inf or NaN, its codes are then 0
  int32_t* sums;            // [rows][columns / 32][2]: of the codes of each half of a group
};
/// Items: groups, row * (columns / 32) + group.
struct QuantiseArgs {
  const float* x;           // [rows, columns]
  QuantisedRows out;
};
/// y[t][n] by the rule of quantised weights, + bias[n]. Items: panels of 16 output rows (panel.h).
struct QuantLinearArgs {
  Matrix w;                 // [n, k], quantised
  const std::byte* panels;  // SIMD sets read these, the scalar set reads w and none
  QuantisedRows x;
  const float* bias;        // [n] or null
  float* y;                 // [tokens, n]
};
/// y[t] = widened row ids[t] of the table. Items: t.
struct EmbedArgs {
  Matrix table;             // [vocab, hidden]
  const int32_t* ids;       // [tokens], each in [0, vocab)
  float* y;                 // [tokens, hidden]
};
/// Items: rows. RMS norm over `columns`: the float rule. For head_norm every row has `heads` groups of `head_dim`: the head rule.
struct NormArgs {
  const float* x;           // [rows, columns] or [rows, heads*head_dim]
  const float* w;           // [columns] or [head_dim]
  float* y;
  int64_t columns;          // rms_norm
  int64_t heads, head_dim;  // head_norm
  float eps;
  // head_norm of heads that lie apart in x (queries beside their gates): columns of a row of x, and from one head to the
  // next. 0: heads*head_dim and head_dim.
  int64_t x_columns = 0, x_stride = 0;
};
/// l2 norm per head, by the head rule. Items: rows.
struct L2NormArgs {
  const float* x;           // [rows, x_columns], of which the first head's first column is meant
  float* y;                 // [rows, heads*head_dim]
  int64_t x_columns;
  int64_t heads, head_dim;
  float scale;              // a last factor: 1 (k), (float)(1.0 / sqrt((double)head_dim)) (q)
};
/// Norm per head, by the head rule, times silu(z). Items: rows.
struct GatedNormArgs {
  const float* x;           // [rows, heads*head_dim]
  const float* z;           // the same
  const float* w;           // [head_dim]
  float* y;
  int64_t heads, head_dim;
  float eps;
};
/// Items: rows. cos/sin: [context, rotary/2] f32, made on the host in double (ops/rope_table.h).
struct RopeArgs {
  const float* x;           // [rows, heads*head_dim]
  float* y;
  const int64_t* positions; // [rows]
  const float* cos;
  const float* sin;
  int64_t heads, head_dim, rotary;
};
/// A token row's place in the state.
struct RowPlace {
  int32_t slot;
  int64_t position;
};
/// Rounds k and v rows into the cache. Items: rows. *overflow gets the smallest row*columns+column whose finite value does not
/// fit f16 (k first, then v at +rows*columns), or stays as it is; it must be int64_t of at least that range, set to INT64_MAX.
struct KvStoreArgs {
  const float* k;           // [rows, kv_heads*head_dim]
  const float* v;
  const RowPlace* places;   // [rows]
  KvLayer cache;
  int64_t rows;
  int64_t* overflow;        // shared by threads: written atomically
};
/// Causal attention of each row over positions 0..position of its slot, as stored. Items: row*heads + head.
/// scratch: at least attention_scratch_floats() per worker.
struct AttentionArgs {
  const float* q;           // [rows, heads*head_dim]
  float* y;                 // [rows, heads*head_dim]
  const RowPlace* places;
  KvLayer cache;
  int64_t heads;
  float scale;              // (float)(1.0 / sqrt((double)head_dim))
};
/// Items: rows of `columns`. silu_mul: y = silu(a) * b. sigmoid_mul: y = a * sigmoid(b). add: y = a + b.
struct BinaryArgs {
  const float* a;
  const float* b;
  float* y;
  int64_t columns;
};
/// Which experts a row goes to. Items: rows. Ids are whole numbers in f32, as every value of a program is (exact below 2^24):
/// -1 in all places of a row whose logits hold a NaN.
struct TopkArgs {
  const float* logits;      // [rows, experts]
  float* ids;               // [rows, chosen], 1 <= chosen <= experts
  int64_t experts, chosen;
};
/// Items: rows.
struct TopkWeightsArgs {
  const float* logits;      // [rows, experts]
  const float* ids;         // [rows, chosen], each -1 or in [0, experts)
  float* y;                 // [rows, chosen]
  int64_t experts, chosen;
  bool normalised;          // the weights of a row are divided by their sum
};
/// y[t] = sum over r of weights[t][r] * x[t][r], in rank order. Items: rows.
struct ExpertSumArgs {
  const float* weights;     // [rows, chosen]
  const float* x;           // [rows, chosen, columns]
  float* y;                 // [rows, columns]
  int64_t chosen, columns;
};
/// y[t] = sigmoid(gate[t]) * shared[t] + x[t]. Items: rows. y may be x or shared.
struct GatedAddArgs {
  const float* gate;        // [rows]
  const float* shared;      // [rows, columns]
  const float* x;           // [rows, columns]
  float* y;                 // [rows, columns]
  int64_t columns;
};

/// Items: rows of `columns`.
struct SigmoidArgs {
  const float* x;
  float* y;
  int64_t columns;
};
/// The log of what a state keeps: y = rate * softplus(x + dt). Items: rows.
struct DecayArgs {
  const float* x;           // [rows, heads]
  const float* w;           // [2, heads]: rate = -exp(A_log), then dt
  float* y;
  int64_t heads;
};
/// Consecutive rows of one sequence, which follow what the slot's state has seen.
struct RowSpan {
  int32_t slot;
  int64_t first, rows;
};
/// Causal depthwise convolution and silu; the slot's last `width` inputs are read and replaced.
/// Items: span * conv_blocks(channels) + block of kConvBlock channels.
inline constexpr int64_t kConvBlock = 64;
inline int64_t conv_blocks(int64_t channels) { return (channels + kConvBlock - 1) / kConvBlock; }
struct ConvArgs {
  const float* x;           // [rows, channels]
  const float* w;           // [width, channels]: the oldest input's tap first
  float* y;                 // [rows, channels]
  float* state;             // [slots, width, channels], oldest first
  const RowSpan* spans;
  int64_t channels, width;
};
/// The gated delta rule, step by step; the slot's state is read and replaced.
/// Items: (span * v_heads + head) * delta_blocks(d_v) + block of kDeltaBlock columns of the values.
inline constexpr int64_t kDeltaBlock = 32;
inline int64_t delta_blocks(int64_t d_v) { return (d_v + kDeltaBlock - 1) / kDeltaBlock; }
struct DeltaRuleArgs {
  const float* q;           // [rows, k_heads*d_k], normalised and scaled
  const float* k;           // [rows, k_heads*d_k], normalised
  const float* v;           // [rows, v_heads*d_v]
  const float* beta;        // [rows, v_heads]
  const float* decay;       // [rows, v_heads], a log
  float* y;                 // [rows, v_heads*d_v]
  float* state;             // [slots, v_heads, d_k, d_v]
  const RowSpan* spans;
  int64_t k_heads, v_heads, d_k, d_v;
};

struct Kernels {
  Isa isa;
  void (*linear)(const LinearArgs&, int64_t begin, int64_t end);
  void (*quantise)(const QuantiseArgs&, int64_t begin, int64_t end);
  void (*quant_linear)(const QuantLinearArgs&, int64_t begin, int64_t end);
  void (*embed)(const EmbedArgs&, int64_t begin, int64_t end);
  void (*rms_norm)(const NormArgs&, int64_t begin, int64_t end);
  void (*head_norm)(const NormArgs&, int64_t begin, int64_t end);
  void (*rope)(const RopeArgs&, int64_t begin, int64_t end);
  void (*kv_store)(const KvStoreArgs&, int64_t begin, int64_t end);
  void (*attention)(const AttentionArgs&, int64_t begin, int64_t end, float* scratch);
  void (*silu_mul)(const BinaryArgs&, int64_t begin, int64_t end);
  void (*add)(const BinaryArgs&, int64_t begin, int64_t end);
  void (*sigmoid_mul)(const BinaryArgs&, int64_t begin, int64_t end);
  void (*sigmoid)(const SigmoidArgs&, int64_t begin, int64_t end);
  void (*l2_norm)(const L2NormArgs&, int64_t begin, int64_t end);
  void (*gated_norm)(const GatedNormArgs&, int64_t begin, int64_t end);
  void (*decay)(const DecayArgs&, int64_t begin, int64_t end);
  void (*conv)(const ConvArgs&, int64_t begin, int64_t end);
  void (*delta_rule)(const DeltaRuleArgs&, int64_t begin, int64_t end);
  void (*topk)(const TopkArgs&, int64_t begin, int64_t end);
  void (*topk_weights)(const TopkWeightsArgs&, int64_t begin, int64_t end);
  void (*expert_sum)(const ExpertSumArgs&, int64_t begin, int64_t end);
  void (*gated_add)(const GatedAddArgs&, int64_t begin, int64_t end);
};
/// Bytes per code in which quant_linear of `isa` takes activations of a kind for weights of a type: 1 or 2. Always 2 for
/// s16; 2 for s8 with Q8_0 where no instruction multiplies unsigned by signed bytes exactly.
int code_bytes_for(Isa isa, WeightType type, Activations kind);
/// Floats of scratch that one attention worker needs for sequences of up to `positions`.
int64_t attention_scratch_floats(int64_t positions, int64_t head_dim);

std::string_view name_of(Isa isa);
bool isa_supported(Isa isa);          // by this CPU and this build
Isa best_isa();
const Kernels& kernels(Isa isa);      // precondition: isa_supported(isa)

}  // namespace assay
