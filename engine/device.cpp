#include "engine/device.h"

#include <dlfcn.h>

#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "dumps/error.h"

namespace assay {
namespace {

std::mutex planted_lock;
std::map<std::filesystem::path, const AssayModule*>& planted_tables() {
  static std::map<std::filesystem::path, const AssayModule*> tables;
  return tables;
}
const AssayModule* planted_table(const std::filesystem::path& name) {
  const std::lock_guard held(planted_lock);
  const auto it = planted_tables().find(name);
  return it == planted_tables().end() ? nullptr : it->second;
}

/// The library's table; `library` is what keeps it loaded.
const AssayModule* table_of_library(const std::filesystem::path& path, void*& library) {
  const std::string where = path.string();
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    throw Error(ErrorKind::malformed, where, "no such module", "a shared library behind engine/abi.h", "", "Where nvcc is, ./ci/build makes build/cuda/libassay_cuda.so.");
  // A path without a slash would be searched for elsewhere.
  library = dlopen(std::filesystem::absolute(path).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) throw Error(ErrorKind::malformed, where, "can't be loaded: " + std::string(dlerror()));
  const auto entry = reinterpret_cast<AssayModuleFn>(dlsym(library, ASSAY_MODULE_SYMBOL));
  if (!entry) throw Error(ErrorKind::malformed, where, "is no device module", std::string("an exported ") + ASSAY_MODULE_SYMBOL, "none");
  return entry();
}

/// Error{malformed} where it is no table of this ABI, or lacks what every module has.
void check_table(const AssayModule* table, const std::filesystem::path& path) {
  const std::string where = path.string();
  if (!table) throw Error(ErrorKind::malformed, where, "is no device module", "a table of functions", "a null pointer");
  // Only the first two members may be read before both agree.
  if (table->abi_version != ASSAY_ABI_VERSION)
    throw Error(ErrorKind::malformed, where, "speaks another version of the device ABI", std::to_string(ASSAY_ABI_VERSION),
                std::to_string(table->abi_version), "Build the module with this program's engine/abi.h.");
  if (table->struct_size != sizeof(AssayModule))
    throw Error(ErrorKind::malformed, where, "has a table of another size", std::to_string(sizeof(AssayModule)) + " bytes",
                std::to_string(table->struct_size), "Build the module with this program's engine/abi.h.");
  const AssayModule& t = *table;
  const std::pair<const char*, bool> needed[] = {
      {"open", t.open}, {"close", t.close}, {"error", t.error}, {"info", t.info}, {"counters", t.counters}, {"variant", t.variant},
      {"allocate", t.allocate}, {"release", t.release}, {"upload", t.upload}, {"download", t.download}, {"fill", t.fill},
      {"finish", t.finish}};
  for (const auto& [name, there] : needed)
    if (!there) throw Error(ErrorKind::malformed, where, std::string("its table lacks ") + name, "every call that is no op", "a null pointer");
}

}  // namespace

void DeviceModule::plant(const std::filesystem::path& name, const AssayModule* table) {
  const std::lock_guard held(planted_lock);
  if (table) planted_tables()[name] = table;
  else planted_tables().erase(name);
}

std::shared_ptr<const DeviceModule> DeviceModule::load(const std::filesystem::path& library) {
  if (const AssayModule* const planted = planted_table(library)) return of_table(planted, library);
  std::shared_ptr<DeviceModule> m(new DeviceModule);
  m->path_ = library;
  m->table_ = table_of_library(library, m->library_);
  check_table(m->table_, library);
  return m;
}

std::shared_ptr<const DeviceModule> DeviceModule::of_table(const AssayModule* table, const std::filesystem::path& name) {
  check_table(table, name);
  std::shared_ptr<DeviceModule> m(new DeviceModule);
  m->path_ = name;
  m->table_ = table;
  return m;
}

DeviceModule::~DeviceModule() {
  if (library_) dlclose(library_);
}

std::filesystem::path built_module(const std::string& name) {
  std::error_code failed;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", failed).parent_path();
  const std::string file = "libassay_" + name + ".so";
  for (const char* place : {"cuda", ".", "../cuda"})
    if (std::filesystem::exists(program / place / file, failed)) return (program / place / file).lexically_normal();
  return program / "cuda" / file;
}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& o) noexcept {
  std::swap(device_, o.device_);
  std::swap(data_, o.data_);
  std::swap(bytes_, o.bytes_);
  std::swap(on_host_, o.on_host_);
  return *this;
}

