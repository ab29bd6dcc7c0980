// The emulation's queue: work that has not happened yet, kernels that start early, graphs, devices in several threads.
#include <thread>

#include "cuda/simt_support.h"

namespace assay {
namespace {

using namespace test;

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
        EXPECT_WORDS(told, "thread 3: simt_queue_test.cpp");
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
  const AssayLimits limits{1, 32, 1, 32, 32, 0, 0};
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

}  // namespace
}  // namespace assay
