#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "conformance/cli/options.h"
#include "conformance/faults/faults.h"
#include "dumps/dump.h"
#include "dumps/error.h"
#include "oracle/dump.h"

namespace assay::cli {
namespace {
struct DumpCommand {
  ModelOptions model;
  int64_t decode = 0;
  std::string out, mode = "full", filter, layers, plant, json;
  bool state = false, force = false;

  DumpFolder folder() const {
    DumpFolder f;
    f.out = out;
    f.mode = capture_mode_from_name(mode);
    f.replace = force;
    f.capture.state = state;
    if (!filter.empty()) f.capture.phases = split(filter, ',');
    if (!layers.empty()) f.capture.layers = parse_ranges(layers, "--layers");
    return f;
  }
};

std::string prompt_line(size_t prompt, size_t length, const std::vector<int32_t>& greedy) {
  std::string ids = join(greedy);
  if (ids.size() > 70) ids = ids.substr(0, 67) + "...";
  return fmt::format("prompt{:<3}{} ids, greedy {}\n", prompt, length, ids);
}

void check_layers(const CaptureOptions& capture, const Config& config) {
  for (const auto& [a, b] : capture.layers)
    if (b >= config.layers)
      throw Error(ErrorKind::usage, "--layers", "no such layer", "0 to " + std::to_string(config.layers - 1),
                  std::to_string(b));
}

/// `--backend oracle`: the same names and prompts in float64, by code that shares nothing with the engine's. It has no
/// kinds of arithmetic to choose from.
int run_oracle(const CLI::App& command, const DumpCommand& o) {
  for (const char* option : {"--activations", "--kv", "--isa", "--chunk", "--ctx", "--slot", "--batch", "--plant"})
    if (command.count(option) > 0)
      throw Error(ErrorKind::usage, option,
                  "means nothing to the oracle, which computes in float64 and a prompt at a time", "", "",
                  "Leave the option out.");
  DumpSpec spec = o.model.spec(o.decode);
  oracle::DumpOptions options;
  static_cast<DumpFolder&>(options) = o.folder();
  options.threads = o.model.threads;
  const oracle::Weights64 weights = oracle::Weights64::open(
      o.model.official.empty() ? o.model.model : (std::filesystem::path(o.model.official) / "model").string());
  check_layers(options.capture, weights.config());
  o.model.force_experts(spec, weights.config());
  const std::vector<oracle::Generated64> generated = oracle::write_dump(weights, spec.requests, options);

  const size_t tensors = Dump::open(o.out).tensors().size();
  nlohmann::ordered_json record = {
      {"record", "dump"}, {"out", o.out}, {"tensors", tensors}, {"prompts", nlohmann::json::array()}};
  std::string text = fmt::format("model    {}\n         {}, {}, oracle: float64\n", weights.provenance().path,
                                 weights.config().family, weights.provenance().quantisation);
  for (size_t i = 0; i < generated.size(); i++) {
    text += prompt_line(i, spec.requests[i].ids.size(), generated[i].greedy);
    record["prompts"].push_back({{"prompt", "prompt" + std::to_string(i)}, {"greedy_ids", generated[i].greedy}});
  }
  text +=
      fmt::format("wrote    {}: {} tensors, mode {}\nnext     assay compare {} {}\n", o.out, tensors, o.mode,
                  o.model.official.empty() ? o.out : o.model.official, o.model.official.empty() ? "THEIR_DUMP" : o.out);
  if (!o.json.empty()) write_records(o.json, {record});
  if (o.json != "-") std::cout << text;
  return kPass;
}

int run(const DumpCommand& o) {
  DumpSpec spec = o.model.spec(o.decode);
  static_cast<DumpFolder&>(spec) = o.folder();
  spec.plant = o.plant;
  const std::shared_ptr<const Model> model = o.model.load();
  check_layers(spec.capture, model->config);
  o.model.force_experts(spec, model->config);
  const DumpRun r = run_dump(model, spec);

  const Dump dump = Dump::open(o.out);
  int code = kPass;
  nlohmann::ordered_json record = {
      {"record", "dump"}, {"out", o.out}, {"tensors", dump.tensors().size()}, {"prompts", nlohmann::json::array()}};
  std::string text =
      fmt::format("{}, {}, {}; activations {}, kv {}", model->config.family, model->provenance.quantisation,
                  r.trace.variants().empty() ? "" : r.trace.variants()[0].first,
                  model->quantised() ? o.model.activations.value_or("s16") : "f32", o.model.kv);
  text = fmt::format("model    {}\n         {}\n", model->provenance.path, text);
  if (!o.plant.empty()) text += fmt::format("planted  {}: this dump is wrong on purpose\n", o.plant);
  for (size_t i = 0; i < r.generated.size(); i++) {
    const Generated& g = r.generated[i];
    text += prompt_line(i, spec.requests[i].ids.size(), g.greedy);
    nlohmann::ordered_json p = {
        {"prompt", "prompt" + std::to_string(i)}, {"greedy_ids", g.greedy}, {"state_hash", r.state_hashes[i]}};
    if (g.non_finite) {
      text += fmt::format("         NOT FINITE, first at {}\n", g.non_finite->text());
      p["non_finite"] = g.non_finite->text();
      code = kMismatch;
    }
    record["prompts"].push_back(p);
  }
  text += fmt::format("wrote    {}: {} tensors, mode {}\nnext     assay {} {}\n", o.out, dump.tensors().size(), o.mode,
                      o.model.official.empty() ? "inspect" : "compare " + o.model.official, o.out);
  if (!o.model.official.empty() && o.model.kv != "f32")
    text += fmt::format(
        "note     caches are {}; the official goldens keep theirs unrounded: --kv f32 to be held against them\n",
        o.model.kv);
  if (!o.json.empty()) write_records(o.json, {record});
  if (o.json != "-") std::cout << text;
  return code;
}
}  // namespace

void add_dump(CLI::App& app, int& code) {
  auto o = std::make_shared<DumpCommand>();
  CLI::App* c = app.add_subcommand("dump", "run a model and capture every phase of every layer");
  o->model.add(*c);
  c->add_option("--force-experts", o->model.forced_experts,
                "dump or official case whose experts rows go to instead of their routers' choice; without other prompts "
                "also its prompts and what they were fed");
  c->add_option("--decode", o->decode, "decode passes after the prefill (N passes, N+1 greedy ids; EOS does not stop)")
      ->capture_default_str();
  c->add_option("--out", o->out, "folder to write; must be absent, empty or an unfinished dump")->required();
  c->add_option("--mode", o->mode, "full (values), stats or hash")->capture_default_str();
  c->add_option("--filter", o->filter, "phases to keep, comma-separated globs: q_*,logits");
  c->add_option("--layers", o->layers, "layers to keep: 0,3-5");
  c->add_flag("--state", o->state, "KV caches after prefill and after the last decode pass");
  c->add_flag("--force", o->force, "replace a finished dump");
  std::string known;
  for (const Fault& f : faults())
    if (f.engine || f.kernels) known += (known.empty() ? "" : ", ") + f.name();
  c->add_option("--plant", o->plant, "plant a fault, to see it caught: " + known);
  c->add_option("--json", o->json, "write a JSONL record to FILE (-: stdout)");
  c->footer(
      "Example:\n  assay dump --case goldens/official/qwen3-odd --kv f32 --state --out /tmp/d\n"
      "  assay compare goldens/official/qwen3-odd /tmp/d --level max_rel\n"
      "  assay dump MODEL --tokens 473,337,357 --decode 8 --mode hash --out /tmp/h\n"
      "  assay dump MODEL --tokens 473,337,357 --backend oracle --out /tmp/f64      (float64, what is right)\n"
      "  assay dump MODEL --backend oracle --force-experts /tmp/theirs --out /tmp/f64   (and with their experts)");
  c->callback([o, c, &code] { code = o->model.backend == "oracle" ? run_oracle(*c, *o) : run(*o); });
}

}  // namespace assay::cli
