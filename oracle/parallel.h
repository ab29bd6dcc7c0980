// Sharing work out: plain threads, started and joined per call. Items are taken from a counter, so that results may not
// depend on who takes which.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace assay::oracle {

/// Calls f(item) for 0..n-1, on `threads` threads (0: all cores). The first exception is thrown once all have ended.
template <class F>
void parallel(int64_t n, int threads, const F& f) {
  const int64_t cores = threads > 0 ? threads : std::max(1u, std::thread::hardware_concurrency());
  const int64_t workers = cores < n ? cores : n;
  if (workers <= 1) {
    for (int64_t i = 0; i < n; i++) f(i);
    return;
  }
  std::atomic<int64_t> next{0};
  std::exception_ptr error;
  std::mutex mutex;
  auto work = [&] {
    try {
      for (int64_t i; (i = next.fetch_add(1)) < n;) f(i);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex);
      if (!error) error = std::current_exception();
      next = n;
    }
  };
  std::vector<std::thread> pool;
  for (int64_t i = 1; i < workers; i++) pool.emplace_back(work);
  work();
  for (std::thread& t : pool) t.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace assay::oracle
