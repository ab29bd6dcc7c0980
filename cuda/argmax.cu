// The column of each row's largest element, ties to the lower column, -0 and +0 being ties; -1 where the row holds a NaN.
// engine/session.h, argmax().
//
// Every element becomes a key of 64 bits: its value in the high half, ordered as an integer (+0 added first, which turns -0
// into +0), the column's complement in the low half, so that the largest key names the lowest column; a NaN's key is above all
// others. A maximum is the same in any order. Few rows of many columns are cut into parts, one block each, whose keys go
// through scratch to a second kernel; otherwise a block has a whole row.
// Bytes: 4 per element.
// PRECOND: fewer than 2^31 columns.
#include "cuda/device.h"

namespace assay {
namespace {

constexpr int kThreads = 256, kUnroll = 4;
constexpr int64_t kPart = 4 * kThreads * kUnroll;  // columns below which a part isn't worth a block
constexpr uint64_t kNanKey = ~(uint64_t)0;

__device__ __forceinline__ uint64_t key_of(float x, int64_t column) {
  if (is_nan(x)) return kNanKey;
  const uint32_t order = (uint32_t)ordered_of(add_f32(x, 0.0f)) ^ 0x80000000u;
  return (uint64_t)order << 32 | (uint32_t)~(uint32_t)column;
}
__device__ __forceinline__ uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }
__device__ __forceinline__ int32_t column_of(uint64_t key) { return key == kNanKey ? -1 : (int32_t)~(uint32_t)key; }
__device__ __forceinline__ uint64_t largest_of_warp(uint64_t key) {
#pragma unroll
  for (int half = 16; half >= 1; half /= 2) key = larger(key, shuffle_xor(key, half));
  return key;
}

/// Blocks: `parts` per row. Part p of a row has the columns [p * part, (p + 1) * part); `part` is a multiple of 4. One part:
/// the column goes to `ids`, else the key to `keys` [rows][parts].
__global__ __launch_bounds__(kThreads) void argmax_kernel(AssayArgmax a, int parts, int64_t part, bool aligned, uint64_t* keys) {
  SHARED_BYTES(shared);
  uint64_t* of_warps = reinterpret_cast<uint64_t*>(shared);
  const int t = (int)threadIdx.x, row = (int)blockIdx.x / parts;
  const int64_t begin = (int)blockIdx.x % parts * part, end = begin + part < a.columns ? begin + part : a.columns;
  const float* x = a.x + row * a.columns;
  let_next_start();
  wait_for_previous();
  uint64_t best = 0;  // below every key: -Inf's order is 0x007fffff
  int64_t k = begin + 4 * t;
  if (aligned) {
    for (; k + 4 * kThreads * (kUnroll - 1) + 4 <= end; k += 4 * kThreads * kUnroll) {
      float4 v[kUnroll];
#pragma unroll
      for (int i = 0; i < kUnroll; i++) v[i] = *reinterpret_cast<const float4*>(x + k + 4 * kThreads * i);
#pragma unroll
      for (int i = 0; i < kUnroll; i++) {
        const int64_t at = k + 4 * kThreads * i;
        best = larger(best, larger(larger(key_of(v[i].x, at), key_of(v[i].y, at + 1)),
                                   larger(key_of(v[i].z, at + 2), key_of(v[i].w, at + 3))));
      }
    }
  }
  for (; k < end; k += 4 * kThreads) {
    for (int i = 0; i < 4 && k + i < end; i++) best = larger(best, key_of(x[k + i], k + i));
  }
  best = largest_of_warp(best);
  if (lane_of_warp() == 0) of_warps[t / 32] = best;
  sync_block();
  if (t >= 32) return;
  best = largest_of_warp(t < kThreads / 32 ? of_warps[t] : 0);
  if (t != 0) return;
  if (parts == 1) {
    a.ids[row] = column_of(best);
  } else {
    keys[blockIdx.x] = best;
  }
}

/// A warp per row.
__global__ __launch_bounds__(kThreads) void argmax_parts_kernel(const uint64_t* keys, int32_t* ids, int64_t rows, int parts) {
  const int64_t row = (int64_t)blockIdx.x * (kThreads / 32) + (int)threadIdx.x / 32;
  let_next_start();
  wait_for_previous();
  if (row >= rows) return;
  uint64_t best = 0;
  for (int i = lane_of_warp(); i < parts; i += 32) best = larger(best, keys[row * parts + i]);
  best = largest_of_warp(best);
  if (lane_of_warp() == 0) ids[row] = column_of(best);
}

}  // namespace

int argmax(AssayDevice& d, const AssayArgmax& a) {
  if (a.rows == 0) return ASSAY_DONE;
  if (a.columns < 1 || a.columns > INT32_MAX || a.rows > INT32_MAX) return ASSAY_REFUSED;
  // Two blocks per multiprocessor, as far as scratch holds their keys.
  int64_t parts = 2 * (int64_t)d.processors / a.rows;
  const int64_t worth = a.columns / kPart, room = (int64_t)(d.attention.bytes / sizeof(uint64_t)) / a.rows;
  parts = parts < worth ? parts : worth;
  parts = parts < room ? parts : room;
  parts = parts < 1 ? 1 : parts;
  const int64_t part = ((a.columns + parts - 1) / parts + 3) / 4 * 4;
  parts = (a.columns + part - 1) / part;
  const bool aligned = a.columns % 4 == 0 && (reinterpret_cast<uintptr_t>(a.x) & 15) == 0;
  auto* keys = reinterpret_cast<uint64_t*>(d.attention.memory);
  const int done = launch(d, "argmax", Overlap::yes, argmax_kernel, dim3((unsigned)(a.rows * parts)), kThreads,
                          kThreads / 32 * sizeof(uint64_t), a, (int)parts, part, aligned, keys);
  if (done != ASSAY_DONE || parts == 1) return done;
  const int64_t blocks = (a.rows + kThreads / 32 - 1) / (kThreads / 32);
  return launch(d, "argmax_parts", Overlap::yes, argmax_parts_kernel, dim3((unsigned)blocks), kThreads, 0, keys, a.ids, a.rows,
                (int)parts);
}

}  // namespace assay
