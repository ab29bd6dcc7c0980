// The emulation sees what it is there to see: each test plants a fault and expects it to show, and its repaired twin not to.
#include <cstdlib>
#include <thread>

#include "cuda/device.h"
#include "cuda/simt/context.h"
#include "cuda/test_support.h"

namespace assay {
namespace {

using namespace test;

constexpr int kThreads = 128;

/// Sets an environment variable for a scope.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) {
    if (const char* old = getenv(name)) before_ = old, had_ = true;
    setenv(name, value, 1);
  }
  ~Setting() { had_ ? setenv(name_, before_.c_str(), 1) : unsetenv(name_); }
  Setting(const Setting&) = delete;

 private:
  const char* name_;
  std::string before_;
  bool had_ = false;
};

AssayDevice& of(const Device& d) { return *static_cast<AssayDevice*>(d); }
template <class... P, class... A>
void queue(const Device& d, const char* name, void (*kernel)(P...), int blocks, size_t shared, A... args) {
  d.ok(launch(of(d), name, Overlap::no, kernel, dim3(unsigned(blocks)), kThreads, shared, args...));
}
template <class... P, class... A>
void queue_overlapping(const Device& d, const char* name, void (*kernel)(P...), int blocks, A... args) {
  d.ok(launch(of(d), name, Overlap::yes, kernel, dim3(unsigned(blocks)), kThreads, 0, args...));
}
std::vector<float> counting(size_t n) {
  std::vector<float> v(n);
  for (size_t i = 0; i < n; i++) v[i] = float(i);
  return v;
}
/// The words of the fault that the device ends with.
std::string fault_of(Device& d) {
  d.expect_fault();
  return d.module().finish(d) == ASSAY_DONE ? "no fault" : d.error();
}
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
#define EXPECT_WORDS(text, part) EXPECT_TRUE(contains(text, part)) << text

// ---- barriers