DeviceMemory::~DeviceMemory() {
  if (!data_) return;
  on_host_ ? device_->table().release_host(device_->handle(), data_) : device_->table().release(device_->handle(), data_);
}

Device::Device(std::shared_ptr<const DeviceModule> module, int ordinal) : module_(std::move(module)) {
  const int result = table().open(ordinal, &device_);
  if (result != ASSAY_DONE || !device_) {
    const char* words = table().error(nullptr);
    throw Error(ErrorKind::io, module_->path().string(), "device " + std::to_string(ordinal) + " can't be opened",
                "", "", words ? words : "");
  }
  must(table().info(device_, &info_), "info");
  // Its words go to terminals and into records.
  const auto clean = [](auto& text) {
    std::end(text)[-1] = 0;
    for (char& c : text)
      if (c != 0 && (c < ' ' || c > '~')) c = '?';
  };
  clean(info_.name), clean(info_.architecture), clean(info_.driver);
}

Device::~Device() {
  if (device_) table().close(device_);
}

bool Device::done(int result, const std::string& what) const {
  if (result == ASSAY_DONE) return true;
  if (result == ASSAY_REFUSED) return false;
  const char* words = table().error(device_);
  throw Error(result == ASSAY_OUT_OF_MEMORY ? ErrorKind::memory : ErrorKind::io, what,
              std::string("the device reports an error: ") + (words && *words ? words : "no words"));
}

void Device::must(int result, const std::string& what) const {
  if (done(result, what)) return;
  throw Error(ErrorKind::io, module_->path().string(), "refuses " + what, "ASSAY_DONE or an error: only ops may be refused",
              "ASSAY_REFUSED", "A call that the module does not have is a null pointer in its table.");
}

uint64_t Device::free_bytes() const {
  AssayDeviceInfo now{};
  must(table().info(device_, &now), "info");
  return now.free_bytes;
}

AssayCounters Device::counters() const {
  AssayCounters c{};
  table().counters(device_, &c);
  return c;
}

uint64_t Device::packed_bytes(const Matrix& m) const {
  const AssayModule& t = table();
  return t.weight_bytes && t.pack_weight ? t.weight_bytes(device_, int32_t(m.type), m.rows, m.columns) : 0;
}

/// An allocation that the module reports as made is one only if it has a place.
void Device::must_allocate(int result, const void* memory, size_t bytes, const std::string& what) const {
  if (result == ASSAY_OUT_OF_MEMORY || (result == ASSAY_DONE && !memory))
    throw Error(ErrorKind::memory, what, "does not fit the device", std::to_string(bytes) + " bytes",
                std::to_string(free_bytes()) + " free", "Fewer slots, a smaller --ctx, or --vram-budget, which streams weights, need less.");
  must(result, "to allocate " + what);
}

DeviceMemory Device::allocate(size_t bytes, const std::string& what) {
  DeviceMemory m;
  void* p = nullptr;
  if (bytes == 0) return m;
  const int result = table().allocate(device_, bytes, &p);
  must_allocate(result, p, bytes, what);
  m.device_ = this;
  m.data_ = static_cast<std::byte*>(p);
  m.bytes_ = bytes;
  return m;
}

DeviceMemory Device::allocate_host(size_t bytes, const std::string& what) {
  DeviceMemory m;
  void* p = nullptr;
  if (bytes == 0) return m;
  if (!table().allocate_host || !table().release_host) throw Error(ErrorKind::malformed, module_->path().string(), "its table lacks allocate_host");
  const int result = table().allocate_host(device_, bytes, &p);
  must_allocate(result, p, bytes, what);
  m.device_ = this;
  m.data_ = static_cast<std::byte*>(p);
  m.bytes_ = bytes;
  m.on_host_ = true;
  return m;
}

void Device::upload(void* to, const void* host, size_t bytes) {
  if (bytes) must(table().upload(device_, to, host, bytes), "upload");
}
void Device::download(void* host, const void* from, size_t bytes) {
  if (bytes) must(table().download(device_, host, from, bytes), "download");
}
void Device::fill(void* memory, int byte, size_t bytes) {
  if (bytes) must(table().fill(device_, memory, byte, bytes), "fill");
}
void Device::finish() { must(table().finish(device_), "finish"); }

}  // namespace assay
