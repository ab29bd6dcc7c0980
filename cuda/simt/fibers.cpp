#include "cuda/simt/fibers.h"

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/simt/block.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace simt {

Context scheduler;
Block* block;
Fiber* fiber;
bool from_scheduler;
Copies copies_now;

namespace {

constexpr unsigned char kGuard[2] = {0xa5, 0xff};  // a NaN as f16, bf16 and f32
constexpr size_t kGuardBytes = 256;

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

Copies copies_mode() {
  const char* text = getenv("ASSAY_SIMT_COPIES");
  if (!text || !strcmp(text, "late")) return Copies::late;
  if (!strcmp(text, "early")) return Copies::early;
  if (!strcmp(text, "random")) return Copies::random;
  fprintf(stderr, "ASSAY_SIMT_COPIES=%s: late, early or random\n", text);
  abort();
}
uint64_t launches = 0;

std::string words_on(const Block& b) {
  char text[64];
  snprintf(text, sizeof text, "block (%u,%u,%u)", b.index.x, b.index.y, b.index.z);
  return "kernel " + b.launch->name + ", " + text;
}

}  // namespace

Place place_of(const Site& site) {  // no memory to free: fault() does not return
  const char* slash = strrchr(site.file, '/');
  Place place;
  snprintf(place.text, sizeof place.text, "%.80s:%d", slash ? slash + 1 : site.file, site.line);
  return place;
}
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

namespace {

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

}  // namespace simt
