// The emulation's memory: what lies outside of an allocation, was freed or is the device's alone is seen when it is touched.
#include "cuda/simt/context.h"
#include "cuda/simt_support.h"

namespace assay {
namespace {

using namespace test;

__global__ void write_at(float* y, int64_t at) {
  if (threadIdx.x == 0) y[at] = 1.0f;
}
__global__ void write_shared_at(int at) {
  SHARED_BYTES(bytes);
  if (threadIdx.x == 0) reinterpret_cast<volatile float*>(bytes)[at] = 1.0f;
}
/// AddressSanitizer stops at the access; without it the fault is told when the kernel has run.
template <class F>
void expect_fault(F&& body, const char* words) {
#ifdef ASSAY_SIMT_ASAN
  (void)words;
  EXPECT_DEATH(
      {
        Device d;
        body(d);
        fault_of(d);
      },
      "use-after-poison");
#else
  Device d;
  body(d);
  const std::string told = fault_of(d);
  EXPECT_WORDS(told, words);
#endif
}
TEST(Simt, WritesOutsideOfAnAllocationAreFaults) {
  for (const int64_t at : {-1, -100, 5, 6, 70})
    expect_fault(
        [&](Device& d) {
          const Buffer<float> y(d, 5);
          queue(d, "write_at", write_at, 1, 0, y.get(), at);
          if (d.module().finish(d) == ASSAY_DONE) ADD_FAILURE() << "element " << at << " of 5 was written unseen";
        },
        at < 0 ? "device memory before allocation" : "device memory behind allocation");
}
TEST(Simt, WritesOutsideOfSharedMemoryAreFaults) {
  for (const int at : {-1, -60, 50, 51})
    expect_fault([&](Device& d) { queue(d, "write_shared_at", write_shared_at, 2, 200, at); },
                 at < 0 ? "200 bytes of shared memory were written before their start"
                        : "200 bytes of shared memory were written past their end");
}
TEST(Simt, AnAccessFarBehindSharedMemoryDiesWithWords) {
  EXPECT_DEATH(
      {
        const Device d;
        queue(d, "write_shared_at", write_shared_at, 1, 256, 300);
        d.module().finish(d);
      },
#ifdef ASSAY_SIMT_ASAN
      "AddressSanitizer"
#else
      "kernel write_shared_at, block .0,0,0., thread 0: an access outside of device and shared memory"
#endif
  );
}
TEST(Simt, AWriteToFreedMemoryIsAFault) {
  expect_fault(
      [](Device& d) {
        void *memory = nullptr, *behind = nullptr;
        d.ok(d.module().allocate(d, 1000, &memory));
        d.ok(d.module().allocate(d, 1000, &behind));
        d.module().release(d, memory);
        queue(d, "write_at", write_at, 1, 0, static_cast<float*>(memory), 7);
        d.module().finish(d);
        d.ok(d.module().allocate(d, 1000, &memory));  // the same addresses
        d.module().release(d, memory);
        d.module().release(d, behind);
      },
      "was written after it had been freed");
}
__global__ void read_shared(float* y) {
  SHARED_BYTES(bytes);
  y[threadIdx.x] = reinterpret_cast<float*>(bytes)[threadIdx.x];
}
TEST(Simt, WhatNobodyWroteIsNaN) {
  const Device d;
  void* memory = nullptr;
  for (int i = 0; i < 2; i++) {  // new, then used before
    std::vector<float> values(kThreads);
    d.ok(d.module().allocate(d, kThreads * 4, &memory));
    d.ok(d.module().download(d, values.data(), memory, kThreads * 4));
    d.finish();
    for (const float v : values) ASSERT_TRUE(std::isnan(v));
    d.ok(d.module().fill(d, memory, 0, kThreads * 4));
    d.module().release(d, memory);
  }
  const Buffer<float> y(d, kThreads);
  d.ok(d.module().fill(d, y.get(), 0, kThreads * 4));
  queue(d, "write_shared_at", write_shared_at, 2, kThreads * 4, 3);  // leaves something
  queue(d, "read_shared", read_shared, 2, kThreads * 4, y.get());
  for (const float v : y.download()) ASSERT_TRUE(std::isnan(v));
}
TEST(Simt, HostCodeDiesWhenItTouchesDeviceMemory) {
  const Device d;
  const Buffer<float> y(d, 100);
  [[maybe_unused]] volatile float v = 0;
#ifdef ASSAY_SIMT_ASAN
  const char* words = "AddressSanitizer";
#else
  const char* words = "host code touched device memory: byte 40 of allocation .* .400 bytes.";
#endif
  EXPECT_DEATH(v = y.get()[10], words);
  EXPECT_DEATH(y.get()[10] = 1, words);
  d.finish();
  EXPECT_DEATH(v = y.get()[10], words);
}
__attribute__((noinline)) float too_deep(int depth) {
  volatile float frame[1024];
  for (int i = 0; i < 1024; i++) frame[i] = float(depth);
  return depth == 0 ? frame[7] : too_deep(depth - 1) + frame[depth % 1024];
}
__global__ void overflow_stack(float* y) { y[threadIdx.x] = too_deep(200); }
TEST(Simt, AStackOverflowDiesWithWords) {
  EXPECT_DEATH(
      {
        const Device d;
        const Buffer<float> y(d, kThreads);
        queue(d, "overflow_stack", overflow_stack, 1, 0, y.get());
        d.module().finish(d);
      },
#ifdef ASSAY_SIMT_ASAN
      "AddressSanitizer"
#else
      "kernel overflow_stack, block .0,0,0., thread [0-9]+: its stack overflowed"
#endif
  );
}
TEST(Simt, MemoryCanRunOut) {
  const std::string all = memory_with_room(1000000);
  const Setting setting("ASSAY_SIMT_MEMORY", all.c_str());
  const Device d;
  EXPECT_EQ(std::to_string(d.info().memory_bytes), all);
  void *first = nullptr, *second = nullptr;
  d.ok(d.module().allocate(d, 700000, &first));
  EXPECT_LE(d.info().free_bytes, 300000u);
  EXPECT_EQ(d.module().allocate(d, 400000, &second), ASSAY_OUT_OF_MEMORY);
  EXPECT_EQ(second, nullptr);
  EXPECT_WORDS(d.error(), "400000 bytes of device memory: out of memory");
  d.module().release(d, first);
  d.ok(d.module().allocate(d, 400000, &second));
  d.module().release(d, second);
  EXPECT_EQ(d.counters().allocations, 2u);
  EXPECT_EQ(d.counters().frees, 2u);
}

}  // namespace
}  // namespace assay
