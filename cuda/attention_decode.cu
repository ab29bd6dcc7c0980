// Attention of single rows, each with a place of its own: decode, and the rows of a pass that form no runs. Three launches:
//
// attention_score: scores and their maxima, per unit of work (attention_rows.cuh).
// attention_mix: exp, sum of p and mix of values, the same split. A class holds 256 / 2^class_bits of the lanes of the float
//   rule; a thread has 16 bytes of a value row in one lane and walks its positions upwards. Folds inside the class.
// attention_finish: folds the classes' parts, adds +0, divides.
//
// attention_mix copies its first values before attention_score has ended. That one lets it start only behind its own wait for
// what came before: when a block of attention_mix runs, the cache and the places are complete.
//
// Every thread copies what it will read itself, ahead, into a ring of its own in shared memory: no barrier in the loops. The
// split depends on nothing but the class, so grids do not depend on positions. Masked lanes and parts of pieces are zeros in
// both factors; they add +0 and change no byte (NUMERICS.md).
// Bytes moved: keys and values once per 8 query heads; per position and head 4 written and 4 read (scores).
// PRECOND: cache elements aligned to their size. Behind a row's position nothing is read.
#include <algorithm>

#include "cuda/attention_rows.cuh"

namespace assay {
namespace {

constexpr int kRingSteps = 16, kGroup = 4;  // attention_mix's ring, in positions of a lane, copied in groups
constexpr int kFinishThreads = 128;

size_t score_shared_bytes(int heads, int chunks, int threads) {
  const size_t warps = size_t(threads / 32);
  return size_t(kUnits * chunks * threads) * 16 + size_t(chunks) * 32 * heads * 4 + warps * (heads + kWindowsOfWarp) * 4;
}
/// Shared: the ring [place][warp][chunk][lane] of 16 bytes, q, maxima [warp][head], flags.
template <int kType, int kHeads>
__global__ void __launch_bounds__(kDecodeThreads, kHeads < 8 ? 2 : 1) attention_score(DecodeJob job) {
  SHARED_BYTES(shared);
  const AttentionCall& a = job.call;
  const int threads = (int)blockDim.x, tid = (int)threadIdx.x, chunks = (a.head_dim + 31) / 32;
  uint4* const ring = reinterpret_cast<uint4*>(shared) + tid / 32 * chunks * 32 + lane_of_warp();
  float* const q = reinterpret_cast<float*>(shared + (size_t)(kUnits * chunks * threads) * 16);
  int32_t* const best_of = reinterpret_cast<int32_t*>(q + chunks * 32 * kHeads);
  uint32_t* const flags = reinterpret_cast<uint32_t*>(best_of + threads / 32 * kHeads);
  wait_for_previous();
  let_next_start();

  for_units(a, job.first, job.rows, job.which, a.kv_heads * job.head_blocks << job.class_bits, flags, [&](int row, int u) {
    const DecodeUnit unit = decode_unit<kHeads>(job, row, u);
    const int64_t part = (unit.item << job.class_bits) + unit.position_class;  // of head 0
    int32_t best[Team<kType, kHeads>::kKept];
    class_scores<kType, kHeads>(a, unit, job.class_bits, row, ring, q, job.scores + part * job.per_class,
                                (int64_t)job.per_class << job.class_bits, [](int, int) {}, best);
    greatest_of_warp<kType, kHeads>(best, best_of);
    sync_block();
    if (tid < unit.heads) {
      job.maxima[part + ((int64_t)tid << job.class_bits)] = greatest(best_of + tid, kHeads, threads / 32);
    }
  });
}

size_t mix_shared_bytes(int heads) {
  return size_t(kRingSteps * kDecodeThreads) * 16 +
         size_t(2 * kDecodeThreads * heads + 16 * heads + heads + kDecodeThreads / 32 * kWindowsOfWarp) * 4;
}
/// Shared: the ring [step][thread] of 16 bytes, later the mixes to fold; p [2][thread's position][head], sums [lane][head],
/// maxima [head], flags. The block has kDecodeThreads / lanes pieces of a value row at a time.
template <int kType, int kHeads>
__global__ void __launch_bounds__(kDecodeThreads, kHeads < 8 ? 2 : 1) attention_mix(DecodeJob job) {
  constexpr int kElements = kPiece<kType>, kThreads = kDecodeThreads;
  SHARED_BYTES(shared);
  const AttentionCall& a = job.call;
  const int tid = (int)threadIdx.x;
  const int classes = 1 << job.class_bits, lanes = kFloatLanes >> job.class_bits, across = kThreads / lanes;
  const int my_lane = tid / across, pieces = (a.head_dim + kElements - 1) / kElements;
  uint4* const ring = reinterpret_cast<uint4*>(shared);
  float* const p = reinterpret_cast<float*>(ring + kRingSteps * kThreads);
  float* const lane_sums = p + 2 * kThreads * kHeads;
  float* const max_of = lane_sums + 16 * kHeads;
  uint32_t* const flags = reinterpret_cast<uint32_t*>(max_of + kHeads);
  bool waited = false;

  for_units(a, job.first, job.rows, job.which, a.kv_heads * job.head_blocks << job.class_bits, flags, [&](int row, int u) {
    const DecodeUnit unit = decode_unit<kHeads>(job, row, u);
    const int64_t part = (unit.item << job.class_bits) + unit.position_class;  // of head 0; others are `classes` apart
    const int steps = (unit.count + lanes - 1) / lanes, groups = (steps + kGroup - 1) / kGroup;
    const int tiles = (unit.count + kThreads - 1) / kThreads, groups_of_tile = across / kGroup;
    // From one position of a lane to its next.
    const int64_t step_bytes = (int64_t)a.head_dim * kFloatLanes * kElementBytes<kType>;

    for (int column = 0; column < pieces; column += across) {
      const int piece = column + tid % across;
      const unsigned char* const rows =
          a.v + (unit.cached + (unit.position_class + ((int64_t)my_lane << job.class_bits)) * a.head_dim + piece * kElements) *
                    kElementBytes<kType>;
      const auto copy = [&](int group) {
        if (group < groups && piece < pieces) {
          const unsigned char* from = rows + group * kGroup * step_bytes;
          uint4* const to = ring + group % (kRingSteps / kGroup) * (kGroup * kThreads) + tid;
          if (a.whole_pieces && (group + 1) * kGroup * lanes <= unit.count) {
#pragma unroll
            for (int s = 0; s < kGroup; s++) copy_async<16>(to + s * kThreads, from + s * step_bytes);
          } else {  // the last positions, of which a lane may have one less: zeros
#pragma unroll 1
            for (int s = 0; s < kGroup; s++, from += step_bytes) {
              const bool real = my_lane + (group * kGroup + s) * lanes < unit.count;
              if (a.whole_pieces) {
                copy_async_or_zero<16>(to + s * kThreads, real ? from : a.v, real);
              } else {
                to[s * kThreads] = piece_by_elements<kType>(from, 0, real ? a.head_dim - piece * kElements : 0);
              }
            }
          }
        }
        copy_commit();
      };
#pragma unroll 1
      for (int g = 0; g < kRingSteps / kGroup; g++) copy(g);
      if (!waited) {
        wait_for_previous();
        let_next_start();
        waited = true;
      }

      TilesOfP<kHeads> tiles_of_p{job.scores + part * job.per_class, classes * job.per_class, unit.heads, unit.count, {}};
      tiles_of_p.load(0);
      if (column == 0) {  // maximum over the classes; a warp per head
        for (int h = tid / 32; h < kHeads; h += kThreads / 32) {
          int32_t most = ordered_of(float_of(0xff800000u));
          for (int c = lane_of_warp(); c < classes && h < unit.heads; c += 32) {
            const int32_t other = job.maxima[((unit.item + h) << job.class_bits) + c];
            most = other > most ? other : most;
          }
#pragma unroll
          for (int mask = 16; mask >= 1; mask /= 2) {
            const int32_t other = shuffle_xor(most, mask);
            most = other > most ? other : most;
          }
          if (lane_of_warp() == 0) max_of[h] = float_of_ordered(most);
        }
        sync_block();
      }

      float acc[kHeads][kElements] = {}, sum[kHeads] = {};
      for (int tile = 0; tile < tiles; tile++) {
        float* const tile_p = p + (tile & 1) * kThreads * kHeads;
        tiles_of_p.put(tile, tiles, max_of, tile_p);
        sync_block();
        const int end = (tile + 1) * groups_of_tile < groups ? (tile + 1) * groups_of_tile : groups;
        for (int g = tile * groups_of_tile; g < end; g++) {
          copy_wait<kRingSteps / kGroup - 1>();
          if (piece < pieces) {
#pragma unroll
            for (int s = 0; s < kGroup; s++) {
              const float* from = tile_p + (((g - tile * groups_of_tile) * kGroup + s) * lanes + my_lane) * kHeads;
              add_value<kType, kHeads>(ring[(g % (kRingSteps / kGroup) * kGroup + s) * kThreads + tid], from, acc, sum);
            }
          }
          copy(g + kRingSteps / kGroup);
        }
      }

      // The ring is empty: each thread leaves its mixes in its own slots.
#pragma unroll
      for (int h = 0; h < kHeads; h++) {
#pragma unroll
        for (int j = 0; j < kElements; j += 4) {
          reinterpret_cast<float4*>(ring)[(h * kElements + j) / 4 * kThreads + tid] =
              make_float4(acc[h][j], acc[h][j + 1], acc[h][j + 2], acc[h][j + 3]);
        }
      }
      if (column == 0 && tid % across == 0) {
#pragma unroll
        for (int h = 0; h < kHeads; h++) lane_sums[my_lane * kHeads + h] = sum[h];
      }
      sync_block();
      if (column == 0 && tid < unit.heads) {
        float f[16];
#pragma unroll
        for (int i = 0; i < 16; i++) f[i] = i < lanes ? lane_sums[i * kHeads + tid] : 0.0f;
        job.sums[part + (int64_t)tid * classes] = fold_16(f);
      }
      for (int o = tid; o < across * (kHeads * kElements / 4); o += kThreads) {
        const int x = o % across, four = o / across, head = four * 4 / kElements;
        const int d = (column + x) * kElements + four * 4 % kElements;
        if (head >= unit.heads || d >= a.head_dim) continue;
        float* const to = job.partial + (part + (int64_t)head * classes) * a.head_dim + d;
        const float* const from = reinterpret_cast<const float*>(ring + four * kThreads + x);
#pragma unroll
        for (int i = 0; i < 4; i++) {
          float f[16];
#pragma unroll
          for (int l = 0; l < 16; l++) f[l] = l < lanes ? from[l * across * 4 + i] : 0.0f;
          const float folded = fold_16(f);
          if (d + i < a.head_dim) to[i] = folded;
        }
      }
      sync_block();  // ring, p and maxima are free again
    }
  });
  if (!waited) wait_for_previous();
}


/// Block: a head of a row. Shared: flags.
__global__ void __launch_bounds__(kFinishThreads) attention_finish_kernel(FinishJob job) {
  SHARED_BYTES(shared);
  const AttentionCall& a = job.call;
  const int classes = 1 << job.class_bits;
  wait_for_previous();
  let_next_start();
  for_units(a, job.first, job.rows, job.which, a.heads, reinterpret_cast<uint32_t*>(shared), [&](int row, int head) {
    const int64_t item = ((int64_t)(row - job.first) * a.heads + head) << job.class_bits;
    const float sum = fold_classes(job.sums + item, 1, classes);
    for (int d = (int)threadIdx.x; d < a.head_dim; d += kFinishThreads) {
      const float mix = fold_classes(job.partial + item * a.head_dim + d, a.head_dim, classes);
      a.y[((int64_t)row * a.heads + head) * a.head_dim + d] = div_f32(mix, sum);
    }
  });
}

/// Blocks for `units` of work that the grid walks through; few where most rows may not be asked for.
int blocks_for(const AssayDevice& d, int64_t units, Rows which) {
  return int(std::min<int64_t>(units, d.processors * (which == Rows::every ? 64 : 4)));
}

/// Threads of attention_score: as many as have room for their rings.
int score_threads(const AssayDevice& d, int heads, int64_t chunks) {
  int threads = kDecodeThreads;
  while (threads > 64 && score_shared_bytes(heads, int(chunks), threads) > d.shared_limit) threads /= 2;
  return threads;
}

template <int kType, int kHeads>
int decode_rows(AssayDevice& d, const DecodeJob& job, const char* score_name, const char* mix_name) {
  const AttentionCall& a = job.call;
  const int chunks = (a.head_dim + 31) / 32, threads = score_threads(d, kHeads, chunks);
  const size_t score_shared = score_shared_bytes(kHeads, chunks, threads);
  const size_t mix_shared = mix_shared_bytes(kHeads);
  const int blocks = blocks_for(d, int64_t(job.rows) * a.kv_heads * job.head_blocks << job.class_bits, job.which);
  const dim3 grid{unsigned(blocks)};
  int result = launch(d, score_name, Overlap::yes, attention_score<kType, kHeads>, grid, threads, score_shared, job);
  if (result != ASSAY_DONE) return result;
  result = launch(d, mix_name, Overlap::yes, attention_mix<kType, kHeads>, grid, kDecodeThreads, mix_shared, job);
  if (result != ASSAY_DONE) return result;
  return attention_finish(d, {a, job.partial, job.sums, job.first, job.rows, job.class_bits, job.which});
}

template <int kType>
int decode_rows_of(AssayDevice& d, const DecodeJob& job, const char* const (&names)[6]) {
  const int group = job.call.heads / job.call.kv_heads;
  if (group <= 2) return decode_rows<kType, 2>(d, job, names[0], names[1]);
  if (group <= 4) return decode_rows<kType, 4>(d, job, names[2], names[3]);
  return decode_rows<kType, 8>(d, job, names[4], names[5]);
}

}  // namespace

bool attention_decode_fits(const AssayDevice& d, int64_t head_dim, int64_t group) {
  const int heads = group <= 2 ? 2 : group <= 4 ? 4 : 8;
  const int64_t chunks = (head_dim + 31) / 32;
  return score_shared_bytes(heads, int(chunks), score_threads(d, heads, chunks)) <= d.shared_limit &&
         mix_shared_bytes(heads) <= d.shared_limit;
}

int attention_finish(AssayDevice& d, const FinishJob& job) {
  const int blocks = blocks_for(d, int64_t(job.rows) * job.call.heads, job.which);
  return launch(d, "attention_finish", Overlap::yes, attention_finish_kernel, dim3(unsigned(blocks)), kFinishThreads,
                size_t(kFinishThreads / 32 * kWindowsOfWarp) * 4, job);
}

size_t attention_decode_bytes(int64_t heads, int64_t head_dim, int64_t longest, int class_bits) {
  const size_t classes = size_t(1) << class_bits;
  return size_t(heads) * (size_t(longest) + classes + classes * size_t(head_dim + 2)) * 4;
}

int attention_decode(AssayDevice& d, const AttentionCall& call, int32_t type, int64_t longest, Rows which) {
  DecodeJob job{};
  job.call = call;
  job.which = which;
  job.head_blocks = (call.heads / call.kv_heads + 7) / 8;
  job.class_bits = kFewestClassBits;
  job.rows = call.rows;
  job.per_class = int((longest + (1 << kFewestClassBits) - 1) >> kFewestClassBits);
  job.scores = reinterpret_cast<float*>(d.attention.memory);
  if (const int result = attention_clusters(d, job, type); result != ASSAY_REFUSED) return result;
  // Enough blocks for the device; beyond 16 classes the threads of a block idle in attention_mix.
  const int64_t items = int64_t(call.rows) * call.kv_heads * job.head_blocks;
  while (which == Rows::every && job.class_bits < kMostClassBits && (items << job.class_bits) * 8 < int64_t(d.processors) * 7) {
    job.class_bits++;
  }
  const int64_t classes = int64_t(1) << job.class_bits;
  job.per_class = int((longest + classes - 1) / classes);

  const size_t of_row = attention_decode_bytes(call.heads, call.head_dim, longest, job.class_bits);
  const int64_t at_once = int64_t(d.attention.bytes / of_row);
  if (at_once == 0) {
    return failed(d, ASSAY_ERROR, "attention: %zu bytes of scratch reserved, %zu needed for a row", d.attention.bytes, of_row);
  }
  for (job.first = 0; job.first < call.rows; job.first += job.rows) {
    job.rows = int(std::min<int64_t>(call.rows - job.first, at_once));
    const int64_t parts = int64_t(job.rows) * call.heads * classes;
    job.scores = reinterpret_cast<float*>(d.attention.memory);
    job.partial = job.scores + parts * job.per_class;
    job.sums = job.partial + parts * call.head_dim;
    job.maxima = reinterpret_cast<int32_t*>(job.sums + parts);
    static constexpr const char* kNames[3][6] = {
        {"attention_score_f32_h2", "attention_mix_f32_h2", "attention_score_f32_h4", "attention_mix_f32_h4",
         "attention_score_f32_h8", "attention_mix_f32_h8"},
        {"attention_score_f16_h2", "attention_mix_f16_h2", "attention_score_f16_h4", "attention_mix_f16_h4",
         "attention_score_f16_h8", "attention_mix_f16_h8"},
        {"attention_score_bf16_h2", "attention_mix_bf16_h2", "attention_score_bf16_h4", "attention_mix_bf16_h4",
         "attention_score_bf16_h8", "attention_mix_bf16_h8"}};
    static_assert(ASSAY_F32 == 0 && ASSAY_F16 == 1 && ASSAY_BF16 == 2);
    const int result = type == ASSAY_F32   ? decode_rows_of<ASSAY_F32>(d, job, kNames[0])
                       : type == ASSAY_F16 ? decode_rows_of<ASSAY_F16>(d, job, kNames[1])
                                           : decode_rows_of<ASSAY_BF16>(d, job, kNames[2]);
    if (result != ASSAY_DONE) return result;
  }
  return ASSAY_DONE;
}

}  // namespace assay
