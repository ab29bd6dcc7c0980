// Ways to run the official case qwen2-bias on a device, each the smallest that shows what its checks look at.
#include "conformance/faults/device_probe.h"
#include "conformance/integration/quantised.h"

namespace assay::device_faults {
namespace {

bool not_of(const Node& n, OpKind op) {
  return n.op != op;
}

}  // namespace

/// Prompts of 5 and 3 ids and 3 decode passes, unless the way says otherwise.
Way way_named(const CheckContext& c, const std::string& name, const std::filesystem::path& real) {
  const OfficialCase& oc = official_case(kCase);
  Way w{shared_model(case_dir(c, oc) / "model"), case_spec(c, oc, false)};
  DumpSpec& s = w.spec;
  const std::vector<Request> all = s.requests;
  s.mode = CaptureMode::hash;
  s.replace = true;
  s.engine.kv = KvType::f16;
  s.requests = {all.at(1), all.at(2)};
  s.requests[1].ids.resize(3);
  for (Request& r : s.requests) r.decode = 3;
  if (name == "least") w.model = quantised_case(c, oc, WeightType::q4_0);
  {
    const Device device(DeviceModule::load(real), 0);
    w.range = budget_range(build_program(*w.model), [&](const Matrix& m) { return device.packed_bytes(m); });
  }
  if (name == "graphs" || name == "synthetic") return w;  // synthetic: device_memory.cpp loads a model of its own
  if (name == "one-step") {
    s.requests.resize(1);
    s.requests[0].decode = 1;
  } else if (name ==
             "batches") {  // state alone: prompts of 5, 3 and 4 ids together, two of them decode, then all three
    s.requests.push_back(all.at(2));
    s.requests[2].ids.resize(4);
  } else if (name == "rows") {  // products alone
    s.requests = {all.at(3)};
    s.requests[0].ids.resize(20);
    s.requests[0].decode = 0;
    w.chunks = {1, 2, 3, 4, 5};
    s.engine.device.fused = false;
    s.engine.device.refuse = [](const Node& n) { return not_of(n, OpKind::linear); };
  } else if (name == "lengths") {  // norms alone, prompts of 255, 256 and 257 ids
    const Request long_one = all.at(3);
    s.requests.clear();
    for (size_t length : {255, 256, 257}) {
      Request r = long_one;
      r.decode = 0;
      while (r.ids.size() < length) r.ids.push_back(long_one.ids[r.ids.size() % long_one.ids.size()]);
      s.requests.push_back(std::move(r));
    }
    s.engine.device.refuse = [](const Node& n) { return not_of(n, OpKind::rms_norm); };
  } else if (name == "every-size") {  // a pass of each class of rows (offload.h)
    s.requests = {all.at(3), all.at(1)};
    s.requests[0].ids.resize(33);
    s.requests[0].decode = 0;
    s.requests[1].decode = 1;
  } else if (name == "streamed" || name == "least") {
    s.engine.device.budget = name == "least" ? w.range.least : w.range.least + (w.range.all - w.range.least) / 3;
    s.requests.resize(1);  // a later prompt is wrong from its first layer on, and would be named
    w.streams = true;
  } else {
    throw Error(ErrorKind::malformed, "expected.json", "no such way to run on a device", "", name);
  }
  return w;
}

DeviceRun::DeviceRun(const CheckContext& c, const std::filesystem::path& real, const Way& w, const Plant* plant)
    : module(real, c.work / "module.so", plant ? plant->module : nullptr), spec(w.spec) {
  spec.engine.device.module = (c.work / "module.so").string();
  spec.engine.device.notice = [this](const std::string& words) { notices.push_back(words); };
  if (plant && plant->spec) plant->spec(spec, w);
}

Engine& DeviceRun::start(const Way& w, const Plant* plant) {
  engine = make_engine(w.model, spec);
  if (plant && plant->engine) {
    if (!engine->device()) throw Error(ErrorKind::internal, "plant", "there is no device: " + engine->device_problem());
    plant->engine(*engine);
  }
  return *engine;
}

}  // namespace assay::device_faults
