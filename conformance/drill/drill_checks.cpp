// Bisect, replay and graft on targets whose fault is known: the verdict, the place and the words must be those of
// drill/expected.json; a reproducer fails alone with the fault and holds without it; a graft makes the error vanish.
#include <fmt/format.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "conformance/drill/engine_replayer.h"
#include "conformance/drill/graft.h"
#include "conformance/faults/faults.h"
#include "conformance/integration/quantised.h"
#include "dumps/error.h"
#include "engine/formats/convert.h"
#include "engine/formats/hf_tokenizer.h"
#include "engine/formats/quantise.h"

namespace assay {
namespace {

using Inner = std::function<void(NodeContext&)>;

/// Faults of this room, which no kernel and no operand check of another room would plant.
Rewrite plant_of(const std::string& name) {
  if (name == "+weight-overwritten") {  // a write behind another buffer's end: layer 1 suffers for what layer 0 did
    return [](Engine& e) {
      float* victim = const_cast<float*>(&e.model().weights.layers.at(1).ffn_norm.at(3));
      wrap_node(e, *e.plantable_program().find(0, "up_proj"), [victim](NodeContext& c, const Inner& inner) {
        inner(c);
        *victim = 1.5f;
      });
    };
  }
  if (name == "+router-writes-4x") {  // A13, A14: a byte offset on a float pointer: four times too far, over another weight
    return [](Engine& e) {
      float* victim = const_cast<float*>(&e.model().weights.layers.at(1).ffn_norm.at(8));
      wrap_node(e, *e.plantable_program().find(0, "router_logits"), [victim](NodeContext& c, const Inner& inner) {
        inner(c);
        std::memcpy(victim, c.output, 2 * sizeof(float));
      });
    };
  }
  if (name == "+wired-wrong") {
    return [](Engine& e) {
      Program& p = e.plantable_program();
      p.find(1, "up_proj")->inputs = {p.find(1, "attn_norm")->output};
    };
  }
  if (name == "+cache-row-zeroed") {
    return [](Engine& e) {
      wrap_node(e, *e.plantable_program().find(1, "kv_store"), [](NodeContext& c, const Inner& inner) {
        inner(c);
        std::memset(c.cache->v + size_t(c.cache->offset(c.places[0].slot, 0, 0)) * size_of(c.cache->type), 0,
                    size_of(c.cache->type));
      });
    };
  }
  return name.empty() ? Rewrite() : plant_all({name});
}

void check_repro(const std::filesystem::path& dir, const nlohmann::json& size, const Rewrite& planted,
                 CheckOutcome& out) {
  const ReproFile r = read_repro(dir);
  const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  };
  out.compared += 2;
  if (!same(run_case(r.c, planted).value, r.got) || same(r.got, r.expected))
    out.fail("the reproducer does not reproduce");
  if (!same(run_case(r.c).value, r.expected)) out.fail("the reproducer fails without the fault, too");
  if (r.c.rows != size[0] || r.c.columns != size[1])
    out.fail(fmt::format("the reproducer has {} rows of {} columns, {} of {} are enough", r.c.rows, r.c.columns,
                         size[0].get<int64_t>(), size[1].get<int64_t>()));
}

/// The manifest as another engine would have written it.
void make_stranger(const std::filesystem::path& dump) {
  nlohmann::ordered_json m = nlohmann::ordered_json::parse(read_text_file(dump / "manifest.json"));
  m["engine"] = {{"name", "stranger"}};
  m.erase("planted_faults");
  for (auto& t : m["tensors"]) t.erase("inputs");
  std::ofstream(dump / "manifest.json") << m.dump();
}

CheckOutcome drill(const CheckContext& c, const nlohmann::json& row) {
  CheckOutcome out;
  const OfficialCase& oc = official_case(row.at("case"));
  std::filesystem::path path = case_dir(c, oc) / "model";
  std::shared_ptr<const Model> model = shared_model(path);
  if (row.contains("quantisation")) {
    // A file of this check: the model is loaded again and again, and those of quantised_case() go with their check.
    ConvertOptions convert;
    convert.type = weight_type_from_name(row.at("quantisation"), "drill/expected.json");
    convert.threads = c.threads;
    convert_model(path, c.work / "model.gguf", convert);
    path = c.work / "model.gguf";
    model = std::make_shared<Model>(load_model(path));
  }
  DumpSpec spec = case_spec(c, oc, true);
  for (Request& r : spec.requests) {
    r.decode = std::min<int64_t>(r.decode, 2);
    r.forced.resize(std::min(r.forced.size(), size_t(r.decode)));
  }
  spec.mode = row.value("mode", "full") == "hash" ? CaptureMode::hash : CaptureMode::full;
  const Rewrite planted = plant_of(row.at("fault"));
  spec.out = c.work / "base";
  run_dump(model, spec);
  spec.out = c.work / "target";
  {
    // A model of its own: a fault may write into it.
    const auto engine = make_engine(std::make_shared<Model>(load_model(path)), spec);
    if (planted) planted(*engine);
    run_dump(*engine, spec);
  }
  const bool official = row.value("against", "") == "official", stranger = row.value("stranger", false);
  if (stranger) make_stranger(spec.out);
  const Dump base = Dump::open(official ? case_dir(c, oc) : c.work / "base"), target = Dump::open(spec.out);
  EngineReplayer::Options options;
  options.model = path;
  options.threads = c.threads;
  options.plant = planted;
  EngineReplayer replayer(base, target, options);
  BisectOptions how;
  how.compare.level = official || stranger ? Level::max_rel : Level::byte_exact;
  how.compare.tolerance = presets().at(official ? "official-f32" : "f32");
  how.compare.threads = c.threads;
  if (row.contains("repro")) how.repro = c.work / "repro";
  const BisectResult r = bisect(base, target, how, &replayer);
  out.compared++;
  if (r.verdict != row.at("verdict").get<std::string>() || r.name != row.at("name").get<std::string>())
    out.fail(fmt::format("{} at {}, expected {} at {}: {}", r.verdict, r.name.empty() ? "no place" : r.name,
                         row.at("verdict").get<std::string>(), row.at("name").get<std::string>(), r.text));
  for (const auto& part : row.at("text"))
    if (r.text.find(part.get<std::string>()) == std::string::npos)
      out.fail(fmt::format("\"{}\" is missing in: {}", part.get<std::string>(), r.text));
  if (row.contains("repro")) {
    if (!r.repro)
      out.fail("no reproducer");
    else
      check_repro(how.repro, row.at("repro"), planted, out);
  }
  if (row.contains("graft")) {
    const GraftResult g = graft(replayer, base, target, row.at("graft"), how.compare, c.work / "grafted");
    out.compared++;
    if (!g.vanished()) out.fail("graft: " + g.text);
    // One value alone leaves the fault in the others.
    const GraftResult one = graft(replayer, base, target, r.name, how.compare, c.work / "grafted-one");
    if (one.vanished() || one.differed == 0) out.fail("graft of one value: " + one.text);
  }
  out.notes.push_back(r.text + (r.repro ? "; " + r.repro->text : ""));
  return out;
}

}  // namespace

