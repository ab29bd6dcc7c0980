// What lies between the q, k, v products and attention, in one launch: head_norm of q and k where they have weights, rope of
// both, kv_store of k (as it is then) and v. Its bytes, the report of an overflow included, are those of norm.cu, rope.cu and
// kv_store.cu one after the other.
//
// A warp per head of a row: heads of q, then of k, then of v; make_head (head_parts.cuh) does the rest. q_out = q is harmless,
// since a warp has read its head before it writes.
// Bytes per element: 4 read, 4 (q) or those of the cache written.
// PRECOND: as kv_store.cu.
#include "cuda/device.h"
#include "cuda/head_parts.cuh"

namespace assay {
namespace {

constexpr int kHeadThreads = 128, kHeadsPerBlock = kHeadThreads / 32;

/// Shared: a head's floats per warp.
__global__ __launch_bounds__(kHeadThreads) void heads_kernel(AssayHeads a) {
  SHARED_BYTES(shared);
  const AssayCache& c = a.cache;
  const int warp = warp_of_block();
  const int64_t item = (int64_t)blockIdx.x * kHeadsPerBlock + warp, per_row = a.heads + 2 * c.kv_heads;
  const int64_t row = item / per_row, head = item % per_row, dims = c.head_dim;
  const bool is_q = head < a.heads, is_v = head >= a.heads + c.kv_heads;
  const int64_t kv_head = is_q ? 0 : is_v ? head - a.heads - c.kv_heads : head - a.heads;
  const int64_t from = is_q ? (row * a.heads + head) * dims : (row * c.kv_heads + kv_head) * dims;
  const float* norm = is_q ? a.q_norm : is_v ? nullptr : a.k_norm;
  let_next_start();
  const HeldDims weights = hold_dims(norm, dims);
  wait_for_previous();
  if (row >= a.rows) return;

  const AssayPlace place = a.places[row];
  const int64_t to = is_q ? from : cache_offset(c, place, kv_head);
  make_head(a, place, (is_q ? a.q : is_v ? a.v : a.k) + from, norm, weights, is_v ? 0 : a.rotary,
            reinterpret_cast<float*>(shared) + warp * dims, [&](int64_t d, float value) {
              if (is_q) {
                a.q_out[to + d] = value;
              } else if (store_cached(c.type, is_v ? c.v : c.k, to + d, value)) {
                atomic_min(a.overflow, (is_v ? a.rows * c.kv_heads * dims : 0) + from + d);
              }
            });
}

}  // namespace

int heads(AssayDevice& d, const AssayHeads& a) {
  const AssayCache& c = a.cache;
  const int64_t blocks = (a.rows * (a.heads + 2 * c.kv_heads) + kHeadsPerBlock - 1) / kHeadsPerBlock;
  const size_t shared = sizeof(float) * kHeadsPerBlock * (size_t)c.head_dim;
  if (!is_cache_type(c.type) || c.head_dim < 1 || shared > d.shared_limit || a.heads < 1 || c.kv_heads < 1 || a.rotary < 0 ||
      a.rotary % 2 != 0 || a.rotary > c.head_dim || blocks > INT32_MAX)
    return ASSAY_REFUSED;
  if (a.rows == 0) return ASSAY_DONE;
  return launch(d, "heads", Overlap::yes, heads_kernel, dim3((unsigned)blocks), kHeadThreads, shared, a);
}

}  // namespace assay
