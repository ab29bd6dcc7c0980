// One set of bits on a device: whole runs against the CPU's, whatever is fused, captured, cut, batched, streamed or refused.
// Equal bytes prove something about the device only if it ran: the trace must show every node there but those refused on purpose.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "conformance/equivalence/variants.h"
#include "conformance/integration/quantised.h"
#include "dumps/error.h"
#include "engine/device_weights.h"
#include "engine/formats/synth.h"

namespace assay {
namespace {

struct DeviceVariant {
  std::string name;
  std::function<void(DumpSpec&)> apply;
  std::function<bool(const Node&)> on_cpu = nullptr;     // nodes that must run on the CPU; null: none
  bool absent = false;                                   // there is no device at all
  std::function<bool(const Node&)> anywhere = nullptr;   // nodes that may run on either
};

DeviceVariant variant(std::string name, std::function<void(DumpSpec&)> apply) { return {std::move(name), std::move(apply)}; }
DeviceVariant refusing(std::string name, std::function<bool(const Node&)> which) {
  return {std::move(name), [which](DumpSpec& s) { s.engine.device.refuse = which; }, which};
}

std::vector<DeviceVariant> device_variants(const Model& model, const Device& device, size_t prompts) {
  std::vector<DeviceVariant> v;
  v.push_back(variant("fused, graphs", [](DumpSpec&) {}));
  v.push_back(variant("node by node", [](DumpSpec& s) { s.engine.device.fused = s.engine.device.graph = false; }));
  v.push_back(variant("fused, no graph", [](DumpSpec& s) { s.engine.device.graph = false; }));
  v.push_back(variant("chunk 3", [](DumpSpec& s) { s.generate.chunk = 3; }));
  if (prompts > 1) v.push_back(variant("batched", [](DumpSpec& s) { s.generate.batch = true; }));
  v.push_back(variant("slot 2 of 4, loaded when needed", [](DumpSpec& s) {
    s.generate.slot = 2;
    s.engine.slots = 4;
    s.engine.device.preload = false;
  }));
  // Room for the window and some matrices: the others stream. Tables that only embed may stay with the CPU.
  const Program program = build_program(model);
  const BudgetRange range = budget_range(program, [&](const Matrix& m) { return device.packed_bytes(m); });
  DeviceVariant streamed = variant("weights streamed", [range](DumpSpec& s) {
    s.engine.device.budget = range.least + (range.all - range.least) / 3;
  });
  streamed.anywhere = [](const Node& n) { return n.op == OpKind::embed; };
  v.push_back(std::move(streamed));
  std::set<std::pair<int, std::string>> third;
  for (size_t i = 2; i < program.nodes.size(); i += 3) third.emplace(program.nodes[i].layer, program.nodes[i].phase);
  v.push_back(refusing("every third node refused", [third](const Node& n) { return third.contains({n.layer, n.phase}); }));
  v.push_back(refusing("everything refused", [](const Node&) { return true; }));
  v.push_back({"no module", [](DumpSpec& s) { s.engine.device.module = "/nowhere/libassay_none.so"; }, nullptr, true});
  return v;
}

/// What ran where, and how often the device was asked for memory or waited for.
void check_trace(CheckOutcome& out, const DeviceVariant& v, const DumpSpec& spec, const DumpRun& run, const Program& program,
                 std::string_view device) {
  std::set<int> seen;
  for (const TraceEntry& e : run.trace.entries) {
    const Node& n = program.nodes.at(size_t(e.node));
    const std::string_view wanted = v.absent || (v.on_cpu && v.on_cpu(n)) ? "cpu" : device;
    seen.insert(e.node);
    if (v.anywhere && v.anywhere(n)) continue;
    if (e.backend != wanted) {
      out.fail(fmt::format("{}: {} ran on {}, wanted {}", v.name, n.name(), e.backend, wanted));
      return;
    }
  }
  if (seen.size() != program.nodes.size())
    out.fail(fmt::format("{}: the trace shows {} of {} nodes", v.name, seen.size(), program.nodes.size()));
  if (v.absent || v.on_cpu || v.anywhere || !spec.engine.device.graph || !spec.engine.device.preload) return;
  int64_t steady = 0;
  for (const PassTraffic& t : run.trace.traffic) {
    if (t.pass != Pass::decode) continue;
    if (t.replays != 1) out.fail(fmt::format("{}: decode pass {} replayed {} graphs", v.name, t.physical_pass, t.replays));
    // The first pass of a geometry allocates and captures; the second of each prompt is steady.
    if (t.allocations == 0) steady++;
    else if (steady > 0 && !spec.generate.batch && spec.generate.chunk == 0)
      out.fail(fmt::format("{}: {} allocations in steady decode pass {}", v.name, t.allocations, t.physical_pass));
  }
  if (steady == 0) out.fail(v.name + ": no decode pass without an allocation");
}

/// One model and the requests that every variant of a run is asked; the CPU's dump of them is what the device is held against.
struct DeviceCase {
  std::string name;   // within its check: "f16", "q4_0 s16"
  std::function<std::shared_ptr<const Model>()> model;
  DumpSpec base;
  std::function<std::vector<DeviceVariant>(const Model&, const Device&, size_t prompts)> variants;
};
using CaseList = std::function<std::vector<DeviceCase>(const CheckContext&)>;

/// The first `most` of device_variants().
auto first_variants(size_t most) {
  return [most](const Model& model, const Device& device, size_t prompts) {
    std::vector<DeviceVariant> v = device_variants(model, device, prompts);
    if (v.size() > most) v.resize(most);
    return v;
  };
}

DumpRun run_base(const CheckContext& c, const std::shared_ptr<const Model>& model, DumpSpec& base) {
  base.mode = CaptureMode::hash;
  base.out = c.work / "cpu";
  base.replace = true;
  return run_dump(model, base);
}

CheckOutcome compare_with_device(const CheckContext& c, DeviceCase k, const std::string& device, const std::shared_ptr<Device>& opened) {
  CheckOutcome out;
  const auto model = k.model();
  DumpSpec& base = k.base;
  const DumpRun base_run = run_base(c, model, base);
  const Dump base_dump = Dump::open(base.out);
  const Program program = build_program(*model);
  const std::vector<DeviceVariant> variants = k.variants(*model, *opened, base.requests.size());
  CompareOptions options;
  options.level = Level::byte_exact;
  options.threads = c.threads;
  base.engine.device.module = (c.module.empty() ? built_module(device) : c.module).string();
  const auto count = [&](const Trace& trace) {
    for (const TraceEntry& e : trace.entries)
      if (e.backend == device) out.ran.variants[e.variant]++;
    for (const PassTraffic& t : trace.traffic) out.ran.launches += int64_t(t.launches);
  };
  out.ran = ran_on(*opened);
  for (const DeviceVariant& v : variants) try {
    DumpSpec spec = base;
    v.apply(spec);
    spec.out = c.work / "device";
    const DumpRun run = run_dump(model, spec);
    out.add(compare(base_dump, Dump::open(spec.out), options), v.name);
    check_trace(out, v, spec, run, program, device);
    count(run.trace);
    // Nobody watches: other buffers, nothing but logits and ids come back.
    if (v.absent) continue;
    spec.out.clear();
    const DumpRun blind = run_dump(model, spec);
    same_answers(out, v.name + ", ", base_run, blind);
    count(blind.trace);
  } catch (const Error& e) {
    out.fail(v.name + ": " + e.what());
  }
  out.digests.push_back({k.name, base_dump.digest()});
  out.notes.push_back(fmt::format("{}, {}: {}, {} variants, each {} tensors; digest {}", opened->info().name, opened->info().architecture,
                                  k.name, variants.size(), base_dump.tensors().size(), base_dump.digest()));
  return out;
}

Check device_check(const std::string& id, const std::string& family, const std::string& device, Cost cost, int64_t expected, CaseList cases) {
  Check k;
  k.id = id;
  k.level = Level::byte_exact;
  k.family = family;
  k.device = device;
  k.cost = cost;
  k.baseline = "our dump on the CPU";
  k.target = fmt::format("{}: fused, node by node, graphs, chunks, batches, streamed weights, refused nodes, no module", device);
  k.expected = expected;
  k.run = [device, cases](const CheckContext& c) {
    CheckOutcome all;
    const auto opened = open_device(c, device, all);
    if (!opened) return all;
    for (const DeviceCase& one : cases(c)) all.add(compare_with_device(c, one, device, opened), one.name);
    return all;
  };
  k.cpu_digests = [cases](const CheckContext& c, const std::string& only) {
    std::vector<NamedDigest> out;
    for (DeviceCase& one : cases(c))
      if (only.empty() || one.name == only) {
        run_base(c, one.model(), one.base);
        out.push_back({one.name, Dump::open(one.base.out).digest()});
      }
    return out;
  };
  return k;
}

/// Four layers of a real shape: thousands of rows, a whole vocabulary, prompts around the tiles, caches of a thousand positions.
std::vector<DeviceCase> real_width(const CheckContext& c, const std::string& shape, WeightType type) {
  SynthSpec synth;
  synth.shape = shape;
  synth.type = type;
  synth.layers = 4;
  const auto model = std::make_shared<Model>(make_synthetic_model(synth, c.threads));
  DumpSpec base;
  base.engine.isa = c.isa;
  base.engine.threads = c.threads;
  base.engine.poison = true;
  base.sync = false;
  base.capture.state = true;
  base.capture.phases = {"embed", "*_norm", "*_proj", "*_rope", "attn_*", "ffn_*", "logits_last"};   // logits of 1000 rows are too many
  for (int64_t n : {1, 33, 257, 1000}) {
    base.requests.emplace_back();
    for (int64_t i = 0; i < n; i++)
      base.requests.back().ids.push_back(int32_t((uint64_t(i + 1) * 2654435761u) % uint64_t(model->config.vocab)));
    base.requests.back().decode = 16;
  }
  const auto variants = [](const Model&, const Device&, size_t) {
    return std::vector<DeviceVariant>{
        variant("fused, graphs", [](DumpSpec&) {}),
        variant("node by node", [](DumpSpec& s) { s.engine.device.fused = s.engine.device.graph = false; }),
        variant("chunk 100", [](DumpSpec& s) { s.generate.chunk = 100; }),
        variant("batched", [](DumpSpec& s) { s.generate.batch = true; })};
  };
  return {{"s16", [model] { return model; }, base, variants}};
}

/// A case as it is stored: an f16 cache in every way of running it, the other caches in one.
std::vector<DeviceCase> as_stored(const CheckContext& c, const OfficialCase& oc, bool emulated) {
  DumpSpec base = case_spec(c, oc, false);
  if (emulated && base.requests.size() > 2) base.requests.resize(2);
  for (Request& r : base.requests) r.decode = std::min<int64_t>(r.decode, emulated ? 3 : 8);
  const std::filesystem::path model = case_dir(c, oc) / "model";
  std::vector<DeviceCase> out;
  for (KvType kv : {KvType::f16, KvType::f32, KvType::bf16}) {
    base.engine.kv = kv;
    out.push_back({fmt::format("kv {}", name_of(kv)), [model] { return shared_model(model); }, base, first_variants(kv == KvType::f16 ? 100 : 1)});
    if (emulated) break;
  }
  return out;
}

/// Every type of blocks with every kind of activations; all ways of running with s16, two with the others.
std::vector<DeviceCase> in_blocks(const CheckContext& c, const OfficialCase& oc, bool emulated) {
  std::vector<DeviceCase> out;
  for (WeightType type : quantised_types(oc))
    for (Activations kind : {Activations::s16, Activations::s8, Activations::f32}) {
      if (emulated && kind == Activations::f32) continue;
      DumpSpec base = case_spec(c, oc, false);
      base.engine.kv = KvType::f16;
      base.engine.activations = kind;
      if (emulated) base.requests.resize(1);
      for (Request& r : base.requests) r.decode = std::min<int64_t>(r.decode, emulated ? 2 : 3);
      out.push_back({fmt::format("{} {}", id_of(type), name_of(kind)), [&c, &oc, type] { return quantised_case(c, oc, type); }, base,
                     first_variants(emulated ? 1 : kind != Activations::s16 ? 2 : 100)});
    }
  return out;
}

/// Sequences that grow past 128 and 256 positions while they decode: kernels and graphs of short ones are left behind. The longest
/// is the first, so that graphs of long sequences are there before those of short ones are made.
std::vector<DeviceCase> growing(const CheckContext& c, const OfficialCase& oc, bool emulated) {
  DumpSpec base = case_spec(c, oc, false);
  base.engine.kv = KvType::f16;
  base.requests.clear();
  const std::filesystem::path model = case_dir(c, oc) / "model";
  for (const int64_t n : {252, 124}) {
    if (emulated && n > 128) continue;  // a minute
    base.requests.emplace_back();
    for (int64_t i = 0; i < n; i++)
      base.requests.back().ids.push_back(int32_t((uint64_t(i + 1) * 2654435761u) % uint64_t(shared_model(model)->config.vocab)));
    base.requests.back().decode = 8;
  }
  const auto variants = [emulated](const Model&, const Device&, size_t) {
    std::vector<DeviceVariant> v{
        variant("fused, graphs", [](DumpSpec&) {}),
        variant("fused, no graph", [](DumpSpec& s) { s.engine.device.graph = false; }),
        variant("slot 1 of 2", [](DumpSpec& s) {
          s.generate.slot = 1;
          s.engine.slots = 2;
        })};
    if (emulated) v.resize(1);
    return v;
  };
  return {{"kv f16", [model] { return shared_model(model); }, base, variants}};
}

}  // namespace

void add_device_equivalence_checks(std::vector<Check>& out) {
  for (const char* shape : {"VL-2B", "8B", "Qwen2.5-7B"})
    for (WeightType type : {WeightType::q8_0, WeightType::q4_0, WeightType::q4_k}) {
      Check k = device_check(fmt::format("equivalence/synth-{}-{}/cuda", shape, id_of(type)), "-", "cuda", Cost::slow, 1000,
                             [shape, type](const CheckContext& c) { return real_width(c, shape, type); });
      k.target = "cuda: fused with graphs, node by node, chunks of 100, batched";
      out.push_back(std::move(k));
    }
  for (const std::string device : {"simt", "cuda"})
    for (const OfficialCase& oc : official_cases()) {
      const bool emulated = device == "simt";
      const std::string name = oc.name;
      if (name == "qwen3_vl-text") {
        Check k = device_check(fmt::format("equivalence/{}-growing/{}", name, device), oc.family, device, Cost::fast, 400,
                               [&oc, emulated](const CheckContext& c) { return growing(c, oc, emulated); });
        k.target = fmt::format("{}: sequences that grow past 128 and 256 positions, with graphs, without, in another slot", device);
        out.push_back(std::move(k));
      }
      out.push_back(device_check(fmt::format("equivalence/{}/{}", name, device), oc.family, device,
                                 oc.trained || (emulated && name != "qwen2-bias") ? Cost::slow : Cost::fast, oc.tensors,
                                 [&oc, emulated](const CheckContext& c) { return as_stored(c, oc, emulated); }));
      if (oc.trained || !oc.gguf) continue;
      out.push_back(device_check(fmt::format("equivalence/{}/{}-quantised", name, device), oc.family, device,
                                 emulated && name != "qwen3-k256" ? Cost::slow : Cost::fast, oc.tensors / 2,
                                 [&oc, emulated](const CheckContext& c) { return in_blocks(c, oc, emulated); }));
    }
}

}  // namespace assay
