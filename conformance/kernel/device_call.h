// One op on a device, called as engine/abi.h says: what the checks of kernel scope that run on a device are made of.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "conformance/kernel/device_kernels.h"

namespace assay {

struct DeviceKernels::State {
  std::shared_ptr<Device> device;
  std::string refused, strayed;
  size_t guard = 0;   // bytes behind each memory that no op may touch
  std::map<std::string, int64_t> ran;
  AssayLimits limits{};
};

/// One op: its device memory, which ends with it. Errors of the device are thrown (Device).
class DeviceCall {
 public:
  DeviceCall(DeviceKernels::State& s, const char* op) : s_(s), d_(*s.device), op_(op) {}
  AssayDevice* handle() { return d_.handle(); }
  const AssayModule& table() { return d_.table(); }
  /// `skip`: elements that it lies behind an address aligned to 256 bytes, as rows of a larger buffer do.
  template <class T>
  T* up(const T* host, size_t n, int64_t skip = 0) {
    T* p = room<std::remove_const_t<T>>(n, skip);
    if (host) d_.upload(const_cast<std::remove_const_t<T>*>(p), host, n * sizeof(T));
    return p;
  }
  template <class T>
  T* up(const std::vector<T>& host) {
    return up(host.data(), host.size());
  }
  /// What no op may leave: NaN; the guard behind it has the same bytes.
  template <class T>
  T* room(size_t n, int64_t skip = 0) {
    const size_t bytes = (n + size_t(skip)) * sizeof(T);
    memory_.push_back(d_.allocate(std::max<size_t>(bytes + s_.guard, 1), op_));
    d_.fill(memory_.back().data(), kUnwritten, memory_.back().bytes());
    return memory_.back().as<T>() + skip;
  }
  /// Queued, like the op: valid after finish().
  void down(void* host, const void* from, size_t bytes) { d_.download(host, from, bytes); }
  template <class T>
  std::vector<T> down(const T* from, size_t n) {
    std::vector<T> host(n);
    down(host.data(), from, n * sizeof(T));
    finish();
    return host;
  }
  /// Packed by the module; without data where it refuses type or shape.
  AssayWeight weight(const Matrix& m) {
    AssayWeight w{int32_t(m.type), 0, m.rows, m.columns, nullptr};
    const uint64_t packed = d_.packed_bytes(m);
    if (packed == 0) return w;
    const std::byte* raw = up(m.data, m.bytes());
    std::byte* to = room<std::byte>(packed);
    d_.done(table().pack_weight(handle(), w.type, m.rows, m.columns, raw, to), "pack_weight");
    w.data = to;
    return w;
  }
  void reserve(int64_t rows, int64_t columns, int64_t heads = 0, int64_t head_dim = 0, int64_t context = 0) {
    AssayLimits& l = s_.limits;
    const AssayLimits want{std::max(l.rows, rows), std::max(l.columns, columns), std::max(l.heads, heads), std::max(l.head_dim, head_dim),
                           std::max(l.context, context)};
    if (std::memcmp(&want, &l, sizeof l) == 0) return;
    if (table().reserve) d_.must(table().reserve(handle(), &want), "reserve");
    l = want;
  }
  /// Whether the module has the op at all.
  template <class F>
  bool offered(F* op) {
    if (!op) s_.refused = op_;
    return op != nullptr;
  }
  /// True: it ran, and what it wrote may be fetched.
  bool ran(int result) {
    if (d_.done(result, op_)) {
      s_.ran[table().variant(handle())]++;
      guards_.resize(memory_.size() * s_.guard);   // queued behind the op
      for (size_t i = 0; i < memory_.size(); i++)
        d_.download(guards_.data() + i * s_.guard, memory_[i].data() + memory_[i].bytes() - s_.guard, s_.guard);
      return true;
    }
    s_.refused = op_;
    return false;
  }
  void finish() {
    d_.finish();
    const auto wrong = std::find_if(guards_.begin(), guards_.end(), [](uint8_t byte) { return byte != kUnwritten; });
    if (wrong != guards_.end()) {
      const size_t at = size_t(wrong - guards_.begin());
      s_.strayed = fmt::format("{} writes behind the end of its memory: byte {} behind {} bytes is {:#04x}", op_, at % s_.guard,
                               memory_[at / s_.guard].bytes() - s_.guard, *wrong);
    }
    guards_.clear();
  }

 private:
  static constexpr uint8_t kUnwritten = 0xff;
  DeviceKernels::State& s_;
  Device& d_;
  const char* op_;
  std::vector<DeviceMemory> memory_;
  std::vector<uint8_t> guards_;   // as the op left them
};

}  // namespace assay
