// A small pool of std::thread. No bit of a result depends on how work is cut (NUMERICS.md): the pool may cut anywhere.
#pragma once
#include <cstdint>
#include <memory>
#include <type_traits>

namespace assay {

int usable_cpus();  // that this process may run on

class ThreadPool {
 public:
  /// `threads` workers, the calling thread being worker 0; 0: one per CPU that this process may use. Every worker
  /// checks its floating-point environment when it starts (numerics_env.h). Throws Error{usage} for a negative or
  /// absurd count.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  /// Calls fn(begin, end, worker) for ranges that cover [0, items) once, each at most `grain` long (the last may be
  /// shorter), worker in [0, threads()). Returns when all have ended; the workers' writes are then visible. The first
  /// exception that fn throws is rethrown here; ranges not started by then are skipped. Not reentrant: fn must not call
  /// it, and one thread at a time may. `grain` < 1 counts as 1.
  template <class F>
  void parallel_for(int64_t items, int64_t grain, F&& fn) {
    using Fn = std::remove_reference_t<F>;
    run(
        items, grain,
        [](void* f, int64_t begin, int64_t end, int worker) { (*static_cast<Fn*>(f))(begin, end, worker); },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  using Call = void (*)(void*, int64_t, int64_t, int);
  void run(int64_t items, int64_t grain, Call call, void* fn);
  struct Shared;
  int threads_;
  std::unique_ptr<Shared> shared_;
};

}  // namespace assay
