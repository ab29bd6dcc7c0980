// A device module in use: engine/abi.h behind RAII and Errors. What runs on it is device_backend.h's business.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "engine/abi.h"
#include "engine/model.h"

namespace assay {

/// A module's library, loaded for as long as somebody holds it.
class DeviceModule {
 public:
  /// Throws Error{malformed}: no such file, no library, no `assay_module`, another ABI version or size of table (wanted and found).
  static std::shared_ptr<const DeviceModule> load(const std::filesystem::path& library);
  /// A table of this program's own, judged as load() judges a library's; `name` is what errors call it. What the table points to has
  /// to outlive the module.
  static std::shared_ptr<const DeviceModule> of_table(const AssayModule* table, const std::filesystem::path& name);
  /// For planted faults: load(name) takes this table for that of a library, as of_table() does; null: no longer.
  static void plant(const std::filesystem::path& name, const AssayModule* table);
  ~DeviceModule();
  DeviceModule(const DeviceModule&) = delete;
  const AssayModule& table() const { return *table_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  DeviceModule() = default;
  std::filesystem::path path_;
  void* library_ = nullptr;
  const AssayModule* table_ = nullptr;
};

/// Where a build puts its own modules, "cuda" and "simt" (the emulation): beside the program or in cuda/ near it. The first place
/// is returned if none holds the file.
std::filesystem::path built_module(const std::string& name);

class Device;

/// Device memory (or the device's own host memory) that ends with its owner.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& o) noexcept { *this = std::move(o); }
  DeviceMemory& operator=(DeviceMemory&& o) noexcept;
  ~DeviceMemory();
  std::byte* data() const { return data_; }
  template <class T>
  T* as() const { return reinterpret_cast<T*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  friend class Device;
  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  bool on_host_ = false;
};

/// One opened device. Calls of one Device come from one thread. Every call throws Error{memory} or Error{io} with the module's
/// words where the module answers with an error.
class Device {
 public:
  Device(std::shared_ptr<const DeviceModule> module, int ordinal);
  ~Device();
  Device(const Device&) = delete;

  const AssayModule& table() const { return module_->table(); }
  const DeviceModule& module() const { return *module_; }
  AssayDevice* handle() const { return device_; }
  const AssayDeviceInfo& info() const { return info_; }   // as it was when opened
  uint64_t free_bytes() const;
  AssayCounters counters() const;

  /// `what` names the memory in the error: "weights", "layer.3/k".
  DeviceMemory allocate(size_t bytes, const std::string& what);
  DeviceMemory allocate_host(size_t bytes, const std::string& what);
  void upload(void* to, const void* host, size_t bytes);
  void download(void* host, const void* from, size_t bytes);   // valid after finish()
  void fill(void* memory, int byte, size_t bytes);
  void finish();
  /// Bytes of a matrix as the module packs it; 0: it refuses the type or shape.
  uint64_t packed_bytes(const Matrix& m) const;
  /// Of an op: true: done; false: refused. An error throws, naming `what`.
  bool done(int result, const std::string& what) const;
  /// Of a call that is no op, and that nobody else can do: refused is an error too.
  void must(int result, const std::string& what) const;
  /// For planted faults: who watches a replayed graph sees buffers that later nodes have reused.
  bool plant_shared_capture = false;

 private:
  friend class DeviceMemory;
  void must_allocate(int result, const void* memory, size_t bytes, const std::string& what) const;
  std::shared_ptr<const DeviceModule> module_;
  AssayDevice* device_ = nullptr;
  AssayDeviceInfo info_{};
};

}  // namespace assay
