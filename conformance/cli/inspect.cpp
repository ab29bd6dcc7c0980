#include "dumps/inspect.h"

#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "conformance/cli/options.h"
#include "dumps/error.h"
#include "dumps/import.h"
#include "dumps/safetensors.h"
#include "engine/formats/synth.h"

namespace assay::cli {
namespace {
struct InspectCommand {
  std::string path, json;
  bool verify = false, tensors = false;
};

bool is_model(const std::filesystem::path& p) {
  return is_synth_spec(p.native()) || p.extension() == ".gguf" || is_there(p / "config.json");
}

nlohmann::ordered_json model_facts(const Model& m) {
  const Config& c = m.config;
  nlohmann::ordered_json rope = {{"theta", c.rope.theta}, {"rotary", c.rope.rotary}, {"type", c.rope.llama3 ? "llama3" : "default"}};
  return {{"record", "model"}, {"path", m.provenance.path}, {"format", m.provenance.format}, {"family", c.family},
          {"layers", c.layers}, {"hidden", c.hidden}, {"heads", c.heads}, {"kv_heads", c.kv_heads}, {"head_dim", c.head_dim},
          {"ffn", c.ffn}, {"vocab", c.vocab}, {"context", c.context}, {"rms_eps", c.rms_eps}, {"tied", c.tied},
          {"qkv_bias", c.qkv_bias}, {"qk_norm", c.qk_norm}, {"qk_norm_whole", c.qk_norm_whole}, {"post_norm", c.post_norm},
          {"rope", rope}, {"bos", c.bos}, {"eos", c.eos},
          {"quantisation", m.provenance.quantisation}, {"hash", m.provenance.hash}, {"tokenizer_hash", m.provenance.tokenizer_hash}};
}

std::string model_text(const nlohmann::ordered_json& f) {
  std::string out;
  for (auto it = f.begin(); it != f.end(); ++it) {
    if (it.key() == "record") continue;
    out += fmt::format("{:<16}{}\n", it.key(), it->is_string() ? it->get<std::string>() : it->dump());
  }
  return out + fmt::format("next            assay dump {} --tokens 1,2,3 --decode 4 --out /tmp/dump\n", f["path"].get<std::string>());
}

int run(const InspectCommand& o) {
  if (is_model(o.path)) {
    const nlohmann::ordered_json facts = model_facts(load_model(o.path));
    if (!o.json.empty()) write_records(o.json, {facts});
    if (o.json != "-") std::cout << model_text(facts);
    return kPass;
  }
  InspectOptions options;
  options.verify = o.verify;
  options.tensors = o.tensors;
  bool good = true;
  if (!o.json.empty()) {
    std::ostringstream text;
    options.json = true;
    good = inspect(o.path, text, options);
    write_text(o.json, text.str());
    options.json = false;
  }
  if (o.json != "-") good = inspect(o.path, std::cout, options);
  return good ? kPass : kMismatch;
}

struct ImportCommand {
  std::vector<std::string> paths;
  std::string out, manifest, mode = "full";
  bool force = false, partial = false;
};

int run(const ImportCommand& o) {
  ImportOptions options;
  options.replace = o.force;
  options.partial = o.partial;
  options.manifest = o.manifest;
  options.mode = capture_mode_from_name(o.mode);
  const int64_t n = import_safetensors({o.paths.begin(), o.paths.end()}, o.out, options);
  std::cout << fmt::format("wrote    {}: {} tensors\nnext     assay inspect {}\n", o.out, n, o.out);
  return kPass;
}
}  // namespace

void add_inspect(CLI::App& app, int& code) {
  auto o = std::make_shared<InspectCommand>();
  CLI::App* c = app.add_subcommand("inspect", "show a model, a dump, an official case or safetensors files");
  c->add_option("path", o->path, "folder or file")->required();
  c->add_flag("--verify", o->verify, "read all values and hold them against their hashes");
  c->add_flag("--tensors", o->tensors, "a line per tensor");
  c->add_option("--json", o->json, "write a JSON record to FILE (-: stdout)");
  c->footer("Example:\n  assay inspect goldens/official/qwen3-odd\n  assay inspect goldens/official/qwen3-odd/model");
  c->callback([o, &code] { code = run(*o); });
}

void add_import(CLI::App& app, int& code) {
  auto o = std::make_shared<ImportCommand>();
  CLI::App* c = app.add_subcommand("import", "make a dump of bare safetensors files: hashes, statistics, manifest");
  c->add_option("paths", o->paths, "files, or folders of files")->required();
  c->add_option("--out", o->out, "folder to write")->required();
  c->add_option("--manifest", o->manifest, "JSON object whose blocks go into the manifest (prompts, engine, options, rows)");
  c->add_option("--mode", o->mode, "full, stats or hash")->capture_default_str();
  c->add_flag("--partial", o->partial, "a baseline that does not hold everything: extra tensors on the other side are no failure");
  c->add_flag("--force", o->force, "replace a finished dump");
  c->footer("Example:\n  assay import their.safetensors --manifest prompts.json --out /tmp/theirs");
  c->callback([o, &code] { code = run(*o); });
}

}  // namespace assay::cli
