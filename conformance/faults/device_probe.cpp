// What is looked at on a device, planted or not (device_probe.h).
#include "conformance/faults/device_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "conformance/faults/offload.h"

namespace assay::device_faults {
namespace {

namespace fs = std::filesystem;

std::string without_folder(std::string text, const fs::path& folder) {
  const std::string prefix = folder.string() + "/";
  for (size_t at; (at = text.find(prefix)) != std::string::npos;) text.erase(at, prefix.size());
  return text;
}

Finding bytes_of(const CheckContext& c, const fs::path& real, const Way& w, const Plant* plant) {
  DumpSpec cpu = w.spec;
  cpu.engine.device = {};
  cpu.out = c.work / "cpu";
  run_dump(w.model, cpu);
  const Dump base = Dump::open(cpu.out);
  CompareOptions options;
  options.level = Level::byte_exact;
  Finding f;
  std::string failing;
  for (const int64_t chunk : w.chunks) {
    DeviceRun run(c, real, w, plant);
    run.spec.generate.chunk = chunk;
    run.spec.out = c.work / "device";
    std::string place;
    try {
      run_dump(run.start(w, plant), run.spec);
      const CompareResult r = compare(base, Dump::open(run.spec.out), options);
      f.note += fmt::format("{}{} of {} tensors differ", f.note.empty() ? "" : ", ", r.failed, r.compared + r.missing);
      if (r.exit_code() == kPass) continue;
      place = r.divergence ? r.divergence->name + (r.divergence->where.empty() ? "" : ", " + r.divergence->where)
                           : "nothing was compared";
    } catch (const NoPlace&) {
      throw;
    } catch (const Error& e) {
      place = e.what();
    }
    failing += fmt::format("{}{}", failing.empty() ? "" : " ", chunk);
    if (f.failed) continue;
    f.failed = true;
    f.place = place;
  }
  if (f.failed && w.chunks.size() > 1) f.place = fmt::format("rows {}: {}", failing, f.place);
  return f;
}

Finding answers_of(const CheckContext& c, const fs::path& real, const Way& w, const Plant* plant) {
  DumpSpec cpu = w.spec;
  cpu.engine.device = {};
  const DumpRun base = run_dump(w.model, cpu);
  DeviceRun run(c, real, w, plant);
  const DumpRun device = run_dump(run.start(w, plant), run.spec);
  Finding f;
  for (size_t i = 0; i < base.generated.size() && !f.failed; i++) {
    const Generated &a = base.generated[i], &b = device.generated[i];
    const char* other = a.greedy != b.greedy ? "ids" : a.last_logits != b.last_logits ? "last logits" : nullptr;
    if (!other && !base.state_hashes[i].empty() && base.state_hashes[i] != device.state_hashes[i]) other = "state";
    f.failed = other != nullptr;
    if (other) f.place = fmt::format("prompt{}: other {}", i, other);
  }
  return f;
}

/// One pass of requests [first, end), a slot each: their prompts, or id 7 behind what each has.
void one_pass(Engine& e, const std::vector<Request>& requests, Pass pass, int first, int end) {
  Batch b;
  b.pass = pass;
  for (int slot = first; slot < end; slot++) {
    const std::vector<int32_t> ids = pass == Pass::prefill ? requests[size_t(slot)].ids : std::vector<int32_t>{7};
    b.segments.push_back({slot, e.length(slot), int64_t(ids.size()), slot, 0});
    b.ids.insert(b.ids.end(), ids.begin(), ids.end());
    b.logit_rows.push_back(b.rows() - 1);
  }
  e.forward(b);
}
/// Two requests: prefill of A in slot 0, of B in slot 1, then a decode pass of each. More: all in one prefill, a decode
/// pass of the first two, then two of all.
void interleave(Engine& e, const std::vector<Request>& requests) {
  const int all = int(requests.size());
  if (all == 2) {
    for (const Pass pass : {Pass::prefill, Pass::decode})
      for (int slot = 0; slot < 2; slot++) one_pass(e, requests, pass, slot, slot + 1);
    return;
  }
  one_pass(e, requests, Pass::prefill, 0, all);
  for (const int end : {2, all, all}) one_pass(e, requests, Pass::decode, 0, end);
}
Finding state_of(const CheckContext& c, const fs::path& real, const Way& w, const Plant* plant) {
  DumpSpec cpu = w.spec;
  cpu.engine.slots = int(cpu.requests.size());
  cpu.engine.device = {};
  const auto base = make_engine(w.model, cpu);
  interleave(*base, cpu.requests);
  DeviceRun run(c, real, w, plant);
  run.spec.engine.slots = cpu.engine.slots;
  Engine& device = run.start(w, plant);
  interleave(device, run.spec.requests);
  Finding f;
  for (int slot = 0; slot < cpu.engine.slots; slot++)
    for (int l = 0; l < int(base->model().config.layers); l++) {
      const KvLayer &a = base->kv(l), &b = device.kv(l);
      for (const bool of_k : {true, false})
        for (int64_t position = 0; position < base->length(slot); position++)
          for (int64_t head = 0; head < a.kv_heads; head++) {
            const size_t at = size_t(a.offset(slot, head, position)) * size_of(a.type);
            const size_t bytes = size_t(a.head_dim) * size_of(a.type);
            if (f.failed || std::memcmp((of_k ? a.k : a.v) + at, (of_k ? b.k : b.v) + at, bytes) == 0) continue;
            f.failed = true;
            f.place = fmt::format("sequence {}: layer.{}/{}, position {}, kv head {}", slot, l, of_k ? "k" : "v",
                                  position, head);
          }
    }
  return f;
}

/// C13: a dump whose layers are all the same buffer has equal hashes where a model never has them.
Finding layers_of(const CheckContext& c, const fs::path& real, const Way& w, const Plant* plant) {
  DeviceRun run(c, real, w, plant);
  run.spec.out = c.work / "device";
  run_dump(run.start(w, plant), run.spec);
  const Dump dump = Dump::open(run.spec.out);
  Finding f;
  std::map<std::string, std::pair<std::string, std::string>>
      seen;  // by the name without its layer: the layer before, its hash
  for (const DumpTensor& t : dump.tensors()) {
    const size_t at = t.name.find("/layer."), end = at == std::string::npos ? at : t.name.find('/', at + 1);
    if (end == std::string::npos) continue;
    const std::string key = t.name.substr(0, at) + t.name.substr(end), layer = t.name.substr(at + 1, end - at - 1);
    auto& [before, hash] = seen[key];
    if (!f.failed && !before.empty() && hash == t.xxh3_128) {
      f.failed = true;
      f.place = fmt::format("{}: {} and {} have the same bytes", key, before, layer);
    }
    before = layer;
    hash = t.xxh3_128;
  }
  f.note = fmt::format("{} names of tensors in layers", seen.size());
  return f;
}

Finding executors_of(const CheckContext& c, const fs::path& real, const Way& w, const Plant* plant) {
  DeviceRun run(c, real, w, plant);
  Engine& e = run.start(w, plant);
  const DumpRun done = run_dump(e, run.spec);
  Finding f;
  std::map<std::string_view, int64_t> ran;
  for (const TraceEntry& t : done.trace.entries) {
    ran[t.backend]++;
    if (f.failed || t.backend != "cpu") continue;
    f.failed = true;
    f.place = fmt::format("{} ran on cpu, wanted {}", e.program().nodes.at(size_t(t.node)).name(),
                          e.device() ? e.device()->name() : "a device");
  }
  for (const auto& [backend, nodes] : ran)
    f.note += fmt::format("{}{} ran {} nodes", f.note.empty() ? "" : ", ", backend, nodes);
  return f;
}

/// A2: what runs where is what was approved (offload.json).
Finding offload_of_run(const CheckContext& c, const fs::path& real, const Way& w, const Plant* plant) {
  DeviceRun run(c, real, w, plant);
  Engine& e = run.start(w, plant);
  const DumpRun done = run_dump(e, run.spec);
  const OffloadTable approved = read_offload(c.root / "conformance" / "faults" / "offload.json", kCase);
  Finding f;
  f.place = first_difference(approved, offload_of(done.trace, e.program()));
  f.failed = !f.place.empty();
  f.note = fmt::format("{} phases in passes of {} sizes", approved.size(), kRowClasses.size());
  return f;
}

/// Passes come one prompt after another: a prefill and its decode passes. All but the first decode pass are steady.
Finding traffic_of(const CheckContext& c, const fs::path& real, const Way& w, const Plant* plant) {
  DeviceRun run(c, real, w, plant);
  Engine& e = run.start(w, plant);
  const DumpRun done = run_dump(e, run.spec);
  Finding f;
  if (!e.device()) throw Error(ErrorKind::internal, "traffic", "there is no device: " + e.device_problem());
  uint64_t streamed = 0;
  for (const auto& entry : e.device()->weights().plan().entries) streamed += entry.packed != 0 && !entry.resident;
  bool steady = false;
  for (const PassTraffic& t : done.trace.traffic) {
    const bool decode = t.pass == Pass::decode;
    const auto want = [&](const char* what, uint64_t found, uint64_t wanted) {
      if (f.failed || found == wanted) return;
      f.failed = true;
      f.place = fmt::format("{} pass {}: {} {}, wanted {}", name_of(t.pass), t.physical_pass, found, what, wanted);
    };
    want("uploads", t.uploads, 1 + streamed);  // ids and places, and each weight that streams, once
    if (decode && steady && streamed == 0) {
      want("allocations", t.allocations, 0);
      want("frees", t.frees, 0);
      want("waits", t.syncs, 1);
      want("replays", t.replays, 1);
    }
    steady = steady || decode;
  }
  f.note = fmt::format("{} passes, {} weights stream", done.trace.traffic.size(), streamed);
  return f;
}

/// A5: whether a program that reads no words learns that steps are not what they should be.
Finding status_of(const CheckContext& c, const fs::path& real, const Way& w, const Plant* plant) {
  DeviceRun run(c, real, w, plant);
  const DumpRun done = run_dump(run.start(w, plant), run.spec);
  Finding f;
  int64_t decodes = 0;
  for (const PassTraffic& t : done.trace.traffic) {
    if (t.pass != Pass::decode || decodes++ == 0) continue;  // the first captures its graph
    const bool clean = t.uploads == 1 && t.allocations == 0 && t.frees == 0;
    if (f.failed || clean) continue;
    f.failed = true;
    f.place = fmt::format(
        "decode pass {} is not clean: {} uploads of {} bytes, {} allocations, {} frees, wanted its inputs alone",
        t.physical_pass, t.uploads, t.upload_bytes, t.allocations, t.frees);
  }
  if (decodes < 2) throw Error(ErrorKind::internal, "status", "no steady decode pass");
  f.note = fmt::format("{} steady decode passes", decodes - 1);
  return f;
}

Finding residency_of(const CheckContext& c, const fs::path& real, const Way& w, const Plant* plant) {
  DeviceRun run(c, real, w, plant);
  Engine& e = run.start(w, plant);
  Finding f;
  if (!e.device()) throw Error(ErrorKind::internal, "residency", "there is no device: " + e.device_problem());
  DeviceWeights& weights = e.device()->weights();
  int resident = 0, offered = 0;
  for (const auto& entry : weights.plan().entries) {
    offered += weights.offered(*entry.matrix);
    resident += weights.resident(*entry.matrix);
  }
  f.note = fmt::format("{} of {} resident", resident, offered);
  const std::string wanted = fmt::format("only {} of {} weights are resident", resident, offered);
  const auto said = std::find_if(run.notices.begin(), run.notices.end(),
                                 [](const std::string& n) { return n.find("resident") != std::string::npos; });
  const bool right = said != run.notices.end() && said->rfind(wanted, 0) == 0;
  if (w.streams) {  // the way itself streams: it has to be said, and right
    f.failed = !right;
    if (f.failed) f.place = said == run.notices.end() ? "nobody was told: " + wanted : "wrong words: " + *said;
  } else {
    f.failed = resident < offered || said != run.notices.end();
    if (f.failed) f.place = right ? *said : "nobody was told: " + wanted;
  }
  return f;
}

/// Whether the device can be had, in the words of who refused it; before anything was moved there.
Finding load_of(const CheckContext& c, const fs::path& real, const Way& w, const Plant* plant) {
  DeviceRun run(c, real, w, plant);
  Finding f;
  try {
    run.start(w, plant);
    for (const std::string& n : run.notices)
      if (!f.failed && !(w.streams && n.find(" weights are resident ") != std::string::npos)) {
        f.failed = true;
        f.place = without_folder(n, c.work);
      }
  } catch (const NoPlace&) {
    throw;
  } catch (const Error& e) {
    f.failed = true;
    f.place = without_folder(e.what(), c.work);
  }
  if (f.failed && kept.uploads) f.place = fmt::format("after {} uploads: {}", kept.uploads, f.place);
  f.note = fmt::format("{} uploads, {} allocations", kept.uploads, kept.allocations);
  return f;
}

/// What the emulation says of a kernel, without places in this build's files: a race first, then where.
std::string fault_of_kernel(const std::string& words) {
  const size_t kernel = words.find("kernel "), race = words.find("a race: "), end = words.find(" (addr2line");
  if (kernel == std::string::npos || race == std::string::npos) return words;
  return fmt::format("{}, in {}", words.substr(race, end == std::string::npos ? end : end - race),
                     words.substr(kernel, race - kernel - 2));
}

/// A check of the registry, one case of it, at the planted module: as it is, and under several orders of threads where
/// races are looked for.
Finding registered_kernel(const CheckContext& c, const std::string& id, bool races, const fs::path& real,
                          const Plant* plant) {
  const auto& all = registry();
  const auto check = std::find_if(all.begin(), all.end(), [&](const Check& k) { return k.id == id; });
  if (check == all.end()) throw Error(ErrorKind::malformed, "expected.json", "no such check", "", id);
  const PlantedModule module(real, c.work / "module.so", plant ? plant->module : nullptr);
  CheckContext inner = c;
  inner.module = c.work / "module.so";
  if (id == "kernel/attention/simt")
    inner.kernel.only = 11;  // all take half a minute; this one has three heads, 33 positions
  Finding f;
  int64_t compared = 0, failed = 0;
  const char* const own = std::getenv("ASSAY_SIMT_SEED");
  const std::string own_seed = own ? own : "";
  const uint64_t seed = own ? std::strtoull(own, nullptr, 10) : 1;
  for (int order = 0; order < (races ? 3 : 1) && !f.failed; order++) {
    if (races) setenv("ASSAY_SIMT_SEED", std::to_string(seed + uint64_t(order)).c_str(), 1);
    try {
      const CheckOutcome o = check->run(inner);
      f.not_run = o.not_run;
      f.failed = o.failed != 0;
      if (f.failed) f.place = o.failures.at(0);
      compared += o.compared;
      failed += o.failed;
    } catch (const Error& e) {  // a kernel's fault, in the module's words
      f.failed = true;
      f.place = fault_of_kernel(e.what());
    }
  }
  if (races) own ? setenv("ASSAY_SIMT_SEED", own_seed.c_str(), 1) : unsetenv("ASSAY_SIMT_SEED");
  f.note = fmt::format("{} failures in {} comparisons", failed, compared);
  return f;
}

Finding look(const CheckContext& c, std::string id, const Plant* plant) {
  const size_t a = id.find('/'), b = id.find('/', a + 1);
  const bool races = b != std::string::npos && id.substr(b) == "/races";
  Finding f;
  if (plant && plant->build && !c.module.empty()) {
    f.not_run = "needs the emulated module: the fault is in its sources";
    return f;
  }
  const fs::path real = plant && plant->build ? built_module(std::string("simt_") + plant->build)
                        : races               ? built_module("simt_watched")
                        : c.module.empty()    ? built_module("simt")
                                              : c.module;
  if (std::error_code ignored; !fs::exists(real, ignored)) {
    f.not_run = "needs the emulated module: " + real.string();
    return f;
  }
  try {
    DeviceModule::load(real);
  } catch (const Error& e) {
    f.not_run = std::string("needs the emulated module: ") + e.what();
    return f;
  }
  fs::create_directories(c.work);
  if (races && id != "kernel/attention/races")  // whose source alone is built so: CMakeLists.txt
    throw Error(ErrorKind::malformed, "expected.json", "nobody watches this kernel", "kernel/attention/races", id);
  if (races) id = id.substr(0, b) + "/simt";
  if (id.rfind("kernel/", 0) == 0) return registered_kernel(c, id, races, real, plant);
  static const std::map<std::string, Finding (*)(const CheckContext&, const fs::path&, const Way&, const Plant*)>
      looks = {{"bytes", bytes_of},     {"answers", answers_of},        {"state", state_of},
               {"layers", layers_of},   {"executors", executors_of},    {"offload", offload_of_run},
               {"traffic", traffic_of}, {"residency", residency_of},    {"status", status_of},
               {"load", load_of},       {"host-memory", host_memory_of}};
  const auto it = b == std::string::npos ? looks.end() : looks.find(id.substr(b + 1));
  if (id.rfind("device/", 0) != 0 || it == looks.end())
    throw Error(ErrorKind::malformed, "expected.json", "is no check of a device", "device/WAY/WHAT", id);
  return it->second(c, real, way_named(c, id.substr(a + 1, b - a - 1), real), plant);
}

}  // namespace

Finding judged(const CheckContext& c, const std::string& id, const Plant* plant) {
  if (!plant) {
    static std::map<std::string, Finding> clean;
    const auto it = clean.find(id);
    return it != clean.end() ? it->second : clean[id] = look(c, id, nullptr);
  }
  Finding f = look(c, id, plant);
  f.changed = f.failed;  // all that is looked at is held against what it is without the fault
  return f;
}

void add(std::vector<Fault>& out, const char* id, const char* what, How how, Plant plant, const char* note) {
  Fault f{id, what, how, note};
  f.plain_build = plant.plain_build || plant.build;
  f.own = [plant](const CheckContext& c, const std::string& check, bool planted) {
    return judged(c, check, planted ? &plant : nullptr);
  };
  out.push_back(std::move(f));
}

}  // namespace assay::device_faults
