#include "engine/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dumps/error.h"
#include "engine/numerics_env.h"

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace assay {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kSpins = 2000;  // some tens of microseconds: ops of one pass follow each other closely

void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

int usable_cpus() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace

struct ThreadPool::Shared {
  // The job. Written by the caller before `generation` is raised, read by workers after they saw it raised.
  Call call = nullptr;
  void* fn = nullptr;
  int64_t items = 0, grain = 1;
  std::atomic<int64_t> next{0};

  std::atomic<uint64_t> generation{0};
  std::atomic<int> running{0};  // workers that have not finished the current job
  std::atomic<bool> stop{false};
  bool spin = true;  // not where threads outnumber CPUs

  std::mutex mutex;  // for sleeping only, and for `error`
  std::condition_variable wake, done;
  std::exception_ptr error;
  std::vector<std::thread> workers;

  void work(int worker) {
    try {
      for (;;) {
        int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
        if (begin >= items) return;
        call(fn, begin, std::min(items, begin + grain), worker);
      }
    } catch (...) {
      next.store(items, std::memory_order_relaxed);  // ranges not started are skipped
      std::lock_guard<std::mutex> lock(mutex);
      if (!error) error = std::current_exception();
    }
  }

  void loop(int worker) {
    std::exception_ptr unclean;
    try {
      require_clean_float_environment("worker thread");
    } catch (...) {
      unclean = std::current_exception();
    }
    uint64_t seen = 0;
    for (;;) {
      for (int i = 0; spin && i < kSpins && generation.load(std::memory_order_acquire) == seen; i++) pause_briefly();
      if (generation.load(std::memory_order_acquire) == seen) {
        std::unique_lock<std::mutex> lock(mutex);
        wake.wait(lock, [&] { return generation.load(std::memory_order_acquire) != seen; });
      }
      seen = generation.load(std::memory_order_acquire);
      if (stop.load(std::memory_order_acquire)) return;
      if (unclean) {
        std::lock_guard<std::mutex> lock(mutex);
        if (!error) error = unclean;
      } else {
        work(worker);
      }
      if (running.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        std::lock_guard<std::mutex> lock(mutex);  // the caller is past its test or will be woken
        done.notify_one();
      }
    }
  }

  void announce() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      generation.fetch_add(1, std::memory_order_acq_rel);
    }
    wake.notify_all();
  }
};

ThreadPool::ThreadPool(int threads) : threads_(threads == 0 ? usable_cpus() : threads), shared_(new Shared) {
  if (threads_ < 1 || threads_ > kMaxThreads) {
    throw Error(ErrorKind::usage, "threads", "impossible number of threads", "1 to " + std::to_string(kMaxThreads),
                std::to_string(threads));
  }
  require_clean_float_environment("engine start");
  shared_->spin = threads_ <= usable_cpus();
  try {
    for (int w = 1; w < threads_; w++) shared_->workers.emplace_back([s = shared_.get(), w] { s->loop(w); });
  } catch (...) {  // the system has no more threads
    shared_->stop.store(true, std::memory_order_release);
    shared_->announce();
    for (auto& t : shared_->workers) t.join();
    throw Error(ErrorKind::memory, "threads", "the system refused a thread", std::to_string(threads_),
                std::to_string(shared_->workers.size() + 1), "Ask for fewer threads");
  }
}

ThreadPool::~ThreadPool() {
  shared_->stop.store(true, std::memory_order_release);
  shared_->announce();
  for (auto& t : shared_->workers) t.join();
}

void ThreadPool::run(int64_t items, int64_t grain, Call call, void* fn) {
  if (items <= 0) return;
  grain = std::max<int64_t>(1, grain);
  Shared& s = *shared_;
  if (s.workers.empty() || items <= grain) {  // nothing to share out
    for (int64_t begin = 0; begin < items; begin += grain) call(fn, begin, std::min(items, begin + grain), 0);
    return;
  }
  s.call = call;
  s.fn = fn;
  s.items = items;
  s.grain = grain;
  s.error = nullptr;
  s.next.store(0, std::memory_order_relaxed);
  s.running.store(int(s.workers.size()), std::memory_order_relaxed);
  s.announce();
  s.work(0);
  for (int i = 0; s.spin && i < kSpins && s.running.load(std::memory_order_acquire) != 0; i++) pause_briefly();
  {
    std::unique_lock<std::mutex> lock(s.mutex);
    s.done.wait(lock, [&] { return s.running.load(std::memory_order_acquire) == 0; });
  }
  if (s.error) std::rethrow_exception(std::exchange(s.error, nullptr));
}

}  // namespace assay
