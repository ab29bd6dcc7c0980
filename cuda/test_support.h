// Shared by the tests of the module: a device, its memory, packed weights, and equality of bytes. They use the table of
// engine/abi.h alone, so that the same tests run against the emulation and, linked with libassay_cuda.so, on a device.
// Seeds, inputs and gaussian numbers are those of engine/ops/test_support.h.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/abi.h"
#include "engine/formats/quant.h"
#include "engine/numerics.h"
#include "engine/ops/kernels.h"
#include "engine/ops/test_support.h"

extern "C" const AssayModule* assay_module(void);

namespace assay::test {

/// Sets an environment variable for a scope.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) {
    if (const char* old = getenv(name)) before_ = old, had_ = true;
    setenv(name, value, 1);
  }
  ~Setting() { had_ ? setenv(name_, before_.c_str(), 1) : unsetenv(name_); }
  Setting(const Setting&) = delete;

 private:
  const char* name_;
  std::string before_;
  bool had_ = false;
};

/// What the emulation is beside an H200 (simt/runtime.h). The last two exist nowhere: more is refused there, and what is not has
/// less room.
struct OtherDevice {
  const char *name, *architecture, *shared, *clusters;
  size_t kib() const { return std::strtoull(shared, nullptr, 10) >> 10; }  // of shared memory that a block may have
};
inline constexpr OtherDevice kOtherDevices[] = {{"sm_80 with 163 KiB", "80", "166912", "0"},
                                                {"sm_89 with 99 KiB", "89", "101376", "0"},
                                                {"sm_120 with 99 KiB and clusters", "120", "101376", "4"},
                                                {"sm_80 with 64 KiB", "80", "65536", "0"},
                                                {"sm_80 with 48 KiB", "80", "49152", "0"}};
/// While it lives, devices that are opened are like this one.
class Emulated {
 public:
  explicit Emulated(const OtherDevice& d)
      : architecture_("ASSAY_SIMT_ARCHITECTURE", d.architecture), shared_("ASSAY_SIMT_SHARED", d.shared), clusters_("ASSAY_SIMT_CLUSTERS", d.clusters) {}

 private:
  const Setting architecture_, shared_, clusters_;
};

/// An open device. Calls that must succeed go through ok(), which throws with the device's words.
class Device {
 public:
  Device() {
    if (module().open(0, &device_) != ASSAY_DONE) throw std::runtime_error(module().error(nullptr));
  }
  /// A fault that nobody waited for fails the test, unless it was expected.
  ~Device() {
    if (!faulty_ && module().finish(device_) != ASSAY_DONE) ADD_FAILURE() << "device: " << error();
    module().close(device_);
    if (testing::Test::HasFailure()) {  // what the emulation's order came from
      for (const char* name : {"ASSAY_SIMT_SEED", "ASSAY_SIMT_COPIES", "ASSAY_SIMT_OVERLAP"}) {
        const char* value = std::getenv(name);
        std::cout << "[   simt   ] " << name << "=" << (value ? value : "(default)") << "\n";
      }
    }
  }
  Device(const Device&) = delete;

  static const AssayModule& module() { return *assay_module(); }
  operator AssayDevice*() const { return device_; }
  std::string error() const { return module().error(device_); }
  std::string variant() const { return module().variant(device_); }
  void expect_fault() { faulty_ = true; }
  void ok(int result) const {
    if (result != ASSAY_DONE) throw std::runtime_error("result " + std::to_string(result) + ": " + error());
  }
  void finish() const { ok(module().finish(device_)); }
  void reserve(const AssayLimits& limits) const { ok(module().reserve(device_, &limits)); }
  AssayCounters counters() const {
    AssayCounters c;
    module().counters(device_, &c);
    return c;
  }
  AssayDeviceInfo info() const {
    AssayDeviceInfo i;
    ok(module().info(device_, &i));
    return i;
  }

 private:
  AssayDevice* device_ = nullptr;
  bool faulty_ = false;
};

/// Device memory for n elements: NaN (0xff bytes) to begin with, or a copy of host values.
template <class T>
class Buffer {
 public:
  Buffer(const Device& device, size_t n) : device_(&device), n_(n) {
    void* memory = nullptr;
    device.ok(device.module().allocate(device, n * sizeof(T), &memory));
    memory_ = static_cast<T*>(memory);
    poison();
  }
  Buffer(const Device& device, const std::vector<T>& values) : Buffer(device, values.size()) { upload(values); }
  ~Buffer() {
    if (memory_) device_->module().release(*device_, memory_);
  }
  Buffer(Buffer&& other) noexcept : device_(other.device_), memory_(std::exchange(other.memory_, nullptr)), n_(other.n_) {}
  Buffer& operator=(Buffer&&) = delete;

