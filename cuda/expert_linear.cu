// Products by expert: each row of x times the rows of its experts' matrices, which lie behind each other in one packed matrix and
// are named by ids in device memory. engine/cpu_backend.cpp, expert_linear; the order of sums is that of linear.
//
// Three ways, with the same bytes: few pairs of a quantised type, expert_gemv.cu; more of them, sorted by expert here, in chunks of
// eight through quant_few.cu; the float rule (float types, widened ones), by the kernel below, chunks of eight or, where a row or
// two are all there is, each pair alone. Products of no expert are NaN.
//
// Sorting: a warp per expert, and one for the pairs of none. Its threads own pieces of the list of pairs, count theirs (first
// kernel), and know from all counts before where theirs go (second). It is stable, and nothing is added atomically.
#include <algorithm>

#include "cuda/device.h"
#include "cuda/experts.cuh"
#include "cuda/float_matrices.cuh"
#include "cuda/float_rule.cuh"

namespace assay {

bool experts_possible(const AssayExpertLinear& a) {
  constexpr int64_t kMost = int64_t(1) << 30;
  if (a.count < 1 || a.count > 2 || a.rows < 0 || a.experts < 1 || a.experts > 1 << 20 || a.chosen < 1 || a.chosen > a.experts ||
      a.rows > kMost / a.chosen || (a.gated && a.count != 2)) {
    return false;
  }
  for (int i = 0; i < a.count; i++) {
    const AssayWeight& w = a.w[i];
    if (!type_known(w.type) || w.rows < a.experts || w.rows % a.experts != 0 || w.rows > kMost || w.columns < 1 || w.columns > kMost ||
        w.columns % type_file_block_columns(w.type) != 0 || w.type != a.w[0].type || w.columns != a.w[0].columns ||
        (a.gated && w.rows != a.w[0].rows)) {
      return false;
    }
  }
  return true;
}

namespace {

constexpr int kSortThreads = 128, kSortWarps = kSortThreads / 32;

struct SortArgs {
  const float* ids;
  int32_t pairs, experts;
  int32_t* counts;  // [experts + 1][32]: of each thread's piece; the last class has no expert
  int32_t* chunks;  // [experts + 1]
  ExpertChunks out;
};

/// The pairs of a thread's piece whose class is `wanted`, in order.
template <class F>
__device__ __forceinline__ void each_of_piece(const SortArgs& a, int wanted, F&& f) {
  const int piece = (a.pairs + 31) / 32, first = lane_of_warp() * piece, end = first + piece < a.pairs ? first + piece : a.pairs;
#pragma unroll 8
  for (int i = first; i < end; i++) {
    const float id = a.ids[i];
    if ((id >= 0.0f ? (int)id : a.experts) == wanted) f(i);
  }
}

__global__ __launch_bounds__(kSortThreads) void count_by_expert(const SortArgs a) {
  const int expert = (int)blockIdx.x * kSortWarps + warp_of_block();
  let_next_start();
  wait_for_previous();
  if (expert > a.experts) return;
  int count = 0;
  each_of_piece(a, expert, [&](int) { count++; });
  a.counts[expert * 32 + lane_of_warp()] = count;
#pragma unroll
  for (int half = 16; half >= 1; half /= 2) count += shuffle_xor(count, half);
  if (lane_of_warp() == 0) a.chunks[expert] = (count + kChunkPairs - 1) / kChunkPairs;
}

__global__ __launch_bounds__(kSortThreads) void place_by_expert(const SortArgs a) {
  const int expert = (int)blockIdx.x * kSortWarps + warp_of_block(), t = lane_of_warp();
  let_next_start();
  wait_for_previous();
  if (expert > a.experts) return;
  int before = 0;  // chunks
  for (int e = t; e < expert; e += 32) before += a.chunks[e];
#pragma unroll
  for (int half = 16; half >= 1; half /= 2) before += shuffle_xor(before, half);
  const int mine = a.counts[expert * 32 + t], own_chunks = a.chunks[expert];
  int at = mine;  // becomes the pairs of the threads up to this one
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = shuffle(at, t - step);
    if (t >= step) at += other;
  }
  const int count = shuffle(at, 31);
  int place = before * kChunkPairs + at - mine;
  each_of_piece(a, expert, [&](int i) { a.out.pairs[place++] = i; });
  for (int i = before * kChunkPairs + count + t; i < (before + own_chunks) * kChunkPairs; i += 32) a.out.pairs[i] = -1;
  for (int c = before + t; c < before + own_chunks; c += 32) a.out.expert[c] = expert < a.experts ? expert : kNoExpert;
  if (expert < a.experts) return;
  for (int c = before + own_chunks + t; c < a.out.count; c += 32) a.out.expert[c] = kNoChunk;
  for (int i = (before + own_chunks) * kChunkPairs + t; i < a.out.count * kChunkPairs; i += 32) a.out.pairs[i] = -1;
}

// ---- the float rule

constexpr int kFloatThreads = 128, kFloatWarps = kFloatThreads / 32;

struct FloatExperts {
  PackedWeight w;
  const float* x;
  float* y;
  const float* ids;     // each pair alone; else null, and chunks
  ExpertChunks chunks;
  int32_t outputs, columns, per_row;
};

/// Blocks: [outputs][chunk]. A warp per output, thread t holds accumulators 8 t .. 8 t + 7 of each of up to eight pairs.
template <int32_t kType>
__global__ __launch_bounds__(kFloatThreads) void float_experts(const FloatExperts a, bool aligned) {
  const int t = lane_of_warp(), output = (int)blockIdx.x * kFloatWarps + warp_of_block();
  let_next_start();
  wait_for_previous();
  int expert, pairs[kChunkPairs];
#pragma unroll
  for (int i = 0; i < kChunkPairs; i++) pairs[i] = -1;
  if (a.ids) {
    pairs[0] = (int)blockIdx.y;
    const float id = a.ids[blockIdx.y];
    expert = id >= 0.0f ? (int)id : kNoExpert;
  } else {
    expert = a.chunks.expert[blockIdx.y];
    if (expert == kNoChunk) return;
#pragma unroll
    for (int i = 0; i < kChunkPairs; i++) pairs[i] = a.chunks.pairs[(int64_t)blockIdx.y * kChunkPairs + i];
  }
  if (output >= a.outputs) return;
  if (expert == kNoExpert) {
#pragma unroll
    for (int i = 0; i < kChunkPairs; i++) {
      if (pairs[i] >= 0 && t == 0) a.y[(int64_t)pairs[i] * a.outputs + output] = canonical_nan();
    }
    return;
  }
  const int64_t row = (int64_t)expert * a.outputs + output;
  float acc[kChunkPairs][8] = {};
  for (int k = 8 * t; k < a.columns; k += kFloatLanes) {
    float w[8];
    if constexpr (kType == kAnyQuantised) {
      widen_8(a.w, row, k, w);
    } else {
      widen_8<kType>(a.w, row, k, w);
    }
#pragma unroll
    for (int i = 0; i < kChunkPairs; i++) {
      if (pairs[i] < 0) continue;
      const float* x = a.x + (int64_t)(pairs[i] / a.per_row) * a.columns;
      step_eight(acc[i], w, load_x4(x, k, a.columns, aligned), load_x4(x, k + 4, a.columns, aligned));
    }
  }
#pragma unroll
  for (int i = 0; i < kChunkPairs; i++) {
    if (pairs[i] < 0) continue;
    const float product = fold_warp_eights(acc[i]);
    if (t == 0) a.y[(int64_t)pairs[i] * a.outputs + output] = product;
  }
}

constexpr int64_t kAlone = 16;  // pairs: fewer are not worth sorting

int float_by_expert(AssayDevice& d, const AssayExpertLinear& a) {
  const int64_t pairs = a.rows * a.chosen;
  const int64_t chunks = pairs <= kAlone ? pairs : most_chunks(pairs, a.experts);
  if (a.gated || chunks > 65535) return ASSAY_REFUSED;
  if (a.rows == 0) return ASSAY_DONE;
  FloatExperts g = {};
  g.x = a.x;
  g.per_row = int32_t(a.by_rank ? 1 : a.chosen);
  g.columns = int32_t(a.w[0].columns);
  if (pairs <= kAlone) {
    g.ids = a.ids;
  } else if (const int result = sort_by_expert(d, a, g.chunks); result != ASSAY_DONE) {
    return result;
  }
  const bool aligned = g.columns % 4 == 0 && (reinterpret_cast<uintptr_t>(a.x) & 15) == 0;
  int result = ASSAY_DONE;
  for (int i = 0; i < a.count && result == ASSAY_DONE; i++) {
    g.w = packed_weight(a.w[i]);
    g.y = a.y[i];
    g.outputs = int32_t(a.w[i].rows / a.experts);
    const auto kernel = a.w[i].type == ASSAY_F32    ? float_experts<ASSAY_F32>
                        : a.w[i].type == ASSAY_F16  ? float_experts<ASSAY_F16>
                        : a.w[i].type == ASSAY_BF16 ? float_experts<ASSAY_BF16>
                                                    : float_experts<kAnyQuantised>;
    result = launch(d, "float_experts", Overlap::yes, kernel, dim3(unsigned((g.outputs + kFloatWarps - 1) / kFloatWarps), unsigned(chunks)),
                    kFloatThreads, 0, g, aligned);
  }
  return result;
}

}  // namespace

