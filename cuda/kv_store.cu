// Rounds k and v rows (nearest even) into the cache at their places; a NaN is stored as the canonical one, in f32 too.
// engine/ops/kv_store.cpp. A warp per head of a row of K or V. A finite value that does not fit f16 is stored as Inf and
// lowers *overflow.
// Bytes per element: 4 read, 2 or 4 written.
// PRECOND: places lie inside the cache, no two rows have the same one.
#include "cuda/device.h"
#include "cuda/head_parts.cuh"

namespace assay {
namespace {

constexpr int kStoreThreads = 128, kHeadsPerBlock = kStoreThreads / 32;

__global__ __launch_bounds__(kStoreThreads) void kv_store_kernel(AssayKvStore a) {
  const AssayCache& c = a.cache;
  const int64_t item = (int64_t)blockIdx.x * kHeadsPerBlock + (int)threadIdx.x / 32;  // V's heads after all of K's
  let_next_start();
  wait_for_previous();
  const int64_t half = a.rows * c.kv_heads;
  if (item >= 2 * half) return;
  const bool is_v = item >= half;
  const int64_t head = is_v ? item - half : item;
  const int64_t to = cache_offset(c, a.places[head / c.kv_heads], head % c.kv_heads);
  const float* x = (is_v ? a.v : a.k) + head * c.head_dim;
  void* base = is_v ? c.v : c.k;
  for (int64_t i = lane_of_warp(); i < c.head_dim; i += 32) {
    if (store_cached(c.type, base, to + i, x[i])) atomic_min(a.overflow, item * c.head_dim + i);
  }
}

}  // namespace

int kv_store(AssayDevice& d, const AssayKvStore& a) {
  if (a.rows == 0) return ASSAY_DONE;
  const int64_t blocks = (2 * a.rows * a.cache.kv_heads + kHeadsPerBlock - 1) / kHeadsPerBlock;
  if (!is_cache_type(a.cache.type) || a.cache.kv_heads < 1 || blocks > INT32_MAX) return ASSAY_REFUSED;
  return launch(d, "kv_store", Overlap::yes, kv_store_kernel, dim3((unsigned)blocks), kStoreThreads, 0, a);
}

}  // namespace assay
