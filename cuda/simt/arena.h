// Device memory of the emulation: one range of addresses of its own that can be read and written only while a kernel or copy
// runs, so that host code that dereferences a device pointer dies there and then (with words, from a signal handler).
//
// Every allocation is NaN (0xff bytes) when it is made and lies between guard zones; a zone that was written is a fault that
// names the allocation. Freed memory is NaN again and is watched until it is given out once more. Under AddressSanitizer zones
// and freed memory are poisoned, so that reads are caught too.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace simt::arena {

/// Bytes of the device: ASSAY_SIMT_MEMORY, or 16 GiB. Allocations beyond it fail, as they do on a device.
uint64_t total_bytes();
uint64_t used_bytes();

/// 256-byte aligned; null where it does not fit.
void* allocate(size_t bytes);
/// False: not the start of an allocation.
bool release(void* memory);
/// Whether [from, from + bytes) lies inside one allocation.
bool holds(const void* from, size_t bytes);
/// Whether the address is one of the arena's.
bool in_range(const void* address);
/// "byte 12 of allocation 3 (4096 bytes)"; "" for addresses outside of the arena. Allocates nothing.
void describe(const void* address, char* text, size_t size);

/// Words on the first guard zone that a kernel wrote, or "". Mends it, so that it is told once. Precondition: all is open.
std::string damage();
/// Words on what was found when memory was freed or given out again.
std::string earlier_damage();

/// Device memory, or the part of it that holds the bytes given, is accessible while one of these lives. Not nested; the caller
/// holds runtime.cpp's lock.
class Open {
 public:
  Open();
  Open(const void* from, size_t bytes);
  ~Open();
  Open(const Open&) = delete;

 private:
  std::byte* from_;
  size_t bytes_;
};

}  // namespace simt::arena
