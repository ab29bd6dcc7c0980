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

}  // namespace

int usable_cpus() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1u, std::thread::hardware_concurrency());
}

// A job is open while its gate is: workers join an open gate and leave it; the caller takes ranges too, closes the gate when
// none is left, and waits for those inside only. A worker that the system keeps from running joins late, finds the gate
// closed and costs nobody anything. Gate: bits 0-15 workers inside, bit 16 closed, from bit 17 the job's number.
struct ThreadPool::Shared {
  static constexpr uint64_t kInside = 0xffff, kClosed = 0x10000;
  // The job. Written by the caller while the gate is closed and nobody is inside, read by workers inside.
  Call call = nullptr;
  void* fn = nullptr;
  int64_t items = 0, grain = 1;
  std::atomic<int64_t> next{0};

  std::atomic<uint64_t> gate{kClosed};
  std::atomic<int> sleepers{0};          // workers on `wake`
  std::atomic<bool> caller_sleeps{false};
  std::atomic<bool> stop{false};
  bool spin = true;  // not where threads outnumber CPUs

  std::mutex mutex;  // for sleeping, and for the errors
  std::condition_variable wake, done;
  std::exception_ptr error, unclean;     // of a range; of a worker's floating-point environment
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

  /// Whether there is something to look at that was not there at `seen`: an open gate of a later job, or the end.
  bool news(uint64_t seen) const {
    const uint64_t g = gate.load(std::memory_order_seq_cst);
    return (g > seen && !(g & kClosed)) || stop.load(std::memory_order_acquire);
  }

  void loop(int worker) {
    try {
      require_clean_float_environment("worker thread");
    } catch (...) {
      std::lock_guard<std::mutex> lock(mutex);
      unclean = std::current_exception();
      return;  // never computes anything; the next run() says why
    }
    uint64_t seen = kClosed | kInside;
    for (;;) {
      for (int i = 0; spin && i < kSpins && !news(seen); i++) pause_briefly();
      if (!news(seen)) {
        std::unique_lock<std::mutex> lock(mutex);
        sleepers.fetch_add(1, std::memory_order_seq_cst);
        wake.wait(lock, [&] { return news(seen); });
        sleepers.fetch_sub(1, std::memory_order_relaxed);
      }
      if (stop.load(std::memory_order_acquire)) return;
      uint64_t g = gate.load(std::memory_order_relaxed);
      bool joined = false;
      while (g > seen && !(g & kClosed) && !joined)
        joined = gate.compare_exchange_weak(g, g + 1, std::memory_order_acquire, std::memory_order_relaxed);
      if (!joined) continue;
      seen = g | kClosed | kInside;
      work(worker);
      const uint64_t left = gate.fetch_sub(1, std::memory_order_seq_cst) - 1;
      if ((left & kInside) == 0 && (left & kClosed) && caller_sleeps.load(std::memory_order_seq_cst)) {
        std::lock_guard<std::mutex> lock(mutex);  // the caller is past its test or will be woken
        done.notify_one();
      }
    }
  }

  void open() {
    gate.store(((gate.load(std::memory_order_relaxed) >> 17) + 1) << 17, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst) > 0) {
      std::lock_guard<std::mutex> lock(mutex);
      wake.notify_all();
    }
  }

  void close() {
    const auto empty = [&] { return (gate.load(std::memory_order_seq_cst) & kInside) == 0; };
    gate.fetch_or(kClosed, std::memory_order_acq_rel);
    for (int i = 0; spin && i < kSpins && !empty(); i++) pause_briefly();
    if (empty()) return;
    std::unique_lock<std::mutex> lock(mutex);
    caller_sleeps.store(true, std::memory_order_seq_cst);
    done.wait(lock, empty);
    caller_sleeps.store(false, std::memory_order_relaxed);
  }

  void end() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      stop.store(true, std::memory_order_release);
    }
    wake.notify_all();
    for (auto& t : workers) t.join();
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
    shared_->end();
    throw Error(ErrorKind::memory, "threads", "the system refused a thread", std::to_string(threads_),
                std::to_string(shared_->workers.size() + 1), "Ask for fewer threads");
  }
}

ThreadPool::~ThreadPool() {
  shared_->end();
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
  s.next.store(0, std::memory_order_relaxed);
  s.open();
  s.work(0);
  s.close();
  std::lock_guard<std::mutex> lock(s.mutex);
  if (s.unclean) std::rethrow_exception(s.unclean);
  if (s.error) std::rethrow_exception(std::exchange(s.error, nullptr));
}

}  // namespace assay
