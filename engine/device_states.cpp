#include "engine/device_states.h"

#include <algorithm>
#include <utility>

#include "dumps/error.h"

namespace assay {

DeviceStates::DeviceStates(Device& device, const std::vector<GdnLayer>& layers, bool poison)
    : device_(device), layers_(layers), poison_(poison) {
  int64_t slots = 0;
  for (const GdnLayer& g : layers_) {
    offset_.push_back(stride_);
    stride_ += (g.floats() + 63) / 64 * 64;   // of 256 bytes
    slots = std::max(slots, g.slots);
  }
  if (!any()) return;
  for (int64_t s = 0; s < slots; s++) owned_.push_back(int32_t(s));
  next_ = owned_;
  kept_.resize(size_t(slots));
  grow(slots);
}

float* DeviceStates::conv(int layer) const { return memory_.as<float>() + offset_[size_t(layer)]; }
float* DeviceStates::state(int layer) const { return conv(layer) + layers_[size_t(layer)].conv_floats(); }

void DeviceStates::grow(int64_t entries) {
  const size_t entry = size_t(stride_) * sizeof(float), had = memory_.bytes();
  DeviceMemory more = device_.allocate(size_t(entries) * entry, "recurrent states");
  if (had > 0) {
    const auto copy = device_.table().copy;
    if (copy) {
      device_.done(copy(device_.handle(), more.data(), memory_.data(), had), "copy");
    } else {
      std::vector<std::byte> host(had);
      device_.download(host.data(), memory_.data(), had);
      device_.finish();
      device_.upload(more.data(), host.data(), had);
    }
    device_.finish();   // before the old goes, and the host's copy
  }
  if (poison_) device_.fill(more.data() + had, 0xff, more.bytes() - had);
  memory_ = std::move(more);
  entries_ = entries;
}

bool DeviceStates::begin(const PassState& pass, AssaySpan* spans, int32_t* after) {
  if (!any()) return false;
  const bool verify = pass.batch.pass == Pass::verify;
  int64_t wanted = 0;
  for (const Segment& s : pass.batch.segments) {
    // What its last verify pass has left is void.
    for (int32_t e : std::exchange(kept_[size_t(s.slot)], {}))
      if (e != owned_[size_t(s.slot)]) free_.push_back(e);
    if (verify) wanted += s.rows;
  }
  const int64_t missing = wanted - int64_t(free_.size());
  if (missing > 0) {
    for (int64_t e = entries_; e < entries_ + missing; e++) free_.push_back(int32_t(e));
    grow(entries_ + missing);
  }
  std::fill_n(after, pass.batch.rows(), -1);
  for (size_t i = 0; i < pass.batch.segments.size(); i++) {
    const Segment& s = pass.batch.segments[i];
    const RowSpan& rows = pass.spans[i];
    int32_t& owned = owned_[size_t(s.slot)];
    spans[i] = {owned, 0, rows.first, rows.rows};
    if (s.position == 0) device_.fill(at(owned), 0, size_t(stride_) * sizeof(float));
    if (verify) {
      kept_[size_t(s.slot)] = {owned};
      for (int64_t r = 0; r < s.rows; r++) {
        kept_[size_t(s.slot)].push_back(free_.back());
        after[rows.first + r] = free_.back();
        free_.pop_back();
      }
    } else {
      after[rows.first + rows.rows - 1] = owned;
    }
    next_[size_t(s.slot)] = after[rows.first + rows.rows - 1];
  }
  return missing > 0;
}

void DeviceStates::end(const PassState& pass) {
  if (!any()) return;
  for (const Segment& s : pass.batch.segments) owned_[size_t(s.slot)] = next_[size_t(s.slot)];
}

void DeviceStates::roll_back(int slot, int64_t rows) {
  if (!any()) return;
  const std::vector<int32_t>& kept = kept_[size_t(slot)];
  if (rows < 0 || rows >= int64_t(kept.size()))
    throw Error(ErrorKind::internal, "slot " + std::to_string(slot), "its states behind so many rows were not kept on the device",
                "0 to " + std::to_string(int64_t(kept.size()) - 1) + " rows", std::to_string(rows));
  owned_[size_t(slot)] = next_[size_t(slot)] = kept[size_t(rows)];
}

void DeviceStates::forget(int slot) {
  if (!any()) return;
  for (int32_t e : std::exchange(kept_[size_t(slot)], {}))
    if (e != owned_[size_t(slot)]) free_.push_back(e);
  if (poison_) device_.fill(at(owned_[size_t(slot)]), 0xff, size_t(stride_) * sizeof(float));
}

void DeviceStates::move(int layer, int slot, Part part, int32_t entry, bool to_device) {
  const GdnLayer& g = layers_[size_t(layer)];
  float* const device = at(entry) + offset_[size_t(layer)];
  const auto one = [&](float* on_device, float* on_host, int64_t floats) {
    const size_t bytes = size_t(floats) * sizeof(float);
    to_device ? device_.upload(on_device, on_host, bytes) : device_.download(on_host, on_device, bytes);
  };
  if (part != Part::state) one(device, g.conv_of(slot), g.conv_floats());
  if (part != Part::conv) one(device + g.conv_floats(), g.state_of(slot), g.state_floats());
}
void DeviceStates::to_host(int layer, int slot, Part part) { move(layer, slot, part, owned_[size_t(slot)], false); }
void DeviceStates::left_to_host(int layer, int slot, Part part) { move(layer, slot, part, next_[size_t(slot)], false); }
void DeviceStates::to_device(int layer, int slot, Part part) { move(layer, slot, part, next_[size_t(slot)], true); }

}  // namespace assay
