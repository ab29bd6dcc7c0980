#include "cuda/simt/fibers.h"

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/simt/arena.h"
#include "cuda/simt/context.h"
#include "cuda/simt/races.h"

#if defined(__x86_64__)
asm(R"(
.text
.globl assay_simt_switch
.hidden assay_simt_switch
.type assay_simt_switch, @function
assay_simt_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size assay_simt_switch, .-assay_simt_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl assay_simt_switch
.hidden assay_simt_switch
.type assay_simt_switch, %function
assay_simt_switch:
  stp d8, d9, [sp, #-160]!
  stp d10, d11, [sp, #16]
  stp d12, d13, [sp, #32]
  stp d14, d15, [sp, #48]
  stp x19, x20, [sp, #64]
  stp x21, x22, [sp, #80]
  stp x23, x24, [sp, #96]
  stp x25, x26, [sp, #112]
  stp x27, x28, [sp, #128]
  stp x29, x30, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp d10, d11, [sp, #16]
  ldp d12, d13, [sp, #32]
  ldp d14, d15, [sp, #48]
  ldp x19, x20, [sp, #64]
  ldp x21, x22, [sp, #80]
  ldp x23, x24, [sp, #96]
  ldp x25, x26, [sp, #112]
  ldp x27, x28, [sp, #128]
  ldp x29, x30, [sp, #144]
  ldp d8, d9, [sp], #160
  ret
.size assay_simt_switch, .-assay_simt_switch
)");
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace simt {
namespace {

constexpr unsigned char kGuard[2] = {0xa5, 0xff};  // a NaN as f16, bf16 and f32
constexpr size_t kGuardBytes = 256;

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
Context scheduler;
Block* block;
Fiber* fiber;
bool from_scheduler;
std::string fault_words;

size_t page() {
  static const size_t bytes = size_t(sysconf(_SC_PAGESIZE));
  return bytes;
}
/// Mappings are kept for the next launch: making them costs more than most blocks run.
struct Spare {
  std::vector<std::byte*> stacks;
  std::vector<Block*> blocks;  // without stacks
};
Spare& spare() {
  static auto* s = new Spare;
  return *s;
}
template <class T>
T* take(std::vector<T*>& from) {
  if (from.empty()) return nullptr;
  T* last = from.back();
  from.pop_back();
  return last;
}
/// What frames left poisoned: those of fiber_entry(), or all of them where a fault abandoned the fiber.
void clean_stack(Fiber& f) {
  const size_t bytes = f.waits == Waits::ended ? 16 << 10 : kStackBytes;
  unpoison(f.stack + kStackBytes - bytes, bytes);
  f.waits = Waits::ended;
}
void put_back(Block* b) {
  for (Fiber& f : b->fibers) {
    if (!f.stack) continue;
    clean_stack(f);
    spare().stacks.push_back(std::exchange(f.stack, nullptr));
  }
  spare().blocks.push_back(b);
}

enum class Copies : uint8_t { late, early, random };
Copies copies_mode() {
  const char* text = getenv("ASSAY_SIMT_COPIES");
  if (!text || !strcmp(text, "late")) return Copies::late;
  if (!strcmp(text, "early")) return Copies::early;
  if (!strcmp(text, "random")) return Copies::random;
  fprintf(stderr, "ASSAY_SIMT_COPIES=%s: late, early or random\n", text);
  abort();
}
Copies copies_now;
uint64_t launches = 0;

struct Place {
  char text[96];
};
Place place_of(const Site& site) {  // no memory to free: fault() does not return
  const char* slash = strrchr(site.file, '/');
  Place place;
  snprintf(place.text, sizeof place.text, "%.80s:%d", slash ? slash + 1 : site.file, site.line);
  return place;
}
std::string words_on(const Block& b) {
  char text[64];
  snprintf(text, sizeof text, "block (%u,%u,%u)", b.index.x, b.index.y, b.index.z);
  return "kernel " + b.launch->name + ", " + text;
}

bool same(const Site& a, const Site& b) { return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0); }

/// Ends the launch: the fiber is left where it is.
[[noreturn, gnu::format(printf, 1, 2)]] void fault(const char* format, ...) {
  char text[512];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  fault_words = words_on(*block) + ", thread " + std::to_string(fiber->thread) + ": " + text;
  switch_context(fiber->context, scheduler, true);
  abort();
}

void enter(Fiber& f) {
  fiber = &f;
  threadIdx = {f.thread, 0, 0};
}
Fiber& take_ready(Block& b) {
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
void suspend(bool for_good = false) {
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
void wake(Block& b, unsigned first, unsigned end, Waits waits) {
  const size_t before = b.ready.size();
  for (unsigned t = first; t < end; t++)
    if (b.fibers[t].waits == waits) {
      b.fibers[t].waits = Waits::no;
      b.ready.push_back(uint16_t(t));
    }
  b.random.shuffle(b.ready.data() + before, b.ready.size() - before);
}

void perform(const Copy& c) {
  races::touched(c.shared, c.bytes, true);
  if (c.real) races::touched(c.global, c.bytes, false);
  if (c.real)
    memcpy(c.shared, c.global, c.bytes);
  else
    memset(c.shared, 0, c.bytes);
}
/// Performs what lies in groups before `group`.
void perform_copies(Fiber& f, unsigned group) {
  size_t n = 0;
  while (n < f.copies.size() && f.copies[n].group < group) perform(f.copies[n++]);
  f.copies.erase(f.copies.begin(), f.copies.begin() + ptrdiff_t(n));
}

void fiber_entry() {
#ifdef ASSAY_SIMT_ASAN
  if (from_scheduler)
    __sanitizer_finish_switch_fiber(nullptr, &scheduler.bottom, &scheduler.size);
  else
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
  block->launch->body();
  Fiber& f = *fiber;
  perform_copies(f, f.open_group + 1);  // nobody waited: they end with the thread
  if (block->launch->overlap && f.calls != 1)
    fault("ended after %u calls of wait_for_previous(), not one, though it was launched with Overlap::yes", f.calls);
  f.waits = Waits::ended;
  block->running--;
  suspend(true);
  abort();
}

bool guard_at(const std::byte* from, size_t bytes, bool write) {
  for (size_t i = 0; i < bytes; i++) {
    auto* p = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(from + i));
    const unsigned char want = kGuard[reinterpret_cast<uintptr_t>(p) & 1];
    if (write)
      *p = want;
    else if (*p != want)
      return false;
  }
  return true;
}
size_t behind(const Launch& l) { return (128 - l.shared % 128) % 128; }  // up to the guard page

/// Shared memory that ends where a page begins that can't be touched, but for what 128-byte alignment wants.
void prepare_shared(Block& b) {
  const size_t room = (kSharedLimit + page() - 1) / page() * page() + page();
  if (!b.mapping) {
    void* memory = mmap(nullptr, room + page(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) abort();
    b.mapping = static_cast<std::byte*>(memory);
    if (mprotect(b.mapping + room, page(), PROT_NONE) != 0) abort();
  }
  const size_t bytes = b.launch->shared, tail = behind(*b.launch);
  b.shared = b.mapping + room - tail - bytes;
  unpoison(b.mapping, room);
  guard_at(b.shared - kGuardBytes, kGuardBytes, true);
  memset(b.shared, 0xff, bytes);
  guard_at(b.shared + bytes, tail, true);
  poison(b.mapping, size_t(b.shared - b.mapping));
  poison(b.shared + bytes, tail);
}
std::string shared_damage(const Block& b) {
#ifdef ASSAY_SIMT_ASAN
  (void)b;  // it reports the access itself
#else
  const std::string of = words_on(b) + ": its " + std::to_string(b.launch->shared) + " bytes of shared memory were written ";
  if (!guard_at(b.shared - kGuardBytes, kGuardBytes, false)) return of + "before their start";
  if (!guard_at(b.shared + b.launch->shared, behind(*b.launch), false)) return of + "past their end";
#endif
  return {};
}

void begin(Block& b, const Launch& launch, uint64_t number_of_launch, uint3 index, uint64_t seed, bool hold) {
  static uint64_t blocks = 0;
  b.launch = &launch;
  b.number_of_launch = number_of_launch;
  b.number = ++blocks;
  b.shadow.cells.clear();
  b.barriers = 0;
  b.index = index;
  b.running = launch.threads;
  b.random.state = seed;
  b.hold = hold;
  b.arrived = 0;
  b.oldest = 0;
  b.order = std::array{Order::newest_first, Order::newest_first, Order::oldest_first, Order::any}[b.random.below(4)];
  b.warps.assign(launch.threads / 32, {});
  b.ready.clear();
  if (b.fibers.size() < launch.threads) b.fibers.resize(launch.threads);
  for (unsigned t = 0; t < launch.threads; t++) {
    Fiber& f = b.fibers[t];
    if (!f.stack) f.stack = take(spare().stacks);
    if (!f.stack) f.stack = new_stack(page());
    clean_stack(f);
    f.thread = t;
    f.calls = f.open_group = f.cluster_arrivals = f.cluster_waits = 0;
    f.copies.clear();
    f.waits = Waits::no;
    prepare(f.context, f.stack, t, fiber_entry);
    b.ready.push_back(uint16_t(t));
  }
  b.random.shuffle(b.ready.data(), b.ready.size());
  prepare_shared(b);
}

/// Runs until no fiber can go on. Afterwards fault_words may stand.
void go(Block& b) {
  if (b.ready.empty()) return;
  block = &b;
  blockIdx = b.index;
  blockDim = dim3(b.launch->threads);
  gridDim = b.launch->grid;
  Fiber& first = take_ready(b);
  enter(first);
  from_scheduler = true;
  switch_context(scheduler, first.context, false);
  block = nullptr;
  fiber = nullptr;
}

/// Words on fibers that wait for what can't come, or "".
std::string deadlock(const Block& b) {
  unsigned ended = 0, first_ended = 0;
  const unsigned threads = b.launch->threads;
  std::vector<std::pair<std::string, std::pair<unsigned, unsigned>>> places;  // of waiting ones: how many, the first of them
  for (unsigned t = 0; t < threads; t++) {
    const Fiber& f = b.fibers[t];
    if (f.waits == Waits::ended) {
      if (!ended++) first_ended = t;
      continue;
    }
    const char* what = f.waits == Waits::block     ? "the barrier "
                       : f.waits == Waits::cluster ? "the cluster's barrier "
                                                   : "the warp collective ";
    const std::string place = std::string(what) + place_of(f.site).text;
    auto at = std::find_if(places.begin(), places.end(), [&](auto& p) { return p.first == place; });
    if (at == places.end()) at = places.insert(places.end(), {place, {0, t}});
    at->second.first++;
  }
  if (places.empty()) return {};
  std::string words = words_on(b) + ": deadlock:";
  for (const auto& [place, who] : places)
    words += " " + std::to_string(who.first) + " of " + std::to_string(threads) + " threads (" + std::to_string(who.second) +
             " first) wait at " + place + ";";
  if (ended) words += " " + std::to_string(ended) + " threads (" + std::to_string(first_ended) + " first) have ended;";
  words.pop_back();
  return words;
}
/// Until no fiber of the cluster can go on. Words of a fault, or "".
std::string advance(Cluster& c) {
  for (bool going = true; going;) {
    going = false;
    for (Block* b : c.blocks) {
      if (b->ready.empty()) continue;
      going = true;
      go(*b);
      if (!fault_words.empty()) return std::exchange(fault_words, {});
    }
  }
  return {};
}
/// To the end of its blocks.
std::string complete(Cluster& c) {
  std::string words = advance(c);
  for (size_t i = 0; i < c.blocks.size() && words.empty(); i++) words = deadlock(*c.blocks[i]);
  for (size_t i = 0; i < c.blocks.size() && words.empty(); i++) words = shared_damage(*c.blocks[i]);
  return words;
}
/// The cluster whose first block is `first`; nothing runs yet.
void begin(Cluster& c, const Launch& launch, uint64_t number_of_launch, uint3 first, uint64_t seed, bool hold) {
  c.arrived = c.barriers = 0;
  for (unsigned i = 0; i < launch.cluster; i++) {
    Block& b = *c.blocks[i];
    b.cluster = &c;
    b.rank = i;
    begin(b, launch, number_of_launch, {first.x + i, first.y, first.z}, seed + i, hold);
  }
}

/// The first blocks of all clusters.
std::vector<uint3> shuffled_clusters(const Launch& launch, Random& random) {
  std::vector<uint3> blocks;
  blocks.reserve(size_t(launch.grid.x / launch.cluster) * launch.grid.y * launch.grid.z);
  for (unsigned z = 0; z < launch.grid.z; z++)
    for (unsigned y = 0; y < launch.grid.y; y++)
      for (unsigned x = 0; x < launch.grid.x; x += launch.cluster) blocks.push_back({x, y, z});
  random.shuffle(blocks.data(), blocks.size());
  return blocks;
}

}  // namespace

struct Started {
  Launch launch;
  std::vector<std::unique_ptr<Cluster>> clusters;
  std::string fault;
};
void EndStarted::operator()(Started* s) const {
  for (const auto& c : s->clusters)
    for (Block* b : c->blocks) put_back(b);
  delete s;
}

bool may_start_early(const Launch& l) {
  return l.overlap && uint64_t(l.grid.x) * l.grid.y * l.grid.z * l.threads <= kHeldThreads;
}

StartedPointer start(const Launch& launch, uint64_t seed) {
  copies_now = copies_mode();
  const uint64_t number = ++launches;
  StartedPointer s(new Started{launch, {}, {}});
  Random random{seed};
  for (const uint3 index : shuffled_clusters(launch, random)) {
    Cluster& c = *s->clusters.emplace_back(std::make_unique<Cluster>());
    while (c.blocks.size() < launch.cluster) {
      Block* reused = take(spare().blocks);
      c.blocks.push_back(reused ? reused : new Block);
    }
    begin(c, s->launch, number, index, seed + s->clusters.size() * launch.cluster, true);
    s->fault = advance(c);
    if (!s->fault.empty()) break;
  }
  return s;
}

std::string finish(Started& s) {
  copies_now = copies_mode();
  for (size_t i = 0; i < s.clusters.size() && s.fault.empty(); i++) {
    for (Block* b : s.clusters[i]->blocks) {
      b->hold = false;
      wake(*b, 0, s.launch.threads, Waits::previous);
    }
    s.fault = complete(*s.clusters[i]);
  }
  return s.fault;
}

std::string run(const Launch& launch, uint64_t seed) {
  copies_now = copies_mode();
  const uint64_t number = ++launches;
  static auto* kept = new std::vector<Block*>;  // they keep their stacks, too
  while (kept->size() < launch.cluster) kept->push_back(new Block);
  Cluster c;
  c.blocks.assign(kept->begin(), kept->begin() + launch.cluster);
  Random random{seed};
  uint64_t n = 1;
  for (const uint3 index : shuffled_clusters(launch, random)) {
    begin(c, launch, number, index, seed + n, false);
    n += launch.cluster;
    std::string words = complete(c);
    if (!words.empty()) return words;
  }
  return {};
}

void describe_running(char* text, size_t size) {
  if (size) *text = 0;
  if (!block || !fiber) return;
  snprintf(text, size, "kernel %s, block (%u,%u,%u), thread %u", block->launch->name.c_str(), block->index.x, block->index.y,
           block->index.z, fiber->thread);
}
bool in_stack_guard(const void* address) {
  if (!fiber) return false;
  const auto* p = static_cast<const std::byte*>(address);
  return p < fiber->stack && p >= fiber->stack - page();
}

bool races::running(Running& r) {
  if (!fiber) return false;
  const Block& b = *block;
  r = {{b.barriers, b.warps[fiber->thread / 32].generation, uint16_t(fiber->thread)}, b.number_of_launch, b.number, b.shared,
       b.launch->shared, &block->shadow};
  return true;
}
void races::found(const char* words) { fault("%s", words); }

// ---- what kernels call

unsigned char* shared_memory() { return reinterpret_cast<unsigned char*>(block->shared); }

void sync_block(Site site) {
  Block& b = *block;
  if (b.arrived == 0) b.barrier = site;
  if (!same(site, b.barrier))
    fault("comes to the barrier %s while others wait at %s", place_of(site).text, place_of(b.barrier).text);
  if (++b.arrived == b.launch->threads) {
    b.arrived = 0;
    b.barriers++;
    wake(b, 0, b.launch->threads, Waits::block);
    return;
  }
  fiber->waits = Waits::block;
  fiber->site = site;
  suspend();
}

namespace {
/// The product of a warp: slots hold the operands and then, in words 0..3, each lane's results without c.
#ifndef __clang__
__attribute__((optimize("O3")))
#endif
void multiply(Slot* slots, int chunks) {  // chunks of 16 inputs
  int16_t a[16][32], b[8][32];
  for (int r = 0; r < 8; r++)
    for (int q = 0; q < 4; q++)
      for (int i = 0; i < 4; i++) {
        const uint32_t* w = slots[4 * r + q].words;
        for (int chunk = 0; chunk < chunks; chunk++) {
          const int k = 16 * chunk + 4 * q + i;
          a[r][k] = int8_t(w[2 * chunk] >> 8 * i);
          a[r + 8][k] = int8_t(w[2 * chunk + 1] >> 8 * i);
          b[r][k] = int8_t(w[4 + chunk] >> 8 * i);
        }
      }
  for (int r = 0; r < 16; r++)
    for (int c = 0; c < 8; c++) {
      int sum = 0;
      for (int k = 0; k < 16 * chunks; k++) sum += int(a[r][k]) * int(b[c][k]);
      slots[4 * (r % 8) + c / 2].words[c % 2 + 2 * (r / 8)] = uint32_t(sum);
    }
}
}  // namespace

const Slot* meet(Collective kind, const uint32_t* words, int count, Site site) {
  Block& b = *block;
  const unsigned number = fiber->thread / 32, lane = fiber->thread % 32;
  Warp& w = b.warps[number];
  if (w.arrived == 0) w.site = site, w.kind = kind;
  if (kind != w.kind || !same(site, w.site))
    fault("comes to the warp collective %s while other lanes wait at %s", place_of(site).text, place_of(w.site).text);
  Slot* slots = w.slots[w.generation & 1];
  for (int i = 0; i < count; i++) slots[lane].words[i] = words[i];
  if (++w.arrived < 32) {
    fiber->waits = Waits::warp;
    fiber->site = site;
    suspend();
    return slots;
  }
  w.arrived = 0;
  w.generation++;
  if (kind == Collective::mma_k16 || kind == Collective::mma_k32) multiply(slots, kind == Collective::mma_k32 ? 2 : 1);
  wake(b, 32 * number, 32 * number + 32, Waits::warp);
  return slots;
}

void copy_async(void* shared, const void* global, unsigned bytes, bool real, Site site) {
  const auto* to = static_cast<const std::byte*>(shared);
  const Block& b = *block;
  if (to < b.shared || to + bytes > b.shared + b.launch->shared)
    fault("%s: an asynchronous copy to byte %td of %zu of shared memory", place_of(site).text, to - b.shared, b.launch->shared);
  if (reinterpret_cast<uintptr_t>(shared) % bytes || reinterpret_cast<uintptr_t>(global) % bytes)
    fault("%s: a misaligned asynchronous copy of %u bytes", place_of(site).text, bytes);
  if (real && !arena::holds(global, bytes)) {
    char text[128];
    arena::describe(global, text, sizeof text);
    fault("%s: an asynchronous copy from outside of device memory: %s", place_of(site).text, text);
  }
  races::touched(shared, bytes, true);  // from now to the wait
  const Copy copy{shared, global, bytes, fiber->open_group, real};
  const bool now = copies_now == Copies::early || (copies_now == Copies::random && block->random.below(2));
  if (now)
    perform(copy);
  else
    fiber->copies.push_back(copy);
}
void copy_commit() { fiber->open_group++; }
void copy_wait(unsigned pending) {
  if (fiber->open_group > pending) perform_copies(*fiber, fiber->open_group - pending);
}

void wait_for_previous(Site site) {
  fiber->calls++;
  if (!block->launch->overlap) return;
  if (fiber->calls > 1) fault("%s: calls wait_for_previous() again", place_of(site).text);
  if (!block->hold) return;
  fiber->waits = Waits::previous;
  fiber->site = site;
  suspend();
}

unsigned cluster_rank() { return block->rank; }
void cluster_arrive(Site site) {
  if (fiber->cluster_arrivals != fiber->cluster_waits) fault("%s: arrives again without waiting", place_of(site).text);
  fiber->cluster_arrivals++;
  Cluster& c = *block->cluster;
  if (++c.arrived < c.blocks.size() * block->launch->threads) return;
  c.arrived = 0;
  c.barriers++;
  for (Block* b : c.blocks) {
    b->barriers++;
    wake(*b, 0, b->launch->threads, Waits::cluster);
  }
}
void cluster_wait(Site site) {
  if (fiber->cluster_arrivals == fiber->cluster_waits) fault("%s: waits without having arrived", place_of(site).text);
  fiber->cluster_waits++;
  if (block->cluster->barriers >= fiber->cluster_waits) return;
  fiber->waits = Waits::cluster;
  fiber->site = site;
  suspend();
}
void store_to_block(void* shared, int rank, const void* value, size_t bytes, Site site) {
  const Cluster& c = *block->cluster;
  auto* const to = static_cast<std::byte*>(shared);
  const ptrdiff_t at = to - block->shared;
  if (rank < 0 || size_t(rank) >= c.blocks.size())
    fault("%s: block %d of a cluster of %zu", place_of(site).text, rank, c.blocks.size());
  if (at < 0 || size_t(at) + bytes > block->launch->shared || reinterpret_cast<uintptr_t>(to) % bytes)
    fault("%s: a store to byte %td of %zu of another block's shared memory", place_of(site).text, at, block->launch->shared);
  Block& other = *c.blocks[size_t(rank)];
  if (c.barriers == 0) fault("%s: no barrier of the cluster says that block %d has started", place_of(site).text, rank);
  if (other.running == 0) fault("%s: block %d of the cluster has ended", place_of(site).text, rank);
  memcpy(other.shared + at, value, bytes);
}

}  // namespace simt
