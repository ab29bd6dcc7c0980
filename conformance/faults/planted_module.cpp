// A device module whose table has members replaced.
#include "conformance/faults/device_probe.h"

namespace assay::device_faults {

thread_local ModuleMemory kept;

bool is_input(const void* host) {
  const auto after = kept.inputs.upper_bound(host);
  if (after == kept.inputs.begin()) return false;
  const auto& [begin, bytes] = *std::prev(after);
  return static_cast<const std::byte*>(host) < static_cast<const std::byte*>(begin) + bytes;
}

/// Ids follow the places: as a place they would have a `reserved` that isn't 0.
size_t places_in(const void* host, uint64_t bytes) {
  size_t n = 0;
  for (AssayPlace p; (n + 1) * sizeof p <= bytes; n++) {
    std::memcpy(&p, static_cast<const std::byte*>(host) + n * sizeof p, sizeof p);
    if (p.reserved != 0 || p.slot < 0 || p.slot > 1 || p.position < 0 || p.position > 4096) break;
  }
  return n;
}

std::vector<float> fetch(AssayDevice* d, const float* from, int64_t n) {
  std::vector<float> out(static_cast<size_t>(n));
  kept.real->download(d, out.data(), from, out.size() * sizeof(float));
  kept.real->finish(d);
  return out;
}

PlantedModule::PlantedModule(const std::filesystem::path& real, std::filesystem::path name, AlterTable alter)
    : real_(DeviceModule::load(real)), table_(real_->table()), name_(std::move(name)) {
  kept = {};
  kept.real = &real_->table();
  table_.allocate_host = [](AssayDevice* d, uint64_t bytes, void** host) {
    const int result = kept.real->allocate_host(d, bytes, host);
    if (result == ASSAY_DONE) kept.inputs[*host] = bytes;
    return result;
  };
  table_.release_host = [](AssayDevice* d, void* host) {
    kept.inputs.erase(host);
    kept.real->release_host(d, host);
  };
  table_.allocate = [](AssayDevice* d, uint64_t bytes, void** at) {
    kept.allocations++;
    kept.allocated += bytes;
    return kept.real->allocate(d, bytes, at);
  };
  table_.upload = [](AssayDevice* d, void* to, const void* host, uint64_t bytes) {
    kept.uploads++;
    if (!is_input(host)) kept.uploaded = host, kept.other_uploads++;
    return kept.real->upload(d, to, host, bytes);
  };
  table_.close = [](AssayDevice* d) {
    for (void* at : std::exchange(kept.stash, {})) kept.real->release(d, at);
    kept.real->close(d);
  };
  if (alter) alter(table_);
  DeviceModule::plant(name_, &table_);
}

PlantedModule::~PlantedModule() {
  DeviceModule::plant(name_, nullptr);
  kept = {};
}

}  // namespace assay::device_faults
