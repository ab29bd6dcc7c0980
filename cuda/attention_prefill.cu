// Attention of rows that follow each other in one slot: prefill. Tiles of 64 rows (a window) and one head; of a window with
// several runs, each run is a tile whose other rows are masked. Two launches, three where the lanes are split:
//
// attention_tile_score: scores of 64 rows x 128 positions at a time, and their maxima. A thread has 8 rows x 4 positions and all
//   32 accumulators of the head rule for them, one after the other in bit-reversed order, so that a fold is an add to what was
//   kept. Keys are widened and transposed in shared memory: [d][position], a position's column xored with 8 * (d / 8 mod 4) so
//   that neither writing nor reading meets a bank twice. The next keys are on their way meanwhile.
// attention_tile_mix: exp, sum of p and mix. A thread has 8 rows x 4 columns. It walks lanes (positions mod 256) in quads l,
//   l + 128, l + 64, l + 192, all positions of a quad upwards, then the next quad, in bit-reversed order of l: folds 128 and 64
//   lie inside the quad, for 32 ... 1 partial mixes are parked in shared memory, one per level (a binary counter). p and values
//   of 16 positions are staged one step ahead. Positions behind a row's own are skipped, not added: a value there may be Inf.
// attention_finish (attention_decode.cu), where a tile's lanes are split in classes so that the device is filled.
//
// Scores lie in scratch [window][head][position][row of the window]: 4 bytes written and read per row, head and position. Host
// code does as many windows and heads at once as scratch holds.
// PRECOND: cache elements aligned to their size; head_dim <= 256 (attention_prefill_fits). Keys and values behind a run's last
// position are not read.
#include <algorithm>

#include "cuda/attention.cuh"