  T* get() const { return memory_; }
  size_t size() const { return n_; }
  void poison() { device_->ok(device_->module().fill(*device_, memory_, 0xff, n_ * sizeof(T))); }
  void upload(const std::vector<T>& values) {
    ASSERT_EQ(values.size(), n_);
    device_->ok(device_->module().upload(*device_, memory_, values.data(), n_ * sizeof(T)));
  }
  /// Waits for all that was queued.
  std::vector<T> download() const {
    std::vector<T> values(n_);
    device_->ok(device_->module().download(*device_, values.data(), memory_, n_ * sizeof(T)));
    device_->finish();
    return values;
  }

 private:
  const Device* device_;
  T* memory_ = nullptr;
  size_t n_;
};

/// A weight matrix with its bytes, as it lies in files: what the CPU kernels read.
struct HostWeight {
  Matrix matrix;  // points into bytes
  std::vector<std::byte> bytes;
};
enum class Weights { plain, odd };  // odd: scales that are zero, subnormal, huge and of both signs; codes often at their ends
inline HostWeight random_weight(Rng& rng, WeightType type, int64_t rows, int64_t columns, Weights kind = Weights::plain) {
  HostWeight w;
  w.bytes.resize(size_t(rows) * row_bytes(type, columns));
  w.matrix = {type, rows, columns, w.bytes.data()};
  if (!is_quantised(type)) {
    for (int64_t i = 0; i < rows * columns; i++) {
      float v = gaussian(rng) * 0.125f;
      if (kind == Weights::odd && uniform(rng, 0, 9) == 0) v = std::ldexp(v, int(uniform(rng, -20, 14)));
      const uint16_t half = type == WeightType::f16 ? f16_of_f32(v) : bf16_of_f32(v);
      if (type == WeightType::f32) std::memcpy(&w.bytes[size_t(4 * i)], &v, 4);
      if (type != WeightType::f32) std::memcpy(&w.bytes[size_t(2 * i)], &half, 2);
    }
    return w;
  }
  for (std::byte& b : w.bytes)
    b = kind == Weights::odd && uniform(rng, 0, 2) == 0 ? std::byte(rng() % 2 ? 0xff : 0x80) : std::byte(rng());
  const auto scale = [&]() -> uint16_t {
    constexpr uint16_t kOdd[] = {0x0000, 0x8000, 0x0001, 0x83ff, 0x03ff, 0x7bff, 0xfbff};
    if (kind == Weights::odd && rng() % 3 == 0) return kOdd[rng() % std::size(kOdd)];
    return uint16_t((rng() % 2) << 15 | (7 + rng() % 5) << 10 | rng() % 1024);  // around 2^-6, of both signs
  };
  const bool k_quant = block_elements(type) == kKElements;
  const bool minimum = type == WeightType::q4_1 || type == WeightType::q5_1 || (k_quant && type != WeightType::q6_k);
  const size_t at = type == WeightType::q6_k ? offsetof(BlockQ6_K, d) : 0;
  for (size_t block = 0; block < w.bytes.size(); block += block_bytes(type))
    for (size_t i = 0; i < (minimum ? 2u : 1u); i++) {
      const uint16_t half = scale();
      std::memcpy(&w.bytes[block + at + 2 * i], &half, 2);
    }
  return w;
}

/// The same matrix packed in device memory.
class PackedWeight {
 public:
  PackedWeight(const Device& device, const Matrix& m)
      : weight_{int32_t(m.type), 0, m.rows, m.columns, nullptr}, memory_(device, bytes_of(device, m)) {
    const auto* from = reinterpret_cast<const uint8_t*>(m.data);
    const Buffer<uint8_t> raw(device, std::vector<uint8_t>(from, from + m.bytes()));
    device.ok(device.module().pack_weight(device, weight_.type, m.rows, m.columns, raw.get(), memory_.get()));
    weight_.data = memory_.get();
  }
  const AssayWeight& get() const { return weight_; }

 private:
  static size_t bytes_of(const Device& device, const Matrix& m) {
    return device.module().weight_bytes(device, int32_t(m.type), m.rows, m.columns);
  }
  AssayWeight weight_;
  Buffer<uint8_t> memory_;
};

/// Byte for byte, every NaN being one value; the message names row and column.
inline testing::AssertionResult same_rows(const std::vector<float>& got, const std::vector<float>& want, int64_t columns) {
  if (got.size() != want.size()) return testing::AssertionFailure() << got.size() << " elements, wanted " << want.size();
  const int64_t i = first_difference(got.data(), want.data(), int64_t(got.size()));
  if (i < 0) return testing::AssertionSuccess();
  int64_t differing = 0;
  for (size_t j = 0; j < got.size(); j++) differing += first_difference(&got[j], &want[j], 1) == 0;
  return testing::AssertionFailure() << "row " << i / columns << ", column " << i % columns << ": got " << std::hexfloat
                                     << got[size_t(i)] << ", wanted " << want[size_t(i)] << std::defaultfloat << "; "
                                     << differing << " of " << got.size() << " elements differ";
}

}  // namespace assay::test
