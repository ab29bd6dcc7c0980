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

/// All in one launch (attention_cluster.cu). Refused where the device has no clusters, or they would not fill it, or scratch
/// is too small. Precondition: class_bits is kFewestClassBits, and scores are all of the scratch.
int attention_clusters(AssayDevice& d, const DecodeJob& job, int32_t type);

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

/// Dots of kAtOnce positions with all heads: keys[u] is the thread's first piece of each, kApart pieces apart; q its floats.
template <int kType, int kHeads, int kAtOnce, int kApart = 32>
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
    for (int u = 0; u < kAtOnce; u++) widen_piece<kType>(keys[u][i * kApart], key[u]);
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

/// A thread's place among the teams of its block.
template <int kType, int kHeads>
struct TeamPlace {
  using T = Team<kType, kHeads>;
  int t, team, teams;  // which thread of which team; how many teams
  __device__ __forceinline__ TeamPlace()
      : t(lane_of_warp() / T::kPerWarp),
        team((int)threadIdx.x / 32 * T::kPerWarp + lane_of_warp() % T::kPerWarp),
        teams((int)blockDim.x / 32 * T::kPerWarp) {}
};

/// Scores of a unit's positions, and the greatest per head that the thread has seen, as ordered_of. Every thread copies what it
/// will read itself, ahead, into kUnits places of `chunks` pieces in a ring of its own. Where keys have run out, place s of the
/// ring gets what rest(n, s) copies: n = 0, 1, ... All copies of a place are one group; the last kUnits are left open.
/// ring: the thread's first piece; a place's pieces are 32 apart, places chunks * blockDim. q: [chunk][thread of the team][n-th
/// head][kPiece] in shared memory. scores: of position 0 and head 0, heads head_stride apart.
template <int kType, int kHeads, class Rest>
__device__ __forceinline__ void class_scores(const AttentionCall& a, const DecodeUnit& unit, int class_bits, int row, uint4* ring,
                                             float* q, float* scores, int64_t head_stride, Rest&& rest,
                                             int32_t (&best)[Team<kType, kHeads>::kKept]) {
  using T = Team<kType, kHeads>;
  constexpr int kElements = kPiece<kType>, kChunkBytes = 32 * kElementBytes<kType>;
  const TeamPlace<kType, kHeads> place;
  const int threads = (int)blockDim.x, tid = (int)threadIdx.x, t = place.t, team = place.team, teams = place.teams;
  const int chunks = (a.head_dim + 31) / 32, whole_chunks = a.head_dim / 32, flip = T::flip(t), place_pieces = chunks * threads;
  // The n-th position of the team is number team + n * teams of its class; behind the last one, the last one again.
  const int64_t class_step = ((int64_t)a.head_dim << class_bits) * kElementBytes<kType>;
  const unsigned char* const rows =
      a.k + (unit.cached + (int64_t)unit.position_class * a.head_dim + t * kElements) * kElementBytes<kType>;
  const int turns = (unit.count + teams - 1) / teams;
  const auto copy = [&](int n, int s) {
    if (n < turns) {
      const int index = team + n * teams < unit.count ? team + n * teams : unit.count - 1;
      const unsigned char* from = rows + index * class_step;
      uint4* to = ring + s * place_pieces;
      if (a.whole_pieces) {
        int i = 2;
        for (; i <= whole_chunks; i += 2, from += 2 * kChunkBytes, to += 2 * 32) {
          copy_async<16>(to, from);
          copy_async<16>(to + 32, from + kChunkBytes);
        }
#pragma unroll 1
        for (; i < chunks + 2; i++, from += kChunkBytes, to += 32) {  // one may be left, and one that is no whole chunk
          const bool real = (i - 2) * 32 + t * kElements < a.head_dim;
          copy_async_or_zero<16>(to, real ? from : a.k, real);
        }
      } else {
#pragma unroll 1
        for (int i = 0; i < chunks; i++) {
          to[i * 32] = piece_by_elements<kType>(from + i * kChunkBytes, 0, a.head_dim - i * 32 - t * kElements);
        }
      }
    } else {
      rest(n - turns, s);
    }
    copy_commit();
  };
#pragma unroll 1
  for (int n = 0; n < kUnits; n++) copy(n, n);
  for (int i = tid; i < chunks * 32 * kHeads; i += threads) {
    const int d = i / (32 * kHeads) * 32 + i / (kElements * kHeads) % T::kThreads * kElements + i % kElements;
    const int head = (i / kElements % kHeads) ^ T::flip(i / (kElements * kHeads) % T::kThreads);
    q[i] = d < a.head_dim && head < unit.heads ? a.q[((int64_t)row * a.heads + unit.head + head) * a.head_dim + d] : 0.0f;
  }
  sync_block();

  float* to[T::kKept];  // of the team's first position; null where the thread has none to write
#pragma unroll
  for (int n = 0; n < T::kKept; n++) {
    const int head = n ^ flip;
    best[n] = ordered_of(float_of(0xff800000u));
    to[n] = head < unit.heads && T::writes(t) ? scores + head * head_stride + team : nullptr;
  }
  const auto keep = [&](int n, const float(&dot)[T::kKept]) {
    if (team + n * teams >= unit.count) return;
#pragma unroll
    for (int i = 0; i < T::kKept; i++) {
      const float score = mul_f32(dot[i], a.scale);
      const int32_t order = ordered_of(score);
      best[i] = order > best[i] ? order : best[i];
      if (to[i] != nullptr) to[i][n * teams] = score;
    }
  };
  const float* const my_q = q + t * kHeads * kElements;
  int s = 0;
  for (int n = 0; n < turns;) {
    copy_wait<kUnits - kTaken>();
    if (n + kTaken <= turns) {
      const uint4* const keys[kTaken] = {ring + s * place_pieces, ring + (s + 1) * place_pieces};
      float dot[kTaken][T::kKept];
      dots<kType, kHeads, kTaken>(keys, my_q, chunks, dot);
#pragma unroll
      for (int i = 0; i < kTaken; i++) keep(n + i, dot[i]);
#pragma unroll 1
      for (int i = 0; i < kTaken; i++) copy(n + i + kUnits, s + i);
      n += kTaken;
      s = s + kTaken == kUnits ? 0 : s + kTaken;
    } else {  // the last turn
      const uint4* const keys[1] = {ring + s * place_pieces};
      float dot[1][T::kKept];
      dots<kType, kHeads, 1>(keys, my_q, chunks, dot);
      keep(n, dot[0]);
      copy(n + kUnits, s);
      n++;
    }
  }
}
/// best_of[warp][head] becomes the greatest of each warp.
template <int kType, int kHeads>
__device__ __forceinline__ void greatest_of_warp(int32_t (&best)[Team<kType, kHeads>::kKept], int32_t* best_of) {
  using T = Team<kType, kHeads>;
  const int t = lane_of_warp() / T::kPerWarp;
#pragma unroll
  for (int n = 0; n < T::kKept; n++) {
#pragma unroll
    for (int mask = T::kPerWarp / 2; mask >= 1; mask /= 2) {
      const int32_t other = shuffle_xor(best[n], mask);
      best[n] = other > best[n] ? other : best[n];
    }
    if (lane_of_warp() % T::kPerWarp == 0 && T::writes(t)) {
      best_of[(int)threadIdx.x / 32 * kHeads + (n ^ T::flip(t))] = best[n];
    }
  }
}
__device__ __forceinline__ int32_t greatest(const int32_t* values, int stride, int count) {
  int32_t most = values[0];
  for (int i = 1; i < count; i++) most = values[i * stride] > most ? values[i * stride] : most;
  return most;
}

