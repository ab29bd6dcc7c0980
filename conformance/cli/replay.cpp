#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>

#include "conformance/cli/options.h"
#include "conformance/drill/engine_replayer.h"
#include "dumps/error.h"
#include "dumps/json.h"
#include "dumps/text.h"

namespace assay::cli {
namespace {
struct ReplayCommand {
  std::string repro, isa, module, json;
};

bool same(float a, float b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

int run(const ReplayCommand& o) {
  const auto start = std::chrono::steady_clock::now();
  ReproFile r = read_repro(o.repro);
  NodeCase& c = r.c;
  if (!o.isa.empty() && !o.module.empty()) throw Error(ErrorKind::usage, "--isa", "is of the CPU", "--module alone", o.isa);
  if (!o.isa.empty()) c.options.isa = isa_from_name(o.isa), c.options.device.module.clear();
  if (!o.module.empty()) c.options.device.module = o.module;
  const bool on_device = !c.options.device.module.empty();
  if (!isa_supported(c.options.isa)) {
    std::cout << fmt::format(
        "not run: the case is pinned to {}, which this machine lacks: not a pass\nnext     assay replay {} --isa {}\n",
        name_of(c.options.isa), shell_word(o.repro), name_of(best_isa()));
    return kNotRun;
  }
  NodeRun got = run_case(c, plant_all(r.plants));
  for (auto* x : {&got.value, &r.expected, &r.got}) canonicalise(DType::f32, x->data(), int64_t(x->size()));
  for (float x : r.expected)
    if (!std::isfinite(x))
      throw Error(ErrorKind::malformed, o.repro, "expects a value that is not finite, and a NaN never passes", "finite values",
                  std::to_string(x), "assay bisect --repro writes such cases of finite baselines alone.");
  int64_t differ = 0, first = -1;
  bool as_recorded = true;
  for (size_t i = 0; i < got.value.size(); i++) {
    as_recorded = as_recorded && same(got.value[i], r.got[i]);
    if (same(got.value[i], r.expected[i])) continue;
    if (differ++ == 0) first = int64_t(i);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  nlohmann::ordered_json record = {{"record", "replay"},
                                   {"version", 1},
                                   {"repro", o.repro},
                                   {"origin", r.origin},
                                   {"op", name_of(c.node.op)},
                                   {"variant", got.variant},
                                   {"isa", kernels_of(c.options)},
                                   {"reproduces", differ > 0},
                                   {"as_recorded", as_recorded},
                                   {"elements", got.value.size()},
                                   {"differ", differ},
                                   {"first", nullptr},
                                   {"seconds", seconds}};
  if (first >= 0)
    record["first"] = {{"row", first / c.columns},
                       {"column", first % c.columns},
                       {"expected", json_number(r.expected[size_t(first)])},
                       {"got", json_number(got.value[size_t(first)])}};
  if (!o.json.empty()) write_records(o.json, {record});
  if (o.json == "-") return differ ? kMismatch : kPass;
  std::string text =
      differ ? fmt::format("REPRODUCES  {} of {} elements, first at row {}, column {}: expected {:.9g}, got {:.9g}\n\n",
                           differ, got.value.size(), first / c.columns, first % c.columns, r.expected[size_t(first)],
                           got.value[size_t(first)])
             : fmt::format("DOES NOT REPRODUCE  the kernel gives all {} expected elements, bit by bit\n\n",
                           got.value.size());
  text += fmt::format("  {:<10} {}, found at {}\n", "node", name_of(c.node.op), r.origin);
  text += fmt::format("  {:<10} {} rows from position {}, {} columns{}\n", "case", c.rows, c.first_position, c.columns,
                      c.node.op == OpKind::linear ? fmt::format(" of {} summed", c.weight.columns) : "");
  text += fmt::format("  {:<10} {} on {}{}\n", "kernel", got.variant, kernels_of(c.options),
                      r.plants.empty() ? "" : " (a planted fault: wrong on purpose)");
  if (differ)
    text += fmt::format("  {:<10} {}\n", "bytes",
                        as_recorded ? "as when the case was made" : "other ones than when the case was made");
  text += fmt::format("\n  {:<10} {}\n", "next",
                      differ && (on_device || c.options.isa != Isa::scalar)
                          ? fmt::format("assay replay {} --isa scalar", shell_word(o.repro))
                          : fmt::format("assay inspect {}", shell_word(o.repro)));
  std::cout << text;
  return differ ? kMismatch : kPass;
}
}  // namespace

void add_replay(CLI::App& app, int& code) {
  auto o = std::make_shared<ReplayCommand>();
  CLI::App* c = app.add_subcommand(
      "replay", "run a reproducer alone: 1 while it reproduces, 0 once the kernel gives the expected bytes");
  c->add_option("repro", o->repro, "folder that assay bisect --repro wrote")->required();
  c->add_option("--isa", o->isa, "the CPU's kernels, of this instruction set, not those that it was found on");
  c->add_option("--module", o->module, "another device module than the one it was found on");
  c->add_option("--json", o->json, "write a JSONL record to FILE (-: stdout)");
  c->footer(
      "Example:\n  assay bisect /tmp/base /tmp/target --model MODEL --repro /tmp/repro\n  assay replay /tmp/repro");
  c->callback([o, &code] { code = run(*o); });
}

}  // namespace assay::cli
