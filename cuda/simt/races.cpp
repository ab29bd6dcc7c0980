#include "cuda/simt/races.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <unordered_map>

#include "cuda/simt/arena.h"

namespace simt::races {
namespace {

bool reported = false;  // any access ever: else this build's kernels are not compiled for it, and copies need not be kept

/// Writes to device memory of one launch, by byte.
struct Writes {
  struct Writer {
    uint64_t block;
    Access access;
  };
  uint64_t launch = 0;
  std::unordered_map<uintptr_t, Writer> by_byte;
  uintptr_t first = UINTPTR_MAX, last = 0;
  void clear(uint64_t now) {
    launch = now;
    by_byte.clear();
    first = UINTPTR_MAX;
    last = 0;
  }
};
Writes& writes() {
  static auto* w = new Writes;
  return *w;
}

bool ordered(const Access& before, const Access& now) {
  return before.thread == 0xffff || before.thread == now.thread || before.barriers < now.barriers ||
         (before.thread / 32 == now.thread / 32 && before.meetings < now.meetings);
}
/// `where`, `how`: "byte 4 of shared memory", "written here and read". Memory that it would allocate would stay behind.
[[noreturn]] void tell(const char* where, const char* how, const Access& other, const void* caller) {
  char words[480], line[256] = "";
  Dl_info info;
  if (caller && dladdr(caller, &info) && info.dli_fbase)
    snprintf(line, sizeof line, " (addr2line -Cfie %s %#tx)", info.dli_fname,
             static_cast<const char*>(caller) - static_cast<const char*>(info.dli_fbase) - 1);
  snprintf(words, sizeof words, "a race: %s is %s by thread %u, and nothing says which comes first%s", where,
           how, other.thread, line);
  found(words);
}
void in_shared(Running& r, size_t byte, bool write, const void* caller) {
  if (r.shadow->cells.size() != r.shared_bytes) r.shadow->cells.assign(r.shared_bytes, {});
  Cell& c = r.shadow->cells[byte];
  char where[64];
  const auto check = [&](const Access& before, const char* how) {
    if (ordered(before, r.now)) return;
    snprintf(where, sizeof where, "byte %zu of shared memory", byte);
    tell(where, how, before, caller);
  };
  check(c.write, write ? "written here and written" : "read here and written");
  if (write) {
    check(c.read, "written here and read");
    check(c.read_before, "written here and read");
    c.write = r.now;
    return;
  }
  if (c.read.thread != r.now.thread) c.read_before = c.read;
  c.read = r.now;
}
void in_device(const Running& r, uintptr_t byte, bool write, const void* caller) {
  Writes& w = writes();
  if (w.launch != r.launch) {
    if (!write) return;
    w.clear(r.launch);
  }
  if (!write && (byte < w.first || byte > w.last)) return;
  const auto at = w.by_byte.find(byte);
  if (at != w.by_byte.end() && (at->second.block != r.block || !ordered(at->second.access, r.now))) {
    char where[160], how[80];
    arena::describe(reinterpret_cast<const void*>(byte), where, sizeof where);
    snprintf(how, sizeof how, "%s here and written%s", write ? "written" : "read",
             at->second.block == r.block ? "" : " in another block");
    tell(where, how, at->second.access, caller);
  }
  if (!write) return;
  w.by_byte[byte] = {r.block, r.now};
  w.first = std::min(w.first, byte);
  w.last = std::max(w.last, byte);
}
void access(const void* from, size_t bytes, bool write, const void* caller) {
  Running r;
  if (!running(r)) return;
  reported = true;
  const auto* p = static_cast<const std::byte*>(from);
  if (p >= r.shared && p < r.shared + r.shared_bytes) {
    for (size_t i = 0; i < bytes && p + i < r.shared + r.shared_bytes; i++) in_shared(r, size_t(p + i - r.shared), write, caller);
  } else if (arena::in_range(from)) {
    for (size_t i = 0; i < bytes; i++) in_device(r, reinterpret_cast<uintptr_t>(p) + i, write, caller);
  }
}

}  // namespace

void touched(const void* from, size_t bytes, bool write) {
  if (reported) access(from, bytes, write, nullptr);
}

}  // namespace simt::races

#ifndef __SANITIZE_THREAD__  // else the real ones are there
#define ASSAY_HOOK extern "C" __attribute__((visibility("hidden"))) void
#define ASSAY_ACCESS(size)                                                                                              \
  ASSAY_HOOK __tsan_read##size(void* p) { simt::races::access(p, size, false, __builtin_return_address(0)); }           \
  ASSAY_HOOK __tsan_write##size(void* p) { simt::races::access(p, size, true, __builtin_return_address(0)); }           \
  ASSAY_HOOK __tsan_unaligned_read##size(void* p) { simt::races::access(p, size, false, __builtin_return_address(0)); } \
  ASSAY_HOOK __tsan_unaligned_write##size(void* p) { simt::races::access(p, size, true, __builtin_return_address(0)); }
ASSAY_ACCESS(1)
ASSAY_ACCESS(2)
ASSAY_ACCESS(4)
ASSAY_ACCESS(8)
ASSAY_ACCESS(16)
ASSAY_HOOK __tsan_read_range(void* p, size_t bytes) { simt::races::access(p, bytes, false, __builtin_return_address(0)); }
ASSAY_HOOK __tsan_write_range(void* p, size_t bytes) { simt::races::access(p, bytes, true, __builtin_return_address(0)); }
ASSAY_HOOK __tsan_vptr_update(void**, void*) {}
ASSAY_HOOK __tsan_func_entry(void*) {}
ASSAY_HOOK __tsan_func_exit() {}
ASSAY_HOOK __tsan_init() {}
#endif
