#include <iostream>

#include "conformance/bench/bench.h"
#include "conformance/cli/options.h"
#include "dumps/error.h"

namespace assay::cli {
namespace {
struct BenchCommand {
  EngineChoice engine;
  std::string model, json, by;
  BenchSpec spec;
};

int run(BenchCommand& o) {
  check_range("--prefill", o.spec.prefill, 0, 1 << 20);
  check_range("--decode", o.spec.decode, 0, 1 << 20);
  check_range("--depth", o.spec.depth, 0, 1 << 20);
  check_range("--rows", o.spec.rows, 1, 256);
  check_range("--reps", o.spec.repetitions, 1, 1000);
  if (!o.by.empty() && o.by != "phase") throw Error(ErrorKind::usage, "--by", "unknown breakdown", "phase", "\"" + o.by + "\"");
  const auto model = o.engine.load(o.model);
  o.engine.apply(o.spec.engine);
  o.spec.engine.device.timed = o.by == "phase";
  const BenchReport report = bench(model, o.spec);
  if (o.json != "-") std::cout << render(report, o.spec, *model, o.by == "phase");
  if (!o.json.empty()) write_records(o.json, records(report, o.spec, *model));
  if (o.json != "-" && o.by.empty()) std::cout << "\n  next       assay bench " << o.model << " --by phase\n";
  return kPass;
}
}  // namespace

void add_bench(CLI::App& app, int& code) {
  auto o = std::make_shared<BenchCommand>();
  CLI::App* c = app.add_subcommand("bench", "measure prefill and decode on this machine");
  c->add_option("model", o->model, "Hugging Face folder, .gguf file or synth:SHAPE:TYPE")->required();
  o->engine.add(*c);
  c->add_option("--prefill", o->spec.prefill, "tokens of the prompt, 0: none")->capture_default_str();
  c->add_option("--decode", o->spec.decode, "single-row passes, 0: none")->capture_default_str();
  c->add_option("--depth", o->spec.depth, "positions in the cache when decode starts")->capture_default_str();
  c->add_option("--rows", o->spec.rows, "sequences that decode together")->capture_default_str();
  c->add_option("--reps", o->spec.repetitions, "repetitions, after one that is not counted; shown is their median (slowest to fastest)")->capture_default_str();
  c->add_option("--seed", o->spec.seed, "of the random token ids")->capture_default_str()->check(is_seed);
  c->add_option("--by", o->by, "phase: where the time went");
  c->add_option("--json", o->json, "write JSONL records to FILE (-: stdout)");
  c->footer("Example:\n  assay bench .cache/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --threads 2 --by phase");
  c->callback([o, &code] { code = run(*o); });
}

}  // namespace assay::cli