namespace assay {
namespace {

constexpr int kScoreThreads = 256, kTilePositions = 128, kGroupRows = 8;
constexpr int kGroups = kWindowRows / kGroupRows;
constexpr int kMostHeadDim = 256, kMostSplits = 16;
constexpr int kQuadBits = 6, kMostTileClassBits = 4;
constexpr int kStagedSteps = 16;  // 4 rounds of a quad's 4 positions

struct PrefillJob {
  AttentionCall call;
  float* scores;     // [window][head][position][kWindowRows]
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
  int begin, end;
  int64_t origin, last, cached;  // cached: element where the kv head's rows start in the cache
};
__device__ __forceinline__ Run run_of(const AttentionCall& a, const Tile& tile, int begin) {
  const AssayPlace place = a.places[tile.first_row + begin];
  Run run;
  run.begin = begin;
  run.end = begin + run_length(a.places, tile.first_row + begin, tile.rows - begin);
  run.origin = place.position - begin;
  run.last = run.origin + run.end - 1;
  run.cached = ((int64_t)place.slot * a.kv_heads + tile.head / (a.heads / a.kv_heads)) * a.context * a.head_dim;
  return run;
}

// ---- scores

/// Which piece of a tile's keys a thread has as its p-th: the position in the tile and the first element.
template <int kType>
struct KeyPiece {
  int position, first;
  __device__ __forceinline__ explicit KeyPiece(int p) {
    const int block = (int)threadIdx.x / 32 + kScoreThreads / 32 * p, lane = lane_of_warp();
    position = block % (kTilePositions / 8) * 8 + lane % 8;
    first = (block / (kTilePositions / 8) * 4 + lane / 8) * kPiece<kType>;
  }
};
/// Pieces per thread; dims: head_dim rounded up to 32.
template <int kType>
__host__ __device__ constexpr int key_pieces(int dims) {
  return kTilePositions * dims / kPiece<kType> / kScoreThreads;
}
__device__ __forceinline__ int key_column(int d, int position) { return position ^ ((d >> 3 & 3) << 3); }

/// Sends the thread's pieces of the keys of positions first, first + 1, ... on their way. Zeros behind `last`.
template <int kType>
__device__ __forceinline__ void send_keys(const AttentionCall& a, const unsigned char* rows, int64_t first, int64_t last, int ahead,
                                          uint4* raw) {
  if (!a.whole_pieces) return;
  for (int p = 0; p < ahead; p++) {
    const KeyPiece<kType> piece(p);
    const bool real = first + piece.position <= last && piece.first < a.head_dim;
    const int64_t from = real ? ((first + piece.position) * a.head_dim + piece.first) * kElementBytes<kType> : 0;
    copy_async_or_zero<16>(raw + p * kScoreThreads, rows + from, real);
  }
}
/// Widens and transposes them to keys[d][position]; what was not sent is read now.
template <int kType>
__device__ __forceinline__ void place_keys(const AttentionCall& a, const unsigned char* rows, int64_t first, int64_t last, int ahead,
                                           const uint4* raw, int dims, float* keys) {
#pragma unroll 4
  for (int p = 0; p < key_pieces<kType>(dims); p++) {
    const KeyPiece<kType> piece(p);
    const unsigned char* row = rows + (first + piece.position) * a.head_dim * kElementBytes<kType>;
    uint4 bits = make_uint4(0, 0, 0, 0);
    if (a.whole_pieces && p < ahead) {
      bits = raw[p * kScoreThreads];
    } else if (first + piece.position <= last && piece.first < a.head_dim) {
      bits = a.whole_pieces ? *reinterpret_cast<const uint4*>(row + piece.first * kElementBytes<kType>)
                            : piece_by_elements<kType>(row, piece.first, a.head_dim);
    }
    float values[kPiece<kType>];
    widen_piece<kType>(bits, values);
#pragma unroll
    for (int j = 0; j < kPiece<kType>; j++) {
      keys[(piece.first + j) * kTilePositions + key_column(piece.first, piece.position)] = values[j];
    }
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
/// Dots of 8 rows x 4 positions, before the last add of +0.
template <int kChunks>
__device__ __forceinline__ void tile_dots(const float* q, const float* keys, int column, int chunks, float (&acc)[32]) {
  float even[32], quarter[32];  // lanes 0, 2 mod 4 together; lanes 0 or 1 mod 4
#pragma unroll 1
  for (int turn = 0; turn < 4; turn++) {  // lanes 0, 2, 1, 3 mod 4: levels 2 and 1
    const int base = (turn & 1) * 2 + (turn >> 1);
    const float* const of_swizzle[4] = {keys + base * kTilePositions + key_column(0, column),
                                        keys + base * kTilePositions + key_column(8, column),
                                        keys + base * kTilePositions + key_column(16, column),
                                        keys + base * kTilePositions + key_column(24, column)};
    folded_lanes<kChunks, 3, 0>(q + base * kGroupRows, of_swizzle, chunks, acc);
#pragma unroll
    for (int i = 0; i < 32; i++) {
      if (turn & 1) {
        acc[i] = add_f32(quarter[i], acc[i]);
        if (turn == 1) even[i] = acc[i];
      } else {
        quarter[i] = acc[i];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 32; i++) acc[i] = add_f32(even[i], acc[i]);
}

/// Grid: (head * splits, window). Split s has the tiles of positions that are s mod splits.
/// Shared: q [group][d][8 rows], keys [d][position], raw pieces [piece][thread]; d up to head_dim rounded up to 32, zeros.
template <int kChunks>
__global__ void __launch_bounds__(kScoreThreads, 1) attention_tile_score(PrefillJob job) {
  SHARED_BYTES(shared);
  const AttentionCall& a = job.call;
  const int tid = (int)threadIdx.x, lane = lane_of_warp(), warp = tid / 32;
  const int chunks = kChunks != 0 ? kChunks : (a.head_dim + 31) / 32, dims = 32 * chunks;
  float* const q = reinterpret_cast<float*>(shared) + warp * dims * kGroupRows;
  float* const keys = reinterpret_cast<float*>(shared) + kWindowRows * dims;
  uint4* const raw = reinterpret_cast<uint4*>(keys + kTilePositions * dims) + tid;
  const int split = (int)blockIdx.x % job.splits;
  const Tile tile = tile_of(job, (int)blockIdx.x / job.splits);
  float* const scores = job.scores + tile.index * job.positions * kWindowRows + warp * kGroupRows;
  int32_t* const maxima = job.maxima + (tile.index * job.splits + split) * kWindowRows + warp * kGroupRows;
  wait_for_previous();
  let_next_start();
  if (!window_is_tiled(a.places, tile.first_row, tile.rows)) return;

  for (int i = lane; i < kGroupRows * dims; i += 32) {  // a warp's own rows: consecutive lanes read consecutive d
    const int d = i % dims, m = i / dims, row = warp * kGroupRows + m;
    q[d * kGroupRows + m] = row < tile.rows && d < a.head_dim
                                ? a.q[((int64_t)(tile.first_row + row) * a.heads + tile.head) * a.head_dim + d]
                                : 0.0f;
  }
  sync_warp();

  for (int begin = 0; begin < tile.rows;) {
    const Run run = run_of(a, tile, begin);
    begin = run.end;
    const int first_row = warp * kGroupRows;
    const bool busy = first_row < run.end && first_row + kGroupRows > run.begin;
    const bool whole = first_row >= run.begin && first_row + kGroupRows <= run.end;
    const int tiles = (int)(run.last / kTilePositions) + 1;
    int32_t best[kGroupRows];
#pragma unroll
    for (int m = 0; m < kGroupRows; m++) best[m] = ordered_of(float_of(0xff800000u));

    const auto send = [&](int t) {
      const int64_t first = (int64_t)t * kTilePositions;
      if (t < tiles) {
        if (job.type == ASSAY_F32) send_keys<ASSAY_F32>(a, a.k + run.cached * 4, first, run.last, job.ahead, raw);
        if (job.type != ASSAY_F32) send_keys<ASSAY_F16>(a, a.k + run.cached * 2, first, run.last, job.ahead, raw);  // or bf16
      }
      copy_commit();
    };
    send(split);
    for (int t = split; t < tiles; t += job.splits) {
      const int64_t first = (int64_t)t * kTilePositions;
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
      tile_dots<kChunks>(q, keys, 4 * lane, chunks, acc);
#pragma unroll
      for (int n = 0; n < 4; n++) {
        const int64_t position = first + 4 * lane + n;
        float score[kGroupRows];
#pragma unroll
        for (int m = 0; m < kGroupRows; m++) {
          score[m] = mul_f32(add_f32(acc[4 * m + n], 0.0f), a.scale);
          const int32_t order = ordered_of(score[m]);
          if (position <= run.origin + first_row + m && order > best[m]) best[m] = order;
        }
        float* const to = scores + position * kWindowRows;
        if (whole) {
          reinterpret_cast<float4*>(to)[0] = make_float4(score[0], score[1], score[2], score[3]);
          reinterpret_cast<float4*>(to)[1] = make_float4(score[4], score[5], score[6], score[7]);
        } else {
#pragma unroll
          for (int m = 0; m < kGroupRows; m++) {
            if (first_row + m >= run.begin && first_row + m < run.end) to[m] = score[m];
          }
        }
      }
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

// ---- mix

/// The bits of v in reverse: which quad comes as the v-th.
__device__ __forceinline__ int reversed_quad(int v) {
  return (v & 1) << 5 | (v & 2) << 3 | (v & 4) << 1 | (v & 8) >> 1 | (v & 16) >> 3 | (v & 32) >> 5;
}
/// Lanes of a quad, relative to its first, in the order in which they are folded: 0, 128, 64, 192.
__device__ __forceinline__ int quad_lane(int z) { return (z & 1) << 7 | (z & 2) << 5; }

/// 8 elements of a value row: two pieces (f32) or one. Zeros where !real and behind the row's end.
template <int kType>
__device__ __forceinline__ void load_values(const AttentionCall& a, const unsigned char* rows, int64_t position, int d, bool real,
                                            uint4 (&bits)[2]) {
  const unsigned char* const row = rows + position * a.head_dim * kElementBytes<kType>;
#pragma unroll
  for (int i = 0; i < 8 / kPiece<kType>; i++) {
    const int first = d + i * kPiece<kType>;
    bits[i] = make_uint4(0, 0, 0, 0);
    if (!real || first >= a.head_dim) continue;
    bits[i] = a.whole_pieces ? *reinterpret_cast<const uint4*>(row + first * kElementBytes<kType>)
                             : piece_by_elements<kType>(row, first, a.head_dim);
  }
}

/// Adds one position: p of 8 rows times 4 columns. kStart: it is the first.
template <bool kStart>
__device__ __forceinline__ void add_position(const float* p, const float* values, int my_row, float (&acc)[32], float& sum) {
  const float4 low = reinterpret_cast<const float4*>(p)[0], high = reinterpret_cast<const float4*>(p)[1];
  const float4 four = reinterpret_cast<const float4*>(values)[0];
  const float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  const float v[4] = {four.x, four.y, four.z, four.w};
  sum = kStart ? p[my_row] : add_f32(sum, p[my_row]);
#pragma unroll
  for (int m = 0; m < 8; m++) {
#pragma unroll
    for (int n = 0; n < 4; n++) acc[4 * m + n] = kStart ? mul_f32(x[m], v[n]) : fma_f32(x[m], v[n], acc[4 * m + n]);
  }
}
/// The same where rows m with !(position <= origin + m) do not see it.
__device__ __forceinline__ void add_masked(const float* p, const float* values, int my_row, int64_t position, int64_t origin,
                                           float (&acc)[32], float& sum) {
  const float4 four = reinterpret_cast<const float4*>(values)[0];
  const float v[4] = {four.x, four.y, four.z, four.w};
  if (position <= origin + my_row) sum = add_f32(sum, p[my_row]);
#pragma unroll
  for (int m = 0; m < 8; m++) {
    if (position <= origin + m) {
#pragma unroll
      for (int n = 0; n < 4; n++) acc[4 * m + n] = fma_f32(p[m], v[n], acc[4 * m + n]);
    }
  }
}

/// Grid: (head * column blocks * classes, window). kAcross threads share 8 rows and have 4 columns each.
/// Shared: parked mixes [level][8][thread] of 16 bytes and sums [level][thread]; p [2][step][row] and values [2][step][column];
/// maxima [row], sums [row].
template <int kAcross>
__global__ void __launch_bounds__(kGroups * kAcross, 1) attention_tile_mix(PrefillJob job) {
  constexpr int kThreads = kGroups * kAcross, kColumns = 4 * kAcross;
  constexpr int kPerStep = kThreads / kStagedSteps, kStagedRows = kWindowRows / kPerStep;
  static_assert(kColumns / kPerStep == 8);
  SHARED_BYTES(shared);
  const AttentionCall& a = job.call;
  const int tid = (int)threadIdx.x, group_row = tid / kAcross * kGroupRows, t = tid % kAcross, my_row = tid % kGroupRows;
  const int levels = kQuadBits - job.class_bits, quads = 1 << levels, classes = 1 << job.class_bits;
  float4* const parked = reinterpret_cast<float4*>(shared) + tid;
  float* const parked_sums = reinterpret_cast<float*>(shared + (size_t)levels * kThreads * 128) + tid;
  float* const staged_p = parked_sums - tid + levels * kThreads;
  float* const staged_values = staged_p + 2 * kStagedSteps * kWindowRows;
  float* const max_of = staged_values + 2 * kStagedSteps * kColumns;
  float* const sum_of = max_of + kWindowRows;
  const int column_blocks = (a.head_dim + kColumns - 1) / kColumns;
  const int position_class = (int)blockIdx.x & (classes - 1);
  const int first_column = ((int)blockIdx.x >> job.class_bits) % column_blocks * kColumns;
  const Tile tile = tile_of(job, ((int)blockIdx.x >> job.class_bits) / column_blocks);
  const float* const scores = job.scores + tile.index * job.positions * kWindowRows;
  wait_for_previous();
  let_next_start();
  if (!window_is_tiled(a.places, tile.first_row, tile.rows)) return;

  for (int begin = 0; begin < tile.rows;) {
    const Run run = run_of(a, tile, begin);
    begin = run.end;
    const int64_t origin = run.origin + group_row;  // position of the group's first row
    const bool busy = group_row < run.end && group_row + kGroupRows > run.begin;
    // Up to which position all rows of the group see all; up to which one of them sees any.
    const int64_t seen_by_all = run.origin + (group_row > run.begin ? group_row : run.begin);
    const int64_t seen_by_any = run.origin + (group_row + kGroupRows < run.end ? group_row + kGroupRows : run.end) - 1;
    const int blocks = (int)(run.last / kFloatLanes) + 1;
    const int chunks = (quads * blocks + 3) / 4;
    sync_block();  // maxima and sums of the run before have been read
    if (tid < kWindowRows) {
      int32_t most = ordered_of(float_of(0xff800000u));
      for (int s = 0; s < job.splits; s++) {
        const int32_t other = job.maxima[(tile.index * job.splits + s) * kWindowRows + tid];
        most = other > most ? other : most;
      }
      max_of[tid] = float_of_ordered(most);
    }
    sync_block();

    // Staging: a thread has one of the 16 steps, kStagedRows rows and 8 columns of it.
    const int staged_step = tid / kPerStep, staged_row = tid % kPerStep * kStagedRows, staged_column = tid % kPerStep * 8;
    int staged_quad = 0, staged_block = staged_step / 4;
    float held_score[kStagedRows], max_here[kStagedRows];
    uint4 held_values[2];
#pragma unroll
    for (int i = 0; i < kStagedRows; i++) max_here[i] = max_of[staged_row + i];
    const auto load = [&] {
      while (staged_block >= blocks) {
        staged_block -= blocks;
        staged_quad++;
      }
      const int64_t position =
          (int64_t)staged_block * kFloatLanes + position_class + reversed_quad(staged_quad) + quad_lane(staged_step % 4);
      const bool real = staged_quad < quads && position <= run.last;
#pragma unroll
      for (int i = 0; i < kStagedRows; i += 4) {
        const float4 four = real ? *reinterpret_cast<const float4*>(scores + position * kWindowRows + staged_row + i)
                                 : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        held_score[i] = four.x;
        held_score[i + 1] = four.y;
        held_score[i + 2] = four.z;
        held_score[i + 3] = four.w;
      }
      const int d = first_column + staged_column;
      if (job.type == ASSAY_F32) load_values<ASSAY_F32>(a, a.v + run.cached * 4, position, d, real, held_values);
      if (job.type != ASSAY_F32) load_values<ASSAY_F16>(a, a.v + run.cached * 2, position, d, real, held_values);  // or bf16
      staged_block += 4;
    };
    const auto store = [&](int buffer) {
      float* const p = staged_p + (buffer * kStagedSteps + staged_step) * kWindowRows + staged_row;
#pragma unroll
      for (int i = 0; i < kStagedRows; i += 4) {
        reinterpret_cast<float4*>(p)[i / 4] = make_float4(
            exp_of_difference(sub_f32(held_score[i], max_here[i])), exp_of_difference(sub_f32(held_score[i + 1], max_here[i + 1])),
            exp_of_difference(sub_f32(held_score[i + 2], max_here[i + 2])),
            exp_of_difference(sub_f32(held_score[i + 3], max_here[i + 3])));
      }
      float v[8];
      if (job.type == ASSAY_F32) {
        widen_piece<ASSAY_F32>(held_values[0], v);
        widen_piece<ASSAY_F32>(held_values[1], v + 4);
      } else if (job.type == ASSAY_F16) {
        widen_piece<ASSAY_F16>(held_values[0], v);
      } else {
        widen_piece<ASSAY_BF16>(held_values[0], v);
      }
      float4* const to =
          reinterpret_cast<float4*>(staged_values + (buffer * kStagedSteps + staged_step) * kColumns + staged_column);
      to[0] = make_float4(v[0], v[1], v[2], v[3]);
      to[1] = make_float4(v[4], v[5], v[6], v[7]);
    };

    float acc[4][32], sum[4];
    int quad = 0, block = 0;
    load();
    store(0);
    for (int chunk = 0; chunk < chunks; chunk++) {
      sync_block();  // this chunk is staged, the one before has been used
      if (chunk + 1 < chunks) load();
      if (busy) {
        const float* p = staged_p + (chunk & 1) * kStagedSteps * kWindowRows + group_row;
        const float* values = staged_values + (chunk & 1) * kStagedSteps * kColumns + 4 * t;
#pragma unroll 1
        for (int round = 0; round < 4 && quad < quads; round++, p += 4 * kWindowRows, values += 4 * kColumns) {
          const int64_t first = (int64_t)block * kFloatLanes + position_class + reversed_quad(quad);
          if (first + quad_lane(3) <= seen_by_all) {
            if (block == 0) {
#pragma unroll
              for (int z = 0; z < 4; z++) {
                add_position<true>(p + z * kWindowRows, values + z * kColumns, my_row, acc[z], sum[z]);
              }
            } else {
#pragma unroll
              for (int z = 0; z < 4; z++) {
                add_position<false>(p + z * kWindowRows, values + z * kColumns, my_row, acc[z], sum[z]);
              }
            }
          } else {
#pragma unroll
            for (int z = 0; z < 4; z++) {
              if (block == 0) {
                sum[z] = 0.0f;
#pragma unroll
                for (int i = 0; i < 32; i++) acc[z][i] = 0.0f;
              }
              const int64_t position = first + quad_lane(z);
              if (position > seen_by_any) continue;
              add_masked(p + z * kWindowRows, values + z * kColumns, my_row, position, origin, acc[z], sum[z]);
            }
          }
          if (++block < blocks) continue;

          // The quad is done: levels 128 and 64 here, the others with what is parked.
          block = 0;
          sum[0] = add_f32(add_f32(sum[0], sum[1]), add_f32(sum[2], sum[3]));
#pragma unroll
          for (int i = 0; i < 32; i++) acc[0][i] = add_f32(add_f32(acc[0][i], acc[1][i]), add_f32(acc[2][i], acc[3][i]));
          int level = 0;
#pragma unroll 1
          for (; quad >> level & 1; level++) {
            sum[0] = add_f32(parked_sums[level * kThreads], sum[0]);
#pragma unroll
            for (int i = 0; i < 8; i++) {
              const float4 four = parked[(level * 8 + i) * kThreads];
              acc[0][4 * i] = add_f32(four.x, acc[0][4 * i]);
              acc[0][4 * i + 1] = add_f32(four.y, acc[0][4 * i + 1]);
              acc[0][4 * i + 2] = add_f32(four.z, acc[0][4 * i + 2]);
              acc[0][4 * i + 3] = add_f32(four.w, acc[0][4 * i + 3]);
            }
          }
          if (level < levels) {
            parked_sums[level * kThreads] = sum[0];
#pragma unroll
            for (int i = 0; i < 8; i++) {
              parked[(level * 8 + i) * kThreads] =
                  make_float4(acc[0][4 * i], acc[0][4 * i + 1], acc[0][4 * i + 2], acc[0][4 * i + 3]);
            }
          }
          quad++;
        }
      }
      if (chunk + 1 < chunks) store((chunk + 1) & 1);
    }

    if (busy && t < kGroupRows) sum_of[group_row + t] = sum[0];  // my_row is t
    sync_block();
    if (!busy) continue;
    const int64_t job_row = (int64_t)tile.first_row - (int64_t)job.first_window * kWindowRows;
#pragma unroll
    for (int m = 0; m < kGroupRows; m++) {
      const int row = group_row + m;
      if (row < run.begin || row >= run.end) continue;
      float* to = a.y + ((int64_t)(tile.first_row + row) * a.heads + tile.head) * a.head_dim;
      if (classes > 1) {
        const int64_t part = (((job_row + row) * a.heads + tile.head) << job.class_bits) + position_class;
        to = job.partial + part * a.head_dim;
        if (t == 0 && first_column == 0) job.sums[part] = sum_of[row];
      }
#pragma unroll
      for (int n = 0; n < 4; n++) {
        const int d = first_column + 4 * t + n;
        if (d >= a.head_dim) continue;
        to[d] = classes > 1 ? acc[0][4 * m + n] : div_f32(add_f32(acc[0][4 * m + n], 0.0f), add_f32(sum_of[row], 0.0f));
      }
    }
  }
}

// ---- host

size_t score_shared_bytes(int64_t dims, int ahead) {
  return size_t(kWindowRows + kTilePositions) * size_t(dims) * 4 + size_t(ahead) * kScoreThreads * 16;
}
size_t mix_shared_bytes(int across, int class_bits) {
  const size_t levels = size_t(kQuadBits - class_bits), threads = size_t(kGroups * across);
  return levels * threads * (128 + 4) + 2 * kStagedSteps * size_t(kWindowRows + 4 * across) * 4 + 2 * kWindowRows * 4;
}
int64_t padded_positions(int64_t longest) { return (longest + kTilePositions - 1) / kTilePositions * kTilePositions; }
/// Scores and maxima of a window and head; its mixes, which a window keeps until all of its heads are done.
size_t score_bytes(int64_t longest) { return size_t(padded_positions(longest) + kMostSplits) * kWindowRows * 4; }
size_t mix_bytes(int64_t head_dim, int class_bits) {
  return class_bits == 0 ? 0 : size_t(kWindowRows) * (size_t(1) << class_bits) * size_t(head_dim + 1) * 4;
}

template <int kChunks>
int launch_score(AssayDevice& d, const PrefillJob& job, dim3 grid, const char* name) {
  const size_t shared = score_shared_bytes((job.call.head_dim + 31) / 32 * 32, job.ahead);
  return launch(d, name, Overlap::yes, attention_tile_score<kChunks>, grid, kScoreThreads, shared, job);
}

}  // namespace

bool attention_prefill_fits(const AssayDevice& d, int64_t head_dim) {
  return head_dim <= kMostHeadDim && score_shared_bytes((head_dim + 31) / 32 * 32, 0) <= d.shared_limit &&
         mix_shared_bytes(head_dim > 64 ? 32 : 16, kMostTileClassBits) <= d.shared_limit;
}

size_t attention_prefill_bytes(int64_t windows, int64_t heads, int64_t head_dim, int64_t longest) {
  const size_t mixes = size_t(heads) * mix_bytes(head_dim, kMostTileClassBits), scores = score_bytes(longest);
  return windows == 0 ? mixes + scores : size_t(windows) * (mixes + size_t(heads) * scores);
}

int attention_prefill(AssayDevice& d, const AttentionCall& call, int32_t type, int64_t longest) {
  const int dims = (call.head_dim + 31) / 32 * 32, across = call.head_dim > 64 ? 32 : 16;
  const int column_blocks = (call.head_dim + 4 * across - 1) / (4 * across);
  const int all_windows = (call.rows + kWindowRows - 1) / kWindowRows;
  const int64_t tiles_of_positions = (longest + kTilePositions - 1) / kTilePositions;
  PrefillJob job{};
  job.call = call;
  job.type = type;
  job.positions = padded_positions(longest);
  const int pieces = type == ASSAY_F32 ? key_pieces<ASSAY_F32>(dims) : key_pieces<ASSAY_F16>(dims);
  const size_t left = d.shared_limit - score_shared_bytes(dims, 0);
  job.ahead = call.whole_pieces ? int(std::min<size_t>(size_t(pieces), left / (kScoreThreads * 16))) : 0;

  int fewest_class_bits = 0;
  while (mix_shared_bytes(across, fewest_class_bits) > d.shared_limit) fewest_class_bits++;
  const size_t scratch = d.attention.bytes, of_scores = score_bytes(longest);
  const auto tiles_at_once = [&](int class_bits) {
    const size_t of_mixes = mix_bytes(call.head_dim, class_bits), tiles = scratch / (of_scores + of_mixes);
    if (tiles >= size_t(call.heads)) return int64_t(tiles) / call.heads * call.heads;
    const size_t mixes = size_t(call.heads) * of_mixes;
    return scratch < mixes ? int64_t(0) : int64_t((scratch - mixes) / of_scores);
  };
  // As many classes as fill the device twice, where scratch holds so few tiles that one class would not.
  const int64_t all_tiles = int64_t(all_windows) * call.heads;
  job.class_bits = fewest_class_bits;
  while (job.class_bits < kMostTileClassBits && tiles_at_once(job.class_bits + 1) > 0 &&
         (std::min(all_tiles, tiles_at_once(job.class_bits)) * column_blocks << job.class_bits) < 2 * int64_t(d.processors)) {
    job.class_bits++;
  }
  const int64_t at_once = tiles_at_once(job.class_bits);
  if (at_once == 0) {
    return failed(d, ASSAY_ERROR, "attention: %zu bytes of scratch reserved, %zu needed for a tile", scratch,
                  call.heads * mix_bytes(call.head_dim, job.class_bits) + of_scores);
  }
  const int heads_at_once = int(std::min<int64_t>(call.heads, at_once));
  const int windows_at_once = at_once < call.heads ? 1 : int(std::min<int64_t>(all_windows, at_once / call.heads));

  for (job.first_window = 0; job.first_window < all_windows; job.first_window += job.windows) {
    job.windows = std::min(windows_at_once, all_windows - job.first_window);
    // Mixes first: they stay where they are while heads come and go.
    const int64_t parts = job.class_bits == 0 ? 0 : int64_t(job.windows) * kWindowRows * call.heads << job.class_bits;
    job.partial = reinterpret_cast<float*>(d.attention.memory);
    job.sums = job.partial + parts * call.head_dim;
    for (job.first_head = 0; job.first_head < call.heads; job.first_head += job.heads) {
      job.heads = std::min(heads_at_once, call.heads - job.first_head);
      // A block starts anew for its first tile: few splits, but enough blocks for the device and its last ones short.
      const int64_t tiles = int64_t(job.windows) * job.heads;
      const int64_t wanted = std::max((tiles_of_positions + 7) / 8, (4 * int64_t(d.processors) + tiles - 1) / tiles);
      job.splits = int(std::min({wanted, tiles_of_positions, int64_t(kMostSplits)}));
      job.scores = job.sums + parts;
      job.maxima = reinterpret_cast<int32_t*>(job.scores + tiles * job.positions * kWindowRows);

      const dim3 score_grid(unsigned(job.heads * job.splits), unsigned(job.windows));
      int result = dims == 64    ? launch_score<2>(d, job, score_grid, "attention_tile_score_d64")
                   : dims == 128 ? launch_score<4>(d, job, score_grid, "attention_tile_score_d128")
                                 : launch_score<0>(d, job, score_grid, "attention_tile_score");
      if (result != ASSAY_DONE) return result;
      const dim3 mix_grid(unsigned(job.heads * column_blocks << job.class_bits), unsigned(job.windows));
      const size_t mix_shared = mix_shared_bytes(across, job.class_bits);
      result = across == 32 ? launch(d, "attention_tile_mix_c128", Overlap::yes, attention_tile_mix<32>, mix_grid, kGroups * 32,
                                     mix_shared, job)
                            : launch(d, "attention_tile_mix_c64", Overlap::yes, attention_tile_mix<16>, mix_grid, kGroups * 16,
                                     mix_shared, job);
      if (result != ASSAY_DONE) return result;
    }
    if (job.class_bits == 0) continue;
    const int first = job.first_window * kWindowRows;
    const int rows = std::min(call.rows - first, job.windows * kWindowRows);
    const int result = attention_finish(d, {call, job.partial, job.sums, first, rows, job.class_bits, Rows::tiled});
    if (result != ASSAY_DONE) return result;
  }
  return ASSAY_DONE;
}

}  // namespace assay
