// The emulation sees what it is there to see: each test plants a fault and expects it to show, and its repaired twin not to. Here
// threads and what they wait for; simt_memory_test.cpp memory, simt_queue_test.cpp what is queued and in which order.
#include "cuda/simt_support.h"

namespace assay {
namespace {

using namespace test;

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

}  // namespace
}  // namespace assay
