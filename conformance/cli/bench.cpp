#include <fmt/format.h>

#include <algorithm>
#include <iostream>

#include "conformance/bench/bench.h"
#include "conformance/bench/op_bench.h"
#include "conformance/cli/options.h"
#include "dumps/error.h"
#include "engine/formats/loader.h"
#include "engine/formats/quantise.h"

namespace assay::cli {
namespace {
struct BenchCommand {
  const CLI::App* app = nullptr;
  EngineChoice engine;
  std::string model, json, by, prompt, rows = "1";
  std::string ops, type = "Q4_0", pass = "decode", cold = "256M";
  std::vector<std::string> shapes;
  bool fuse = false;
  BenchSpec spec;
  int repetitions = 3;
};

/// What was given and would be ignored.
void refuse(const BenchCommand& o, std::initializer_list<const char*> options, const std::string& what, const std::string& wanted) {
  for (const char* option : options)
    if (o.app->count(option) > 0) throw Error(ErrorKind::usage, option, what, wanted);
}

std::vector<int64_t> rows_of(const BenchCommand& o, int64_t most) {
  std::vector<int64_t> out;
  for (int32_t r : parse_ids(o.rows, "--rows")) {
    check_range("--rows", r, 1, most);
    if (std::find(out.begin(), out.end(), r) == out.end()) out.push_back(r);
  }
  return out;
}

/// The cost of more rows in one pass, against the first number of them.
std::string curve(const std::vector<std::pair<int64_t, BenchResult>>& steps, int64_t decode) {
  std::string out = fmt::format("\n  decode together  {:>10} {:>12} {:>10} {:>12}\n", "per step", "tokens/s", "GB/s", "step against");
  for (const auto& [rows, r] : steps)
    out += fmt::format("  {:>15}  {:>7.3f} ms {:>12.2f} {:>10.2f} {:>11.2f}x\n", rows, 1e3 * r.seconds / double(decode), r.tokens_per_second(),
                       r.bytes * double(decode) / r.seconds / 1e9, r.seconds / steps[0].second.seconds);
  return out;
}

int run_model(BenchCommand& o) {
  refuse(o, {"--shape", "--type", "--fuse", "--pass", "--cold"}, "is of single ops", "--op beside it");
  if (o.model.empty()) throw Error(ErrorKind::usage, "model", "is missing", "a folder, a .gguf file or synth:SHAPE:TYPE; or --op and --shape");
  const std::vector<int64_t> rows = rows_of(o, 256);
  check_range("--prefill", o.spec.prefill, 0, 1 << 20);
  check_range("--decode", o.spec.decode, 0, 1 << 20);
  check_range("--draft", o.spec.draft, 0, 64);
  if (!o.prompt.empty()) o.spec.prompt = parse_ids(o.prompt, "--tokens");
  if (o.spec.draft == 0 && !o.prompt.empty()) throw Error(ErrorKind::usage, "--tokens", "is of --draft", "--draft N beside it");
  if (!o.by.empty() && o.by != "phase") throw Error(ErrorKind::usage, "--by", "unknown breakdown", "phase", "\"" + o.by + "\"");
  if (rows.size() > 1 && o.spec.decode == 0)
    throw Error(ErrorKind::usage, "--rows", "several numbers of sequences, and no decode", "--decode above 0", "0");
  const auto model = o.engine.load(o.model);
  o.engine.apply(o.spec.engine);
  o.spec.engine.device.timed = o.by == "phase";
  o.spec.repetitions = o.repetitions;
  std::vector<nlohmann::ordered_json> all;
  std::vector<std::pair<int64_t, BenchResult>> steps;
  for (int64_t r : rows) {
    BenchSpec spec = o.spec;
    spec.rows = r;
    if (r != rows[0]) spec.prefill = 0;   // it is one sequence's
    const BenchReport report = bench(model, spec);
    if (o.json != "-") std::cout << (r == rows[0] ? "" : "\n") << render(report, spec, *model, o.by == "phase") << std::flush;
    for (auto& record : records(report, spec, *model)) all.push_back(std::move(record));
    if (spec.decode > 0) steps.emplace_back(r, report.results.back());
  }
  if (o.json != "-" && rows.size() > 1) std::cout << curve(steps, o.spec.decode);
  if (!o.json.empty()) write_records(o.json, all);
  if (o.json != "-" && o.by.empty()) std::cout << "\n  next       assay bench " << o.model << " --by phase\n";
  return kPass;
}

int run_ops(const BenchCommand& o) {
  refuse(o, {"--by", "--prefill", "--decode", "--vram-budget", "--shadow", "--no-fuse", "--no-graph", "--draft", "--tokens"}, "is of a whole model", "no --op beside it");
  if (o.model.empty() == o.shapes.empty())
    throw Error(ErrorKind::usage, "--op", "wants shapes from one place", "a model, or --shape", o.model.empty() ? "neither" : "both");
  if (o.pass != "decode" && o.pass != "prefill") throw Error(ErrorKind::usage, "--pass", "unknown pass", "decode or prefill", "\"" + o.pass + "\"");
  if (o.fuse && (o.engine.backend != "cuda" || o.model.empty()))
    throw Error(ErrorKind::usage, "--fuse", "groups a model's nodes as a device does", "a model and --backend cuda beside it");
  o.engine.check_backend();
  OpBenchSpec spec;
  o.engine.apply(spec.engine);
  spec.rows = rows_of(o, 1 << 16);
  spec.depth = o.spec.depth;
  spec.prefill = o.pass == "prefill";
  spec.repetitions = o.repetitions;
  spec.cold_bytes = bytes_from_text(o.cold, "--cold");
  spec.seed = o.spec.seed;
  const std::vector<std::string> names = split(o.ops, ',');
  int64_t layers = 0;
  if (o.model.empty()) {
    if (o.shapes.size() != names.size())
      throw Error(ErrorKind::usage, "--shape", "one for each op", std::to_string(names.size()), std::to_string(o.shapes.size()));
    const WeightType type = weight_type_from_name(o.type, "--type");
    for (size_t i = 0; i < names.size(); i++) spec.shapes.push_back(parse_op(names[i], o.shapes[i], type));
  } else {
    refuse(o, {"--type"}, "is of --shape", "the model's own types");
    const ModelOutline outline = outline_model(o.model);
    o.engine.check(outline.model);
    // A device fuses the gate where it decodes one row (engine/abi.h).
    const bool one_row = spec.rows == std::vector<int64_t>{1} && !spec.prefill;
    spec.shapes = ops_of(outline.model, names, o.fuse, one_row);
    if (std::find(names.begin(), names.end(), "all") != names.end()) layers = outline.model.config.layers;
  }
  const OpReport report = bench_ops(spec);
  if (!o.json.empty()) write_records(o.json, records(report, spec, o.model));
  if (o.json == "-") return kPass;
  std::cout << render(report, spec, o.model, layers);
  std::cout << "\n  next       " << (o.model.empty() ? "assay bench synth:8B:" + o.type + " --op all" : "assay bench " + o.model + " --by phase")
            << (o.engine.backend == "cuda" ? " --backend cuda" : "") << "\n";
  return kPass;
}

int run(BenchCommand& o) {
  check_range("--depth", o.spec.depth, 0, 1 << 20);
  check_range("--reps", o.repetitions, 1, 1000);
  return o.ops.empty() ? run_model(o) : run_ops(o);
}
}  // namespace

void add_bench(CLI::App& app, int& code) {
  auto o = std::make_shared<BenchCommand>();
  CLI::App* c = app.add_subcommand("bench", "measure prefill and decode, or single ops, on this machine");
  o->app = c;
  c->add_option("model,--model", o->model, "Hugging Face folder, .gguf file or synth:SHAPE:TYPE");
  o->engine.add(*c);
  c->add_option("--prefill", o->spec.prefill, "tokens of the prompt, 0: none")->capture_default_str();
  c->add_option("--decode", o->spec.decode, "single-row passes, 0: none")->capture_default_str();
  c->add_option("--depth", o->spec.depth, "positions in the cache when decode starts")->capture_default_str();
  c->add_option("--draft", o->spec.draft, "decode by speculation too: drafts of the model's MTP head per verify pass; 0: none")->capture_default_str();
  c->add_option("--tokens", o->prompt, "of --draft: the prompt's ids, like 256,83,58; random ones are drafted badly");
  c->add_option("--rows", o->rows, "sequences that decode together; several numbers, like 1,2,4,8: the cost curve")->capture_default_str();
  c->add_option("--reps", o->repetitions, "repetitions, after one that is not counted; shown is their median (slowest to fastest)")->capture_default_str();
  c->add_option("--seed", o->spec.seed, "of random token ids and operands")->capture_default_str()->check(is_seed);
  c->add_option("--by", o->by, "phase: where the time went");
  c->add_option("--op", o->ops, "ops alone instead of passes: linear,attention,... or phases of the model (q_proj), or all");
  c->add_option("--shape", o->shapes,
                "without a model, for each op: OUTPUTSxINPUTS of linear, VOCABxHIDDEN of embed, HEADS/KV_HEADSxDIM of attention, "
                "KV_HEADSxDIM of kv_store, HEADSxDIM of rope and head_norm, COLUMNS of the others")
      ->delimiter(',');
  c->add_option("--type", o->type, "weight type of --shape")->capture_default_str();
  c->add_flag("--fuse", o->fuse, "of --op on a device: products with what it fuses to them (norm, gate, residual) as one launch");
  c->add_option("--pass", o->pass, "of --op: decode (a sequence per row) or prefill (rows of one sequence)")->capture_default_str();
  c->add_option("--cold", o->cold, "of --op: bytes of weights or caches, in copies one after another, so that no cache serves them")
      ->capture_default_str();
  c->add_option("--json", o->json, "write JSONL records to FILE (-: stdout)");
  c->footer("Single ops: --op all of a model shows where a layer's time goes; --op linear --shape 4096x12288 --rows 1,2,4,8 a curve.\n"
            "Example:\n  assay bench .cache/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --threads 2 --by phase");
  c->callback([o, &code] { code = run(*o); });
}

}  // namespace assay::cli
