// One op on a device, called as engine/abi.h says: what the checks of kernel scope that run on a device are made of.
#pragma once
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
  std::string refused;
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
  /// Fills what room() gave.
  template <class T>
  T* filled(T* room, const T* host, size_t n) {
    d_.upload(room, host, n * sizeof(T));
    return room;
  }
  /// What no op may leave: NaN.
  template <class T>
  T* room(size_t n, int64_t skip = 0) {
    memory_.push_back(d_.allocate(std::max<size_t>((n + size_t(skip)) * sizeof(T), 1), op_));
    d_.fill(memory_.back().data(), 0xff, memory_.back().bytes());
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
  void reserve(int64_t rows, int64_t columns, int64_t heads = 0, int64_t head_dim = 0, int64_t context = 0,
               int64_t experts = 0, int64_t chosen = 0) {
    AssayLimits& l = s_.limits;
    const AssayLimits want{std::max(l.rows, rows), std::max(l.columns, columns), std::max(l.heads, heads), std::max(l.head_dim, head_dim),
                           std::max(l.context, context), std::max(l.experts, experts), std::max(l.chosen, chosen)};
    if (std::memcmp(&want, &l, sizeof l) == 0) return;
    if (table().reserve) d_.done(table().reserve(handle(), &want), "reserve");
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
      return true;
    }
    s_.refused = op_;
    return false;
  }
  void finish() { d_.finish(); }

 private:
  DeviceKernels::State& s_;
  Device& d_;
  const char* op_;
  std::vector<DeviceMemory> memory_;
};

}  // namespace assay
