#include "cuda/simt/arena.h"

#include <signal.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <utility>

#include "cuda/simt/context.h"
#include "cuda/simt/environment.h"
#include "cuda/simt/fibers.h"

namespace simt::arena {
namespace {

constexpr size_t kZone = 512, kAlign = 256;  // of a guard zone at each end; of allocations
constexpr uint16_t kGuard = 0xffa5;          // a NaN as f16, bf16 and f32
constexpr uint64_t kDefaultBytes = uint64_t(16) << 30;

struct Allocation {
  size_t bytes = 0, taken = 0;  // asked for; with both zones
  uint64_t number = 0;          // counted from 1, in messages
  bool free = false;
};

struct State {
  std::byte* base = nullptr;
  size_t room = 0;                           // addresses reserved
  size_t touched = 0;                        // bytes from base that were ever given out, in whole pages
  size_t top = 0;                            // of the last allocation
  uint64_t used = 0, made = 0;
  std::map<std::byte*, Allocation> blocks;   // by the start of the front zone; live and freed ones
  std::map<std::byte*, Allocation>::iterator last = blocks.end();  // found by holds()
  std::string damage;
  struct sigaction before {};
};
State& state() {
  static auto* s = new State;  // never destroyed: the signal handler may come late
  return *s;
}
std::byte* start_of(std::byte* block) { return block + kZone; }

/// Words on a fault in device memory or a fiber's stack, then what would have happened without this handler.
[[maybe_unused]] void on_fault(int, siginfo_t* info, void*) {
  char where[128], running[256], text[512];
  describe(info->si_addr, where, sizeof where);
  describe_running(running, sizeof running);
  int n = 0;
  if (in_stack_guard(info->si_addr))
    n = snprintf(text, sizeof text, "simt: %s: its stack overflowed\n", running);
  else if (*running)
    n = snprintf(text, sizeof text, "simt: %s: an access outside of device and shared memory at %p %s\n", running, info->si_addr,
                 where);
  else if (*where)
    n = snprintf(text, sizeof text, "simt: host code touched device memory: %s\n", where);
  if (n > 0 && write(2, text, size_t(n)) < 0) n = 0;
  sigaction(SIGSEGV, &state().before, nullptr);  // the access is made again
}
/// Once, by whoever first opens device memory: a kernel that has none may still leave its shared memory.
void install_handler() {
#ifndef ASSAY_SIMT_ASAN  // which has its own, with more to say
  [[maybe_unused]] static const bool installed = [] {
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGSEGV, &action, &state().before) == 0;
  }();
#endif
}
/// A stack for signal handlers of this thread: a fiber's own may be the one that overflowed.
void give_signal_stack() {
#ifndef ASSAY_SIMT_ASAN
  static thread_local struct Stack {
    std::byte* memory = nullptr;
    Stack() {
      stack_t stack{};
      if (sigaltstack(nullptr, &stack) != 0 || !(stack.ss_flags & SS_DISABLE)) return;  // it has one
      memory = static_cast<std::byte*>(malloc(64 << 10));
      stack = {};
      stack.ss_sp = memory;
      stack.ss_size = 64 << 10;
      sigaltstack(&stack, nullptr);
    }
    ~Stack() {
      if (!memory) return;
      stack_t none{};
      none.ss_flags = SS_DISABLE;
      sigaltstack(&none, nullptr);
      free(memory);
    }
  } stack;
  (void)stack;
#endif
}

void reserve_addresses(State& s) {
  if (s.base) return;
  for (size_t room = size_t(64) << 30; room >= size_t(1) << 28; room /= 2) {
    void* memory = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) continue;
    s.base = static_cast<std::byte*>(memory);
    s.room = room;
    return;
  }
}
size_t page() {
  static const size_t bytes = size_t(sysconf(_SC_PAGESIZE));
  return bytes;
}
void protect(std::byte* from, size_t bytes, int how) {
  if (bytes && mprotect(from, bytes, how) != 0) {
    perror("simt: mprotect of device memory");
    abort();
  }
}
[[maybe_unused]] bool intact(const std::byte* from, size_t bytes, uint16_t want) {
  uint16_t v;
  for (size_t i = 0; i + 2 <= bytes; i += 2) {
    memcpy(&v, from + i, 2);
    if (v != want) return false;
  }
  return true;
}
void write_guard(std::byte* from, size_t bytes) {
  for (size_t i = 0; i + 2 <= bytes; i += 2) memcpy(from + i, &kGuard, 2);
}
struct Zones {  // of a live allocation; the first odd byte behind it is not checked
  std::byte *front, *back;
  size_t back_bytes;
};
Zones zones_of(std::byte* at, const Allocation& a) {
  std::byte* back = start_of(at) + (a.bytes + 1) / 2 * 2;
  return {at, back, size_t(at + a.taken - back)};
}
void make(std::byte* at, const Allocation& a) {
  const Open open(at, a.taken);
  unpoison(at, a.taken);
  memset(start_of(at), 0xff, a.bytes);
  const Zones z = zones_of(at, a);
  write_guard(z.front, kZone);
  write_guard(z.back, z.back_bytes);
  poison(z.front, kZone);
  poison(start_of(at) + a.bytes, a.taken - kZone - a.bytes);
}
[[maybe_unused]] std::string words_on(const Allocation& a) {
  return "allocation " + std::to_string(a.number) + " (" + std::to_string(a.bytes) + " bytes)";
}
void check_zones([[maybe_unused]] State& s, [[maybe_unused]] std::byte* at, [[maybe_unused]] const Allocation& a) {
#ifndef ASSAY_SIMT_ASAN  // which has stopped at the access itself
  const Zones z = zones_of(at, a);
  for (const bool front : {true, false}) {
    std::byte* from = front ? z.front : z.back;
    const size_t bytes = front ? kZone : z.back_bytes;
    if (intact(from, bytes, kGuard)) continue;
    if (s.damage.empty())
      s.damage = std::string("device memory ") + (front ? "before " : "behind ") + words_on(a) + " was written";
    write_guard(from, bytes);
  }
#endif
}
/// What is free at the end of the arena is no longer part of it: its addresses can't be touched at all.
void give_back_top(State& s) {
  while (!s.blocks.empty() && std::prev(s.blocks.end())->second.free) {
    s.last = s.blocks.end();
    s.top = size_t(std::prev(s.blocks.end())->first - s.base);
    s.blocks.erase(std::prev(s.blocks.end()));
  }
  const size_t before = s.touched;
  s.touched = (s.top + page() - 1) / page() * page();
  if (s.touched == before) return;
  madvise(s.base + s.touched, before - s.touched, MADV_DONTNEED);
  protect(s.base + s.touched, before - s.touched, PROT_NONE);
}

}  // namespace

