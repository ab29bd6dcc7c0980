#include <fmt/format.h>
#include <unistd.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <set>

#include "conformance/cli/options.h"
#include "conformance/cli/progress.h"
#include "dumps/compare.h"
#include "dumps/error.h"
#include "dumps/map.h"
#include "dumps/names.h"
#include "dumps/report.h"
#include "dumps/text.h"

namespace assay::cli {
namespace {
struct CompareCommand {
  std::string base, target, level = "max_rel", until, only, map, model, json, html;
  ToleranceOptions tolerance;
  int threads = 0;
  bool verbose = false, no_color = false, extra = false;
};

/// Added errors say nothing of a value that the model has no node for: a misspelt name, a model of fewer layers.
void warn_of_the_unknown(const Dump& target, CompareResult& result) {
  std::set<std::string> known;
  for (const NodeError& e : result.added) known.insert(e.name);
  std::string first;
  int64_t n = 0;
  for (const DumpTensor& t : target.tensors())
    if (is_float(t.dtype) && t.data && role_of(t.name) != "ids" && !known.contains(t.name) && n++ == 0) first = t.name;
  if (n > 0)
    result.warnings.push_back(
        fmt::format("{} tensor{} of the target {} no node of the model, so that no added error is known: {}", n,
                    n == 1 ? "" : "s", n == 1 ? "is" : "are", first));
}

int run(const CompareCommand& o) {
  different_outputs(o.json, o.html);
  CompareOptions options;
  const auto level = level_from_name(o.level);
  if (!level)
    throw Error(ErrorKind::usage, "--level", "unknown level", "byte_exact, max_rel or greedy_prefix",
                "\"" + o.level + "\"");
  options.level = *level;
  const Dump base = Dump::open(o.base);
  Dump target = Dump::open(o.target);
  if (!o.map.empty()) target = Mapping(target, DumpMap::read(o.map)).dump();
  options.tolerance = o.tolerance.chosen(base, options.level);
  if (!o.until.empty()) options.until = o.until;
  if (!o.only.empty()) options.only = split(o.only, ',');
  if (o.threads < 0 || o.threads > 1024)
    throw Error(ErrorKind::usage, "--threads", "out of range", "0 (all cores) to 1024", std::to_string(o.threads));
  options.threads = o.threads;
  options.extra = o.extra;
  options.row_errors = !o.json.empty() || !o.html.empty();  // for maps by position
  Progress progress;
  options.progress = [&progress, last = int64_t(-1)](int64_t done, int64_t total) mutable {
    const int64_t percent = total ? 100 * done / total : 100;
    if (percent == last || total < (int64_t(1) << 28)) return;
    last = percent;
    progress.say("comparing " + std::to_string(percent) + "%");
  };
  if (!o.model.empty()) add_errors(options, o.model, base, target, true);
  CompareResult result = compare(base, target, options);
  progress.clear();
  if (!o.model.empty()) warn_of_the_unknown(target, result);
  auto records = to_records(result, base, target);
  std::string kept = o.tolerance.words();  // so that the command which the text ends with judges the same
  for (const auto& [option, value] : {std::pair{" --only ", o.only}, {" --map ", o.map}, {" --model ", o.model}})
    if (!value.empty()) kept += option + shell_word(value);
  if (!kept.empty()) records.front()["arguments"] = kept.substr(1);
  if (!o.json.empty()) write_records(o.json, records);
  if (!o.html.empty()) write_text(o.html, render_html(records));
  if (o.json != "-") std::cout << render_text(records, !o.no_color && isatty(1), o.verbose);
  return result.exit_code();
}
}  // namespace

void add_compare(CLI::App& app, int& code) {
  auto o = std::make_shared<CompareCommand>();
  CLI::App* c =
      app.add_subcommand("compare", "compare a target dump with a baseline; name the first place where they part");
  c->add_option("base", o->base, "dump, official case (goldens/official/...) or folder of safetensors")->required();
  c->add_option("target", o->target, "dump or folder of safetensors")->required();
  c->add_option("--level", o->level, "byte_exact, max_rel or greedy_prefix")->capture_default_str();
  o->tolerance.add(*c);
  c->add_option("--until", o->until, "stop after this node: layer.3/q_rope (a pass is then partial)");
  c->add_option("--only", o->only, "phases, or globs over whole names (*/prefill/*), comma-separated");
  c->add_option("--map", o->map, "map file (dumps/MAP.md): the target is another engine's dump");
  c->add_option("--model", o->model,
                "HF folder or GGUF file: shows the error that each node adds; with --preset bf16 it decides");
  c->add_option("--threads", o->threads, "0: all cores")->capture_default_str();
  c->add_option("--json", o->json, "write JSONL records to FILE (-: stdout)");
  c->add_option("--html", o->html, "write the report as one HTML file, without anything from outside");
  c->add_flag("--verbose", o->verbose, "every phase, prompt and failing tensor");
  c->add_flag("--extra", o->extra, "cosine, NMSE, element-wise relative error; for logits KL, top-k agreement, margin");
  c->add_flag("--no-color", o->no_color, "plain text on a terminal");
  c->footer(
      "Example:\n  assay compare goldens/official/qwen3-odd /tmp/d --level max_rel\n  assay compare /tmp/a /tmp/b "
      "--level byte_exact\n"
      "  assay compare /tmp/f32 /tmp/bf16 --preset bf16 --model MODEL --html /tmp/report.html");
  c->callback([o, &code] { code = run(*o); });
}

}  // namespace assay::cli
