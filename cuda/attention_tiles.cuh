// Attention of tiles, what its kernels share, and the first of them.
//
// attention_tile_score: scores of 64 rows x 128 positions at a time, and their maxima. A thread has 8 rows x 4 positions and all
// 32 accumulators of the head rule for them, one after the other in bit-reversed order, so that a fold is an add to what was
// kept. Keys are widened and transposed in shared memory: [d][position], a position's column xored with 8 * (d / 8 mod 4) so that
// neither writing nor reading meets a bank twice. The next keys are on their way meanwhile.
// PRECOND: those of attention_prefill.cu.
#pragma once
#include "cuda/attention.cuh"

namespace assay {

constexpr int kScoreThreads = 256, kTilePositions = 128, kGroupRows = 8, kMostDims = 256;
constexpr int kGroups = kWindowRows / kGroupRows;

struct PrefillJob {
  AttentionCall call;
  float* scores;     // [window][head][group of 8 rows][position][8]
  int32_t* maxima;   // [window][head][split][kWindowRows], as ordered_of
  float* partial;    // [row - first row of first_window][call.heads][class][head_dim]
  float* sums;       // [row - first row of first_window][call.heads][class]
  int64_t positions;  // of scores; a multiple of kTilePositions
  int first_window, windows, first_head, heads;
  int splits;            // of positions, in attention_tile_score
  int class_bits;        // of lanes, in attention_tile_mix
  int ahead;             // pieces of keys that a thread has on their way
  int type;
};

/// The window and head of a block. Later windows come first: they take longest.
struct Tile {
  int window, head, first_row, rows;
  int64_t index;  // of scores and maxima
};
__device__ __forceinline__ Tile tile_of(const PrefillJob& job, int head) {
  Tile tile;
  tile.window = job.windows - 1 - (int)blockIdx.y;
  tile.head = job.first_head + head;
  tile.first_row = (job.first_window + tile.window) * kWindowRows;
  tile.rows = job.call.rows - tile.first_row < kWindowRows ? job.call.rows - tile.first_row : kWindowRows;
  tile.index = (int64_t)tile.window * job.heads + head;
  return tile;
}
/// Rows [begin, end) of a window: row r has position origin + r; the last one has `last`.
struct Run {
  int begin, end, origin, last;
  int64_t cached;  // element where the kv head's rows start in the cache
};
__device__ __forceinline__ Run run_of(const AttentionCall& a, const Tile& tile, int begin) {
  const AssayPlace place = a.places[tile.first_row + begin];
  Run run;
  run.begin = begin;
  run.end = begin + run_length(a.places, tile.first_row + begin, tile.rows - begin);
  run.origin = (int)place.position - begin;
  run.last = run.origin + run.end - 1;
  run.cached = ((int64_t)place.slot * a.kv_heads + tile.head / (a.heads / a.kv_heads)) * a.context * a.head_dim;
  return run;
}

/// Pieces of a tile's keys that a thread has; dims: head_dim rounded up to 32. Two at a time, of positions 64 apart.
template <int kType>
__host__ __device__ constexpr int key_pieces(int dims) {
  return kTilePositions * dims / kPiece<kType> / kScoreThreads;
}
/// The positions of a thread's pieces: key_position() and 64 more. Their first elements: key_element(pair).
__device__ __forceinline__ int key_position() { return (int)threadIdx.x / 32 * 8 + lane_of_warp() % 8; }
template <int kType>
__device__ __forceinline__ int key_element(int pair) {
  return (pair * 4 + lane_of_warp() / 8) * kPiece<kType>;
}
/// Where a position lies in keys[d], so that neither eight positions x four pieces nor 32 x 4 positions meet a bank twice.
__device__ __forceinline__ int key_column(int d, int position) { return position ^ ((d >> 3 & 3) << 3); }

/// Sends the thread's pieces of positions first, first + 1, ... on their way, the first `ahead` of them. Zeros behind `last`.
template <int kType>
__device__ __forceinline__ void send_keys(const AttentionCall& a, const unsigned char* rows, int first, int last, int ahead,
                                          uint4* raw) {
  const int position = first + key_position();
  const unsigned char* const from = rows + ((int64_t)position * a.head_dim + key_element<kType>(0)) * kElementBytes<kType>;
  const unsigned char* const other = from + (int64_t)64 * a.head_dim * kElementBytes<kType>;
  if (first + kTilePositions - 1 <= last && a.head_dim % 32 == 0) {
    // Pieces differ by immediates: who changes an address that a copy has yet to read waits for it.
#pragma unroll
    for (int p = 0; p < key_pieces<kType>(kMostDims); p += 2) {
      if (p >= ahead) break;
      copy_async<16>(raw + p * kScoreThreads, from + p * 32);
      copy_async<16>(raw + (p + 1) * kScoreThreads, other + p * 32);
    }
  } else {
#pragma unroll 1
    for (int p = 0; p < ahead; p += 2) {
      const bool inside = key_element<kType>(p / 2) < a.head_dim;
      const bool low = inside && position <= last, high = inside && position + 64 <= last;
      copy_async_or_zero<16>(raw + p * kScoreThreads, low ? from + p * 32 : rows, low);
      copy_async_or_zero<16>(raw + (p + 1) * kScoreThreads, high ? other + p * 32 : rows, high);
    }
  }
}
/// Widens and transposes them to keys[d][position]; what was not sent is read now.
template <int kType>
__device__ __forceinline__ void place_keys(const AttentionCall& a, const unsigned char* rows, int first, int last, int ahead,
                                           const uint4* raw, int dims, float* keys) {
  const int position = key_position();
#pragma unroll 2
  for (int p = 0; p < ahead; p += 2, raw += 2 * kScoreThreads) {
    const int element = key_element<kType>(p / 2);
    float low[kPiece<kType>], high[kPiece<kType>];
    widen_piece<kType>(raw[0], low);
    widen_piece<kType>(raw[kScoreThreads], high);
    float* const to = keys + element * kTilePositions + key_column(element, position);
#pragma unroll
    for (int j = 0; j < kPiece<kType>; j++) {
      to[j * kTilePositions] = low[j];
      to[j * kTilePositions + 64] = high[j];
    }
  }
#pragma unroll 1
  for (int p = ahead; p < key_pieces<kType>(dims); p++) {
    const int element = key_element<kType>(p / 2), here = position + 64 * (p % 2);
    const unsigned char* const row = rows + (int64_t)(first + here) * a.head_dim * kElementBytes<kType>;
    uint4 bits = make_uint4(0, 0, 0, 0);
    if (first + here <= last && element < a.head_dim) {
      bits = a.whole_pieces ? *reinterpret_cast<const uint4*>(row + element * kElementBytes<kType>)
                            : piece_by_elements<kType>(row, element, a.head_dim);
    }
    float values[kPiece<kType>];
    widen_piece<kType>(bits, values);
#pragma unroll
    for (int j = 0; j < kPiece<kType>; j++) keys[(element + j) * kTilePositions + key_column(element, here)] = values[j];
  }
}

/// One accumulator of the head rule for 8 rows x 4 positions: products of d = lane, lane + 32, ... in this order.
/// q: [d][8]; keys: [d][position], from the thread's column on; both start at d = lane.
template <int kChunks>
__device__ __forceinline__ void one_lane(const float* q, const float* keys, int chunks, float (&acc)[32]) {
  const auto step = [&](int e, bool start) {
    const float4 low = reinterpret_cast<const float4*>(q + e * 32 * kGroupRows)[0];
    const float4 high = reinterpret_cast<const float4*>(q + e * 32 * kGroupRows)[1];
    const float4 four = reinterpret_cast<const float4*>(keys + e * 32 * kTilePositions)[0];
    const float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    const float k[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int m = 0; m < 8; m++) {
#pragma unroll
      for (int n = 0; n < 4; n++) acc[4 * m + n] = start ? mul_f32(x[m], k[n]) : fma_f32(x[m], k[n], acc[4 * m + n]);
    }
  };
  step(0, true);  // the sign of a zero is all that a start from +0 would change, and the last add of +0 undoes it
  if constexpr (kChunks != 0) {
#pragma unroll
    for (int e = 1; e < kChunks; e++) step(e, false);
  } else {
    for (int e = 1; e < chunks; e++) step(e, false);
  }
}
/// The fold of lanes base + 4 i, i < 8: levels 16, 8, 4. kLevel of them, from lane base + kFirst on.
template <int kChunks, int kLevel, int kFirst>
__device__ __forceinline__ void folded_lanes(const float* q, const float* const (&keys)[4], int chunks, float (&acc)[32]) {
  if constexpr (kLevel == 0) {
    one_lane<kChunks>(q + kFirst * kGroupRows, keys[kFirst / 8] + kFirst * kTilePositions, chunks, acc);
  } else {
    float other[32];
    folded_lanes<kChunks, kLevel - 1, kFirst>(q, keys, chunks, acc);
    folded_lanes<kChunks, kLevel - 1, kFirst + (32 >> kLevel)>(q, keys, chunks, other);
#pragma unroll
    for (int i = 0; i < 32; i++) acc[i] = add_f32(acc[i], other[i]);
  }
}
/// Dots of 8 rows x 4 positions, before the last add of +0. parked: 8 places of the thread, kScoreThreads apart.
template <int kChunks>
__device__ __forceinline__ void tile_dots(const float* q, const float* keys, int column, int chunks, float4* parked,
                                          float (&acc)[32]) {
  float quarter[32];  // lanes 0 or 1 mod 4
#pragma unroll 1
  for (int turn = 0; turn < 4; turn++) {  // lanes 0, 2, 1, 3 mod 4: levels 2 and 1
    const int base = (turn & 1) * 2 + (turn >> 1);
    const float* const of_swizzle[4] = {keys + base * kTilePositions + key_column(0, column),
                                        keys + base * kTilePositions + key_column(8, column),
                                        keys + base * kTilePositions + key_column(16, column),
                                        keys + base * kTilePositions + key_column(24, column)};
    folded_lanes<kChunks, 3, 0>(q + base * kGroupRows, of_swizzle, chunks, acc);
    if ((turn & 1) == 0) {
#pragma unroll
      for (int i = 0; i < 32; i++) quarter[i] = acc[i];
    } else {
#pragma unroll
      for (int i = 0; i < 32; i++) acc[i] = add_f32(quarter[i], acc[i]);
      if (turn == 1) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
          parked[i * kScoreThreads] = make_float4(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const float4 even = parked[i * kScoreThreads];
    acc[4 * i] = add_f32(even.x, acc[4 * i]);
    acc[4 * i + 1] = add_f32(even.y, acc[4 * i + 1]);
    acc[4 * i + 2] = add_f32(even.z, acc[4 * i + 2]);
    acc[4 * i + 3] = add_f32(even.w, acc[4 * i + 3]);
  }
}

/// Grid: (head * splits, window). Split s has the tiles of positions that are s mod splits.
/// Shared: q [group][d][8 rows], keys [d][position], half of the fold [8][thread] of 16 bytes (then scores on their way out),
/// pieces of the next keys [piece][thread]; d up to head_dim rounded up to 32, zeros.
template <int kChunks>
__global__ void __launch_bounds__(kScoreThreads, 1) attention_tile_score(PrefillJob job) {
  SHARED_BYTES(shared);
  const AttentionCall& a = job.call;
  const int tid = (int)threadIdx.x, lane = lane_of_warp(), warp = tid / 32;
  const int chunks = kChunks != 0 ? kChunks : (a.head_dim + 31) / 32, dims = 32 * chunks;
  float* const q = reinterpret_cast<float*>(shared) + warp * dims * kGroupRows;
  float* const keys = reinterpret_cast<float*>(shared) + kWindowRows * dims;
  float4* const parked = reinterpret_cast<float4*>(keys + kTilePositions * dims) + tid;
  float4* const warp_parked = parked - lane;
  uint4* const raw = reinterpret_cast<uint4*>(parked + 8 * kScoreThreads);
  const int split = (int)blockIdx.x % job.splits;
  const Tile tile = tile_of(job, (int)blockIdx.x / job.splits);
  float* const scores = job.scores + (tile.index * kGroups + warp) * job.positions * kGroupRows;
  int32_t* const maxima = job.maxima + (tile.index * job.splits + split) * kWindowRows + warp * kGroupRows;
  wait_for_previous();
  let_next_start();
  bool tiled[1];
  windows_are_tiled(a.places, tile.first_row, 0, a.rows, tiled);
  if (!tiled[0]) return;

  for (int begin = 0; begin < tile.rows;) {
    const bool at_start = begin == 0;
    const Run run = run_of(a, tile, begin);
    begin = run.end;
    const int first_row = warp * kGroupRows;
    const bool busy = first_row < run.end && first_row + kGroupRows > run.begin;
    const bool whole = first_row >= run.begin && first_row + kGroupRows <= run.end;
    const int tiles = run.last / kTilePositions + 1;
    int32_t best[kGroupRows];
#pragma unroll
    for (int m = 0; m < kGroupRows; m++) best[m] = ordered_of(float_of(0xff800000u));

    const auto send = [&](int t) {
      const int first = t * kTilePositions;
      if (t < tiles) {
        if (job.type == ASSAY_F32) send_keys<ASSAY_F32>(a, a.k + run.cached * 4, first, run.last, job.ahead, raw);
        if (job.type != ASSAY_F32) send_keys<ASSAY_F16>(a, a.k + run.cached * 2, first, run.last, job.ahead, raw);  // or bf16
      }
      copy_commit();
    };
    send(split);
    if (at_start) {  // meanwhile a warp's own rows of q; lane = row + 8 * element mod 4
      const int row = warp * kGroupRows + lane % kGroupRows;
      const float* const from = a.q + ((int64_t)(tile.first_row + row) * a.heads + tile.head) * a.head_dim;
#pragma unroll 32
      for (int d = lane / kGroupRows; d < dims; d += 4) {
        q[d * kGroupRows + lane % kGroupRows] = row < tile.rows && d < a.head_dim ? from[d] : 0.0f;
      }
      sync_warp();
    }
    for (int t = split; t < tiles; t += job.splits) {
      const int first = t * kTilePositions;
      copy_wait<0>();
      sync_block();  // the keys before have been read
      if (job.type == ASSAY_F32) {
        place_keys<ASSAY_F32>(a, a.k + run.cached * 4, first, run.last, job.ahead, raw, dims, keys);
      } else if (job.type == ASSAY_F16) {
        place_keys<ASSAY_F16>(a, a.k + run.cached * 2, first, run.last, job.ahead, raw, dims, keys);
      } else {
        place_keys<ASSAY_BF16>(a, a.k + run.cached * 2, first, run.last, job.ahead, raw, dims, keys);
      }
      sync_block();
      send(t + job.splits);
      if (!busy) continue;

      float acc[32];
      tile_dots<kChunks>(q, keys, 4 * lane, chunks, parked, acc);
      sync_warp();
#pragma unroll
      for (int n = 0; n < 4; n++) {
        const int position = first + 4 * lane + n;
        const int hidden = position - (run.origin + first_row);  // rows m < hidden do not see it
        float score[kGroupRows];
#pragma unroll
        for (int m = 0; m < kGroupRows; m++) {
          score[m] = mul_f32(add_f32(acc[4 * m + n], 0.0f), a.scale);
          const int32_t order = ordered_of(score[m]);
          if (m >= hidden && order > best[m]) best[m] = order;
        }
        // Scores leave by way of the warp's part of `parked`, so that a store writes 512 bytes in a row. Of the 256 pieces,
        // number 8 * lane + 2 * n + half, the lowest bits xored with those of the lane against bank conflicts.
        const int piece = 8 * lane + ((2 * n) ^ (lane & 7));
        warp_parked[piece / 32 * kScoreThreads + piece % 32] = make_float4(score[0], score[1], score[2], score[3]);
        warp_parked[piece / 32 * kScoreThreads + ((piece % 32) ^ 1)] = make_float4(score[4], score[5], score[6], score[7]);
      }
      sync_warp();
      float4* const to = reinterpret_cast<float4*>(scores + (int64_t)first * kGroupRows);
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const float4 four = warp_parked[i * kScoreThreads + (lane ^ ((4 * i + lane / 8) & 7))];
        if (whole) {
          to[32 * i + lane] = four;
        } else {
          const int row = first_row + 4 * (lane % 2);
          float* const one = reinterpret_cast<float*>(to + 32 * i + lane);
          if (row >= run.begin && row < run.end) one[0] = four.x;
          if (row + 1 >= run.begin && row + 1 < run.end) one[1] = four.y;
          if (row + 2 >= run.begin && row + 2 < run.end) one[2] = four.z;
          if (row + 3 >= run.begin && row + 3 < run.end) one[3] = four.w;
        }
      }
      sync_warp();
    }
    if (!busy) continue;
#pragma unroll
    for (int m = 0; m < kGroupRows; m++) {
#pragma unroll
      for (int mask = 16; mask >= 1; mask /= 2) {
        const int32_t other = shuffle_xor(best[m], mask);
        best[m] = other > best[m] ? other : best[m];
      }
      if (lane == m && first_row + m >= run.begin && first_row + m < run.end) maxima[m] = best[m];
    }
  }
}

inline size_t tile_score_shared_bytes(int64_t dims, int ahead) {
  return size_t(kWindowRows + kTilePositions) * size_t(dims) * 4 + size_t(8 + ahead) * kScoreThreads * 16;
}

}  // namespace assay
