#include "engine/device_weights.h"

#include <xxhash.h>

#include <algorithm>
#include <set>

#include "dumps/error.h"

namespace assay {
namespace {

std::string hex_hash(const void* data, size_t bytes) {
  const XXH128_hash_t h = XXH3_128bits(data, bytes);
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
  return text;
}

}  // namespace

WeightPlan plan_weights(const Program& program, uint64_t budget, const std::function<uint64_t(const Matrix&)>& packed_bytes) {
  WeightPlan p;
  std::set<const std::byte*> seen, embeds_only;
  for (const Node& n : program.nodes)
    if (n.weight && n.op == OpKind::embed) embeds_only.insert(n.weight->data);
  for (const Node& n : program.nodes)
    if (n.weight && n.op != OpKind::embed) embeds_only.erase(n.weight->data);
  for (const Node& n : program.nodes)
    if (n.weight && seen.insert(n.weight->data).second) p.entries.push_back({n.weight, packed_bytes(*n.weight), false});
  uint64_t all = 0, largest_raw = 0;
  for (const auto& e : p.entries) {
    if (e.packed == 0) continue;
    p.offered++;
    all += e.packed;
    largest_raw = std::max<uint64_t>(largest_raw, e.matrix->bytes());
  }
  p.raw_bytes = largest_raw;
  if (all + largest_raw <= budget) {
    for (auto& e : p.entries) e.resident = e.packed != 0;
    p.resident_bytes = all;
    p.resident = p.offered;
    return p;
  }
  // A table that only embeds is read a row at a time: it is never streamed, and comes last.
  const auto streams = [&](const WeightPlan::Entry& e) { return e.packed != 0 && !embeds_only.contains(e.matrix->data); };
  std::set<uint64_t> sizes;
  for (const auto& e : p.entries)
    if (streams(e)) sizes.insert(e.packed);
  WeightPlan best;
  uint64_t least = UINT64_MAX;
  for (uint64_t buffer : sizes) {
    WeightPlan q = p;
    q.buffer_bytes = buffer;
    q.buffers = kWindowBuffers;
    uint64_t used = buffer * kWindowBuffers + q.raw_bytes;
    for (auto& e : q.entries)
      if (streams(e) && e.packed > buffer) used += e.packed, e.resident = true;   // would not fit a buffer
    least = std::min(least, used);
    if (used > budget) continue;
    for (const bool tables : {false, true})
      for (auto& e : q.entries)
        if (!e.resident && e.packed != 0 && streams(e) != tables && used + e.packed <= budget) used += e.packed, e.resident = true;
    for (const auto& e : q.entries) {
      if (e.resident) q.resident++, q.resident_bytes += e.packed;
      else if (streams(e)) q.streamed_bytes += e.matrix->bytes();
    }
    if (best.buffers == 0 || q.resident_bytes > best.resident_bytes) best = std::move(q);
  }
  if (best.buffers == 0)
    throw Error(ErrorKind::usage, "--vram-budget", "neither the weights nor a window of them fit",
                "at least " + std::to_string(least) + " bytes (" + std::to_string(all + largest_raw) + " hold all)", std::to_string(budget));
  return best;
}

DeviceWeights::DeviceWeights(Device& device, WeightPlan plan, bool preload) : device_(device), plan_(std::move(plan)) {
  raw_ = device_.allocate(plan_.raw_bytes, "staging of weights");
  for (int b = 0; b < plan_.buffers; b++) window_.push_back(device_.allocate(plan_.buffer_bytes, "window of weights"));
  in_window_.assign(window_.size(), nullptr);
  for (const auto& e : plan_.entries) {
    Place& place = places_[e.matrix->data];
    place.packed = e.packed;
    place.resident = e.resident;
    if (!e.resident) continue;
    place.memory = device_.allocate(e.packed, "weights");
    if (preload) {
      load(*e.matrix, place.memory.data());
      place.loaded = true;
    }
  }
  device_.finish();
}

void DeviceWeights::load(const Matrix& m, void* to) {
  device_.upload(raw_.data(), m.data, m.bytes());
  if (!device_.done(device_.table().pack_weight(device_.handle(), int32_t(m.type), m.rows, m.columns, raw_.data(), to), "pack_weight"))
    throw Error(ErrorKind::internal, device_.module().path().string(), "refuses to pack a matrix whose size it gave");
}

bool DeviceWeights::offered(const Matrix& m) const {
  const auto it = places_.find(m.data);
  return it != places_.end() && it->second.packed != 0;
}
bool DeviceWeights::resident(const Matrix& m) const {
  const auto it = places_.find(m.data);
  return it != places_.end() && it->second.resident;
}

AssayWeight DeviceWeights::get(const Matrix& m) {
  Place& place = places_.at(m.data);
  AssayWeight w{int32_t(m.type), 0, m.rows, m.columns, nullptr};
  if (place.resident) {
    if (!place.loaded) {
      load(m, place.memory.data());
      place.loaded = true;
    }
    w.data = place.memory.data();
    return w;
  }
  if (place.buffer < 0 || in_window_[size_t(place.buffer)] != m.data) {
    // The next buffer is the one that was filled longest ago: what a pass has behind it.
    place.buffer = next_;
    next_ = (next_ + 1) % int(window_.size());
    const bool stale = plant_stale_window && in_window_[size_t(place.buffer)];
    in_window_[size_t(place.buffer)] = m.data;
    if (!stale) load(m, window_[size_t(place.buffer)].data());
  }
  w.data = window_[size_t(place.buffer)].data();
  return w;
}

const float* DeviceWeights::get(const Vector& v) {
  DeviceMemory& memory = vectors_[v.data()];
  if (!memory.data()) {
    memory = device_.allocate(v.size() * sizeof(float), "norm weights and biases");
    device_.upload(memory.data(), v.data(), v.size() * sizeof(float));
  }
  return memory.as<const float>();
}

std::string DeviceWeights::resident_hash(const Matrix& m) {
  const AssayModule& t = device_.table();
  if (!t.unpack_weight) return "";
  const AssayWeight w = get(m);
  if (!device_.done(t.unpack_weight(device_.handle(), int32_t(m.type), m.rows, m.columns, w.data, raw_.data()), "unpack_weight")) return "";
  std::vector<std::byte> bytes(m.bytes());
  device_.download(bytes.data(), raw_.data(), bytes.size());
  device_.finish();
  return hex_hash(bytes.data(), bytes.size());
}

std::string DeviceWeights::source_hash(const Matrix& m) { return hex_hash(m.data, m.bytes()); }

}  // namespace assay
