#include "conformance/runner.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "conformance/faults/faults.h"
#include "dumps/error.h"

namespace assay {

std::unique_ptr<Engine> make_engine(std::shared_ptr<const Model> model, const DumpSpec& spec) {
  EngineOptions o = spec.engine;
  if (o.context == 0)
    for (const Request& r : spec.requests) {
      const int64_t length = int64_t(r.ids.size());
      o.context = std::max(o.context, length + r.decode);
      // An MTP head's drafts stand two positions behind the prompt, where the model has them.
      if (model->config.mtp_layers > 0) o.context = std::max(o.context, std::min(length + 2, model->config.context));
    }
  if (o.context > model->config.context && model->config.context > 0)
    throw Error(ErrorKind::usage, model->provenance.path, "context overflow",
                "at most " + std::to_string(model->config.context) + " positions (max_position_embeddings)",
                std::to_string(o.context), "A shorter prompt or fewer decode steps fit.");
  const int needed = spec.generate.batch ? int(spec.requests.size()) : spec.generate.slot + 1;
  if (o.slots < needed) o.slots = needed;
  auto engine = std::make_unique<Engine>(std::move(model), o);
  if (!spec.plant.empty()) plant(*engine, spec.plant);
  return engine;
}

DumpRun run_dump(std::shared_ptr<const Model> model, const DumpSpec& spec) {
  return run_dump(*make_engine(std::move(model), spec), spec);
}

DumpRun run_dump(Engine& engine, const DumpSpec& spec) {
  DumpRun run;
  GenerateOptions generate_options = spec.generate;
  generate_options.mtp = engine.has_mtp();
  if (spec.out.empty()) {
    run.generated = generate(engine, spec.requests, generate_options, nullptr, &run.trace);
  } else {
    check_requests(engine, spec.requests, generate_options);   // before a finished dump is replaced
    spec.capture.check(engine.program());
    DumpWriter writer(spec.writer_options());
    Capture capture(writer, engine, spec.requests, spec.capture);
    generate_options.all_logits = capture.needs_all_logits();
    run.generated = generate(engine, spec.requests, generate_options, &capture, &run.trace);
    describe(writer.manifest(), engine, spec.requests, run.generated, generate_options);
    // Also where no node shows it: a constant, a wire.
    if (!spec.plant.empty()) writer.manifest()["planted_faults"] = {spec.plant};
    nlohmann::ordered_json trace = nlohmann::ordered_json::object();
    for (const auto& [variant, nodes] : run.trace.variants()) trace[variant] = nodes;
    writer.manifest()["trace"] = {{"physical_passes", run.trace.passes}, {"nodes_by_variant", trace}};
    writer.finish();
  }
  for (size_t i = 0; i < spec.requests.size(); i++) {
    const bool kept = spec.generate.batch || i + 1 == spec.requests.size();
    run.state_hashes.push_back(kept ? engine.state_hash(spec.generate.batch ? int(i) : spec.generate.slot) : "");
  }
  return run;
}

std::vector<Request> official_requests(const std::filesystem::path& case_dir, bool forced) {
  std::ifstream in(case_dir / "manifest.json");
  if (!in) throw Error(ErrorKind::malformed, (case_dir / "manifest.json").string(), "can't be read");
  std::vector<Request> out;
  try {
    const nlohmann::json m = nlohmann::json::parse(in);
    for (const auto& p : m.at("prompts")) {
      Request r;
      r.ids = p.at("ids").get<std::vector<int32_t>>();
      r.decode = m.at("decode").at("steps").get<int64_t>();
      if (forced) {
        r.forced = p.at("greedy_ids").get<std::vector<int32_t>>();
        r.forced.resize(std::min<size_t>(r.forced.size(), size_t(r.decode)));   // the last golden id is fed to no pass
      }
      out.push_back(std::move(r));
    }
  } catch (const nlohmann::json::exception& e) {
    throw Error(ErrorKind::malformed, (case_dir / "manifest.json").string(), e.what());
  }
  return out;
}

}  // namespace assay
