// Shared by the kernels of attention that take rows one by one (attention_decode.cu): how work is split, the dots of a position
// with all query heads of its kv head, and the fold over classes.
//
// A unit of work has one row, one kv head, up to 8 query heads that share it, and one class of positions: those that are c mod
// 2^class_bits. 16 bytes of a key row lie with one thread, so a team of 4 threads (f32: 8) holds the 32 accumulators of the head
// rule, each in increasing d; 16, 8 (and 4) fold across the team, the rest inside. In each fold across, a thread keeps the first
// half of its heads and gives the sums of the other half away: the team meets the heads in an order of its own (Team::flip), so
// that no value is selected.
#pragma once
#include "cuda/attention.cuh"

namespace assay {

constexpr int kDecodeThreads = 256;    // fewer where rings of long heads do not fit
constexpr int kUnits = 6, kTaken = 2;  // positions in a team's ring; how many are worked on at once
static_assert(kTaken == 2 && kUnits % kTaken == 0);

struct DecodeJob {
  AttentionCall call;
  float* scores;    // [row - first][head][class][per_class]
  int32_t* maxima;  // [row - first][head][class], as ordered_of
  float* partial;   // [row - first][head][class][head_dim]
  float* sums;      // [row - first][head][class]
  int first, rows;
  int class_bits, per_class, head_blocks;
  Rows which;
};

/// What a block works on.
struct DecodeUnit {
  int head, heads, position_class, count;  // first query head, how many; the class and how many positions it has
  int64_t item;                            // (row - first) * heads + head
  int64_t cached;                          // element where the kv head's rows start in the cache
};
template <int kHeads>
__device__ __forceinline__ DecodeUnit decode_unit(const DecodeJob& job, int row, int u) {
  const AttentionCall& a = job.call;
  const int group = a.heads / a.kv_heads, classes = 1 << job.class_bits;
  const int block = (u >> job.class_bits) % job.head_blocks, kv_head = (u >> job.class_bits) / job.head_blocks;
  const AssayPlace place = a.places[row];
  DecodeUnit unit;
  unit.position_class = u & (classes - 1);
  unit.head = kv_head * group + block * kHeads;
  unit.heads = group - block * kHeads < kHeads ? group - block * kHeads : kHeads;
  unit.count = (int)((place.position + classes - unit.position_class) >> job.class_bits);
  unit.item = (int64_t)(row - job.first) * a.heads + unit.head;
  unit.cached = ((int64_t)place.slot * a.kv_heads + kv_head) * a.context * a.head_dim;
  return unit;
}

/// The threads that share one position for its dots.
template <int kType, int kHeads>
struct Team {
  static constexpr int kThreads = 32 / kPiece<kType>, kPerWarp = 32 / kThreads;
  static constexpr int kKept = kHeads > kThreads ? kHeads / kThreads : 1;  // heads that a thread ends with

  /// Thread t meets head n ^ flip(t) as its n-th.
  static __device__ __forceinline__ int flip(int t) {
    int f = 0;
#pragma unroll
    for (int bit = kThreads / 2, half = kHeads / 2; bit >= 1 && half >= 1; bit /= 2, half /= 2) f |= (t & bit) ? half : 0;
    return f;
  }
  /// Where heads ran out before threads, several end with the same one.
  static __device__ __forceinline__ bool writes(int t) { return kHeads >= kThreads || (t & (kThreads / kHeads - 1)) == 0; }
};

/// acc[..][0 .. kKept) become the whole sums. Lane l of the head rule: element l mod kPiece of thread l / kPiece.
template <int kType, int kHeads, int kAtOnce>
__device__ __forceinline__ void fold_team(float (&acc)[kAtOnce][kHeads][kPiece<kType>]) {
  using T = Team<kType, kHeads>;
#pragma unroll
  for (int bit = T::kThreads / 2, half = kHeads / 2; bit >= 1; bit /= 2, half /= 2) {
    const int kept = half >= 1 ? half : 1;
#pragma unroll
    for (int u = 0; u < kAtOnce; u++) {
#pragma unroll
      for (int n = 0; n < kept; n++) {
#pragma unroll
        for (int j = 0; j < kPiece<kType>; j++) {
          acc[u][n][j] = add_f32(acc[u][n][j], shuffle_xor(acc[u][n + half][j], bit * T::kPerWarp));
        }
      }
    }
  }
#pragma unroll
  for (int half = kPiece<kType> / 2; half >= 1; half /= 2) {
#pragma unroll
    for (int u = 0; u < kAtOnce; u++) {
#pragma unroll
      for (int n = 0; n < T::kKept; n++) {
#pragma unroll
        for (int j = 0; j < half; j++) acc[u][n][j] = add_f32(acc[u][n][j], acc[u][n][j + half]);
      }
    }
  }
}

/// Dots of kAtOnce positions with all heads: keys[u] is the thread's first piece of each, 32 pieces apart; q its floats.
template <int kType, int kHeads, int kAtOnce>
__device__ __forceinline__ void dots(const uint4* const (&keys)[kAtOnce], const float* q, int chunks,
                                     float (&out)[kAtOnce][Team<kType, kHeads>::kKept]) {
  constexpr int kElements = kPiece<kType>;
  float acc[kAtOnce][kHeads][kElements];
#pragma unroll
  for (int u = 0; u < kAtOnce; u++) {
#pragma unroll
    for (int n = 0; n < kHeads; n++) {
#pragma unroll
      for (int j = 0; j < kElements; j++) acc[u][n][j] = 0.0f;
    }
  }
  for (int i = 0; i < chunks; i++) {
    float key[kAtOnce][kElements];
#pragma unroll
    for (int u = 0; u < kAtOnce; u++) widen_piece<kType>(keys[u][i * 32], key[u]);
    const float4* from = reinterpret_cast<const float4*>(q + i * 32 * kHeads);
#pragma unroll
    for (int n = 0; n < kHeads; n++) {
#pragma unroll
      for (int part = 0; part < kElements / 4; part++) {
        const float4 four = from[n * (kElements / 4) + part];
        const float x[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int u = 0; u < kAtOnce; u++) {
#pragma unroll
          for (int j = 0; j < 4; j++) acc[u][n][4 * part + j] = fma_f32(x[j], key[u][4 * part + j], acc[u][n][4 * part + j]);
        }
      }
    }
  }
  fold_team<kType, kHeads, kAtOnce>(acc);
#pragma unroll
  for (int u = 0; u < kAtOnce; u++) {
#pragma unroll
    for (int n = 0; n < Team<kType, kHeads>::kKept; n++) out[u][n] = add_f32(acc[u][n][0], 0.0f);
  }
}

/// Value c of the classes lies at from[c * stride].
__device__ __forceinline__ float fold_classes(const float* from, int64_t stride, int classes) {
  float f[16];
#pragma unroll
  for (int i = 0; i < 16; i++) {
    f[i] = i < classes ? from[i * stride] : 0.0f;
    if (classes > 32) {
      f[i] = add_f32(add_f32(f[i], from[(i + 32) * stride]), add_f32(from[(i + 16) * stride], from[(i + 48) * stride]));
    } else if (classes > 16) {
      f[i] = add_f32(f[i], from[(i + 16) * stride]);
    }
  }
  return add_f32(fold_16(f), 0.0f);
}

}  // namespace assay