void add_drill_checks(std::vector<Check>& out) {
  // The table is read when a check runs: where the repository lies is known only then. Its ids stand here.
  for (const char* id : {"rope-pairs", "rope-pairs-official", "gqa-tile", "nibbles-swapped", "hash-only", "norm-order",
                         "lm-head-ignored", "eps-1e-5", "weight-overwritten", "router-writes-4x", "experts-swapped", "wired-wrong", "wired-wrong-stranger",
                         "rope-pairs-stranger", "cache-row-zeroed", "clean"}) {
    Check k;
    k.id = std::string("drill/") + id;
    k.kind = CheckKind::artifact;
    k.scope = Scope::none;
    k.family = "-";
    k.baseline = "drill/expected.json";
    k.target = "what bisect says of a target with a known fault";
    k.expected = 1;
    k.run = [name = std::string(id)](const CheckContext& c) {
      const std::string path = (c.root / "conformance" / "drill" / "expected.json").string();
      try {
        const nlohmann::json table = nlohmann::json::parse(read_text_file(path));
        for (const auto& row : table.at("rows"))
          if (row.at("id") == name) return drill(c, row);
      } catch (const nlohmann::json::exception& e) {
        throw Error(ErrorKind::malformed, path, e.what());
      }
      throw Error(ErrorKind::malformed, path, "no row", name);
    };
    out.push_back(std::move(k));
  }
}

}  // namespace assay
