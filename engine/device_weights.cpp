#include "engine/device_weights.h"

#include <algorithm>
#include <set>

#include "dumps/error.h"

namespace assay {
namespace {

/// Every matrix once, in the order of first use; what the module takes of them.
struct Matrices {
  WeightPlan plan;                         // entries, offered, raw_bytes
  uint64_t all = 0;                        // packed
  std::set<const std::byte*> tables;       // only embedded from: read a row at a time, never streamed
  std::set<uint64_t> sizes;                // packed, of those that may stream
  bool streams(const WeightPlan::Entry& e) const { return e.packed != 0 && !tables.contains(e.matrix->data); }
  /// What a window of buffers of this size needs, the matrices that are larger resident.
  uint64_t least_with(uint64_t buffer) const {
    uint64_t bytes = buffer * kWindowBuffers + plan.raw_bytes;
    for (const auto& e : plan.entries)
      if (streams(e) && e.packed > buffer) bytes += e.packed;
    return bytes;
  }
};

Matrices matrices_of(const Program& program, const std::function<uint64_t(const Matrix&)>& packed_bytes) {
  Matrices m;
  std::set<const std::byte*> seen;
  for (const Node& n : program.nodes)
    if (n.weight && n.op == OpKind::embed) m.tables.insert(n.weight->data);
  for (const Node& n : program.nodes)
    if (n.weight && n.op != OpKind::embed) m.tables.erase(n.weight->data);
  for (const Node& n : program.nodes)
    if (n.weight && seen.insert(n.weight->data).second) m.plan.entries.push_back({n.weight, packed_bytes(*n.weight), false});
  for (const auto& e : m.plan.entries) {
    if (e.packed == 0) continue;
    m.plan.offered++;
    m.all += e.packed;
    m.plan.raw_bytes = std::max<uint64_t>(m.plan.raw_bytes, e.matrix->bytes());
    if (m.streams(e)) m.sizes.insert(e.packed);
  }
  return m;
}

}  // namespace

BudgetRange budget_range(const Program& program, const std::function<uint64_t(const Matrix&)>& packed_bytes) {
  const Matrices m = matrices_of(program, packed_bytes);
  BudgetRange r{m.all + m.plan.raw_bytes, m.all + m.plan.raw_bytes};
  for (uint64_t size : m.sizes) r.least = std::min(r.least, m.least_with(size));
  return r;
}

WeightPlan plan_weights(const Program& program, uint64_t budget, const std::function<uint64_t(const Matrix&)>& packed_bytes) {
  Matrices m = matrices_of(program, packed_bytes);
  if (m.all + m.plan.raw_bytes <= budget) {
    for (auto& e : m.plan.entries) e.resident = e.packed != 0;
    m.plan.resident_bytes = m.all;
    m.plan.resident = m.plan.offered;
    return std::move(m.plan);
  }
  WeightPlan best;
  for (uint64_t buffer : m.sizes) {
    uint64_t used = m.least_with(buffer);
    if (used > budget) continue;
    WeightPlan q = m.plan;
    q.buffer_bytes = buffer;
    q.buffers = kWindowBuffers;
    for (auto& e : q.entries) e.resident = m.streams(e) && e.packed > buffer;
    for (const bool tables : {false, true})   // a table comes last: its rows are few
      for (auto& e : q.entries)
        if (!e.resident && e.packed != 0 && m.streams(e) != tables && used + e.packed <= budget) used += e.packed, e.resident = true;
    for (const auto& e : q.entries) {
      if (e.resident) q.resident++, q.resident_bytes += e.packed;
      else if (m.streams(e)) q.streamed_bytes += e.matrix->bytes();
    }
    if (best.buffers == 0 || q.resident_bytes > best.resident_bytes) best = std::move(q);
  }
  if (best.buffers == 0) {
    const BudgetRange r = budget_range(program, packed_bytes);
    throw Error(ErrorKind::usage, "--vram-budget", "neither the weights nor a window of them fit",
                "at least " + std::to_string(r.least) + " bytes (" + std::to_string(r.all) + " hold all)", std::to_string(budget));
  }
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

void DeviceWeights::count(DeviceBytes& bytes) const {
  for (const auto& [data, place] : places_) bytes.weights += place.memory.bytes();
  for (const DeviceMemory& m : window_) bytes.window += m.bytes();
  bytes.staging += raw_.bytes();
  for (const auto& [data, memory] : vectors_) bytes.vectors += memory.bytes();
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

void DeviceWeights::forget(const Matrix& m) {
  Place& place = places_.at(m.data);
  place.loaded = false;
  if (place.buffer >= 0) in_window_[size_t(place.buffer)] = nullptr;
}

const float* DeviceWeights::get(const Vector& v) {
  DeviceMemory& memory = vectors_[v.data()];
  if (!memory.data()) {
    memory = device_.allocate(v.size() * sizeof(float), "norm weights and biases");
    device_.upload(memory.data(), v.data(), v.size() * sizeof(float));
  }
  return memory.as<const float>();
}

}  // namespace assay
