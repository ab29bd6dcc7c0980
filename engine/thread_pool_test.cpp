#include "engine/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

#include "dumps/error.h"

namespace assay {
namespace {

TEST(ThreadPool, EveryItemOnceWhateverTheCut) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int64_t items : {0, 1, 2, 7, 64, 1000}) {
      for (int64_t grain : {-1, 1, 3, 64, 5000}) {
        std::vector<int> seen(size_t(items), 0);  // written by one thread each: the pool's end makes them visible
        std::atomic<int64_t> longest{0}, bad_worker{0};
        pool.parallel_for(items, grain, [&](int64_t begin, int64_t end, int worker) {
          if (worker < 0 || worker >= threads) bad_worker++;
          for (int64_t l = longest.load(); end - begin > l && !longest.compare_exchange_weak(l, end - begin);) {
          }
          for (int64_t i = begin; i < end; i++) seen[size_t(i)]++;
        });
        for (int n : seen) ASSERT_EQ(n, 1);
        EXPECT_LE(longest, std::max<int64_t>(grain, 1));
        EXPECT_EQ(bad_worker, 0);
      }
    }
  }
}

TEST(ThreadPool, ManyShortJobsFollowEachOther) {
  ThreadPool pool(4);
  std::vector<int64_t> sums(64, 0);
  for (int job = 0; job < 3000; job++) {
    pool.parallel_for(64, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; i++) sums[size_t(i)] += i + job;
    });
  }
  for (int64_t i = 0; i < 64; i++) EXPECT_EQ(sums[size_t(i)], 3000 * i + 3000 * 2999 / 2);
}

TEST(ThreadPool, AnExceptionReachesTheCallerAndThePoolLivesOn) {
  for (int threads : {1, 4}) {
    ThreadPool pool(threads);
    for (int i = 0; i < 20; i++) {
      EXPECT_THROW(pool.parallel_for(100, 1,
                                     [&](int64_t begin, int64_t, int) {
                                       if (begin == 37) throw std::runtime_error("37");
                                     }),
                   std::runtime_error);
      std::atomic<int> ran{0};
      pool.parallel_for(100, 7, [&](int64_t b, int64_t e, int) { ran += int(e - b); });
      EXPECT_EQ(ran, 100);
    }
  }
}

TEST(ThreadPool, ImpossibleCountsAreRefusedAndZeroMeansAllCpus) {
  EXPECT_THROW(ThreadPool(-1), Error);
  EXPECT_THROW(ThreadPool(1 << 20), Error);
  EXPECT_GE(ThreadPool(0).threads(), 1);
}

}  // namespace
}  // namespace assay