/// Scores of a class to p, a tile of kDecodeThreads positions at a time, a thread each; those of the next tile are on their way.
template <int kHeads>
struct TilesOfP {
  const float* scores;  // of head h: h * stride behind
  int64_t stride;
  int heads, count;
  float next[kHeads];

  __device__ __forceinline__ void load(int tile) {
    const int index = tile * kDecodeThreads + (int)threadIdx.x;
#pragma unroll
    for (int h = 0; h < kHeads; h++) next[h] = index < count && h < heads ? scores[h * stride + index] : 0.0f;
  }
  /// To p[position of the tile][head]. load(tile) was the last load.
  __device__ __forceinline__ void put(int tile, int tiles, const float* max_of, float* p) {
    const bool real = tile * kDecodeThreads + (int)threadIdx.x < count;
#pragma unroll
    for (int h = 0; h < kHeads; h++) next[h] = sub_f32(next[h], max_of[h]);
    exp_of_differences(next);
#pragma unroll
    for (int h = 0; h < kHeads; h++) p[(int)threadIdx.x * kHeads + h] = real ? next[h] : 0.0f;
    if (tile + 1 < tiles) load(tile + 1);
  }
};

/// Adds one position of a lane: p of all heads times a piece of its value row.
template <int kType, int kHeads>
__device__ __forceinline__ void add_value(const uint4& piece, const float* p, float (&acc)[kHeads][kPiece<kType>],
                                          float (&sum)[kHeads]) {
  float value[kPiece<kType>], weight[kHeads];
  widen_piece<kType>(piece, value);
  if constexpr (kHeads % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kHeads / 4; i++) {
      const float4 four = reinterpret_cast<const float4*>(p)[i];
      weight[4 * i] = four.x;
      weight[4 * i + 1] = four.y;
      weight[4 * i + 2] = four.z;
      weight[4 * i + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int h = 0; h < kHeads; h++) weight[h] = p[h];
  }
#pragma unroll
  for (int h = 0; h < kHeads; h++) {
    sum[h] = add_f32(sum[h], weight[h]);
#pragma unroll
    for (int j = 0; j < kPiece<kType>; j++) acc[h][j] = fma_f32(weight[h], value[j], acc[h][j]);
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
