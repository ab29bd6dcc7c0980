// Shared by the tests of the emulation itself: planted kernels are launched past the table of engine/abi.h, and what the device
// says of their faults is looked at.
#pragma once
#include "cuda/device.h"
#include "cuda/simt/arena.h"
#include "cuda/test_support.h"

namespace assay::test {

constexpr int kThreads = 128;  // of a planted kernel's blocks

inline AssayDevice& of(const Device& d) { return *static_cast<AssayDevice*>(d); }
template <class... P, class... A>
void queue(const Device& d, const char* name, void (*kernel)(P...), int blocks, size_t shared, A... args) {
  d.ok(launch(of(d), name, Overlap::no, kernel, dim3(unsigned(blocks)), kThreads, shared, args...));
}
template <class... P, class... A>
void queue_overlapping(const Device& d, const char* name, void (*kernel)(P...), int blocks, A... args) {
  d.ok(launch(of(d), name, Overlap::yes, kernel, dim3(unsigned(blocks)), kThreads, 0, args...));
}
inline std::vector<float> counting(size_t n) {
  std::vector<float> v(n);
  for (size_t i = 0; i < n; i++) v[i] = float(i);
  return v;
}
/// For ASSAY_SIMT_MEMORY: so many bytes, and what calls that failed have left (module_test.cpp).
inline std::string memory_with_room(uint64_t bytes) { return std::to_string(simt::arena::used_bytes() + bytes); }
/// The words of the fault that the device ends with.
inline std::string fault_of(Device& d) {
  d.expect_fault();
  return d.module().finish(d) == ASSAY_DONE ? "no fault" : d.error();
}
inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
#define EXPECT_WORDS(text, part) EXPECT_TRUE(contains(text, part)) << text

}  // namespace assay::test
