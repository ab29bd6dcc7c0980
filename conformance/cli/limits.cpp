// assay limits: what bounds a model's speed on a machine, from its shape alone.
#include "engine/limits.h"

#include <fmt/format.h>

#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "conformance/bench/bench.h"
#include "conformance/cli/options.h"
#include "dumps/error.h"
#include "dumps/text.h"

namespace assay::cli {
namespace {

constexpr int64_t kMostContext = int64_t(1) << 23;

struct LimitsCommand {
  EngineChoice engine;  // activations, kv, module, threads of the measurement
  std::string model, device = "cpu", json;
  int64_t context = 1, prompt = 512, batch = 1;
  double bandwidth = 0, rate = 0;
};

struct Machine {
  std::string title, words;  // what it is, and where its figures come from
  Rates rates;
  bool measured = false;
};

std::string known_names() {
  std::string out = "cpu, cuda";
  for (const KnownDevice& d : known_devices()) out += fmt::format(", {}", d.name);
  return out;
}

Machine machine_of(const LimitsCommand& o, const EngineOptions& options) {
  Machine m;
  if (const KnownDevice* d = find_device(o.device)) {
    if (o.bandwidth > 0 || o.rate > 0)
      throw Error(ErrorKind::usage, "--device " + o.device, "brings its own rates", "no --bandwidth, no --rate",
                  "one of them", "--device cpu takes rates that you give.");
    return {std::string(d->title), fmt::format("as published: {}", d->source), d->rates, false};
  }
  m.title = o.device == "cpu" ? "this CPU" : "";
  m.measured = o.bandwidth == 0;
  m.words = m.measured ? "plain read, measured now" : "given";
  m.rates.f32 = o.rate * 1e9;
  if (o.device == "cuda") {
    Device device(DeviceModule::load(options.device.module), options.device.ordinal);
    m.title = device.info().name;
    if (m.measured) {
      m.words = "copy inside its memory, read and written, measured now";
      m.rates.bandwidth = device_copy_gbps(device) * 1e9;
      if (m.rates.bandwidth == 0)
        throw Error(ErrorKind::usage, "--device cuda", "the module has no copy or no clock to measure with",
                    "--bandwidth GB/s");
    }
  } else if (m.measured) {
    m.rates.bandwidth = plain_read_gbps(options.threads) * 1e9;
  }
  if (!m.measured) m.rates.bandwidth = o.bandwidth * 1e9;
  return m;
}

/// What a pass must move and do, and no less.
struct Load {
  const char* name;
  const NodeCost& cost;
  Work work;
  int64_t tokens;
};

nlohmann::ordered_json record_of(const Load& l, const Rates& rates) {
  const Bound b = Limits::bound(l.cost, l.work, rates);
  nlohmann::ordered_json r = {{"tokens", l.tokens},
                              {"weight_bytes", l.cost.weight_bytes},
                              {"state_bytes", l.cost.state_read + l.cost.state_written},
                              {"value_bytes", l.cost.value_bytes},
                              {"bytes", l.cost.moved()},
                              {"operations", l.cost.operations},
                              {"int8_operations", l.work.int8},
                              {"f32_operations", l.work.f32},
                              {"seconds_at_least", b.seconds},
                              {"bound_by", b.by},
                              {"tokens_per_second_at_most", double(l.tokens) / b.seconds}};
  return r;
}

std::string duration(double seconds) {
  if (seconds == 0) return "-";
  return seconds < 1e-3 ? fmt::format("{:.1f} us", 1e6 * seconds)
         : seconds < 1  ? fmt::format("{:.2f} ms", 1e3 * seconds)
                        : fmt::format("{:.2f} s", seconds);
}

/// "14.2 T": powers of 1000, three digits.
std::string count_text(int64_t n) {
  static constexpr const char* kUnits[] = {"", " K", " M", " G", " T", " P", " E"};
  double v = double(n);
  size_t unit = 0;
  while (v >= 999.5 && unit + 1 < std::size(kUnits)) v /= 1000, unit++;
  return fmt::format("{:.{}f}{}", v, unit == 0 || v >= 99.95 ? 0 : v >= 9.995 ? 1 : 2, kUnits[unit]);
}

void print(const Load& l, const std::string& title, const std::string& kv) {
  const double all = double(l.cost.moved());
  const int64_t state = l.cost.state_read + l.cost.state_written;
  const auto bytes = [&](const char* name, int64_t b, const std::string& words) {
    std::cout << fmt::format("    {:<12} {:>9}{}{}\n", name, bytes_text(uint64_t(b)), words.empty() ? "" : "   ",
                             words);
  };
  std::cout << fmt::format("  {}\n", title);
  bytes("weights", l.cost.weight_bytes,
        fmt::format("{:.0f}% of what must move", 100 * double(l.cost.weight_bytes) / all));
  bytes("KV", state, kv);
  bytes("activations", l.cost.value_bytes, "inputs and outputs of all nodes: they need not leave the caches");
  if (l.work.int8)
    std::cout << fmt::format("    {:<12} {:>9}   operations: products of quantised weights\n", "int8",
                             count_text(l.work.int8));
  std::cout << fmt::format("    {:<12} {:>9}   operations{}\n", "f32", count_text(l.work.f32),
                           l.work.int8 ? ": everything else" : "");
}

int run(const LimitsCommand& o) {
  check_range("--ctx", o.context, 1, kMostContext);
  check_range("--prefill", o.prompt, 1, 1 << 24);
  check_range("--batch", o.batch, 1, 4096);
  for (const auto& [value, option] : {std::pair{o.bandwidth, "--bandwidth"}, std::pair{o.rate, "--rate"}})
    if (!(value >= 0 && value < 1e12))
      throw Error(ErrorKind::usage, option, "out of range", "0 to 1e12", fmt::format("{}", value));
  if (o.device != "cpu" && o.device != "cuda" && !find_device(o.device))
    throw Error(ErrorKind::usage, "--device", "is not in the table", known_names(), "\"" + o.device + "\"",
                "Of another machine: --bandwidth and --rate.");
  EngineChoice choice = o.engine;
  choice.backend = o.device == "cuda" ? "cuda" : "cpu";
  EngineOptions options;
  choice.apply(options);
  const ModelOutline outline = outline_model(o.model);
  choice.check(outline.model);
  const Limits l =
      limits_of(build_program(outline.model), o.context, o.prompt, options.kv, o.batch, options.activations);
  const Machine m = machine_of(o, options);
  // A rate that is given is one of all operations, whatever does them.
  const bool split = m.rates.int8 > 0;
  const auto work = [&](const Work& w, const NodeCost& c) { return split || o.rate == 0 ? w : Work{0, c.operations}; };
  const Load loads[] = {{"decode", l.decode, work(l.decode_work, l.decode), l.batch},
                        {"prefill", l.prefill, work(l.prefill_work, l.prefill), l.prompt}};
  const std::string kind = outline.model.quantised() ? std::string(name_of(options.activations)) : "f32";
  if (!o.json.empty()) {
    nlohmann::ordered_json record = {{"record", "limits"},
                                     {"model", o.model},
                                     {"context", o.context},
                                     {"batch", o.batch},
                                     {"prompt", o.prompt},
                                     {"kv", choice.kv},
                                     {"activations", kind},
                                     {"kv_bytes_per_position", l.kv_bytes_per_position},
                                     {"device", o.device},
                                     {"device_name", m.title},
                                     {"bandwidth_gbps", m.rates.bandwidth / 1e9},
                                     {"bandwidth_measured", m.measured},
                                     {"int8_tops", m.rates.int8 / 1e12},
                                     {"f32_tops", m.rates.f32 / 1e12}};
    for (const Load& load : loads) record[load.name] = record_of(load, m.rates);
    write_records(o.json, {record});
  }
  if (o.json == "-") return kPass;
  std::cout << fmt::format("{}: {}, {} layers, {}; activations {}, cache {}\n\n", o.model, outline.model.config.family,
                           outline.model.config.layers, outline.model.provenance.quantisation, kind, choice.kv);
  print(loads[0],
        o.batch == 1 ? fmt::format("decode of a token at position {}", o.context - 1)
                     : fmt::format("decode of {} sequences together, each at position {}", o.batch, o.context - 1),
        fmt::format("read and written, {} per position", bytes_text(uint64_t(l.kv_bytes_per_position))));
  print(loads[1], fmt::format("prefill of {} tokens in one pass", o.prompt), "read once and written");
  std::string rates = fmt::format("{:.1f} GB/s", m.rates.bandwidth / 1e9);
  if (m.rates.int8 > 0)
    rates += fmt::format(", {:.0f} int8 and {:.1f} f32 tera-operations/s", m.rates.int8 / 1e12, m.rates.f32 / 1e12);
  else if (m.rates.f32 > 0)
    rates += fmt::format(", {:.0f} G operations/s", m.rates.f32 / 1e9);
  std::cout << fmt::format("\n  {}: {} ({})\n    at least   {:>10} {:>12} {:>12}\n", m.title, rates, m.words,
                           "by bytes", split || o.rate == 0 ? "by int8" : "",
                           split || o.rate == 0 ? "by f32" : "by operations");
  for (const Load& load : loads) {
    const Bound b = Limits::bound(load.cost, load.work, m.rates);
    const auto time = [](double amount, double rate) { return duration(rate > 0 ? amount / rate : 0); };
    std::cout << fmt::format("    {:<10} {:>10} {:>12} {:>12}   at most {:.1f} tokens/s, bound by {}\n", load.name,
                             time(double(load.cost.moved()), m.rates.bandwidth),
                             time(double(load.work.int8), m.rates.int8), time(double(load.work.f32), m.rates.f32),
                             double(load.tokens) / b.seconds, b.by);
  }
  std::cout << fmt::format("\n  next     assay bench {}{}\n", o.model, o.device == "cpu" ? "" : " --backend cuda");
  return kPass;
}

}  // namespace

void add_limits(CLI::App& app, int& code) {
  auto o = std::make_shared<LimitsCommand>();
  CLI::App* c = app.add_subcommand("limits", "bytes and operations of a token, and the bounds that follow");
  c->add_option("model", o->model, "Hugging Face folder, .gguf file or synth:SHAPE:TYPE")->required();
  c->add_option("--device", o->device, "whose rates: " + known_names() + " (cpu and cuda are measured)")
      ->capture_default_str();
  c->add_option("--ctx", o->context, "positions in the cache of a decoded token, itself included")
      ->capture_default_str();
  c->add_option("--batch", o->batch, "sequences that decode together")->capture_default_str();
  c->add_option("--prefill", o->prompt, "tokens of the prompt")->capture_default_str();
  c->add_option("--activations", o->engine.activations, "of quantised weights: s16 (default), s8 or f32");
  c->add_option("--kv", o->engine.kv, "cache type: f16, f32 or bf16")->capture_default_str();
  c->add_option("--bandwidth", o->bandwidth, "GB/s of plain reads; 0: measured")->capture_default_str();
  c->add_option("--rate", o->rate, "operations per second, in 1e9; 0: that bound is left out")->capture_default_str();
  c->add_option("--threads", o->engine.threads, "of the measurement, 0: all cores")->capture_default_str();
  c->add_option("--module", o->engine.module, "the device module of --device cuda");
  c->add_option("--json", o->json, "write a JSON record to FILE (-: stdout)");
  c->footer(
      "The rates of a named device are its vendor's; those of cpu and cuda are measured.\n"
      "Example:\n  assay limits synth:8B:Q4_0 --device h200 --ctx 4096");
  c->callback([o, &code] { code = run(*o); });
}

}  // namespace assay::cli
