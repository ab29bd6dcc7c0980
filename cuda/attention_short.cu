// One token row whose sequence is short: what heads.cu and attention do one after the other, in one launch and without scratch,
// up to 256 positions. Then every lane of the float rule has at most one position, and a block can do a query head alone.
//
// Grid: query heads. The block copies keys and values of the positions before into shared memory while the kernel before this
// one still runs; then three warps make q, k and v of this row (head_parts.cuh), rounded to the cache's type where they come to
// lie behind the others. The first of the blocks that share a kv head also writes k and v to the cache and tells of an overflow.
//   scores  a team of threads per position, 16 bytes of its key each (attention_rows.cuh), position = team + n teams
//   p       thread = position
//   mix     thread = 16 bytes of a value row and lanes l = class + 16 i: folds 128 ... 16 inside, 8 ... 1 over the classes
// Order of sums: engine/NUMERICS.md, attention; lanes that have no position are +0 and may be left out (a sum that is -0 without
// them becomes +0 with the last addition of +0).
//
// Bytes moved: q, k, v of the row; each cached key and value once per query head (from L2 for all but the first).
// PRECOND: one row; heads_of given; position < positions <= 256; head_dim a multiple of 32, at most 256.
#include <algorithm>

#include "cuda/attention_rows.cuh"
#include "cuda/head_parts.cuh"

