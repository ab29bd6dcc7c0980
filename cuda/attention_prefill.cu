// Attention of rows that follow each other in one slot: prefill. Tiles of 64 rows (a window) and one head; of a window with
// several runs, each run is a tile whose other rows are masked. Two launches, three where the lanes are split:
//
// attention_tile_score: scores and their maxima (attention_tiles.cuh).
// attention_tile_mix: exp, sum of p and mix. A thread has 8 rows x 4 columns. It walks lanes (positions mod 256) in quads l,
//   l + 128, l + 64, l + 192, all positions of a quad upwards, then the next quad, in bit-reversed order of l: folds 128 and 64
//   lie inside the quad, for 32 ... 1 partial mixes are parked in shared memory, one per level (a binary counter). p and values
//   of 16 positions are staged one step ahead. Positions behind a row's own are skipped, not added: a value there may be Inf.
// attention_finish (attention_decode.cu), where a tile's lanes are split in classes so that the device is filled.
//
// Scores lie in scratch [window][head][group of 8 rows][position][row]: 4 bytes written and read per row, head and position.
// Host code does as many windows and heads at once as scratch holds.
// PRECOND: cache elements aligned to their size; head_dim <= 256 (attention_prefill_fits). Keys and values behind a run's last
// position are not read.
#include <algorithm>

#include "cuda/attention_tiles.cuh"