size_t expert_scratch_bytes(const AssayLimits& limits) {
  if (limits.experts == 0 || limits.chosen == 0) return 0;
  const size_t classes = size_t(limits.experts) + 1;
  return (classes * 33 + size_t(most_chunks(limits.rows * limits.chosen, limits.experts)) * (1 + kChunkPairs)) * sizeof(int32_t);
}

int sort_by_expert(AssayDevice& d, const AssayExpertLinear& a, ExpertChunks& out) {
  const AssayLimits here = {a.rows, 0, 0, 0, 0, a.experts, a.chosen};
  if (expert_scratch_bytes(here) > d.experts.bytes) {
    return failed(d, ASSAY_ERROR, "expert_linear: sorted rows need %zu bytes of scratch, %zu are reserved", expert_scratch_bytes(here),
                  d.experts.bytes);
  }
  SortArgs s = {};
  s.ids = a.ids;
  s.pairs = int32_t(a.rows * a.chosen);
  s.experts = int32_t(a.experts);
  s.counts = reinterpret_cast<int32_t*>(d.experts.memory);
  s.chunks = s.counts + (s.experts + 1) * 32;
  s.out.count = int32_t(most_chunks(s.pairs, s.experts));
  s.out.expert = s.chunks + s.experts + 1;
  s.out.pairs = s.out.expert + s.out.count;
  out = s.out;
  const dim3 grid = dim3(unsigned((s.experts + 1 + kSortWarps - 1) / kSortWarps));
  const int result = launch(d, "count_by_expert", Overlap::yes, count_by_expert, grid, kSortThreads, 0, s);
  return result != ASSAY_DONE ? result : launch(d, "place_by_expert", Overlap::yes, place_by_expert, grid, kSortThreads, 0, s);
}

int expert_linear(AssayDevice& d, const AssayExpertLinear& a) {
  if (!experts_possible(a)) return ASSAY_REFUSED;
  if (!type_quantised(a.w[0].type) || a.activations == ASSAY_ACTIVATIONS_F32) return float_by_expert(d, a);
  if (a.activations != ASSAY_ACTIVATIONS_S16 && a.activations != ASSAY_ACTIVATIONS_S8) return ASSAY_REFUSED;
  if (a.gated || (a.rows > 0 && a.rows <= kGemvRows)) {
    const int result = gemv_by_expert(d, a);
    if (result != ASSAY_REFUSED || a.gated) return result;
  }
  return few_by_expert(d, a);
}

}  // namespace assay
