// Recurrent states of gated DeltaNet layers on a device, as a cache lies there: entries, each the states of all layers behind one
// row of a sequence. A slot owns one. A verify pass leaves an entry behind each of its rows, so that taking rows back moves nothing:
// the slot owns another entry then. engine_state.cpp does the same on the host by running the rows that stay once more.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/backend.h"
#include "engine/device.h"

namespace assay {

class DeviceStates {
 public:
  /// `layers` are the host's, which outlive this; those with state_floats() 0 have none here either.
  DeviceStates(Device& device, const std::vector<GdnLayer>& layers, bool poison);

  bool any() const { return stride_ > 0; }
  int64_t entries() const { return entries_; }
  int64_t stride() const { return stride_; }                // floats of an entry
  float* conv(int layer) const;                             // of entry 0
  float* state(int layer) const;
  size_t bytes() const { return memory_.bytes(); }

  /// Entries of a pass of the model: spans [segments], after [rows] (AssayStates). A sequence's first row finds zeros. True: more
  /// entries were needed and memory has moved.
  bool begin(const PassState& pass, AssaySpan* spans, int32_t* after);
  /// The pass has been queued: its slots own what it leaves.
  void end(const PassState& pass);
  /// The slot's last verify pass has had `rows` rows.
  void roll_back(int slot, int64_t rows);
  /// The slot has seen nothing any more.
  void forget(int slot);

  enum class Part : uint8_t { conv, state, both };
  /// Of the entry with which the pass in progress began; without one both are the same.
  void to_host(int layer, int slot, Part part);
  /// Into and from the entry that the pass in progress leaves.
  void to_device(int layer, int slot, Part part);
  void left_to_host(int layer, int slot, Part part);
  bool has(int layer) const { return layers_[size_t(layer)].floats() > 0; }

 private:
  void grow(int64_t entries);
  void move(int layer, int slot, Part part, int32_t entry, bool to_device);
  float* at(int32_t entry) const { return memory_.as<float>() + entry * stride_; }

  Device& device_;
  const std::vector<GdnLayer>& layers_;
  bool poison_;
  std::vector<int64_t> offset_;                // [layer] floats from an entry's begin; conv, then state
  int64_t stride_ = 0, entries_ = 0;
  DeviceMemory memory_;                        // [entry][layer]
  std::vector<int32_t> owned_, next_;          // [slot] entry now, and behind the pass in progress
  std::vector<std::vector<int32_t>> kept_;     // [slot] of its last verify pass: before its rows, behind each
  std::vector<int32_t> free_;
};

}  // namespace assay
