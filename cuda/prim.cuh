// Everything that is one machine's own: warp collectives, integer products, asynchronous copies, ordering between launches.
// Kernels use these and numerics.h, nothing else of CUDA but __global__, __device__, threadIdx and friends. Each has its
// emulation in simt/prim_simt.h, and a kernel of prim_check.cu proves both equal on a device.
//
// Shared memory is dynamic only (SHARED_BYTES), so that the emulation can poison it: a kernel declares it once, as bytes.
#pragma once
#include <cstdint>

#include "engine/numerics.h"

#ifdef ASSAY_SIMT
#include "cuda/simt/prim_simt.h"
#else
#include <cuda_runtime.h>
#define SHARED_BYTES(name) extern __shared__ __align__(128) unsigned char name[]

namespace assay {

constexpr unsigned kWholeWarp = 0xffffffffu;

/// 0..31: the thread's place in its warp (blocks are one-dimensional).
__device__ __forceinline__ int lane_of_warp() { return (int)(threadIdx.x & 31u); }

// ---- barriers and collectives. All threads of the block or warp must come.
__device__ __forceinline__ void sync_block() { __syncthreads(); }
__device__ __forceinline__ void sync_warp() { __syncwarp(); }
template <class T>
__device__ __forceinline__ T shuffle_xor(T v, int mask) { return __shfl_xor_sync(kWholeWarp, v, mask); }
template <class T>
__device__ __forceinline__ T shuffle(T v, int lane) { return __shfl_sync(kWholeWarp, v, lane); }

// ---- integer products
/// c + the four products of signed bytes.
__device__ __forceinline__ int dp4a_s8(uint32_t a, uint32_t b, int c) { return __dp4a((int)a, (int)b, c); }
/// d[16x8] = a[16x32] b[32x8] + c, signed bytes. Thread t = 4 r + q holds a[0] = A[r][4q..], a[1] = A[r+8][4q..],
/// a[2] = A[r][16+4q..], a[3] = A[r+8][16+4q..]; b0 = B[4q..][r], b1 = B[16+4q..][r]; d[0..1] = D[r][2q..], d[2..3] =
/// D[r+8][2q..]. PTX ISA, mma.m16n8k32.
__device__ __forceinline__ void mma_s8_k32(int* d, const uint32_t* a, uint32_t b0, uint32_t b1, int c) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c));
}
/// The same over 16 inputs: a0 = A[r][4q..], a1 = A[r+8][4q..], b = B[4q..][r].
__device__ __forceinline__ void mma_s8_k16(int* d, uint32_t a0, uint32_t a1, uint32_t b, int c) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(b), "r"(c));
}

// ---- asynchronous copies, global to shared, of 4, 8 or 16 bytes, both addresses aligned to that. A thread's copies are
// complete for itself after copy_wait; for others after a barrier behind it.
template <int kBytes>
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  const uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(global), "n"(kBytes) : "memory");
  }
}
/// Where !real, zeros are written and `global` is not read (but must be a valid address).
template <int kBytes>
__device__ __forceinline__ void copy_async_or_zero(void* shared, const void* global, bool real) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  const uint32_t to = (uint32_t)__cvta_generic_to_shared(shared), from_bytes = real ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(from_bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(global), "n"(kBytes), "r"(from_bytes) : "memory");
  }
}
/// Closes a group of copies (empty groups count).
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most kPending of this thread's groups are open.
template <int kPending>
__device__ __forceinline__ void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory"); }

// ---- loads of what no kernel writes while this one runs, past the first cache
__device__ __forceinline__ uint4 load_once(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
__device__ __forceinline__ uint2 load_once(const uint2* p) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}

// ---- atomics
__device__ __forceinline__ void atomic_max(int32_t* p, int32_t v) { atomicMax(p, v); }
__device__ __forceinline__ void atomic_min(int64_t* p, int64_t v) { atomicMin((long long*)p, (long long)v); }

// ---- order between launches (programmatic dependent launch, sm_90 on; elsewhere nothing). A kernel launched with
// Overlap::yes may start before the one before it has ended: what that one wrote may be read, and what it reads may be
// written, only behind wait_for_previous(), which every thread calls exactly once. Before it may be read what no launch of the
// pass writes: weights, places, what earlier passes left in a cache (a pass starts with a copy of its places, which waits).
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// The next kernel may start as soon as every block has called this or ended.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- clusters (sm_90 on; elsewhere never launched): consecutive blocks of launch_in_clusters, which run at the same time and
// may write each other's shared memory. The barrier of a cluster comes in two halves that all threads call by turns: what a
// thread did before it arrives is seen by all threads behind their wait. Before a cluster's first barrier another block may not
// have started; a block may end only when no other will write to it.
__device__ __forceinline__ int cluster_rank() {
  uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return (int)rank;
}
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  __syncwarp();
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
/// Writes to the same place of shared memory in the cluster's block `rank`. T has 4 or 16 bytes.
template <class T>
__device__ __forceinline__ void store_to_block(T* shared, int rank, const T& value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 16);
#if __CUDA_ARCH__ >= 900
  uint32_t to, words[sizeof(T) / 4];
  memcpy(words, &value, sizeof(T));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"((uint32_t)__cvta_generic_to_shared(shared)), "r"(rank));
  if constexpr (sizeof(T) == 4) {
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(to), "r"(words[0]) : "memory");
  } else {
    asm volatile("st.shared::cluster.v4.u32 [%0], {%1,%2,%3,%4};"
                 :: "r"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]) : "memory");
  }
#endif
}

// ---- conversions by instruction, exact; the bits of a NaN are not the emulation's and mean nothing
__device__ __forceinline__ float widen_f16(uint32_t low_bits) {
  float f;
  asm("{.reg .f16 t; mov.b16 t, %1; cvt.f32.f16 %0, t;}" : "=f"(f) : "h"((uint16_t)low_bits));
  return f;
}

}  // namespace assay
#endif

namespace assay {
__device__ __forceinline__ float widen_bf16(uint32_t low_bits) { return float_of(low_bits << 16); }
/// 1.5 * 2^23: an integer d, |d| < 2^22, added to its bits gives the float 1.5 * 2^23 + d, so that a product accumulator
/// that starts there needs no conversion.
constexpr int32_t kMagicBits = 0x4b400000;
constexpr float kMagic = 12582912.0f;
}  // namespace assay
