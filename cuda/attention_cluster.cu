// Attention of single rows in one launch: a cluster of 16 blocks per unit of a row, kv head and up to 8 query heads
// (attention_rows.cuh), a block per class of positions. What attention_score, attention_mix and attention_finish do one after
// the other happens between barriers of the cluster:
//
// 1. Scores of the block's positions, and their maximum, which goes to all blocks.  barrier
// 2. exp, sum of p and mix of values; the class holds 16 lanes of the float rule: folds 128 ... 16. Mixes go to the block that
//    finishes those columns, sums to all.  barrier
// 3. Folds 8 ... 1 over the classes, +0, one division.
//
// Each thread has one ring of places in shared memory for keys, then for values: while the last scores are made, the first
// values are on their way. Orders of sums are those of attention_decode.cu; bytes moved too, but scores stay in shared memory up
// to 256 positions of a class (4096 of the row), and partial mixes do not leave the cluster.
// PRECOND: as attention_decode.cu; head_dim <= 256.
#include <algorithm>

#include "cuda/attention_rows.cuh"

namespace assay {
namespace {

constexpr int kClassBits = kFewestClassBits, kClasses = 1 << kClassBits, kLanes = kFloatLanes / kClasses;
constexpr int kThreads = kDecodeThreads, kAcross = kThreads / kLanes;  // pieces of a value row that a block has at a time
constexpr int kNearPositions = 256;  // of a class, whose scores lie in shared memory: two blocks fit on a multiprocessor
static_assert(kClasses == 16 && kLanes == 16 && kAcross == kClasses);

/// Where things lie in shared memory, in bytes.
struct Layout {
  int q, best, p, lane_sums, maxima, scores, others_best, others_sums, others_mixes, flags, bytes;
};
/// passes: over kAcross pieces each.
template <int kHeads>
__host__ __device__ __forceinline__ Layout layout_of(int chunks, int passes, int elements) {
  Layout l;
  const int ring = kUnits * chunks, fold = kHeads * elements / 4;
  l.q = l.p = (ring > fold ? ring : fold) * kThreads * 16;  // q is done with when the first p comes
  static_assert(2 * kThreads >= 8 * 32);
  l.best = l.p + 2 * kThreads * kHeads * 4;
  l.lane_sums = l.best + kThreads / 32 * kHeads * 4;
  l.maxima = l.lane_sums + kLanes * kHeads * 4;
  l.scores = l.maxima + (kHeads * 4 + 15) / 16 * 16;
  l.others_best = l.scores + kNearPositions * kHeads * 4;
  l.others_sums = l.others_best + kClasses * kHeads * 4;
  l.others_mixes = l.others_sums + kClasses * kHeads * 4;
  l.flags = l.others_mixes + passes * kClasses * kHeads * elements * 4;
  l.bytes = l.flags + kThreads / 32 * kWindowsOfWarp * 4;
  return l;
}

/// Grid: clusters, which walk through the units. Shared: Layout; others_best [class][head], others_sums [class][head] and
/// others_mixes [pass][class][head][kPiece] are written by the blocks of those classes; what lies in front of q is the ring
/// [place][warp][chunk][lane] of 16 bytes and later the mixes to fold.
template <int kType, int kHeads>
__global__ void __launch_bounds__(kThreads, kHeads < 8 ? 2 : 1) attention_cluster(DecodeJob job) {
  constexpr int kElements = kPiece<kType>, kFours = kHeads * kElements / 4;
  SHARED_BYTES(shared);
  const AttentionCall& a = job.call;
  const int tid = (int)threadIdx.x, warp = tid / 32, lane = lane_of_warp(), chunks = (a.head_dim + 31) / 32;
  const int pieces = (a.head_dim + kElements - 1) / kElements, passes = (pieces + kAcross - 1) / kAcross;
  const Layout l = layout_of<kHeads>(chunks, passes, kElements);
  uint4* const ring = reinterpret_cast<uint4*>(shared) + warp * chunks * 32 + lane;
  float4* const fold = reinterpret_cast<float4*>(shared);
  float* const p = reinterpret_cast<float*>(shared + l.p);
  float* const lane_sums = reinterpret_cast<float*>(shared + l.lane_sums);
  float* const max_of = reinterpret_cast<float*>(shared + l.maxima);
  int32_t* const best_of = reinterpret_cast<int32_t*>(shared + l.best);
  int32_t* const others_best = reinterpret_cast<int32_t*>(shared + l.others_best);
  float* const others_sums = reinterpret_cast<float*>(shared + l.others_sums);
  float* const others_mixes = reinterpret_cast<float*>(shared + l.others_mixes);
  cluster_arrive();  // says that this block has started
  bool all_started = false;
  wait_for_previous();
  let_next_start();

  for_units(a, 0, a.rows, job.which, a.kv_heads * job.head_blocks << kClassBits, reinterpret_cast<uint32_t*>(shared + l.flags),
            [&](int row, int u) {
    const DecodeUnit unit = decode_unit<kHeads>(job, row, u);
    const int position_class = unit.position_class;  // the block's rank in the cluster

    // A place of the ring takes `steps_of_place` values of a lane. Its turns are numbered through: keys first.
    const int steps_of_place = chunks >= 8 ? 8 : chunks >= 4 ? 4 : chunks >= 2 ? 2 : 1, tile_places = kAcross / steps_of_place;
    const int steps = (unit.count + kLanes - 1) / kLanes, places = (steps + steps_of_place - 1) / steps_of_place;
    const int tiles = (unit.count + kThreads - 1) / kThreads;
    const int my_lane = tid / kAcross, place_pieces = chunks * kThreads;
    // From one position of a lane to its next.
    const int64_t step_bytes = (int64_t)a.head_dim * kFloatLanes * kElementBytes<kType>;
    const unsigned char* const values =
        a.v + (unit.cached + (int64_t)(position_class + kClasses * my_lane) * a.head_dim) * kElementBytes<kType>;
    const auto copy_values = [&](int pass, int n, int s) {  // the n-th place of the pass
      const int piece = pass * kAcross + tid % kAcross, first = n * steps_of_place;
      if (n >= places || piece >= pieces) return;
      const unsigned char* from = values + first * step_bytes + piece * 16;
      uint4* to = ring + s * place_pieces;
      if (a.whole_pieces && (first + steps_of_place) * kLanes <= unit.count) {
        for (int i = 0; i < steps_of_place; i++, from += step_bytes, to += 32) copy_async<16>(to, from);
      } else {  // the last positions, of which a lane may have one less: zeros
#pragma unroll 1
        for (int i = 0; i < steps_of_place; i++, from += step_bytes, to += 32) {
          const bool real = my_lane + (first + i) * kLanes < unit.count;
          if (a.whole_pieces) {
            copy_async_or_zero<16>(to, real ? from : a.v, real);
          } else {
            *to = piece_by_elements<kType>(from, 0, real ? a.head_dim - piece * kElements : 0);
          }
        }
      }
    };

    // 1. Scores.
    const bool near = unit.count <= kNearPositions;
    float* const scores = near ? reinterpret_cast<float*>(shared + l.scores)
                               : job.scores + (int64_t)blockIdx.x * kHeads * job.per_class;  // [cluster][class][head][per_class]
    const int64_t head_stride = near ? kNearPositions : job.per_class;
    int32_t best[Team<kType, kHeads>::kKept];
    class_scores<kType, kHeads>(a, unit, kClassBits, row, ring, reinterpret_cast<float*>(shared + l.q), scores, head_stride,
                                [&](int n, int s) { copy_values(0, n, s); }, best);
    greatest_of_warp<kType, kHeads>(best, best_of);
    sync_block();
    if (!all_started) cluster_wait();
    all_started = true;
    if (tid < kClasses * kHeads) {
      const int head = tid % kHeads;
      store_to_block(others_best + position_class * kHeads + head, tid / kHeads, greatest(best_of + head, kHeads, kThreads / 32));
    }
    cluster_arrive();
    cluster_wait();

    // 2. Mix.
    for (int h = warp; h < kHeads; h += kThreads / 32) {
      int32_t most = others_best[lane % kClasses * kHeads + h];
#pragma unroll
      for (int mask = kClasses / 2; mask >= 1; mask /= 2) {
        const int32_t other = shuffle_xor(most, mask);
        most = other > most ? other : most;
      }
      if (lane == 0) max_of[h] = float_of_ordered(most);
    }
    sync_block();
    const int turns = (unit.count + TeamPlace<kType, kHeads>().teams - 1) / TeamPlace<kType, kHeads>().teams;
    int s = turns % kUnits;  // the place of the ring where values start
    for (int pass = 0; pass < passes; pass++) {
      const bool busy = pass * kAcross + tid % kAcross < pieces;
      if (pass > 0) {
#pragma unroll 1
        for (int n = 0; n < kUnits; n++) {
          copy_values(pass, n, (s + n) % kUnits);
          copy_commit();
        }
      }
      TilesOfP<kHeads> tiles_of_p{scores, head_stride, unit.heads, unit.count, {}};
      tiles_of_p.load(0);
      float acc[kHeads][kElements] = {}, sum[kHeads] = {};
      for (int tile = 0; tile < tiles; tile++) {
        float* const tile_p = p + (tile & 1) * kThreads * kHeads;
        tiles_of_p.put(tile, tiles, max_of, tile_p);
        sync_block();
        const int end = (tile + 1) * tile_places < places ? (tile + 1) * tile_places : places;
        const float* from = tile_p + my_lane * kHeads;
        for (int n = tile * tile_places; n < end; n++) {
          copy_wait<kUnits - 1>();
          const uint4* const here = ring + s * place_pieces;
          if (!busy) {
            // has no column
          } else if (steps_of_place == 4) {
#pragma unroll
            for (int i = 0; i < 4; i++) add_value<kType, kHeads>(here[i * 32], from + i * kLanes * kHeads, acc, sum);
          } else {
#pragma unroll 1
            for (int i = 0; i < steps_of_place; i++) add_value<kType, kHeads>(here[i * 32], from + i * kLanes * kHeads, acc, sum);
          }
          from += steps_of_place * kLanes * kHeads;
          copy_values(pass, n + kUnits, s);
          copy_commit();
          s = s + 1 == kUnits ? 0 : s + 1;
        }
      }

      // Folds of the class: [head and 4 elements][lane][piece]. The ring is empty, when all have come here.
      sync_block();
#pragma unroll
      for (int h = 0; h < kHeads; h++) {
#pragma unroll
        for (int j = 0; j < kElements; j += 4) {
          fold[(h * kElements + j) / 4 * kThreads + tid] = make_float4(acc[h][j], acc[h][j + 1], acc[h][j + 2], acc[h][j + 3]);
        }
      }
      if (pass == 0 && tid % kAcross == 0) {
#pragma unroll
        for (int h = 0; h < kHeads; h++) lane_sums[my_lane * kHeads + h] = sum[h];
      }
      sync_block();
      for (int o = tid; o < kAcross * kFours; o += kThreads) {
        const int x = o % kAcross, four = o / kAcross;
        const float* const lanes = reinterpret_cast<const float*>(fold + four * kThreads + x);
        float folded[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
          float f[16];
#pragma unroll
          for (int j = 0; j < 16; j++) f[j] = lanes[j * kAcross * 4 + i];
          folded[i] = fold_16(f);
        }
        // Block x finishes piece x of every pass.
        store_to_block(reinterpret_cast<float4*>(others_mixes) + (pass * kClasses + position_class) * kFours + four, x,
                       make_float4(folded[0], folded[1], folded[2], folded[3]));
      }
      if (pass == 0 && tid < kClasses * kHeads) {
        const int head = tid % kHeads;
        float f[16];
#pragma unroll
        for (int j = 0; j < 16; j++) f[j] = lane_sums[j * kHeads + head];
        store_to_block(others_sums + position_class * kHeads + head, tid / kHeads, fold_16(f));
      }
      if (pass + 1 < passes) sync_block();  // the ring, p are free again
    }
    cluster_arrive();
    cluster_wait();

    // 3. Finish.
    for (int o = tid; o < passes * kHeads * kElements; o += kThreads) {
      const int pass = o / (kHeads * kElements), head = o / kElements % kHeads;
      const int d = (pass * kAcross + position_class) * kElements + o % kElements;
      if (head >= unit.heads || d >= a.head_dim) continue;
      float mixes[16], sums[16];
#pragma unroll
      for (int c = 0; c < 16; c++) {
        mixes[c] = others_mixes[(pass * kClasses + c) * kHeads * kElements + o % (kHeads * kElements)];
        sums[c] = others_sums[c * kHeads + head];
      }
      a.y[((int64_t)row * a.heads + unit.head + head) * a.head_dim + d] =
          div_f32(add_f32(fold_16(mixes), 0.0f), add_f32(fold_16(sums), 0.0f));
    }
    sync_block();  // shared memory is free again; other blocks write what was read here behind the next barrier of the cluster
  });
  if (!all_started) cluster_wait();
}

template <int kType, int kHeads>
int in_clusters(AssayDevice& d, const DecodeJob& job, const char* name) {
  const AttentionCall& a = job.call;
  const int chunks = (a.head_dim + 31) / 32, pieces = (a.head_dim + kPiece<kType> - 1) / kPiece<kType>;
  const size_t shared = size_t(layout_of<kHeads>(chunks, (pieces + kAcross - 1) / kAcross, kPiece<kType>).bytes);
  if (chunks > 8 || shared > d.shared_limit) return ASSAY_REFUSED;
  const int64_t units = int64_t(a.rows) * a.kv_heads * job.head_blocks;
  const int64_t at_once = clusters_at_once(d, attention_cluster<kType, kHeads>, kClasses, kThreads, shared);
  const int64_t held = int64_t(d.attention.bytes / (size_t(kClasses * kHeads) * size_t(job.per_class) * 4));  // by scratch
  if (at_once == 0 || held < std::min(units, at_once)) return ASSAY_REFUSED;
  const int64_t waves = (units + at_once - 1) / at_once;
  if (job.which == Rows::every && waves > 1 && units * 4 < waves * at_once * 3) return ASSAY_REFUSED;  // the last would be short
  return launch_in_clusters(d, name, Overlap::yes, attention_cluster<kType, kHeads>, kClasses,
                            dim3(unsigned(std::min(units, at_once) * kClasses)), kThreads, shared, job);
}

template <int kType>
int in_clusters_of(AssayDevice& d, const DecodeJob& job, const char* const (&names)[3]) {
  const int group = job.call.heads / job.call.kv_heads;
  if (group <= 2) return in_clusters<kType, 2>(d, job, names[0]);
  if (group <= 4) return in_clusters<kType, 4>(d, job, names[1]);
  return in_clusters<kType, 8>(d, job, names[2]);
}

}  // namespace

int attention_clusters(AssayDevice& d, const DecodeJob& job, int32_t type) {
  static constexpr const char* kNames[3][3] = {
      {"attention_cluster_f32_h2", "attention_cluster_f32_h4", "attention_cluster_f32_h8"},
      {"attention_cluster_f16_h2", "attention_cluster_f16_h4", "attention_cluster_f16_h8"},
      {"attention_cluster_bf16_h2", "attention_cluster_bf16_h4", "attention_cluster_bf16_h8"}};
  static_assert(ASSAY_F32 == 0 && ASSAY_F16 == 1 && ASSAY_BF16 == 2);
  return type == ASSAY_F32   ? in_clusters_of<ASSAY_F32>(d, job, kNames[0])
         : type == ASSAY_F16 ? in_clusters_of<ASSAY_F16>(d, job, kNames[1])
                             : in_clusters_of<ASSAY_BF16>(d, job, kNames[2]);
}

}  // namespace assay