uint64_t total_bytes() { return number_from("ASSAY_SIMT_MEMORY", kDefaultBytes); }
uint64_t used_bytes() { return state().used; }

void* allocate(size_t bytes) {
  State& s = state();
  reserve_addresses(s);
  const size_t kept = bytes ? bytes : 1, taken = 2 * kZone + (kept + kAlign - 1) / kAlign * kAlign;
  if (bytes > total_bytes() || s.used + taken - 2 * kZone > total_bytes()) return nullptr;
  // The oldest freed block that is large enough and not wasteful, else new addresses.
  std::byte* at = nullptr;
  Allocation a{kept, taken, ++s.made, false};
  for (auto i = s.blocks.begin(); i != s.blocks.end(); ++i)
    if (i->second.free && i->second.taken >= taken && i->second.taken <= 2 * taken) {
      at = i->first;
      a.taken = i->second.taken;
#ifndef ASSAY_SIMT_ASAN
      const Open open(at, a.taken);
      if (s.damage.empty() && !intact(at, a.taken, 0xffff))
        s.damage = words_on(i->second) + " was written after it had been freed";
#endif
      break;
    }
  if (!at) {
    if (s.top + taken > s.room) return nullptr;
    at = s.base + s.top;
    s.top += taken;
    s.touched = (s.top + page() - 1) / page() * page();
  }
  s.blocks[at] = a;
  s.used += a.taken - 2 * kZone;
  make(at, a);
  return start_of(at);
}

bool release(void* memory) {
  State& s = state();
  if (!memory) return true;
  auto i = s.blocks.find(static_cast<std::byte*>(memory) - kZone);
  if (i == s.blocks.end() || i->second.free) return false;
  Allocation& a = i->second;
  {
    const Open open(i->first, a.taken);
    check_zones(s, i->first, a);
    unpoison(i->first, a.taken);
    memset(i->first, 0xff, a.taken);
    poison(i->first, a.taken);
  }
  a.free = true;
  s.used -= a.taken - 2 * kZone;
  give_back_top(s);
  return true;
}

bool holds(const void* from, size_t bytes) {
  State& s = state();
  auto* p = static_cast<std::byte*>(const_cast<void*>(from));
  const auto inside = [&](auto i) {
    return i != s.blocks.end() && !i->second.free && p >= start_of(i->first) && p + bytes <= start_of(i->first) + i->second.bytes;
  };
  if (inside(s.last)) return true;
  auto i = s.blocks.upper_bound(p);
  if (i == s.blocks.begin()) return false;
  s.last = --i;
  return inside(i);
}

bool in_range(const void* address) {
  const State& s = state();
  const auto* p = static_cast<const std::byte*>(address);
  return p >= s.base && p < s.base + s.room;
}
void describe(const void* address, char* text, size_t size) {
  if (size) *text = 0;
  const State& s = state();
  auto* p = static_cast<std::byte*>(const_cast<void*>(address));
  if (!in_range(address)) return;
  auto i = s.blocks.upper_bound(p);
  if (i == s.blocks.begin()) return;
  --i;
  snprintf(text, size, "byte %td of %sallocation %llu (%zu bytes)", p - start_of(i->first), i->second.free ? "freed " : "",
           static_cast<unsigned long long>(i->second.number), i->second.bytes);
}

std::string damage() {
  State& s = state();
  for (auto& [at, a] : s.blocks)
    if (!a.free) check_zones(s, at, a);
  return earlier_damage();
}
std::string earlier_damage() { return std::exchange(state().damage, {}); }

Open::Open() : from_(state().base), bytes_(state().touched) {
  install_handler();
  give_signal_stack();
  protect(from_, bytes_, PROT_READ | PROT_WRITE);
}
Open::Open(const void* from, size_t bytes) {
  install_handler();
  const State& s = state();
  auto* first = static_cast<std::byte*>(const_cast<void*>(from));
  from_ = s.base + size_t(first - s.base) / page() * page();
  bytes_ = (size_t(first + bytes - from_) + page() - 1) / page() * page();
  protect(from_, bytes_, PROT_READ | PROT_WRITE);
}
Open::~Open() { protect(from_, bytes_, PROT_NONE); }

}  // namespace simt::arena