namespace assay {
namespace {

constexpr int kMostSplits = 16;
constexpr int kQuadBits = 6, kMostTileClassBits = 4;
constexpr int kStagedSteps = 16;  // 4 rounds of a quad's 4 positions

/// The bits of v in reverse: which quad comes as the v-th.
__device__ __forceinline__ int reversed_quad(int v) {
  return (v & 1) << 5 | (v & 2) << 3 | (v & 4) << 1 | (v & 8) >> 1 | (v & 16) >> 3 | (v & 32) >> 5;
}
/// Lanes of a quad, relative to its first, in the order in which they are folded: 0, 128, 64, 192.
__device__ __forceinline__ int quad_lane(int z) { return (z & 1) << 7 | (z & 2) << 5; }

/// 8 elements of a value row: two pieces (f32) or one. Zeros where !real and behind the row's end.
template <int kType>
__device__ __forceinline__ void load_values(const AttentionCall& a, const unsigned char* rows, int position, int d, bool real,
                                            uint4 (&bits)[8 / kPiece<kType>]) {
  const unsigned char* const row = rows + (int64_t)position * a.head_dim * kElementBytes<kType>;
#pragma unroll
  for (int i = 0; i < 8 / kPiece<kType>; i++) {
    const int first = d + i * kPiece<kType>;
    bits[i] = make_uint4(0, 0, 0, 0);
    if (!real || first >= a.head_dim) continue;
    bits[i] = a.whole_pieces ? *reinterpret_cast<const uint4*>(row + first * kElementBytes<kType>)
                             : piece_by_elements<kType>(row, first, a.head_dim);
  }
}

/// Adds one position: p of 8 rows times 4 columns. kStart: it is the first (a sum that starts at -0 ends as one from +0 does).
template <bool kStart>
__device__ __forceinline__ void add_position(const float* p, const float* values, float (&acc)[32]) {
  const float4 low = reinterpret_cast<const float4*>(p)[0], high = reinterpret_cast<const float4*>(p)[1];
  const float4 four = reinterpret_cast<const float4*>(values)[0];
  const float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  const float v[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
  for (int m = 0; m < 8; m++) {
#pragma unroll
    for (int n = 0; n < 4; n++) acc[4 * m + n] = kStart ? mul_f32(x[m], v[n]) : fma_f32(x[m], v[n], acc[4 * m + n]);
  }
}
/// The same where rows m < hidden do not see it.
__device__ __forceinline__ void add_masked(const float* p, const float* values, int hidden, float (&acc)[32]) {
  const float4 four = reinterpret_cast<const float4*>(values)[0];
  const float v[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
  for (int m = 0; m < 8; m++) {
    if (m >= hidden) {
#pragma unroll
      for (int n = 0; n < 4; n++) acc[4 * m + n] = fma_f32(p[m], v[n], acc[4 * m + n]);
    }
  }
}

/// Grid: (head * column blocks * classes, window). kAcross threads share 8 rows and have 4 columns each. kWide: the cache is f32.
/// Shared: parked mixes [level][8][thread] of 16 bytes and sums [level][thread]; p [2][step][row] and values [2][step][column];
/// maxima [row], sums [row].
template <int kAcross, bool kWide>
__global__ void __launch_bounds__(kGroups * kAcross, 1) attention_tile_mix(PrefillJob job) {
  constexpr int kThreads = kGroups * kAcross, kColumns = 4 * kAcross;
  constexpr int kPerStep = kThreads / kStagedSteps, kStagedRows = kWindowRows / kPerStep;
  constexpr int kSums = 4 * kGroupRows / kAcross;
  static_assert(kColumns / kPerStep == 8);
  SHARED_BYTES(shared);
  const AttentionCall& a = job.call;
  const int tid = (int)threadIdx.x, group_row = tid / kAcross * kGroupRows, t = tid % kAcross;
  const int my_row = t % kGroupRows, my_lane = t / kGroupRows;
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
  wait_for_previous();
  let_next_start();
  bool tiled[1];
  windows_are_tiled(a.places, tile.first_row, 0, a.rows, tiled);
  if (!tiled[0]) return;

  for (int begin = 0; begin < tile.rows;) {
    const Run run = run_of(a, tile, begin);
    begin = run.end;
    const int origin = run.origin + group_row;  // position of the group's first row
    // A warp with one row of the run works for all of its rows.
    const int warp_row = tid / 32 * 32 / kAcross * kGroupRows, warp_rows = 32 / kAcross * kGroupRows;
    const bool busy = warp_row < run.end && warp_row + warp_rows > run.begin;
    // Up to which position all rows of the group see all; up to which one of them sees any.
    const int seen_by_all = run.origin + (group_row > run.begin ? group_row : run.begin);
    const int seen_by_any = run.origin + (group_row + kGroupRows < run.end ? group_row + kGroupRows : run.end) - 1;
    const int blocks = run.last / kFloatLanes + 1;
    const int chunks = (quads * blocks + 3) / 4;
    sync_block();  // maxima and sums of the run before have been read
    if (tid < kWindowRows) {
      const bool of_run = tid >= run.begin && tid < run.end;
      int32_t most = ordered_of(of_run ? float_of(0xff800000u) : 0.0f);
      for (int s = 0; of_run && s < job.splits; s++) {
        const int32_t other = job.maxima[(tile.index * job.splits + s) * kWindowRows + tid];
        most = other > most ? other : most;
      }
      max_of[tid] = float_of_ordered(most);
    }
    sync_block();

    // Staging: a thread has one of the 16 steps, kStagedRows rows and 8 columns of it.
    const int staged_step = tid / kPerStep, staged_row = tid % kPerStep * kStagedRows, staged_column = tid % kPerStep * 8;
    const float* const scores =
        job.scores + ((tile.index * kGroups + staged_row / kGroupRows) * job.positions) * kGroupRows + staged_row % kGroupRows;
    const unsigned char* const rows = a.v + run.cached * (kWide ? 4 : 2);
    int staged_quad = 0, staged_block = staged_step / 4, staged_lane = position_class + quad_lane(staged_step % 4);
    float held_score[kStagedRows];
    uint4 held_values[kWide ? 2 : 1];
    const auto load = [&] {
      while (staged_block >= blocks) {
        staged_block -= blocks;
        staged_quad++;
        staged_lane = position_class + quad_lane(staged_step % 4) + reversed_quad(staged_quad);
      }
      const int position = staged_block * kFloatLanes + staged_lane;
      const bool real = staged_quad < quads && position <= run.last;
#pragma unroll
      for (int i = 0; i < kStagedRows; i += 4) {
        const float* const from = scores + (int64_t)position * kGroupRows + i;
        const int row = staged_row + i;
        float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (real && row >= run.begin && row + 4 <= run.end) {
          four = *reinterpret_cast<const float4*>(from);
        } else if (real) {  // rows of other runs have no scores here
          if (row >= run.begin && row < run.end) four.x = from[0];
          if (row + 1 >= run.begin && row + 1 < run.end) four.y = from[1];
          if (row + 2 >= run.begin && row + 2 < run.end) four.z = from[2];
          if (row + 3 >= run.begin && row + 3 < run.end) four.w = from[3];
        }
        held_score[i] = four.x;
        held_score[i + 1] = four.y;
        held_score[i + 2] = four.z;
        held_score[i + 3] = four.w;
      }
      load_values<kWide ? ASSAY_F32 : ASSAY_F16>(a, rows, position, first_column + staged_column, real, held_values);
      staged_block += 4;
    };
    const auto store = [&](int buffer) {
      float* const p = staged_p + (buffer * kStagedSteps + staged_step) * kWindowRows + staged_row;
#pragma unroll
      for (int i = 0; i < kStagedRows; i++) held_score[i] = sub_f32(held_score[i], max_of[staged_row + i]);
      exp_of_differences(held_score);
#pragma unroll
      for (int i = 0; i < kStagedRows; i += 4) {
        reinterpret_cast<float4*>(p)[i / 4] = make_float4(held_score[i], held_score[i + 1], held_score[i + 2], held_score[i + 3]);
      }
      float v[8];
      if constexpr (kWide) {
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

    float acc[4][32], sum[kSums] = {}, whole_sum = 0.0f;
    int quad = 0, block = 0, first = position_class;  // position of the quad's first lane in this block
    // How many blocks of a quad all rows see in all of its lanes.
    const auto plain_blocks = [&] { return ((seen_by_all - quad_lane(3) - first) >> 8) + 1; };
    int plain = plain_blocks();
    // A block of a quad of which some rows do not see all. kStart: it is the first.
    const auto add_block = [&]<bool kStart>(const float* p, const float* values) {
#pragma unroll
      for (int z = 0; z < 4; z++) {
        const int position = first + quad_lane(z);
        if constexpr (kStart) {
#pragma unroll
          for (int n = 0; n < 32; n++) acc[z][n] = 0.0f;
        }
        if (position <= seen_by_all) {
          add_position<false>(p + z * kWindowRows, values + z * kColumns, acc[z]);
        } else if (position <= seen_by_any) {
          add_masked(p + z * kWindowRows, values + z * kColumns, position - origin, acc[z]);
        }
      }
#pragma unroll
      for (int s = 0; s < kSums; s++) {
        const int z = my_lane + s * kAcross / kGroupRows;
        if constexpr (kStart) sum[s] = 0.0f;
        if (first + quad_lane(z) <= origin + my_row) sum[s] = add_f32(sum[s], p[z * kWindowRows + my_row]);
      }
    };
    load();
    store(0);
    load();
    // Half of the warps stage the next chunk before they work on this one, the others behind it: staging waits for arithmetic
    // and for memory, and a multiprocessor's quarter has one warp of each kind.
    const int staging_turn = tid < kThreads / 2 ? 0 : 1;
    for (int chunk = 0; chunk < chunks; chunk++) {
      sync_block();  // this chunk is staged, the one before has been used
#pragma unroll 1
      for (int turn = 0; turn < 2; turn++) {
        if (turn == staging_turn) {
          if (chunk + 1 < chunks) {
            store((chunk + 1) & 1);
            load();
          }
          continue;
        }
        if (!busy) continue;
        const float* p = staged_p + (chunk & 1) * kStagedSteps * kWindowRows + group_row;
        const float* values = staged_values + (chunk & 1) * kStagedSteps * kColumns + 4 * t;
        int rounds = quads * blocks - 4 * chunk < 4 ? quads * blocks - 4 * chunk : 4;
        while (rounds > 0) {
          if (block < plain) {
            int count = plain - block < rounds ? plain - block : rounds;
            const bool start = block == 0;
            block += count;
            rounds -= count;
            first += count * kFloatLanes;
            if (start) {
#pragma unroll
              for (int z = 0; z < 4; z++) add_position<true>(p + z * kWindowRows, values + z * kColumns, acc[z]);
#pragma unroll
              for (int s = 0; s < kSums; s++) sum[s] = p[(my_lane + s * kAcross / kGroupRows) * kWindowRows + my_row];
              count--;
              p += 4 * kWindowRows;
              values += 4 * kColumns;
            }
#pragma unroll 2
            for (int i = 0; i < count; i++, p += 4 * kWindowRows, values += 4 * kColumns) {
#pragma unroll
              for (int z = 0; z < 4; z++) add_position<false>(p + z * kWindowRows, values + z * kColumns, acc[z]);
#pragma unroll
              for (int s = 0; s < kSums; s++) {
                sum[s] = add_f32(sum[s], p[(my_lane + s * kAcross / kGroupRows) * kWindowRows + my_row]);
              }
            }
          } else {
            if (block == 0) {
              add_block.template operator()<true>(p, values);
            } else {
              add_block.template operator()<false>(p, values);
            }
            block++;
            rounds--;
            first += kFloatLanes;
            p += 4 * kWindowRows;
            values += 4 * kColumns;
          }
          if (block < blocks) continue;

          // The quad is done: levels 128 and 64 here, the others with what is parked.
          float quad_sum = add_f32(sum[0], shuffle_xor(sum[0], kGroupRows));
          if constexpr (kSums == 2) {
            quad_sum = add_f32(quad_sum, add_f32(sum[1], shuffle_xor(sum[1], kGroupRows)));
          } else {
            quad_sum = add_f32(quad_sum, shuffle_xor(quad_sum, 2 * kGroupRows));
          }
#pragma unroll
          for (int i = 0; i < 32; i++) acc[0][i] = add_f32(add_f32(acc[0][i], acc[1][i]), add_f32(acc[2][i], acc[3][i]));
          int level = 0;
#pragma unroll 1
          for (; quad >> level & 1; level++) {
            quad_sum = add_f32(parked_sums[level * kThreads], quad_sum);
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
            parked_sums[level * kThreads] = quad_sum;
#pragma unroll
            for (int i = 0; i < 8; i++) {
              parked[(level * 8 + i) * kThreads] =
                  make_float4(acc[0][4 * i], acc[0][4 * i + 1], acc[0][4 * i + 2], acc[0][4 * i + 3]);
            }
          }
          if (++quad == quads) {
            whole_sum = quad_sum;
            break;
          }
          block = 0;
          first = position_class + reversed_quad(quad);
          plain = plain_blocks();
        }
      }
    }

    if (busy && t < kGroupRows) sum_of[group_row + t] = whole_sum;  // my_row is t
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
  const size_t shared = tile_score_shared_bytes((job.call.head_dim + 31) / 32 * 32, job.ahead);
  return launch(d, name, Overlap::yes, attention_tile_score<kChunks>, grid, kScoreThreads, shared, job);
}

}  // namespace

bool attention_prefill_fits(const AssayDevice& d, int64_t head_dim) {
  return head_dim <= kMostDims && tile_score_shared_bytes((head_dim + 31) / 32 * 32, 0) <= d.shared_limit &&
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
  const size_t left = d.shared_limit - tile_score_shared_bytes(dims, 0);
  job.ahead = call.whole_pieces ? int(std::min<size_t>(size_t(pieces), left / (kScoreThreads * 32) * 2)) : 0;  // even

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
      const int64_t wanted = std::max((tiles_of_positions + 15) / 16, (4 * int64_t(d.processors) + tiles - 1) / tiles);
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
      const bool wide = type == ASSAY_F32;
      result = across == 32 ? launch(d, wide ? "attention_tile_mix_f32_c128" : "attention_tile_mix_c128", Overlap::yes,
                                     wide ? attention_tile_mix<32, true> : attention_tile_mix<32, false>, mix_grid, kGroups * 32,
                                     mix_shared, job)
                            : launch(d, wide ? "attention_tile_mix_f32_c64" : "attention_tile_mix_c64", Overlap::yes,
                                     wide ? attention_tile_mix<16, true> : attention_tile_mix<16, false>, mix_grid, kGroups * 16,
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
