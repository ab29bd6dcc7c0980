// Kernel scope on a device: the cases of every op, run by a module's kernels and held against the scalar bytes and against
// float64. Two modules have checks of their own: "cuda", where there is a device, and "simt", its sources on the CPU.
#include <fmt/format.h>

#include <algorithm>

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

DeviceRan ran_on(const Device& device) {
  DeviceRan r;
  r.name = device.info().name;
  r.architecture = device.info().architecture;
  r.driver = device.info().driver;
  r.emulated = device.info().emulated != 0;
  return r;
}

CheckOutcome run_on_device(const CheckContext& c, const std::string& device,
                           const std::function<CheckOutcome(DeviceKernels&, const KernelRun&)>& cases) {
  CheckOutcome o;
  const auto d = open_device(c, device, o);
  if (!d) return o;
  DeviceKernels kernels(d, device != "simt");
  KernelRun run = c.kernel;
  run.on = device;
  run.strayed = [&] { return kernels.strayed(); };
  o = cases(kernels, run);
  if (const std::string refused = kernels.refused(); !refused.empty()) o.fail("the module refuses " + refused);
  o.notes.push_back(fmt::format("{}, {}; ran {}", d->info().name, d->info().architecture, kernels.variants()));
  o.ran = ran_on(*d);
  o.ran.variants = kernels.ran();
  o.ran.launches = int64_t(d->counters().launches);
  return o;
}

std::vector<NamedDigest> digests_named(std::vector<NamedDigest> all, const std::string& only) {
  std::erase_if(all, [&](const NamedDigest& n) { return !only.empty() && n.name != only; });
  return all;
}

Check device_kernel_check(const std::string& op, const std::string& device, std::string baseline, int64_t expected) {
  Check k;
  k.id = fmt::format("kernel/{}/{}", op, device);
  k.level = Level::byte_exact;
  k.scope = Scope::kernel;
  k.family = "-";
  k.device = device;
  k.baseline = std::move(baseline);
  k.target = fmt::format("the {} kernels", device);
  k.expected = expected;
  return k;
}

void add_device_kernel_checks(std::vector<Check>& out) {
  for (const char* device : {"simt", "cuda"})
    for (const KernelCheck& e : kernel_checks()) {
      if (!e.on_device) continue;
      if (e.member == KernelOp::quantise) continue;   // a device quantises inside its products
      if (e.cost == Cost::slow && std::string_view(device) == "simt") continue;   // hours
      Check k = device_kernel_check(e.op, device, fmt::format("scalar bytes; float64 within {}", e.bound), e.expected);
      k.cost = e.cost;
      k.run = [&e, device](const CheckContext& c) {
        return run_on_device(c, device, [&](DeviceKernels& kernels, const KernelRun& run) { return e.run(kernels.table(), run); });
      };
      k.cpu_digests = [&e](const CheckContext& c, const std::string& only) {
        return digests_named(e.run(kernels(c.isa), c.kernel).digests, only);
      };
      out.push_back(std::move(k));
    }
  add_device_op_checks(out);
  add_primitive_checks(out);
}

const std::vector<Check>& stranger_checks() {
  static const std::vector<Check> all = [] {
    std::vector<Check> out;
    for (const KernelCheck& e : kernel_checks()) {
      if (!e.on_device || e.member == KernelOp::quantise || e.cost == Cost::slow) continue;
      Check k;
      k.id = fmt::format("kernel/{}/module", e.op);
      k.level = Level::max_rel;
      k.scope = Scope::kernel;
      k.family = "-";
      k.device = "module";
      k.baseline = "float64, within the bound of any order of sums and of the operand types that the module declares";
      k.target = "the module's kernel";
      k.run = [&e](const CheckContext& c) {
        CheckOutcome o;
        const auto d = std::make_shared<Device>(DeviceModule::load(c.module), 0);
        const char* operands = d->table().operands ? d->table().operands(d->handle(), e.op) : nullptr;
        const std::string type = operands ? operands : "f32";
        const std::pair<const char*, double> units[] = {{"f32", 0}, {"tf32", 0x1p-10}, {"f16", 0x1p-11}, {"bf16", 0x1p-8}};
        const auto unit = std::find_if(std::begin(units), std::end(units), [&](const auto& u) { return type == u.first; });
        if (unit == std::end(units))
          throw Error(ErrorKind::malformed, c.module.string(), fmt::format("declares operands of an unknown type for {}", e.op),
                      "f32, tf32, f16 or bf16", "\"" + type + "\"");
        DeviceKernels kernels(d, true);
        KernelRun run = c.kernel;
        run.on = "module --level max_rel --module " + c.module.string();
        run.strayed = [&] { return kernels.strayed(); };
        o = e.run_stranger(kernels.table(), run, unit->second, [&] { return kernels.refused(); });
        o.notes.push_back(fmt::format("{} on {}; operands {}; ran {}", d->table().name ? d->table().name : "?", d->info().name, type, kernels.variants()));
        return o;
      };
      out.push_back(std::move(k));
    }
    return out;
  }();
  return all;
}

}  // namespace assay
