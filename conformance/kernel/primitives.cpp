// kernel/primitives/*: one kernel per primitive of cuda/prim.cuh (cuda/prim_check.h), from the device and from its
// emulation, held against what cuda/prim_expected.h writes down plainly. Both equal to that are equal to each other:
// what the emulation proves of kernels then holds on the device.
#include "conformance/kernel/primitives.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <iterator>

#include "conformance/evidence.h"
#include "conformance/kernel/device_call.h"
#include "conformance/kernel/kernel_check.h"
#include "cuda/prim_check.h"
#include "dumps/error.h"

namespace assay {
namespace {

constexpr int kCases =
    8;  // half of them of any bits, half of words at the ends of what integers, bytes and floats hold
constexpr uint32_t kEdges[] = {0,          1,          0x80000000, 0xffffffff, 0x7fffffff, 0x80808080,
                               0x7f7f7f7f, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001, 0x7f7fffff,
                               0x00800000, 0x007fffff, 0x80000001, 0x3f800000, 0xbf800000, 0x7c007c00,
                               0x03ff0400, 0x4b400000, 0x42b17218, 0xc2cff1b5};

/// The built library of a device's checks; Error{malformed} where it was made from other sources than this program.
class PrimitiveLibrary {
 public:
  explicit PrimitiveLibrary(const std::filesystem::path& path)
      : path_(path.string()), handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (!handle_)
      throw Error(ErrorKind::malformed, path_, std::string("can't be loaded: ") + dlerror(), "", "",
                  "./ci/build makes it.");
    name_ = symbol<decltype(name_)>("assay_primitive_name");
    check_ = symbol<decltype(check_)>("assay_check_primitive");
    const std::string sources = symbol<decltype(&assay_primitive_sources)>("assay_primitive_sources")(),
                      wanted = built_module_sources();
    if (sources != wanted)
      throw Error(ErrorKind::malformed, path_, "was built from other sources than this program", wanted, sources,
                  "Build both together: ./ci/build.");
  }
  ~PrimitiveLibrary() {
    if (handle_) dlclose(handle_);
  }
  PrimitiveLibrary(const PrimitiveLibrary&) = delete;

  PrimitiveWords run(const std::string& name, const PrimitiveWords& in) const {
    int which = 0;
    while (name_(which) && name != name_(which)) which++;
    if (!name_(which)) throw Error(ErrorKind::malformed, path_, "has no check of that primitive", name, "none");
    PrimitiveWords out(in.size(), 0xffffffffu);
    char words[512];
    if (check_(0, which, in.data(), out.data(), words) != ASSAY_DONE) throw Error(ErrorKind::io, name, words);
    return out;
  }

 private:
  template <class F>
  F symbol(const char* name) const {
    void* const at = dlsym(handle_, name);
    if (!at)
      throw Error(ErrorKind::malformed, path_, "is no library of primitives", std::string("an exported ") + name,
                  "none");
    return reinterpret_cast<F>(at);
  }
  std::string path_;
  void* handle_;
  decltype(&assay_primitive_name) name_ = nullptr;
  decltype(&assay_check_primitive) check_ = nullptr;
};

}  // namespace

CheckOutcome judge_primitive(const ExpectedPrimitive& e, const KernelRun& run, const PrimitiveRun& target) {
  KernelBench b(kernels(Isa::scalar), run, fmt::format("primitives/{}", e.name));
  for (int i = 0; i < kCases; i++) {
    const bool any = i < kCases / 2;
    if (!b.next(fmt::format("{} {}", any ? "any bits" : "edges", i % (kCases / 2)))) continue;
    PrimitiveWords in(ASSAY_PRIMITIVE_WORDS);
    for (uint32_t& v : in) v = any ? uint32_t(b.rng()()) : kEdges[b.rng()() % std::size(kEdges)];
    const PrimitiveWords want = e.output(in), got = target ? target(in) : want;
    b.words(want, got);
  }
  return b.take();
}

void add_primitive_checks(std::vector<Check>& out) {
  for (const std::string device : {"simt", "cuda"})
    for (const ExpectedPrimitive& e : expected_primitives()) {
      Check k = device_kernel_check(fmt::format("primitives/{}", e.name), device,
                                    "cuda/prim_expected.cpp, computed here", kCases);
      k.run = [&e, device](const CheckContext& c) {
        CheckOutcome o = run_on_device(c, device, [&](DeviceKernels& kernels, const KernelRun& run) {
          const PrimitiveLibrary library(built_module("prim_check_" + device));
          return judge_primitive(e, run, [&](const PrimitiveWords& in) {
            kernels.state().ran[e.name]++;
            return library.run(e.name, in);
          });
        });
        if (int sm = 0; sscanf(o.ran.architecture.c_str(), "sm_%d", &sm) == 1 && sm < 90 &&
                        std::strncmp(e.name, "clusters_", 9) == 0)
          o.notes.push_back(o.ran.architecture + " has no clusters: the way without them ran");
        for (const auto& [name, times] : o.ran.variants)
          o.ran.launches += times;  // the module, whose counters those are, launched none
        return o;
      };
      k.cpu_digests = [&e](const CheckContext& c, const std::string& only) {
        return digests_named(judge_primitive(e, c.kernel, nullptr).digests, only);
      };
      out.push_back(std::move(k));
    }
}

}  // namespace assay
