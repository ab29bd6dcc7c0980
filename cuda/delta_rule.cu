// The gated delta rule of one value head, row after row: S = S * exp(decay); kv = k . S; delta = (v - kv) * beta;
// S = fma(k, delta, S); y = q . S. Sums over d_k by the head rule: 32 accumulators by i mod 32, fold 16 .. 1, add +0.
// engine/ops/delta_rule.cpp.
//
// One launch for all rows of a pass. A block has 32 columns of a value head of a span, a warp 8 of them, four neighbouring threads
// a column: thread p of the four has the elements i of the column with i mod 4 = p, in registers from the first row to the last, so
// that accumulators 16, 8 and 4 apart are its own and two shuffles end a sum. k, q, v and beta of the next rows are on their way to
// shared memory while a row is computed, k and q so that a thread's elements lie in fours.
// Fused: what the convolution gave is on its way in registers, a warp has a row of a stage, norms its q and k (norm.cpp, l2_norm)
// and makes beta and decay; every block of a head does so again.
// Bytes: S once in and once out (and once more behind every row that is kept), per row q and k once per 32 columns, v and y.
// PRECOND: d_k <= 256.
#include "cuda/device.h"
#include "cuda/float_rule.cuh"

namespace assay {
namespace {

constexpr int kThreads = 128, kColumns = 32, kAhead = 4;  // rows in a stage; two stages

/// Where element i of k or q lies in a row's shared memory: [p][m][j], i = 32 m + 4 j + p; p's part is 16 bytes longer than its
/// data against bank conflicts.
template <int kParts>
__device__ __forceinline__ int place_of_element(int i) {
  return i % 4 * (8 * kParts + 4) + i / 32 * 8 + i % 32 / 4;
}

/// kParts: of 32 elements of d_k.
template <int kParts>
struct DeltaRow {
  static constexpr int kVector = 4 * (8 * kParts + 4);  // floats of k, of q
  static constexpr int kFloats = 2 * kVector + kColumns + 4;  // k, q, v, beta, exp(decay)
  static constexpr int kShared = 2 * kAhead * kFloats * 4;
};

/// Folds this thread's eight accumulators, then those of the column's four threads: 16, 8, 4, 2, 1, and adds +0.
__device__ __forceinline__ float fold_column(float* acc) {
#pragma unroll
  for (int half = 4; half >= 1; half /= 2) {
#pragma unroll
    for (int j = 0; j < half; j++) acc[j] = add_f32(acc[j], acc[j + half]);
  }
  float y = add_f32(acc[0], shuffle_xor(acc[0], 2));
  y = add_f32(y, shuffle_xor(y, 1));
  return add_f32(y, 0.0f);
}

/// A row of what the convolution gave, as a warp has it: element 32 m + lane of q and k, column lane of v.
template <int kParts>
struct RawRow {
  float q[kParts], k[kParts], v, b, a;
};
static_assert(kThreads / 32 == kAhead, "a warp per row of a stage");

/// Blocks: [span * v_heads + head][32 columns]. kWhole: d_k is 32 kParts. kFused: of a.conv.
template <int kParts, bool kWhole, bool kFused>
__global__ __launch_bounds__(kThreads) void delta_rule_kernel(const AssayDeltaRule a) {
  using Row = DeltaRow<kParts>;
  SHARED_BYTES(shared);
  float* const staged = reinterpret_cast<float*>(shared);
  const AssayStates& states = a.states;
  const int tid = (int)threadIdx.x, p = tid % 4, in_block = tid / 4, d_k = (int)states.k_dim;
  const int64_t v_heads = states.v_heads, d_v = states.v_dim, head = blockIdx.x % v_heads, key_head = head / (v_heads / a.k_heads);
  const int64_t first_column = (int64_t)blockIdx.y * kColumns, column = first_column + in_block;
  const bool real = column < d_v;
  let_next_start();
  wait_for_previous();
  const AssaySpan span = states.spans[blockIdx.x / v_heads];

  const auto fill = [&](int64_t from, int stage) {  // rows from .. from + kAhead
#pragma unroll
    for (int n = 0; n < kAhead; n++) {
      if (from + n >= span.rows) break;
      const int64_t row = span.first + from + n;
      float* to = staged + (stage * kAhead + n) * Row::kFloats;
      const int64_t key = (row * a.k_heads + key_head) * d_k, value = row * v_heads + head;
      for (int i = tid; i < d_k; i += kThreads) {
        copy_async<4>(to + place_of_element<kParts>(i), a.k + key + i);
        copy_async<4>(to + Row::kVector + place_of_element<kParts>(i), a.q + key + i);
      }
      if (tid < kColumns && first_column + tid < d_v) copy_async<4>(to + 2 * Row::kVector + tid, a.v + value * d_v + first_column + tid);
      if (tid == 32) copy_async<4>(to + 2 * Row::kVector + kColumns, a.beta + value);
      if (tid == 64) to[2 * Row::kVector + kColumns + 1] = exp_f32(a.decay[value]);
    }
    copy_commit();
  };
  RawRow<kParts> raw;
  const int lane = tid % 32;
  const auto load = [&](int64_t from) {  // this warp's of rows from .. from + kAhead
    const int64_t r = from + tid / 32, row = span.first + r, keys = a.k_heads * d_k;
    if (r >= span.rows) return;
    const float* x = a.conv + row * states.channels + lane;
#pragma unroll
    for (int m = 0; m < kParts; m++) {
      const bool real_key = kWhole || 32 * m + lane < d_k;
      raw.q[m] = real_key ? x[key_head * d_k + 32 * m] : 0.0f;
      raw.k[m] = real_key ? x[keys + key_head * d_k + 32 * m] : 0.0f;
    }
    raw.v = first_column + lane < d_v ? x[2 * keys + head * d_v + first_column] : 0.0f;
    raw.b = a.b[row * v_heads + head];
    raw.a = a.a[row * v_heads + head];
  };
  const auto stage_raw = [&](int64_t from, int stage) {  // what was loaded
    if (from + tid / 32 >= span.rows) return;
    float* to = staged + (stage * kAhead + tid / 32) * Row::kFloats;
    float of_q = 0.0f, of_k = 0.0f;
#pragma unroll
    for (int m = 0; m < kParts; m++) of_q = fma_f32(raw.q[m], raw.q[m], of_q), of_k = fma_f32(raw.k[m], raw.k[m], of_k);
    const float q = div_f32(1.0f, sqrt_f32(add_f32(fold_warp(of_q), 1e-6f))), k = div_f32(1.0f, sqrt_f32(add_f32(fold_warp(of_k), 1e-6f)));
#pragma unroll
    for (int m = 0; m < kParts; m++) {
      const int place = place_of_element<kParts>(32 * m + lane);
      to[place] = mul_f32(raw.k[m], k);
      to[Row::kVector + place] = mul_f32(mul_f32(raw.q[m], q), a.scale);
    }
    to[2 * Row::kVector + lane] = raw.v;
    if (lane == 0) to[2 * Row::kVector + kColumns] = sigmoid_f32(raw.b);
    if (lane == 1) to[2 * Row::kVector + kColumns + 1] = exp_f32(mul_f32(a.decay_w[head], softplus_f32(add_f32(raw.a, a.decay_w[v_heads + head]))));
  };
  if constexpr (kFused) {
    load(0);
    stage_raw(0, 0);
    load(kAhead);
  } else {
    fill(0, 0);
    fill(kAhead, 1);
  }

  float s[kParts][8];
  const int64_t in_state = head * d_k * d_v + column;
  const auto there = [&](int m, int j) { return kWhole || 32 * m + 4 * j + p < d_k; };
  const float* from = states.state + span.entry * states.stride + in_state;
#pragma unroll
  for (int m = 0; m < kParts; m++) {
#pragma unroll
    for (int j = 0; j < 8; j++) s[m][j] = real && there(m, j) ? from[(32 * m + 4 * j + p) * d_v] : 0.0f;
  }

  for (int64_t r = 0; r < span.rows; r++) {
    const int stage = (int)(r / kAhead % 2), n = (int)(r % kAhead);
    if (n == 0) {
      if constexpr (!kFused) copy_wait<1>();
      sync_block();
      if constexpr (kFused) {  // the other stage was read before this barrier
        stage_raw(r + kAhead, 1 - stage);
        load(r + 2 * kAhead);
      }
    }
    const float* row = staged + (stage * kAhead + n) * Row::kFloats;
    const float kept = row[2 * Row::kVector + kColumns + 1];
    const float4* k = reinterpret_cast<const float4*>(row + p * (8 * kParts + 4));
    const float4* q = reinterpret_cast<const float4*>(row + Row::kVector + p * (8 * kParts + 4));
    float key[kParts][8], acc[8] = {};
#pragma unroll
    for (int m = 0; m < kParts; m++) {
      const float4 low = k[2 * m], high = k[2 * m + 1];
      key[m][0] = low.x, key[m][1] = low.y, key[m][2] = low.z, key[m][3] = low.w;
      key[m][4] = high.x, key[m][5] = high.y, key[m][6] = high.z, key[m][7] = high.w;
#pragma unroll
      for (int j = 0; j < 8; j++) {
        if (!there(m, j)) continue;  // what lies there is nothing: 0 * exp(decay) may be NaN
        s[m][j] = mul_f32(s[m][j], kept);
        acc[j] = fma_f32(key[m][j], s[m][j], acc[j]);
      }
    }
    const float v = real ? row[2 * Row::kVector + in_block] : 0.0f;
    const float delta = mul_f32(sub_f32(v, fold_column(acc)), row[2 * Row::kVector + kColumns]);
    float out[8] = {};
#pragma unroll
    for (int m = 0; m < kParts; m++) {
      const float4 low = q[2 * m], high = q[2 * m + 1];
      const float query[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int j = 0; j < 8; j++) {
        if (!there(m, j)) continue;
        s[m][j] = fma_f32(key[m][j], delta, s[m][j]);
        out[j] = fma_f32(query[j], s[m][j], out[j]);
      }
    }
    const float y = fold_column(out);
    if (real && p == 0) a.y[((span.first + r) * v_heads + head) * d_v + column] = y;
    if (const int32_t entry = states.after[span.first + r]; real && entry >= 0) {
      float* to = states.state + entry * states.stride + in_state;
#pragma unroll
      for (int m = 0; m < kParts; m++) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
          if (there(m, j)) to[(32 * m + 4 * j + p) * d_v] = is_nan(s[m][j]) ? canonical_nan() : s[m][j];
        }
      }
    }
    if (!kFused && n == kAhead - 1) {
      sync_block();  // nobody reads the stage any more
      fill(r + 1 + kAhead, stage);
    }
  }
}

