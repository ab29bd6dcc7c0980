// assay plan and assay limits: what a model needs and what bounds it, before anything is loaded.
#include "engine/plan.h"

#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "conformance/bench/bench.h"
#include "conformance/cli/options.h"
#include "dumps/error.h"
#include "dumps/text.h"
#include "engine/limits.h"

namespace assay::cli {
namespace {

constexpr int64_t kMostPositions = int64_t(1) << 32;

struct PlanCommand {
  EngineChoice engine;
  std::string model, json;
  int64_t slots = 1, context = 0, rows = 512;
};

int run(const PlanCommand& o) {
  check_range("--slots", o.slots, 1, 4096);
  check_range("--ctx", o.context, 0, kMostPositions);
  check_range("--rows", o.rows, 1, kMostPositions);
  const ModelOutline outline = outline_model(o.model);
  EngineOptions options;
  options.slots = int(o.slots);
  options.context = o.context;
  o.engine.apply(options);
  check_options(options, outline.model.config);
  const MemoryPlan p = plan_memory(outline, options, std::min(o.rows, options.context));

  const std::pair<const char*, std::pair<size_t, const char*>> classes[] = {
      {"mapped", {p.mapped, "files, mapped: pages the system may drop and read again"}},
      {"copies", {p.copies, "matrices held in memory of their own"}},
      {"vectors", {p.vectors, "norms and biases, widened"}},
      {"panels", {p.engine.panels, "quantised weights repacked for SIMD"}},
      {"kv", {p.engine.kv, "caches"}},
      {"rope", {p.engine.rope, "cos and sin tables"}},
      {"values", {p.engine.values, "buffers of node values"}},
      {"quantised", {p.engine.quantised, "activations as integers"}},
      {"scratch", {p.engine.scratch, "attention, all threads"}},
      {"packing", {p.packing, "float linears, all threads: at most"}}};
  const size_t available = available_memory();
  // Mapped pages need not stay: what must fit is the rest, and of the file what is read at a time.
  const bool fits = available == 0 || p.total() - p.mapped <= available;
  if (!o.json.empty()) {
    nlohmann::ordered_json record = {
        {"record", "plan"}, {"model", o.model}, {"slots", o.slots}, {"context", options.context}, {"rows", o.rows}};
    for (const auto& [name, c] : classes) record[name] = c.first;
    record["total"] = p.total();
    record["kv_per_slot"] = p.engine.kv / size_t(o.slots);
    record["available"] = available;
    record["fits"] = fits;
    write_records(o.json, {record});
  }
  if (o.json != "-") {
    std::cout << fmt::format("{}: {} slot{} of {} positions, passes of up to {} rows\n\n", o.model, o.slots,
                             o.slots == 1 ? "" : "s", options.context, std::min(o.rows, options.context));
    for (const auto& [name, c] : classes)
      if (c.first) std::cout << fmt::format("  {:<10} {:>9}   {}\n", name, bytes_text(c.first), c.second);
    std::cout << fmt::format("  {:<10} {:>9}   mapped files included; caches: {} per slot\n", "total", bytes_text(p.total()),
                             bytes_text(p.engine.kv / size_t(o.slots)));
    if (available)
      std::cout << fmt::format("  {:<10} {:>9}   free on this machine now\n", "available", bytes_text(available));
  }
  if (fits && available && p.total() > available)
    std::cerr << "assay: the files are larger than what is free: weights are read from disk again and again\n";
  if (!fits)
    throw Error(ErrorKind::memory, o.model, "does not fit into the memory of this machine",
                bytes_text(p.total() - p.mapped) + " besides mapped files", bytes_text(available) + " free",
                std::string("What needs less: a smaller --ctx, fewer --slots") + (o.engine.kv == "f32" ? ", --kv f16" : "") +
                    (p.engine.panels ? ", --activations f32 (no panels)" : "") + ", a smaller weight type.");
  return kPass;
}

struct LimitsCommand {
  std::string model, kv = "f16", json;
  int64_t context = 1, prompt = 512;
  double bandwidth = 0, rate = 0;
  int threads = 0;
};

int run(const LimitsCommand& o) {
  check_range("--ctx", o.context, 1, kMostPositions);
  check_range("--prefill", o.prompt, 1, 1 << 24);
  if (!(o.bandwidth >= 0) || !(o.rate >= 0))
    throw Error(ErrorKind::usage, "--bandwidth, --rate", "negative", "0 or more");
  const ModelOutline outline = outline_model(o.model);
  EngineChoice choice;
  choice.kv = o.kv;
  EngineOptions options;
  choice.apply(options);
  const Limits l = limits_of(build_program(outline.model), o.context, o.prompt, options.kv);
  const bool measured = o.bandwidth == 0;
  const double bandwidth = (measured ? plain_read_gbps(o.threads) : o.bandwidth) * 1e9;
  const double intensity = double(l.prefill.operations) / double(l.prefill.moved());
  if (!o.json.empty()) {
    nlohmann::ordered_json record = {
        {"record", "limits"},
        {"model", o.model},
        {"context", o.context},
        {"prompt", o.prompt},
        {"kv", o.kv},
        {"decode_bytes", l.decode.moved()},
        {"weight_bytes", l.decode.weight_bytes},
        {"state_bytes", l.decode.state_read + l.decode.state_written},
        {"kv_bytes_per_position", l.kv_bytes_per_position},
        {"decode_operations", l.decode.operations},
        {"prefill_operations_per_token", double(l.prefill.operations) / double(o.prompt)},
        {"prefill_bytes", l.prefill.moved()},
        {"bandwidth_gbps", bandwidth / 1e9},
        {"bandwidth_measured", measured},
        {"decode_tokens_per_second_at_most", l.decode_bound(bandwidth)},
        {"prefill_tokens_per_second_at_most_by_bytes", l.prefill_bound_by_bytes(bandwidth)}};
    if (o.rate > 0)
      record["prefill_tokens_per_second_at_most_by_operations"] = l.prefill_bound_by_operations(o.rate * 1e9);
    write_records(o.json, {record});
  }
  if (o.json != "-") {
    std::cout << fmt::format("{}: {}, {} layers, {}\n\n", o.model, outline.model.config.family,
                             outline.model.config.layers, outline.model.provenance.quantisation);
    std::cout << fmt::format(
        "  decode at position {}: per token\n    weights    {:>9}\n    KV         {:>9}   read and written, {} per "
        "position\n    operations {:>8.2f}G\n",
        o.context - 1, bytes_text(uint64_t(l.decode.weight_bytes)),
        bytes_text(uint64_t(l.decode.state_read + l.decode.state_written)),
        bytes_text(uint64_t(l.kv_bytes_per_position)), double(l.decode.operations) / 1e9);
    std::cout << fmt::format(
        "  prefill of {}: per token\n    operations {:>8.2f}G\n    bytes      {:>9}   the pass moves them once: {:.0f} "
        "operations per byte\n",
        o.prompt, double(l.prefill.operations) / double(o.prompt) / 1e9,
        bytes_text(uint64_t(l.prefill.moved() / o.prompt)), intensity);
    std::cout << fmt::format("\n  at {:.1f} GB/s{}: decode at most {:.1f} tokens/s, prefill at most {:.0f} tokens/s\n",
                             bandwidth / 1e9, measured ? " (plain read, measured now)" : " (given)",
                             l.decode_bound(bandwidth), l.prefill_bound_by_bytes(bandwidth));
    if (o.rate > 0)
      std::cout << fmt::format("  at {:.0f} G operations/s (given): prefill at most {:.1f} tokens/s\n", o.rate,
                               l.prefill_bound_by_operations(o.rate * 1e9));
    std::cout << fmt::format("\n  next     assay bench {}\n", o.model);
  }
  return kPass;
}

}  // namespace

void add_plan(CLI::App& app, int& code) {
  auto o = std::make_shared<PlanCommand>();
  CLI::App* c = app.add_subcommand("plan", "host memory of a model by class, before loading it");
  c->add_option("model", o->model, "Hugging Face folder, .gguf file or synth:SHAPE:TYPE")->required();
  o->engine.add(*c);
  c->add_option("--slots", o->slots, "sequences at a time")->capture_default_str();
  c->add_option("--ctx", o->context, "positions per slot, 0: the model's maximum")->capture_default_str();
  c->add_option("--rows", o->rows, "token rows of the largest pass")->capture_default_str();
  c->add_option("--json", o->json, "write a JSON record to FILE (-: stdout)");
  c->footer(
      "Exit code 3 where the memory of this machine does not suffice.\nExample:\n  assay plan synth:8B:Q4_0 --ctx 8192 "
      "--slots 4");
  c->callback([o, &code] { code = run(*o); });
}

void add_limits(CLI::App& app, int& code) {
  auto o = std::make_shared<LimitsCommand>();
  CLI::App* c = app.add_subcommand("limits", "bytes and operations of a token, and the bounds that follow");
  c->add_option("model", o->model, "Hugging Face folder, .gguf file or synth:SHAPE:TYPE")->required();
  c->add_option("--ctx", o->context, "positions in the cache of a decoded token, itself included")
      ->capture_default_str();
  c->add_option("--prefill", o->prompt, "tokens of the prompt")->capture_default_str();
  c->add_option("--kv", o->kv, "cache type: f16, f32 or bf16")->capture_default_str();
  c->add_option("--bandwidth", o->bandwidth, "GB/s of plain reads; 0: measured on this machine")->capture_default_str();
  c->add_option("--rate", o->rate, "operations per second, in 1e9; 0: that bound is left out")->capture_default_str();
  c->add_option("--threads", o->threads, "of the measurement, 0: all cores")->capture_default_str();
  c->add_option("--json", o->json, "write a JSON record to FILE (-: stdout)");
  c->footer("Example:\n  assay limits synth:8B:Q4_0 --ctx 4096 --bandwidth 15.7");
  c->callback([o, &code] { code = run(*o); });
}

}  // namespace assay::cli
