// What fibers.cpp, which runs blocks, and collectives.cpp, which holds what kernels call, share: a block, its fibers, and how one
// fiber gives way to another. No other file needs it.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cuda/simt/context.h"
#include "cuda/simt/fibers.h"
#include "cuda/simt/races.h"

namespace simt {

struct Random {
  uint64_t state;
  uint32_t below(uint32_t n) {  // splitmix64
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return uint32_t(((z ^ (z >> 31)) >> 32) * n >> 32);
  }
  template <class T>
  void shuffle(T* from, size_t n) {
    for (size_t i = n; i > 1; i--) std::swap(from[i - 1], from[below(uint32_t(i))]);
  }
};

enum class Waits : uint8_t { no, block, warp, cluster, previous, ended };

struct Copy {
  void* shared;
  const void* global;
  unsigned bytes, group;
  bool real;
};

struct Fiber {
  Context context;
  std::byte* stack = nullptr;
  unsigned thread = 0;
  Waits waits = Waits::ended;
  Site site;                  // where it waits
  unsigned calls = 0;         // of wait_for_previous
  unsigned cluster_arrivals = 0, cluster_waits = 0;
  unsigned open_group = 0;    // copies issued now belong to this one
  std::vector<Copy> copies;   // not yet performed, oldest first
};

struct Warp {
  unsigned arrived = 0, generation = 0;
  Collective kind{};
  Site site;
  Slot slots[2][32];  // alternating: a lane may come to the next collective before all have read this one's
};

/// In which order the fibers that could run do run.
enum class Order : uint8_t { newest_first, oldest_first, any };

struct Block;
/// Blocks that run at the same time.
struct Cluster {
  std::vector<Block*> blocks;
  unsigned arrived = 0, barriers = 0;  // threads that arrived at the barrier that is open; barriers passed
};

struct Block {
  const Launch* launch = nullptr;
  Cluster* cluster = nullptr;
  unsigned rank = 0, running = 0;  // in the cluster; threads that have not ended
  uint3 index{};
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<uint16_t> ready;
  size_t oldest = 0;  // of ready, where oldest_first
  Order order{};
  Random random{};
  unsigned arrived = 0;
  Site barrier;
  uint32_t barriers = 0;   // passed
  bool hold = false;       // fibers stay in wait_for_previous
  uint64_t number_of_launch = 0, number = 0;
  races::Shadow shadow;
  std::byte* mapping = nullptr;
  std::byte* shared = nullptr;
};

/// The fiber that runs, and where faults and finished fibers go back to.
extern ASSAY_SIMT_HIDDEN Context scheduler;
extern ASSAY_SIMT_HIDDEN Block* block;
extern ASSAY_SIMT_HIDDEN Fiber* fiber;
extern ASSAY_SIMT_HIDDEN bool from_scheduler;

/// When asynchronous copies happen (fibers.h), in the launch that runs.
enum class Copies : uint8_t { late, early, random };
extern ASSAY_SIMT_HIDDEN Copies copies_now;
/// collectives.cpp: performs what lies in groups before `group`.
ASSAY_SIMT_HIDDEN void perform_copies(Fiber& f, unsigned group);

/// fibers.cpp: ends the launch; the fiber is left where it is.
[[noreturn, gnu::format(printf, 1, 2)]] ASSAY_SIMT_HIDDEN void fault(const char* format, ...);

struct Place {
  char text[96];
};
ASSAY_SIMT_HIDDEN Place place_of(const Site& site);

inline void enter(Fiber& f) {
  fiber = &f;
  threadIdx = {f.thread, 0, 0};
}
inline Fiber& take_ready(Block& b) {
  size_t at = b.ready.size() - 1;
  if (b.order == Order::oldest_first) {
    at = b.oldest++;
    const uint16_t thread = b.ready[at];
    if (b.oldest == b.ready.size()) b.ready.clear(), b.oldest = 0;
    return b.fibers[thread];
  }
  if (b.order == Order::any) std::swap(b.ready[at], b.ready[b.random.below(uint32_t(b.ready.size()))]);
  const uint16_t thread = b.ready[at];
  b.ready.pop_back();
  return b.fibers[thread];
}
/// The running fiber waits (or has ended): another one goes on, or the scheduler where none can.
inline void suspend(bool for_good = false) {
  Fiber& self = *fiber;
  from_scheduler = false;
  if (block->ready.empty()) {
    switch_context(self.context, scheduler, for_good);
  } else {
    Fiber& next = take_ready(*block);
    enter(next);
    switch_context(self.context, next.context, for_good);
  }
}
/// Wakes fibers of [first, end) that wait so.
inline void wake(Block& b, unsigned first, unsigned end, Waits waits) {
  const size_t before = b.ready.size();
  for (unsigned t = first; t < end; t++)
    if (b.fibers[t].waits == waits) {
      b.fibers[t].waits = Waits::no;
      b.ready.push_back(uint16_t(t));
    }
  b.random.shuffle(b.ready.data() + before, b.ready.size() - before);
}

}  // namespace simt
