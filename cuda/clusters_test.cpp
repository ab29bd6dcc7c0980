// Clusters of the emulation: blocks that write each other's shared memory, and the faults that it must see.
#include <numeric>

#include "cuda/device.h"
#include "cuda/test_support.h"

namespace assay {
namespace {

using namespace test;

constexpr int kThreads = 64, kCluster = 4, kBlocks = 12;
enum class Fault { none, no_first_barrier, other_ended, one_waits_not, arrives_twice, misplaced };

/// Block b leaves its number, plus its thread's, with the next block of its cluster.
__global__ void to_next(float* y, Fault fault) {
  SHARED_BYTES(bytes);
  auto* shared = reinterpret_cast<float*>(bytes);
  const int t = int(threadIdx.x), next = (cluster_rank() + 1) % kCluster;
  if (fault != Fault::no_first_barrier) cluster_arrive();
  if (fault == Fault::arrives_twice) cluster_arrive();
  wait_for_previous();
  if (fault == Fault::one_waits_not && blockIdx.x == 5 && t == 7) return;
  if (fault != Fault::no_first_barrier) cluster_wait();
  if (fault == Fault::other_ended) {
    cluster_arrive();
    if (cluster_rank() == 2) return;
    cluster_wait();
  }
  store_to_block(shared + t + (fault == Fault::misplaced && t == 63 ? 1 : 0), next, float(1000 * blockIdx.x) + float(t));
  cluster_arrive();
  cluster_wait();
  y[blockIdx.x * kThreads + threadIdx.x] = shared[t];
}

std::string outcome(Fault fault, Overlap overlap = Overlap::yes) {
  Device d;
  auto& device = *static_cast<AssayDevice*>(d);
  const Buffer<float> y(d, kBlocks * kThreads);
  d.ok(launch_in_clusters(device, "before", Overlap::no, to_next, kCluster, dim3(kBlocks), kThreads, kThreads * 4, y.get(), Fault::none));
  d.ok(launch_in_clusters(device, "to_next", overlap, to_next, kCluster, dim3(kBlocks), kThreads, kThreads * 4, y.get(), fault));
  if (fault != Fault::none) {
    d.expect_fault();
    return d.module().finish(d) == ASSAY_DONE ? "no fault" : d.error();
  }
  std::vector<float> want(kBlocks * kThreads);
  for (int b = 0; b < kBlocks; b++)
    for (int t = 0; t < kThreads; t++) {
      const int rank = b % kCluster, from = b - rank + (rank + kCluster - 1) % kCluster;
      want[size_t(b * kThreads + t)] = float(1000 * from + t);
    }
  const auto same = same_rows(y.download(), want, kThreads);
  return same ? "" : same.message();
}

TEST(Clusters, BlocksWriteEachOthersSharedMemory) {
  for (const char* seed : {"1", "2", "3"}) {
    setenv("ASSAY_SIMT_SEED", seed, 1);
    EXPECT_EQ(outcome(Fault::none, Overlap::no), "");
    EXPECT_EQ(outcome(Fault::none, Overlap::yes), "");
  }
  unsetenv("ASSAY_SIMT_SEED");
}
TEST(Clusters, FaultsAreTold) {
  const std::pair<Fault, const char*> kFaults[] = {
      {Fault::no_first_barrier, "no barrier of the cluster says that block"}, {Fault::other_ended, "of the cluster has ended"},
      {Fault::one_waits_not, "wait at the cluster's barrier"},                {Fault::arrives_twice, "arrives again without waiting"},
      {Fault::misplaced, "of another block's shared memory"},
  };
  for (const auto& [fault, words] : kFaults) {
    const std::string told = outcome(fault);
    EXPECT_NE(told.find(words), std::string::npos) << "wanted: " << words << "\ntold: " << told;
  }
}
TEST(Clusters, AGridIsWholeClusters) {
  Device d;
  const Buffer<float> y(d, kBlocks * kThreads);
  EXPECT_EQ(launch_in_clusters(*static_cast<AssayDevice*>(d), "to_next", Overlap::no, to_next, kCluster, dim3(kBlocks + 1), kThreads,
                               kThreads * 4, y.get(), Fault::none),
            ASSAY_ERROR);
}

}  // namespace
}  // namespace assay