namespace assay {
namespace {

constexpr int kThreads = 256, kMostPositions = kFloatLanes, kClasses = 16;

/// Where things lie in shared memory, in bytes. Rows of keys and values lie 16 bytes further apart than they are long, so that
/// the teams of a warp read from different banks.
struct Layout {
  int row, keys, values, heads, p, fold, sums, best, bytes;
};
template <int kType>
__host__ __device__ __forceinline__ Layout layout_of(int positions, int head_dim) {
  Layout l;
  l.row = head_dim * kElementBytes<kType> + 16;
  l.keys = 0;
  l.values = l.keys + positions * l.row;
  l.heads = l.values + positions * l.row;  // q, k, v
  l.p = l.heads + 3 * head_dim * 4;
  l.fold = l.p + kMostPositions * 4;  // [class][head_dim]
  l.sums = l.fold + kClasses * head_dim * 4;
  l.best = l.sums + kClasses * 4;
  l.bytes = l.best + kThreads / 32 * 4;
  return l;
}

/// p times 16 bytes of the value rows of lanes lane + 16 i, i < 16 / kParts, folded by halves, which are 16 * 8 / kParts lanes
/// apart. What is not there is +0, a half of which nothing is there no work.
template <int kType, int kParts>
__device__ __forceinline__ void fold_lanes(const unsigned char* values, int row, const float* p, int positions, int lane,
                                           float (&out)[kPiece<kType>]) {
  if constexpr (kParts == 16) {
    float value[kPiece<kType>];
    const bool real = lane < positions;
    widen_piece<kType>(*reinterpret_cast<const uint4*>(values + (real ? lane : 0) * row), value);
    const float weight = p[lane];
#pragma unroll
    for (int j = 0; j < kPiece<kType>; j++) out[j] = real ? fma_f32(weight, value[j], 0.0f) : 0.0f;
  } else {
    fold_lanes<kType, 2 * kParts>(values, row, p, positions, lane, out);
    if ((lane + kClasses * kParts) / kClasses * kClasses >= positions) return;  // the same for all threads
    float upper[kPiece<kType>];
    fold_lanes<kType, 2 * kParts>(values, row, p, positions, lane + kClasses * kParts, upper);
#pragma unroll
    for (int j = 0; j < kPiece<kType>; j++) out[j] = add_f32(out[j], upper[j]);
  }
}

template <int kType>
__global__ void __launch_bounds__(kThreads, 2) attention_short_kernel(AssayHeads h, AttentionCall a, int positions) {
  SHARED_BYTES(shared);
  const int tid = (int)threadIdx.x, warp = tid / 32, head = (int)blockIdx.x, group = a.heads / a.kv_heads, kv_head = head / group;
  const int dims = a.head_dim;
  const Layout l = layout_of<kType>(positions, dims);
  let_next_start();
  const float* const norm = warp == 0 ? h.q_norm : warp == 1 ? h.k_norm : nullptr;
  const HeldDims weights = hold_dims(norm, dims);
  const AssayPlace place = a.places[0];
  const int now = (int)place.position, count = now + 1;
  {  // Keys, then values of the positions before, which earlier passes wrote.
    const int pieces = dims * kElementBytes<kType> / 16;
    const int64_t from = cache_offset(h.cache, {place.slot, 0, 0}, kv_head) * kElementBytes<kType>;
    for (const bool of_values : {false, true}) {
      const unsigned char* source = (of_values ? a.v : a.k) + from;
      unsigned char* to = shared + (of_values ? l.values : l.keys);
#pragma unroll 4
      for (int i = tid; i < now * pieces; i += kThreads) copy_async<16>(to + i / pieces * l.row + i % pieces * 16, source + (int64_t)i * 16);
      copy_commit();
    }
  }
  wait_for_previous();

  float* const q = reinterpret_cast<float*>(shared + l.heads);
  if (warp < 3) {
    const int which = warp == 0 ? head : kv_head;
    const float* x = (warp == 0 ? h.q : warp == 1 ? h.k : h.v) + (int64_t)which * dims;
    float* const values = q + warp * dims;
    make_head(h, place, x, norm, weights, warp == 2 ? 0 : h.rotary, values, [&](int64_t d, float value) { values[d] = value; });
    sync_warp();
    const bool stores = head % group == 0;
    unsigned char* const mine = shared + (warp == 1 ? l.keys : l.values) + now * l.row;
    const int64_t at = cache_offset(h.cache, place, kv_head), in_row = (warp == 2 ? (int64_t)a.kv_heads * dims : 0) + (int64_t)kv_head * dims;
#pragma unroll 1
    for (int d = lane_of_warp(); d < dims; d += 32) {
      if (warp == 0) {
        h.q_out[(int64_t)head * dims + d] = values[d];
        continue;
      }
      store_cached(kType, mine, d, values[d]);
      if (stores && store_cached(kType, warp == 1 ? h.cache.k : h.cache.v, at + d, values[d])) atomic_min(h.overflow, in_row + d);
    }
  }
  copy_wait<1>();
  sync_block();

  // Scores: two positions of the team at a time.
  using T = Team<kType, 1>;
  const TeamPlace<kType, 1> team;
  float* const p = reinterpret_cast<float*>(shared + l.p);
  int32_t best[1] = {ordered_of(float_of(0xff800000u))};
  for (int turn = warp * T::kPerWarp; turn < count; turn += 2 * team.teams) {  // the same for all of a warp
    const int first = turn + team.team % T::kPerWarp;
    const uint4* keys[2];
#pragma unroll
    for (int u = 0; u < 2; u++) {
      const int position = first + u * team.teams;
      keys[u] = reinterpret_cast<const uint4*>(shared + l.keys + (position < count ? position : now) * l.row + team.t * 16);
    }
    float dot[2][1];
    dots<kType, 1, 2, T::kThreads>({keys[0], keys[1]}, q + team.t * kPiece<kType>, dims / 32, dot);
#pragma unroll
    for (int u = 0; u < 2; u++) {
      const int position = first + u * team.teams;
      if (position >= count) continue;
      const float score = mul_f32(dot[u][0], a.scale);
      const int32_t order = ordered_of(score);
      best[0] = order > best[0] ? order : best[0];
      if (T::writes(team.t)) p[position] = score;
    }
  }
  int32_t* const best_of = reinterpret_cast<int32_t*>(shared + l.best);
  greatest_of_warp<kType, 1>(best, best_of);
  sync_block();

  float x[1] = {tid < count ? sub_f32(p[tid], float_of_ordered(greatest(best_of, 1, kThreads / 32))) : 0.0f};
  exp_of_differences(x);
  p[tid] = tid < count ? x[0] : 0.0f;
  copy_wait<0>();
  sync_block();

  const int pieces = dims / kPiece<kType>;
  float* const fold = reinterpret_cast<float*>(shared + l.fold);
  for (int i = tid; i < pieces * kClasses; i += kThreads) {
    const int piece = i % pieces, position_class = i / pieces;
    float mix[kPiece<kType>];
    fold_lanes<kType, 1>(shared + l.values + piece * 16, l.row, p, count, position_class, mix);
#pragma unroll
    for (int j = 0; j < kPiece<kType>; j += 4) {
      *reinterpret_cast<float4*>(fold + position_class * dims + piece * kPiece<kType> + j) = make_float4(mix[j], mix[j + 1], mix[j + 2], mix[j + 3]);
    }
  }
  float* const sums = reinterpret_cast<float*>(shared + l.sums);
  if (tid < kClasses) {
    float f[16];
#pragma unroll
    for (int i = 0; i < 16; i++) f[i] = p[tid + kClasses * i];
    sums[tid] = fold_16(f);
  }
  sync_block();
  for (int d = tid; d < dims; d += kThreads) {
    float mixes[16], parts[16];
#pragma unroll
    for (int c = 0; c < 16; c++) mixes[c] = fold[c * dims + d], parts[c] = sums[c];
    a.y[(int64_t)head * dims + d] = div_f32(add_f32(fold_16(mixes), 0.0f), add_f32(fold_16(parts), 0.0f));
  }
}

template <int kType>
int short_of(AssayDevice& d, const AssayHeads& h, const AttentionCall& call, int64_t longest, const char* name) {
  const size_t shared = size_t(layout_of<kType>(int(longest), call.head_dim).bytes);
  if (shared > d.shared_limit) return ASSAY_REFUSED;
  return launch(d, name, Overlap::yes, attention_short_kernel<kType>, dim3(unsigned(call.heads)), kThreads, shared, h, call, int(longest));
}

}  // namespace

int attention_short(AssayDevice& d, const AssayHeads& h, const AttentionCall& call, int64_t longest) {
  if (call.rows != 1 || longest > kMostPositions || call.head_dim % 32 != 0 || call.head_dim > 256 || !call.whole_pieces) return ASSAY_REFUSED;
  return h.cache.type == ASSAY_F32   ? short_of<ASSAY_F32>(d, h, call, longest, "attention_short_f32")
         : h.cache.type == ASSAY_F16 ? short_of<ASSAY_F16>(d, h, call, longest, "attention_short_f16")
                                     : short_of<ASSAY_BF16>(d, h, call, longest, "attention_short_bf16");
}

}  // namespace assay