template <bool barrier>
__global__ void reverse(const float* x, float* y) {
  SHARED_BYTES(bytes);
  auto* s = reinterpret_cast<float*>(bytes);
  s[threadIdx.x] = x[threadIdx.x];
  if constexpr (barrier) sync_block();
  y[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}
TEST(Simt, AMissingBarrierShows) {
  for (const char* seed : {"1", "2", "3", "4", "5", "6"}) {
    const Setting setting("ASSAY_SIMT_SEED", seed);
    const Device d;
    std::vector<float> want = counting(kThreads);
    const Buffer<float> x(d, want), y(d, kThreads);
    std::reverse(want.begin(), want.end());
    queue(d, "reverse", reverse<true>, 1, kThreads * 4, x.get(), y.get());
    EXPECT_TRUE(same_rows(y.download(), want, kThreads));
    queue(d, "reverse_without_barrier", reverse<false>, 1, kThreads * 4, x.get(), y.get());
    EXPECT_FALSE(same_rows(y.download(), want, kThreads)) << "seed " << seed;
  }
}

__global__ void some_at_barrier(int fault, float* y) {
  const int t = int(threadIdx.x);
  if (fault == 1 && t >= 96) return;  // ends
  if (fault == 2 && t == 17) {
    sync_block();  // another line
  } else {
    sync_block();
  }
  if (fault == 3 && lane_of_warp() < 16) y[t] = shuffle_xor(float(t), 1);
  if (fault == 4) y[t] = lane_of_warp() < 16 ? shuffle(1.0f, 0)
                                             : shuffle(2.0f, 0);
  if (fault == 0) y[t] = shuffle_xor(float(t), 1);
}
TEST(Simt, BarriersAndCollectivesThatNotAllReachAreToldInWords) {
  const std::string words[] = {"no fault", "deadlock: 96 of 128 threads", "comes to the barrier simt_test.cpp:",
                               "wait at the warp collective simt_test.cpp:", "comes to the warp collective simt_test.cpp:"};
  for (int fault = 0; fault < 5; fault++) {
    Device d;
    const Buffer<float> y(d, kThreads);
    queue(d, "planted", some_at_barrier, 3, 0, fault, y.get());
    const std::string told = fault_of(d);
    EXPECT_WORDS(told, words[fault]);
    if (fault) {
      EXPECT_WORDS(told, "kernel planted, block (");
    }
    if (fault == 1) {
      EXPECT_WORDS(told, "32 threads (96 first) have ended");
    }
  }
}
TEST(Simt, AFaultStaysUntilTheDeviceIsClosed) {
  {
    Device d;
    const Buffer<float> y(d, kThreads);
    queue(d, "planted", some_at_barrier, 1, 0, 1, y.get());
    const std::string told = fault_of(d);
    EXPECT_EQ(d.module().fill(d, y.get(), 0, 4), ASSAY_ERROR);
    EXPECT_EQ(d.module().finish(d), ASSAY_ERROR);
    EXPECT_WORDS(d.error(), "deadlock");
  }
  const Device d;
  const Buffer<float> y(d, kThreads);
  queue(d, "sound", some_at_barrier, 1, 0, 0, y.get());
  EXPECT_EQ(y.download()[2], 3.0f);
}

// ---- asynchronous copies

/// Sums tiles that are copied one ahead. fault: no barrier before a buffer is used again.
__global__ void sum_tiles(const float* x, float* y, int tiles, bool fault) {
  SHARED_BYTES(bytes);
  auto* s = reinterpret_cast<float*>(bytes);
  const unsigned t = threadIdx.x, n = blockDim.x;
  copy_async<4>(s + t, x + t);
  copy_commit();
  float sum = 0;
  for (int i = 0; i < tiles; i++) {
    if (i + 1 < tiles) copy_async<4>(s + unsigned((i + 1) % 2) * n + t, x + unsigned(i + 1) * n + t);
    copy_commit();  // an empty group at the end
    copy_wait<1>();
    sync_block();
    sum = add_f32(sum, s[unsigned(i % 2) * n + (t + 1) % n]);
    if (!fault) sync_block();
  }
  y[t] = sum;
}
__global__ void wait_for_too_little(const float* x, float* y, bool enough) {
  SHARED_BYTES(bytes);
  auto* s = reinterpret_cast<float*>(bytes);
  copy_async<4>(s + threadIdx.x, x + threadIdx.x);
  copy_commit();
  if (enough)
    copy_wait<0>();
  else
    copy_wait<1>();
  y[threadIdx.x] = s[threadIdx.x];
}
TEST(Simt, CopiesHappenAsLateAsTheirWaitAllows) {
  const Device d;
  const std::vector<float> want = counting(kThreads);
  const Buffer<float> x(d, want), y(d, kThreads);
  for (const char* copies : {"late", "early", "random"}) {
    const Setting setting("ASSAY_SIMT_COPIES", copies);
    queue(d, "enough", wait_for_too_little, 1, kThreads * 4, x.get(), y.get(), true);
    EXPECT_TRUE(same_rows(y.download(), want, kThreads)) << copies;
    queue(d, "too_little", wait_for_too_little, 1, kThreads * 4, x.get(), y.get(), false);
    EXPECT_EQ(bool(same_rows(y.download(), want, kThreads)), !strcmp(copies, "early")) << copies;
  }
}
TEST(Simt, ABufferUsedAgainTooSoonShowsWhenCopiesAreEarly) {
  const Device d;
  constexpr int kTiles = 7;
  const std::vector<float> values = counting(kTiles * kThreads);
  const Buffer<float> x(d, values), y(d, kThreads);
  std::vector<float> want(kThreads);
  for (int t = 0; t < kThreads; t++)
    for (int i = 0; i < kTiles; i++) want[size_t(t)] += values[size_t(i * kThreads + (t + 1) % kThreads)];
  int seen = 0;
  for (const char* copies : {"late", "early", "random"})
    for (const char* seed : {"1", "2", "3", "4", "5", "6", "7", "8"}) {
      const Setting setting("ASSAY_SIMT_COPIES", copies), other("ASSAY_SIMT_SEED", seed);
      queue(d, "tiles", sum_tiles, 2, kThreads * 8, x.get(), y.get(), kTiles, false);
      EXPECT_TRUE(same_rows(y.download(), want, kThreads)) << copies;
      queue(d, "tiles_without_barrier", sum_tiles, 2, kThreads * 8, x.get(), y.get(), kTiles, true);
      seen += !same_rows(y.download(), want, kThreads);
    }
  EXPECT_GT(seen, 8);
}
__global__ void copy_badly(const float* x, int fault) {
  SHARED_BYTES(bytes);
  if (threadIdx.x != 5) return;
  if (fault == 0) copy_async<16>(bytes + 4, x);
  if (fault == 1) copy_async<16>(bytes + 512, x);
  if (fault == 2) copy_async<16>(bytes, x + kThreads);
}
TEST(Simt, CopiesFromAndToElsewhereAreFaults) {
  const std::string words[] = {"a misaligned asynchronous copy of 16 bytes", "an asynchronous copy to byte 512 of 512",
                               "from outside of device memory: byte 512 of allocation"};
  for (int fault = 0; fault < 3; fault++) {
    Device d;
    const Buffer<float> x(d, kThreads);
    queue(d, "copy_badly", copy_badly, 1, 512, x.get(), fault);
    const std::string told = fault_of(d);
    EXPECT_WORDS(told, words[fault]);
    EXPECT_WORDS(told, "thread 5");
  }
}

// ---- memory

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
  const Setting setting("ASSAY_SIMT_MEMORY", "1000000");
  const Device d;
  EXPECT_EQ(d.info().memory_bytes, 1000000u);
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
TEST(Module, ReserveThatDoesNotFitChangesNothing) {
  const Setting setting("ASSAY_SIMT_MEMORY", "8000000");
  const Device d;
  const AssayLimits small{4, 256, 4, 64, 128}, large{4096, 1 << 14, 64, 128, 1 << 15};
  d.reserve(small);
  const AssayCounters before = d.counters();
  EXPECT_EQ(d.module().reserve(d, &large), ASSAY_OUT_OF_MEMORY);
  EXPECT_WORDS(d.error(), "bytes of device memory: out of memory");
  EXPECT_EQ(d.counters().allocations, before.allocations);
  d.reserve(small);
  EXPECT_EQ(of(d).limits.rows, 4);
  d.finish();
}

// ---- the queue

__global__ void add_one(const float* x, float* y, bool before) {
  const float early = before ? x[threadIdx.x] : 0.0f;
  wait_for_previous();
  y[threadIdx.x] = (before ? early : x[threadIdx.x]) + 1.0f;
}
TEST(Simt, WorkIsQueuedAndHostMemoryOfStepsIsReadLate) {
  const Device d;
  const Buffer<float> x(d, 4);
  void* memory = nullptr;
  d.ok(d.module().allocate_host(d, 16, &memory));
  auto* step = static_cast<float*>(memory);
  std::fill_n(step, 4, 1.0f);
  d.ok(d.module().upload(d, x.get(), step, 16));
  step[0] = 2.0f;  // too early: a device may not have read it yet
  std::vector<float> pageable(4, 5.0f), out(4, 0.0f);
  d.ok(d.module().download(d, out.data(), x.get(), 16));
  EXPECT_TRUE(std::isnan(out[1])) << "valid only after finish";
  d.finish();
  EXPECT_EQ(out, (std::vector<float>{2, 1, 1, 1}));
  d.ok(d.module().upload(d, x.get(), pageable.data(), 16));
  pageable[0] = 6.0f;  // this one was copied by the call
  EXPECT_EQ(x.download()[0], 5.0f);
  d.module().release_host(d, memory);
}
TEST(Simt, CopiesInsideTheDeviceAndMarksKeepTheirPlace) {
  const Device d;
  const Buffer<float> x(d, counting(kThreads)), y(d, kThreads), z(d, kThreads);
  d.ok(d.module().mark(d, 3));
  queue(d, "add_one", add_one, 1, 0, x.get(), y.get(), false);
  d.ok(d.module().copy(d, z.get(), y.get(), kThreads * 4));
  queue(d, "add_one", add_one, 1, 0, x.get(), x.get(), false);
  d.ok(d.module().mark(d, 0));
  EXPECT_EQ(z.download()[5], 6.0f);
  double seconds = -1;
  d.ok(d.module().elapsed(d, 3, 0, &seconds));
  EXPECT_GE(seconds, 0);
  EXPECT_EQ(d.module().elapsed(d, 3, 9, &seconds), ASSAY_ERROR);
  EXPECT_EQ(d.module().mark(d, -1), ASSAY_ERROR);
}
TEST(Simt, CopiesOutsideOfAnAllocationAreFaults) {
  for (const int fault : {0, 1, 2}) {
    Device d;
    d.expect_fault();
    const Buffer<float> x(d, 4), y(d, 8);
    std::vector<float> host(8);
    const int result = fault == 0   ? d.module().download(d, host.data(), x.get(), 32)
                       : fault == 1 ? d.module().upload(d, x.get(), host.data(), 32)
                                    : d.module().copy(d, y.get(), x.get(), 32);
    EXPECT_TRUE(result == ASSAY_ERROR || d.module().finish(d) == ASSAY_ERROR);
    EXPECT_WORDS(d.error(), "a copy of 32 bytes outside of an allocation: byte 0 of allocation");
  }
}

__global__ void write_early(float* y, bool before) {
  if (before) y[threadIdx.x] = 7.0f;
  wait_for_previous();
  if (!before) y[threadIdx.x] = 7.0f;
}
__global__ void wait_often(int times, float* y) {
  for (int i = 0; i < (threadIdx.x == 3 ? times : 1); i++) wait_for_previous();
  y[threadIdx.x] = 0;
}
TEST(Simt, WhatIsReadBeforeWaitForPreviousIsOld) {
  const Device d;
  const Buffer<float> a(d, counting(kThreads)), b(d, kThreads), c(d, kThreads);
  std::vector<float> want = counting(kThreads);
  for (float& v : want) v += 2.0f;
  for (const bool fault : {false, true}) {
    const_cast<Buffer<float>&>(b).poison();
    queue_overlapping(d, "first", add_one, 1, a.get(), b.get(), false);
    queue_overlapping(d, "second", add_one, 1, b.get(), c.get(), fault);
    EXPECT_EQ(bool(same_rows(c.download(), want, kThreads)), !fault);
  }
  const Setting setting("ASSAY_SIMT_OVERLAP", "0");
  queue_overlapping(d, "first", add_one, 1, a.get(), b.get(), false);
  queue_overlapping(d, "second", add_one, 1, b.get(), c.get(), true);
  EXPECT_TRUE(same_rows(c.download(), want, kThreads)) << "nothing overlaps";
}
TEST(Simt, WhatIsWrittenBeforeWaitForPreviousSpoilsTheKernelBefore) {
  const Device d;
  const std::vector<float> x = counting(kThreads);
  std::vector<float> want = x;
  for (float& v : want) v += 1.0f;
  for (const bool fault : {false, true}) {
    const Buffer<float> a(d, x), b(d, kThreads);
    queue_overlapping(d, "reads", add_one, 1, a.get(), b.get(), false);
    queue_overlapping(d, "writes", write_early, 1, a.get(), fault);
    EXPECT_EQ(bool(same_rows(b.download(), want, kThreads)), !fault);
  }
}
TEST(Simt, EveryThreadWaitsForThePreviousKernelOnce) {
  for (const int times : {0, 1, 2})
    for (const int kernels : {1, 2}) {
      Device d;
      const Buffer<float> y(d, kThreads);
      for (int i = 0; i < kernels; i++) queue_overlapping(d, "wait_often", wait_often, 2, times, y.get());
      const std::string told = fault_of(d);
      if (times == 1) {
        EXPECT_EQ(told, "no fault");
      }
      if (times == 0) {
        EXPECT_WORDS(told, "thread 3: ended after 0 calls of wait_for_previous()");
      }
      if (times == 2) {
        EXPECT_WORDS(told, "thread 3: simt_test.cpp");
      }
    }
}

// ---- graphs

__global__ void scale_by(const float* x, float* y, const int32_t* place, int32_t frozen, bool fault) {
  y[threadIdx.x] = x[threadIdx.x] * float(fault ? frozen : *place);
}
TEST(Simt, AGraphKeepsArgumentBytesAndReadsDeviceMemoryAnew) {
  for (const bool fault : {false, true}) {
    const Device d;
    const std::vector<float> x = counting(kThreads);
    const Buffer<float> in(d, x), y(d, kThreads);
    Buffer<int32_t> place(d, std::vector<int32_t>{1});
    d.ok(d.module().capture_begin(d));
    int32_t position = 1;
    queue(d, "scale_by", scale_by, 1, 0, in.get(), y.get(), place.get(), position, fault);
    void* graph = nullptr;
    d.ok(d.module().capture_end(d, &graph));
    EXPECT_TRUE(std::isnan(y.download()[1])) << "nothing runs while it is recorded";
    EXPECT_EQ(d.counters().launches, 0u);
    int wrong = 0;
    for (position = 1; position < 4; position++) {
      place.upload({position});
      d.ok(d.module().replay(d, graph));
      std::vector<float> want = x;
      for (float& v : want) v *= float(position);
      wrong += !same_rows(y.download(), want, kThreads);
    }
    EXPECT_EQ(wrong, fault ? 2 : 0);
    EXPECT_EQ(d.counters().launches, 3u);
    EXPECT_EQ(d.counters().replays, 3u);
    d.module().release_graph(d, graph);
  }
}
TEST(Simt, ACaptureRecordsCopiesAndRefusesWhatWaitsOrAllocates) {
  const Device d;
  const Buffer<float> x(d, 4);
  void *host = nullptr, *memory = nullptr, *graph = nullptr;
  d.ok(d.module().allocate_host(d, 16, &host));
  auto* step = static_cast<float*>(host);
  const AssayLimits limits{1, 32, 1, 32, 32};
  const AssayCounters before = d.counters();
  d.ok(d.module().capture_begin(d));
  EXPECT_EQ(d.module().allocate(d, 16, &memory), ASSAY_ERROR);
  EXPECT_WORDS(d.error(), "allocate while a capture goes on");
  EXPECT_EQ(d.module().finish(d), ASSAY_ERROR);
  EXPECT_EQ(d.module().reserve(d, &limits), ASSAY_ERROR);
  EXPECT_EQ(d.module().capture_begin(d), ASSAY_ERROR);
  d.ok(d.module().upload(d, x.get(), step, 16));
  d.ok(d.module().capture_end(d, &graph));
  EXPECT_EQ(d.counters().uploads, before.uploads);
  for (const float v : {3.0f, 4.0f}) {
    std::fill_n(step, 4, v);
    d.ok(d.module().replay(d, graph));
    EXPECT_EQ(x.download()[2], v);
  }
  EXPECT_EQ(d.counters().uploads, before.uploads + 2);
  d.module().release_graph(d, graph);
  EXPECT_EQ(d.module().capture_end(d, &graph), ASSAY_ERROR);
  d.module().release_host(d, host);
}
TEST(Simt, CudaCallsThatACaptureForbidsSpoilIt) {
  const Device d;
  for (const int call : {0, 1, 2, 3}) {
    void *memory = nullptr, *graph = nullptr;
    d.ok(d.module().capture_begin(d));
    if (call == 1) {
      EXPECT_EQ(cudaMalloc(&memory, 16), cudaErrorStreamCaptureUnsupported);
    }
    if (call == 2) {
      EXPECT_EQ(cudaFree(memory), cudaErrorStreamCaptureUnsupported);
    }
    if (call == 3) {
      EXPECT_EQ(cudaStreamSynchronize(of(d).stream), cudaErrorStreamCaptureUnsupported);
    }
    EXPECT_EQ(d.module().capture_end(d, &graph), call ? ASSAY_ERROR : ASSAY_DONE);
    d.module().release_graph(d, graph);
  }
}

// ---- order

__global__ void note_order(int32_t* count, int32_t* order) {
  order[(*count)++] = int32_t(blockIdx.x * blockDim.x + threadIdx.x);
}
TEST(Simt, OrderComesFromTheSeed) {
  const auto order = [](const char* seed) {
    const Setting setting("ASSAY_SIMT_SEED", seed);
    const Device d;
    const Buffer<int32_t> count(d, std::vector<int32_t>{0}), out(d, 4 * kThreads);
    queue(d, "note_order", note_order, 4, 0, count.get(), out.get());
    return out.download();
  };
  const std::vector<int32_t> one = order("1"), two = order("2");
  EXPECT_NE(one, two);
  EXPECT_EQ(one, order("1"));
  std::vector<int32_t> all = two;
  std::sort(all.begin(), all.end());
  for (size_t i = 0; i < all.size(); i++) ASSERT_EQ(all[i], int32_t(i));
}
TEST(Simt, DevicesInTwoThreadsDoNotMeet) {
  const auto work = [](float start, bool* right) {
    const Device d;
    std::vector<float> x(kThreads, start);
    const Buffer<float> a(d, x), b(d, kThreads);
    for (int i = 0; i < 50; i++) {
      queue_overlapping(d, "there", add_one, 3, a.get(), b.get(), false);
      queue_overlapping(d, "back", add_one, 1, b.get(), a.get(), false);
      if (i % 7 == 0) d.finish();
      const Buffer<float> other(d, 100);
    }
    const std::vector<float> y = a.download();
    *right = std::all_of(y.begin(), y.end(), [&](float v) { return v == start + 100; });
  };
  bool right[2] = {};
  std::thread one(work, 0.0f, &right[0]), two(work, 1000.0f, &right[1]);
  one.join();
  two.join();
  EXPECT_TRUE(right[0]);
  EXPECT_TRUE(right[1]);
}

// ---- the table

TEST(Module, LaunchesThatNoDeviceTakesAreErrors) {
  const Device d;
  const Buffer<float> y(d, kThreads);
  for (const auto& [threads, shared] : {std::pair{48, 0}, {2048, 0}, {32, 300 << 10}}) {
    EXPECT_EQ(launch(of(d), "odd", Overlap::no, read_shared, dim3(1), threads, size_t(shared), y.get()), ASSAY_ERROR);
    EXPECT_WORDS(d.error(), "invalid configuration");
  }
  EXPECT_EQ(launch(of(d), "empty", Overlap::no, read_shared, dim3(0), 32, 0, y.get()), ASSAY_ERROR);
}
TEST(Module, SaysWhatItIs) {
  const AssayModule& m = Device::module();
  EXPECT_EQ(m.abi_version, uint32_t(ASSAY_ABI_VERSION));
  EXPECT_EQ(m.struct_size, sizeof(AssayModule));
  AssayDevice* none = nullptr;
  EXPECT_EQ(m.open(99, &none), ASSAY_ERROR);
  EXPECT_EQ(none, nullptr);
  EXPECT_WORDS(std::string(m.error(nullptr)), "device 99: there are 1");
  EXPECT_EQ(m.finish(nullptr), ASSAY_ERROR);
  const Device d;
  EXPECT_EQ(d.info().emulated, 1);
  EXPECT_STREQ(d.info().architecture, "simt");
  EXPECT_EQ(m.weight_bytes(d, -1, 4, 32), 0u);
  EXPECT_EQ(m.weight_bytes(d, ASSAY_TYPES, 4, 32), 0u);
  EXPECT_EQ(m.weight_bytes(d, ASSAY_F32, 0, 32), 0u);
  EXPECT_EQ(m.norm(d, nullptr), ASSAY_ERROR);
}

}  // namespace
}  // namespace assay
