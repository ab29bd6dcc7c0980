// Kernel scope on a device: the cases of every op, run by a module's kernels and held against the scalar bytes and against
// float64. Two modules have checks of their own: "cuda", where there is a device, and "simt", its sources on the CPU.
#include <fmt/format.h>

#include "conformance/kernel/device_kernels.h"
#include "conformance/kernel/kernel_check.h"
#include "dumps/error.h"

namespace assay {

std::shared_ptr<Device> open_device(const CheckContext& c, const std::string& device, CheckOutcome& out) {
  try {
    return std::make_shared<Device>(DeviceModule::load(c.module.empty() ? built_module(device) : c.module), 0);
  } catch (const Error& e) {
    out.not_run = e.what();
    return nullptr;
  }
}

void add_device_kernel_checks(std::vector<Check>& out) {
  for (const char* device : {"simt", "cuda"})
    for (const KernelCheck& e : kernel_checks()) {
      if (e.member == KernelOp::quantise) continue;   // a device quantises inside its products
      Check k;
      k.id = fmt::format("kernel/{}/{}", e.op, device);
      k.level = Level::byte_exact;
      k.scope = Scope::kernel;
      k.family = "-";
      k.device = device;
      k.baseline = fmt::format("scalar bytes; float64 within {}", e.bound);
      k.target = fmt::format("the {} kernels", device);
      k.expected = e.expected;
      k.run = [&e, device](const CheckContext& c) {
        CheckOutcome o;
        const auto d = open_device(c, device, o);
        if (!d) return o;
        DeviceKernels kernels(d);
        o = e.run(kernels.table(), c.kernel);
        if (const std::string refused = kernels.refused(); !refused.empty()) o.fail("the module refuses " + refused);
        o.notes.push_back(fmt::format("{}, {}; ran {}", d->info().name, d->info().architecture, kernels.variants()));
        return o;
      };
      out.push_back(std::move(k));
    }
}

}  // namespace assay
