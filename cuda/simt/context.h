// A fiber's stack and the switch between two: a few instructions on x86-64 and AArch64, ucontext elsewhere. AddressSanitizer
// is told of every switch.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#define ASSAY_SIMT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ASSAY_SIMT_ASAN 1
#endif
#endif
#ifdef ASSAY_SIMT_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(ASSAY_SIMT_UCONTEXT) && !defined(__x86_64__) && !defined(__aarch64__)
#define ASSAY_SIMT_UCONTEXT 1  // may also be defined by hand, to test it
#endif
#ifdef ASSAY_SIMT_UCONTEXT
#include <ucontext.h>
#endif

namespace simt {

inline void poison(const void* from, size_t bytes) {
#ifdef ASSAY_SIMT_ASAN
  __asan_poison_memory_region(from, bytes);
#else
  (void)from, (void)bytes;
#endif
}
inline void unpoison(const void* from, size_t bytes) {
#ifdef ASSAY_SIMT_ASAN
  __asan_unpoison_memory_region(from, bytes);
#else
  (void)from, (void)bytes;
#endif
}

/// What is kept of a fiber, or of the thread that runs them, while another one runs.
struct Context {
#ifdef ASSAY_SIMT_UCONTEXT
  ucontext_t machine;
#else
  void* stack_pointer = nullptr;
#endif
  const void* bottom = nullptr;  // of its stack
  size_t size = 0;
  void* fake_stack = nullptr;  // AddressSanitizer's
};

#ifdef ASSAY_SIMT_ASAN
inline constexpr size_t kStackBytes = 256 << 10;
#else
inline constexpr size_t kStackBytes = 128 << 10;
#endif

/// Memory for one stack, below it a page that can't be touched. Never freed: pools hold them for the process's life.
inline std::byte* new_stack(size_t page) {
  void* memory = mmap(nullptr, page + kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0) abort();
  return static_cast<std::byte*>(memory) + page;
}

#ifndef ASSAY_SIMT_UCONTEXT
extern "C" __attribute__((visibility("hidden"))) void assay_simt_switch(void** save, void* to);
#endif

/// Prepares `c` to begin in `entry`, which must never return. `colour` moves the start of the stack by some cache lines: with
/// all stacks alike, their tops would fight for the same few lines.
inline void prepare(Context& c, std::byte* stack, [[maybe_unused]] unsigned colour, void (*entry)()) {
  c.bottom = stack;
  c.size = kStackBytes;
  c.fake_stack = nullptr;
#ifdef ASSAY_SIMT_UCONTEXT
  getcontext(&c.machine);
  c.machine.uc_stack.ss_sp = stack;
  c.machine.uc_stack.ss_size = kStackBytes;
  c.machine.uc_link = nullptr;
  makecontext(&c.machine, entry, 0);
#else
  auto** top = reinterpret_cast<void**>(stack + kStackBytes - 192 * (colour % 32));
#if defined(__x86_64__)
  *--top = nullptr;  // the return address of entry, which also aligns its frame
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; i++) *--top = nullptr;  // rbp, rbx, r12..r15
#else
  for (int i = 0; i < 20; i++) *--top = nullptr;  // d8..d15, x19..x28, x29, x30
  top[19] = reinterpret_cast<void*>(entry);
#endif
  c.stack_pointer = top;
#endif
}

/// Leaves `from` and goes on in `to`; `for_good`: `from` is never entered again. Returns when somebody switches to `from`.
inline void switch_context(Context& from, Context& to, [[maybe_unused]] bool for_good) {
#ifdef ASSAY_SIMT_ASAN
  __sanitizer_start_switch_fiber(for_good ? nullptr : &from.fake_stack, to.bottom, to.size);
#endif
#ifdef ASSAY_SIMT_UCONTEXT
  swapcontext(&from.machine, &to.machine);
#else
  assay_simt_switch(&from.stack_pointer, to.stack_pointer);
#endif
#ifdef ASSAY_SIMT_ASAN
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

}  // namespace simt
