// prim.cuh on the CPU: the keywords and types of CUDA that kernels use, and every primitive as a call into collectives.cpp.
// The threads of a block are fibers. What hardware leaves undefined is an error here: fibers.h says what is looked for.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/numerics.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define SHARED_BYTES(name) unsigned char* const name = ::simt::shared_memory()

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

#define ASSAY_SIMT_HIDDEN __attribute__((visibility("hidden")))
/// Of the fiber that runs.
extern ASSAY_SIMT_HIDDEN uint3 threadIdx, blockIdx;
extern ASSAY_SIMT_HIDDEN dim3 blockDim, gridDim;

namespace simt {

/// Where a collective stands in the source: all threads that meet in one must stand at the same line.
struct Site {
  const char* file = nullptr;
  int line = 0;
};
enum class Collective : uint8_t { sync_warp, shuffle, shuffle_xor, mma_k16, mma_k32 };

/// What a lane brings to a collective and finds there: 32 of these.
struct Slot {
  uint32_t words[6];
};

ASSAY_SIMT_HIDDEN unsigned char* shared_memory();
ASSAY_SIMT_HIDDEN void sync_block(Site site);
/// Leaves `words` in the lane's slot, waits for the other 31 lanes and returns all slots; mma: with results in words 0..3.
ASSAY_SIMT_HIDDEN const Slot* meet(Collective kind, const uint32_t* words, int count, Site site);
ASSAY_SIMT_HIDDEN void copy_async(void* shared, const void* global, unsigned bytes, bool real, Site site);
ASSAY_SIMT_HIDDEN void copy_commit();
ASSAY_SIMT_HIDDEN void copy_wait(unsigned pending);
ASSAY_SIMT_HIDDEN void wait_for_previous(Site site);
ASSAY_SIMT_HIDDEN unsigned cluster_rank();
ASSAY_SIMT_HIDDEN void cluster_arrive(Site site);
ASSAY_SIMT_HIDDEN void cluster_wait(Site site);
ASSAY_SIMT_HIDDEN void store_to_block(void* shared, int rank, const void* value, size_t bytes, Site site);

template <class T>
T exchange(Collective kind, T v, int lane, Site site) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  uint32_t words[sizeof(T) / 4];
  std::memcpy(words, &v, sizeof v);
  std::memcpy(&v, meet(kind, words, sizeof(T) / 4, site)[lane & 31].words, sizeof v);
  return v;
}

}  // namespace simt

namespace assay {

constexpr unsigned kWholeWarp = 0xffffffffu;
#define ASSAY_SIMT_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline int lane_of_warp() { return int(threadIdx.x & 31u); }

inline void sync_block(ASSAY_SIMT_SITE) { simt::sync_block({file, line}); }
inline void sync_warp(ASSAY_SIMT_SITE) { simt::meet(simt::Collective::sync_warp, nullptr, 0, {file, line}); }
template <class T>
T shuffle_xor(T v, int mask, ASSAY_SIMT_SITE) {
  return simt::exchange(simt::Collective::shuffle_xor, v, lane_of_warp() ^ mask, {file, line});
}
template <class T>
T shuffle(T v, int lane, ASSAY_SIMT_SITE) {
  return simt::exchange(simt::Collective::shuffle, v, lane, {file, line});
}

inline int dp4a_s8(uint32_t a, uint32_t b, int c) {
  uint32_t sum = uint32_t(c);  // wraps as the instruction does
  for (int i = 0; i < 4; i++) sum += uint32_t(int8_t(a >> 8 * i) * int8_t(b >> 8 * i));
  return int(sum);
}
inline void mma_s8_k32(int* d, const uint32_t* a, uint32_t b0, uint32_t b1, int c, ASSAY_SIMT_SITE) {
  const uint32_t words[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const simt::Slot& mine = simt::meet(simt::Collective::mma_k32, words, 6, {file, line})[lane_of_warp()];
  for (int i = 0; i < 4; i++) d[i] = int(mine.words[i] + uint32_t(c));
}
inline void mma_s8_k16(int* d, uint32_t a0, uint32_t a1, uint32_t b, int c, ASSAY_SIMT_SITE) {
  const uint32_t words[6] = {a0, a1, 0, 0, b, 0};
  const simt::Slot& mine = simt::meet(simt::Collective::mma_k16, words, 6, {file, line})[lane_of_warp()];
  for (int i = 0; i < 4; i++) d[i] = int(mine.words[i] + uint32_t(c));
}

template <int kBytes>
void copy_async(void* shared, const void* global, ASSAY_SIMT_SITE) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  simt::copy_async(shared, global, kBytes, true, {file, line});
}
template <int kBytes>
void copy_async_or_zero(void* shared, const void* global, bool real, ASSAY_SIMT_SITE) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  simt::copy_async(shared, global, kBytes, real, {file, line});
}
inline void copy_commit() { simt::copy_commit(); }
template <int kPending>
void copy_wait() {
  simt::copy_wait(kPending);
}

inline uint4 load_once(const uint4* p) { return *p; }
inline uint2 load_once(const uint2* p) { return *p; }

// One fiber runs at a time: nothing comes between. No race, whatever races.h sees elsewhere.
__attribute__((no_sanitize("thread"))) inline void atomic_max(int32_t* p, int32_t v) { *p = *p < v ? v : *p; }
__attribute__((no_sanitize("thread"))) inline void atomic_min(int64_t* p, int64_t v) { *p = *p > v ? v : *p; }

inline void wait_for_previous(ASSAY_SIMT_SITE) { simt::wait_for_previous({file, line}); }
inline void let_next_start() {}  // fibers.h: the next kernel starts as early as anything may allow

inline int cluster_rank() { return int(simt::cluster_rank()); }
inline void cluster_arrive(ASSAY_SIMT_SITE) { simt::cluster_arrive({file, line}); }
inline void cluster_wait(ASSAY_SIMT_SITE) { simt::cluster_wait({file, line}); }
template <class T>
void store_to_block(T* shared, int rank, const T& value, ASSAY_SIMT_SITE) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 16);
  simt::store_to_block(shared, rank, &value, sizeof value, {file, line});
}

inline float widen_f16(uint32_t low_bits) { return f32_of_f16(uint16_t(low_bits)); }

}  // namespace assay
