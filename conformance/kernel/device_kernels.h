// The ops of a device module as a table of kernels, so that the cases of kernel scope judge them as they judge the CPU's.
#pragma once
#include <memory>
#include <string>

#include "engine/device.h"
#include "engine/ops/kernels.h"

namespace assay {

/// While it lives, table() runs every op on the device: operands up, the op, results down. One at a time.
class DeviceKernels {
 public:
  explicit DeviceKernels(std::shared_ptr<Device> device);
  ~DeviceKernels();
  DeviceKernels(const DeviceKernels&) = delete;
  const Kernels& table() const;
  /// What the module refused since the last call, in words; "" where it did everything that was asked for.
  std::string refused();
  /// Kernels that ran, by name, with how often.
  std::string variants() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace assay
