// The ops of a device module as a table of kernels, so that the cases of kernel scope judge them as they judge the CPU's.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "conformance/check.h"
#include "engine/device.h"
#include "engine/ops/kernels.h"

namespace assay {

class KernelBench;

/// While it lives, table() runs every op on the device: operands up, the op, results down. One at a time.
class DeviceKernels {
 public:
  explicit DeviceKernels(std::shared_ptr<Device> device);
  ~DeviceKernels();
  DeviceKernels(const DeviceKernels&) = delete;
  const Kernels& table() const;
  /// What the module refused since the last call, in words; "" where it did everything that was asked for.
  std::string refused();
  /// Kernels that ran, by name, with how often; and in words.
  const std::map<std::string, int64_t>& ran() const;
  std::string variants() const;

  struct State;
  State& state();   // what a DeviceCall (device_call.h) is made with: ops that no table of the CPU has

 private:
  std::unique_ptr<State> state_;
};

// ---- device_checks.cpp: what checks of kernel scope on a device have in common
/// Opens the device of the check, runs `cases` on it, and adds what was refused and what ran.
CheckOutcome run_on_device(const CheckContext& c, const std::string& device,
                           const std::function<CheckOutcome(DeviceKernels&, const KernelRun&)>& cases);
/// Those of one name; "": all (Check::cpu_digests).
std::vector<NamedDigest> digests_named(std::vector<NamedDigest> all, const std::string& only);
/// A byte_exact check of kernel scope, `kernel/OP/DEVICE`, without what it runs.
Check device_kernel_check(const std::string& op, const std::string& device, std::string baseline, int64_t expected);
void add_device_op_checks(std::vector<Check>& out);   // device_ops.cpp
// device_mixture.cpp: cases of device_ops.cpp's table; without a device the chain of scalar ops alone.
void expert_linear_on_device(KernelBench& b, DeviceKernels::State* device);
void fused_mixture_on_device(KernelBench& b, DeviceKernels::State* device);
void kept_states_on_device(KernelBench& b, DeviceKernels::State* device);
void fused_recurrence_on_device(KernelBench& b, DeviceKernels::State* device);
void columns_on_device(KernelBench& b, DeviceKernels::State* device);
void add_primitive_checks(std::vector<Check>& out);   // primitives.cpp

}  // namespace assay
