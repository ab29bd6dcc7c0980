#include <fmt/format.h>
#include <unistd.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "conformance/cli/options.h"
#include "conformance/drill/engine_replayer.h"
#include "conformance/drill/graft.h"
#include "dumps/bisect.h"
#include "dumps/error.h"
#include "dumps/rows.h"
#include "dumps/text.h"

namespace assay::cli {
namespace {
struct BisectCommand : EngineChoice {
  std::string base, target, level, model, graft, repro, json;
  ToleranceOptions tolerance;
  bool no_color = false, engine_asked = false;
};

std::string engine_name(const Dump& d) {
  const auto& m = d.manifest();
  return m.is_object() && m.contains("engine") && m["engine"].is_object() ? m["engine"].value("name", "") : "";
}

/// Level and tolerance: as asked; else what the dumps are. One engine's runs are to have equal bits.
CompareOptions judged_by(const BisectCommand& o, const Dump& base, const Dump& target) {
  CompareOptions out;
  const bool official = base.kind() == Dump::Kind::official_case;
  const bool same_engine = !engine_name(base).empty() && engine_name(base) == engine_name(target);
  const std::string name = !o.level.empty()                  ? o.level
                           : o.tolerance.asked() || official ? "max_rel"
                           : same_engine                     ? "byte_exact"
                                                             : "";
  if (name.empty())
    throw Error(ErrorKind::usage, "assay bisect", "dumps of two engines need a tolerance",
                "--preset NAME, --tol X or --level byte_exact");
  const auto level = level_from_name(name);
  if (!level || *level == Level::greedy_prefix)
    throw Error(ErrorKind::usage, "--level", "unknown level", "byte_exact or max_rel", "\"" + name + "\"");
  out.level = *level;
  out.tolerance = o.tolerance.chosen(base, out.level);
  out.threads = o.threads;
  return out;
}

int run(const BisectCommand& o) {
  if (o.threads < 0 || o.threads > 1024)
    throw Error(ErrorKind::usage, "--threads", "out of range", "0 (all cores) to 1024", std::to_string(o.threads));
  const Dump base = align_rows(Dump::open(o.base)), target = align_rows(Dump::open(o.target));
  BisectOptions options;
  options.compare = judged_by(o, base, target);
  options.repro = o.repro;
  for (const auto& [value, name] : {std::pair{&o.graft, "--graft"}, {&o.repro, "--repro"}})
    if (!value->empty() && o.model.empty()) throw Error(ErrorKind::usage, name, "needs the model", "--model MODEL");
  std::unique_ptr<EngineReplayer> replayer;
  if (!o.model.empty()) {
    if (o.backend != "cpu") o.load(o.model);  // says what there is
    EngineReplayer::Options r;
    r.model = o.model;
    r.threads = o.threads;
    EngineOptions engine;
    o.apply(engine);
    if (o.engine_asked) r.engine = engine;
    if (!o.isa.empty()) r.isa = engine.isa;
    r.module = engine.device.module;
    replayer = std::make_unique<EngineReplayer>(base, target, std::move(r));
    if (options.compare.level == Level::max_rel &&
        options.compare.tolerance.unit > 0)  // drift is allowed: what is added decides
      add_errors(options.compare, o.model, base, target, false);
  }
  const BisectResult result = bisect(base, target, options, replayer.get());
  const std::string arguments = (o.level.empty() ? "" : " --level " + o.level) + o.tolerance.words() +
                                (o.model.empty() ? "" : " --model " + shell_word(o.model));
  std::vector<nlohmann::ordered_json> records = {to_record(result, base, target, arguments)};
  if (!o.graft.empty()) {
    const WorkFolder work("", "assay-graft");
    options.compare.added.clear();  // of the run before
    records.push_back(to_record(graft(*replayer, base, target, o.graft, options.compare, work.path / "dump")));
  }
  if (!o.json.empty()) write_records(o.json, records);
  if (o.json != "-") {
    std::cout << render_bisect_text(records[0], !o.no_color && isatty(1));
    if (records.size() > 1) std::cout << "\n" << render_graft_text(records[1]);
  }
  return result.exit_code();
}
}  // namespace

void add_bisect(CLI::App& app, int& code) {
  auto o = std::make_shared<BisectCommand>();
  CLI::App* c = app.add_subcommand("bisect", "find the first divergent node of two dumps and say what is wrong there");
  o->kv = "f32";
  o->add(*c);
  c->add_option("base", o->base, "dump or official case")->required();
  c->add_option("target", o->target, "dump")->required();
  c->add_option("--model", o->model,
                "folder or .gguf file: operands are held against it and the suspect node is replayed");
  c->add_option("--level", o->level, "byte_exact or max_rel (default: byte_exact between dumps of one engine)");
  o->tolerance.add(*c);
  c->add_option("--graft", o->graft,
                "run the target again with the baseline's value of this node: layer.3/q_rope, a full name, a glob; "
                "more by commas");
  c->add_option("--repro", o->repro, "folder for a small case that shows a faulty kernel alone (assay replay)");
  c->add_option("--json", o->json, "write JSONL records to FILE (-: stdout)");
  c->add_flag("--no-color", o->no_color, "plain text on a terminal");
  c->footer(
      "Example:\n  assay bisect /tmp/base /tmp/target\n  assay bisect /tmp/base /tmp/target --model MODEL --repro "
      "/tmp/repro\n"
      "  assay bisect goldens/official/qwen3-odd /tmp/target --model goldens/official/qwen3-odd/model --graft "
      "layer.0/q_rope\n"
      "Options of the engine (--kv, --activations, --isa, --module) are the target's own where its manifest names them.");
  c->callback([o, c, &code] {
    o->engine_asked = c->count("--kv") + c->count("--activations") + c->count("--isa") > 0;
    code = run(*o);
  });
}

}  // namespace assay::cli
