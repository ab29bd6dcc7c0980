// A device that does nothing but count: memory that is asked for, bytes that would move. What a plan runs passes on, so
// that memory is planned by the code that will ask for it.
#pragma once
#include <cstdint>
#include <memory>

#include "engine/device.h"

namespace assay {

class CountingDevice {
 public:
  /// `real` is asked what only a module knows: sizes of packed weights, which forms of ops it runs, its scratch (which
  /// it allocates: reserve()). `free_bytes` are what device() seems to have.
  CountingDevice(std::shared_ptr<Device> real, uint64_t free_bytes);
  ~CountingDevice();
  CountingDevice(const CountingDevice&) = delete;
  /// Nothing that it computes may be looked at. Must not outlive this.
  std::shared_ptr<Device> device() const { return device_; }
  uint64_t scratch_bytes() const;  // of the module, for what passes have asked for so far

  struct State;

 private:
  std::unique_ptr<State> state_;  // outlives device_
  std::shared_ptr<Device> device_;
};

}  // namespace assay
