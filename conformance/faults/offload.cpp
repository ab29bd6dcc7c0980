#include "conformance/faults/offload.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "conformance/faults/device_probe.h"
#include "dumps/error.h"
#include "engine/formats/hf_tokenizer.h"

namespace assay {
namespace {

size_t class_of(int64_t rows) {
  return rows == 1 ? 0 : rows <= 32 ? 1 : 2;
}

}  // namespace

OffloadTable read_offload(const std::filesystem::path& file, const std::string& name) {
  OffloadTable out;
  try {
    const nlohmann::json table = nlohmann::json::parse(read_text_file(file)), &phases = table.at("cases").at(name);
    if (table.at("rows") != nlohmann::json(kRowClasses))
      throw Error(ErrorKind::malformed, file.string(), "other classes of rows", nlohmann::json(kRowClasses).dump(),
                  table.at("rows").dump());
    for (const auto& [phase, row] : phases.items()) {
      out[phase] = row.get<std::array<std::string, kRowClasses.size()>>();
      for (const std::string& where : out[phase])
        if (where != "device" && where != "cpu")
          throw Error(ErrorKind::malformed, file.string() + ": " + name + ", " + phase, "no such place",
                      "device or cpu", where);
    }
  } catch (const nlohmann::json::exception& e) {
    throw Error(ErrorKind::malformed, file.string(), e.what());
  }
  return out;
}

OffloadTable offload_of(const Trace& trace, const Program& program) {
  OffloadTable out;
  for (const TraceEntry& t : trace.entries) {
    const std::string here = t.backend == "cpu" ? "cpu" : "device";
    std::string& where = out[program.nodes.at(size_t(t.node)).phase][class_of(t.rows)];
    if (where.empty())
      where = here;
    else if (where != here)
      where = "cpu and device";
  }
  return out;
}

std::string first_difference(const OffloadTable& approved, const OffloadTable& found) {
  const auto entry = [](const OffloadTable& t, const std::string& phase, size_t i) {
    const auto at = t.find(phase);
    return at == t.end() ? std::string() : at->second[i];
  };
  OffloadTable all = approved;
  all.insert(found.begin(), found.end());
  for (size_t i = 0; i < kRowClasses.size(); i++)
    for (const auto& [phase, unused] : all) {
      const std::string wanted = entry(approved, phase, i), ran = entry(found, phase, i);
      if (wanted != ran)
        return fmt::format("{}, passes of {} rows: {}, approved {}", phase, kRowClasses[i],
                           ran.empty() ? "never ran" : ran, wanted.empty() ? "nowhere" : wanted);
    }
  return {};
}

void add_offload_checks(std::vector<Check>& out) {
  for (const std::string device : {"simt", "cuda"}) {
    Check k;
    k.id = fmt::format("counter/{}/offload/{}", device_faults::kCase, device);
    k.kind = CheckKind::counter;
    k.scope = Scope::none;
    k.family = "qwen2";
    k.device = device;
    k.baseline = "faults/offload.json: where the nodes of a phase run";
    k.target = "the trace of passes of 1, 5 and 33 rows";
    k.expected = 19 * int64_t(kRowClasses.size());
    k.run = [device](const CheckContext& c) {
      CheckOutcome o;
      const auto opened = open_device(c, device, o);
      if (!opened) return o;
      o.ran = ran_on(*opened);
      const std::filesystem::path module = opened->module().path();
      device_faults::Way w = device_faults::way_named(c, "every-size", module);
      w.spec.engine.device.module = module.string();
      const auto engine = make_engine(w.model, w.spec);
      const Trace trace = run_dump(*engine, w.spec).trace;
      for (const TraceEntry& t : trace.entries)
        if (t.backend != "cpu") o.ran.variants[t.variant]++;
      for (const PassTraffic& t : trace.traffic) o.ran.launches += int64_t(t.launches);
      const std::filesystem::path file = c.root / "conformance" / "faults" / "offload.json";
      const OffloadTable approved = read_offload(file, device_faults::kCase),
                         found = offload_of(trace, engine->program());
      o.compared = int64_t(approved.size() * kRowClasses.size());
      if (const std::string other = first_difference(approved, found); !other.empty()) o.fail(other);
      return o;
    };
    out.push_back(std::move(k));
  }
}

}  // namespace assay
