#include "engine/large_memory.h"

#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace assay {

std::shared_ptr<std::byte[]> allocate_large(size_t bytes) {
  constexpr std::align_val_t kAlignment{size_t(2) << 20};
  void* p = ::operator new[](bytes, kAlignment, std::nothrow);
  if (!p) return nullptr;
#if defined(__linux__)
  madvise(p, bytes, MADV_HUGEPAGE);  // a wish: refused, the block is as good, only slower
#endif
  return {static_cast<std::byte*>(p), [](std::byte* b) { ::operator delete[](b, kAlignment); }};
}

}  // namespace assay