template <int kParts>
void (*kernel_of(bool whole, bool fused))(AssayDeltaRule) {
  if (fused) return whole ? delta_rule_kernel<kParts, true, true> : delta_rule_kernel<kParts, false, true>;
  return whole ? delta_rule_kernel<kParts, true, false> : delta_rule_kernel<kParts, false, false>;
}

}  // namespace

int delta_rule(AssayDevice& d, const AssayDeltaRule& a) {
  const AssayStates& s = a.states;
  if (s.k_dim < 1 || s.k_dim > 256 || s.v_dim < 1 || a.k_heads < 1 || s.v_heads < a.k_heads || s.v_heads % a.k_heads != 0) return ASSAY_REFUSED;
  const int64_t blocks = s.span_count * s.v_heads, columns = (s.v_dim + kColumns - 1) / kColumns;
  if (blocks > INT32_MAX || columns > 65535) return ASSAY_REFUSED;
  if (a.conv && s.channels != 2 * a.k_heads * s.k_dim + s.v_heads * s.v_dim) return ASSAY_REFUSED;
  if (a.rows == 0) return ASSAY_DONE;
  const bool whole = s.k_dim % 32 == 0;
  const auto run = [&]<int kParts>() {
    return launch(d, a.conv ? "delta_rule_fused" : "delta_rule", Overlap::yes, kernel_of<kParts>(whole, a.conv != nullptr), dim3((unsigned)blocks, (unsigned)columns), kThreads,
                  size_t(DeltaRow<kParts>::kShared), a);
  };
  switch ((s.k_dim + 31) / 32) {
    case 1: return run.template operator()<1>();
    case 2: return run.template operator()<2>();
    case 3: return run.template operator()<3>();
    case 4: return run.template operator()<4>();
    case 5: return run.template operator()<5>();
    case 6: return run.template operator()<6>();
    case 7: return run.template operator()<7>();
    default: return run.template operator()<8>();
  }
}

}  // namespace assay
