// simt/races.h: this file is compiled with -fsanitize=thread, so that every access of its kernels is reported. Planted races
// are found whatever the order of threads, and kernels without any are left alone.
#include "cuda/device.h"
#include "cuda/test_support.h"

namespace assay {
namespace {

using namespace test;

constexpr int kThreads = 64;

enum Fault {
  none,
  no_barrier_before_reading,
  no_barrier_before_writing,
  no_warp_barrier,
  copied_too_soon,
  same_element,
  other_block
};

/// Two rounds: each thread writes, reads what a thread of another warp wrote, then exchanges within its warp.
__global__ void two_rounds(Fault fault, const float* x, float* y) {
  SHARED_BYTES(bytes);
  auto* s = reinterpret_cast<float*>(bytes);
  const unsigned t = threadIdx.x;
  float v = x[t];
  for (int round = 0; round < 2; round++) {
    s[t] = v;
    if (fault != no_barrier_before_reading) sync_block();
    v = s[t ^ 32u];
    if (fault != no_barrier_before_writing) sync_block();
    s[t] = v;
    if (fault != no_warp_barrier) sync_warp();
    v = s[t ^ 1u];
    sync_warp();
    v = shuffle_xor(v, 3);
  }
  if (fault != copied_too_soon) sync_block();
  copy_async<4>(s + (t ^ 32u), x + t);
  copy_commit();
  copy_wait<0>();
  sync_block();
  const unsigned at = fault == same_element ? t / 2 : t;
  y[fault == other_block ? at : blockIdx.x * blockDim.x + at] = v + s[t];
}
TEST(Races, AreFoundWhateverTheOrder) {
  const std::string words[] = {"", "of shared memory is", "of shared memory is", "of shared memory is", "of shared memory is",
                               " bytes) is written here and written by thread",
                               " bytes) is written here and written in another block by thread"};
  for (int fault = none; fault <= other_block; fault++)
    for (const char* seed : {"1", "2", "3", "4", "5", "6", "7", "8"}) {
      setenv("ASSAY_SIMT_SEED", seed, 1);
      Device d;
      const Buffer<float> x(d, std::vector<float>(kThreads, 1.0f)), y(d, 2 * kThreads);
      d.ok(launch(*static_cast<AssayDevice*>(d), "two_rounds", Overlap::no, two_rounds, dim3(2), kThreads, kThreads * 4,
                  Fault(fault), x.get(), y.get()));
      if (fault != none) d.expect_fault();
      EXPECT_EQ(d.module().finish(d), fault == none ? ASSAY_DONE : ASSAY_ERROR)
          << "fault " << fault << ", seed " << seed << d.error();
      EXPECT_EQ(d.error().find("a race: byte ") != std::string::npos, fault != none) << d.error();
      EXPECT_NE(d.error().find(words[fault]), std::string::npos) << d.error();
    }
  unsetenv("ASSAY_SIMT_SEED");
}

}  // namespace
}  // namespace assay
