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

CheckOutcome compare_with_device(const CheckContext& c, std::shared_ptr<const Model> model, DumpSpec base, const std::string& device,
                                 const std::shared_ptr<Device>& opened, const std::vector<DeviceVariant>& variants) {
  CheckOutcome out;
  base.mode = CaptureMode::hash;
  base.out = c.work / "cpu";
  base.replace = true;
  const DumpRun base_run = run_dump(model, base);
  const Dump base_dump = Dump::open(base.out);
  const Program program = build_program(*model);
  CompareOptions options;
  options.level = Level::byte_exact;
  options.threads = c.threads;
  base.engine.device.module = (c.module.empty() ? built_module(device) : c.module).string();
  for (const DeviceVariant& v : variants) try {
    DumpSpec spec = base;
    v.apply(spec);
    spec.out = c.work / "device";
    const DumpRun run = run_dump(model, spec);
    out.add(compare(base_dump, Dump::open(spec.out), options), v.name);
    check_trace(out, v, spec, run, program, device);
    // Nobody watches: other buffers, nothing but logits and ids come back.
    if (v.absent) continue;
    spec.out.clear();
    same_answers(out, v.name + ", ", base_run, run_dump(model, spec));
  } catch (const Error& e) {
    out.fail(v.name + ": " + e.what());
  }
  out.notes.push_back(fmt::format("{}, {}: {} variants, each {} tensors; digest {}", opened->info().name, opened->info().architecture,
                                  variants.size(), base_dump.tensors().size(), base_dump.digest()));
  return out;
}

Check device_check(const std::string& id, const std::string& family, const std::string& device, Cost cost, int64_t expected) {
  Check k;
  k.id = id;
  k.level = Level::byte_exact;
  k.family = family;
  k.device = device;
  k.cost = cost;
  k.baseline = "our dump on the CPU";
  k.target = fmt::format("{}: fused, node by node, graphs, chunks, batches, streamed weights, refused nodes, no module", device);
  k.expected = expected;
  return k;
}

/// Four layers of a real shape: thousands of rows, a whole vocabulary, prompts around the tiles, caches of a thousand positions.
CheckOutcome real_width(const CheckContext& c, const std::string& shape, WeightType type) {
  CheckOutcome all;
  const auto opened = open_device(c, "cuda", all);
  if (!opened) return all;
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
  std::vector<DeviceVariant> variants = {
      variant("fused, graphs", [](DumpSpec&) {}),
      variant("node by node", [](DumpSpec& s) { s.engine.device.fused = s.engine.device.graph = false; }),
      variant("chunk 100", [](DumpSpec& s) { s.generate.chunk = 100; }),
      variant("batched", [](DumpSpec& s) { s.generate.batch = true; })};
  return compare_with_device(c, model, base, "cuda", opened, variants);
}

}  // namespace

void add_device_equivalence_checks(std::vector<Check>& out) {
  for (const char* shape : {"VL-2B", "8B", "Qwen2.5-7B"})
    for (WeightType type : {WeightType::q8_0, WeightType::q4_0, WeightType::q4_k}) {
      Check k = device_check(fmt::format("equivalence/synth-{}-{}/cuda", shape, id_of(type)), "-", "cuda", Cost::slow, 1000);
      k.target = "cuda: fused with graphs, node by node, chunks of 100, batched";
      k.run = [shape, type](const CheckContext& c) { return real_width(c, shape, type); };
      out.push_back(std::move(k));
    }
  for (const std::string device : {"simt", "cuda"})
    for (const OfficialCase& oc : official_cases()) {
      const bool emulated = device == "simt";
      Check k = device_check(fmt::format("equivalence/{}/{}", oc.name, device), oc.family, device,
                             oc.trained || (emulated && std::string(oc.name) != "qwen2-bias") ? Cost::slow : Cost::fast, oc.tensors);
      k.run = [&oc, device, emulated](const CheckContext& c) {
        DumpSpec base = case_spec(c, oc, false);
        const auto model = shared_model(case_dir(c, oc) / "model");
        base.engine.kv = KvType::f16;
        if (emulated && base.requests.size() > 2) base.requests.resize(2);
        for (Request& r : base.requests) r.decode = std::min<int64_t>(r.decode, emulated ? 3 : 8);
        CheckOutcome all;
        const auto opened = open_device(c, device, all);
        if (!opened) return all;
        all = compare_with_device(c, model, base, device, opened, device_variants(*model, *opened, base.requests.size()));
        if (emulated) return all;
        for (KvType kv : {KvType::f32, KvType::bf16}) {
          base.engine.kv = kv;
          const CheckOutcome o = compare_with_device(c, model, base, device, opened, {variant("fused, graphs", [](DumpSpec&) {})});
          all.compared += o.compared;
          for (const std::string& f : o.failures) all.fail(fmt::format("kv {}: {}", name_of(kv), f));
        }
        return all;
      };
      out.push_back(std::move(k));
      if (oc.trained) continue;
      Check q = device_check(fmt::format("equivalence/{}/{}-quantised", oc.name, device), oc.family, device,
                             emulated && std::string(oc.name) != "qwen3-k256" ? Cost::slow : Cost::fast, oc.tensors / 2);
      q.run = [&oc, device, emulated](const CheckContext& c) {
        CheckOutcome all;
        const auto opened = open_device(c, device, all);
        if (!opened) return all;
        for (WeightType type : quantised_types(oc))
          for (Activations kind : {Activations::s16, Activations::s8, Activations::f32}) {
            if (emulated && kind == Activations::f32) continue;
            DumpSpec base = case_spec(c, oc, false);
            base.engine.kv = KvType::f16;
            base.engine.activations = kind;
            if (emulated) base.requests.resize(1);
            for (Request& r : base.requests) r.decode = std::min<int64_t>(r.decode, emulated ? 2 : 3);
            const auto model = quantised_case(c, oc, type);
            std::vector<DeviceVariant> variants = device_variants(*model, *opened, base.requests.size());
            if (emulated || kind != Activations::s16) variants.resize(emulated ? 1 : 2);
            const CheckOutcome o = compare_with_device(c, model, base, device, opened, variants);
            all.compared += o.compared;
            for (const std::string& f : o.failures) all.fail(fmt::format("{} {}: {}", id_of(type), name_of(kind), f));
            all.notes.insert(all.notes.end(), o.notes.begin(), o.notes.end());
          }
        return all;
      };
      out.push_back(std::move(q));
    }
}

}  // namespace assay
