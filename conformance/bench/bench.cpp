#include "conformance/bench/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>

#include "dumps/error.h"
#include "engine/mtp.h"
#include "engine/cost.h"
#include "engine/large_memory.h"
#include "engine/thread_pool.h"

namespace assay {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.empty() ? 0 : v[v.size() / 2];
}

void count(const Engine& engine, const PassLoad& load, BenchResult& r) {
  const NodeCost c = cost_of(engine.program(), load);
  r.bytes = double(c.moved());
  r.operations = double(c.operations);
}

class Clock {
 public:
  explicit Clock(BenchResult& r) : r_(r) {}
  void add(double seconds, const Program& program, const Trace& trace) {
    r_.all_seconds.push_back(seconds);
    double inside = 0;
    for (const TraceEntry& e : trace.entries) {
      const std::string& phase = program.nodes[size_t(e.node)].phase;
      auto it = std::find_if(r_.by_phase.begin(), r_.by_phase.end(), [&](auto& p) { return p.first == phase; });
      if (it == r_.by_phase.end()) it = r_.by_phase.insert(r_.by_phase.end(), {phase, 0.0});
      it->second += e.seconds;
      inside += e.seconds;
    }
    r_.gap += seconds - inside;
  }
  void finish() {
    r_.seconds = median(r_.all_seconds);
    for (auto& p : r_.by_phase) p.second /= double(r_.all_seconds.size());
    r_.gap /= double(r_.all_seconds.size());
  }

 private:
  BenchResult& r_;
};

}  // namespace

typedef uint64_t Line __attribute__((vector_size(64)));  // a cache line, read in the widest pieces the build has

double plain_read_gbps(int threads) {
  constexpr size_t kBytes = size_t(512) << 20, kPiece = size_t(64) << 10;
  const auto block = allocate_large(kBytes);   // as the weights lie
  if (!block) throw Error(ErrorKind::memory, "assay bench", "no room to measure the plain read", fmt::format("{} bytes", kBytes));
  uint64_t* data = reinterpret_cast<uint64_t*>(block.get());
  std::iota(data, data + kBytes / 8, uint64_t(1));   // touched, and no page is the zero page
  ThreadPool pool(threads);
  double best = 0;
  std::vector<uint64_t> sink(size_t(pool.threads()) * 8);
  for (int round = 0; round < 4; round++) {
    const double start = now();
    pool.parallel_for(int64_t(kBytes / kPiece), 16, [&](int64_t b, int64_t e, int worker) {
      Line sum[4] = {};
      const Line* p = reinterpret_cast<const Line*>(data) + size_t(b) * kPiece / sizeof(Line);
      for (size_t i = 0; i < size_t(e - b) * kPiece / sizeof(Line); i += 4) {
        for (size_t j = 0; j < 4; j++) {
          __builtin_prefetch(p + i + j + 64);
          sum[j] += p[i + j];
        }
      }
      for (const Line& l : sum) sink[size_t(worker) * 8] += l[0] ^ l[7];
    });
    best = std::max(best, double(kBytes) / (now() - start) / 1e9);
  }
  return best;
}

double device_copy_gbps(Device& device) {
  const AssayModule& t = device.table();
  if (!t.copy || !t.mark || !t.elapsed) return 0;
  // An emulation's speed means nothing: a little of it is enough.
  const size_t bytes = std::min<size_t>(size_t(1) << (device.info().emulated ? 20 : 30), device.free_bytes() / 4);
  const DeviceMemory from = device.allocate(bytes, "copied from"), to = device.allocate(bytes, "copied to");
  std::vector<uint64_t> random(std::min<size_t>(bytes, size_t(16) << 20) / 8);
  std::mt19937_64 rng(1);
  for (uint64_t& r : random) r = rng();
  for (size_t at = 0; at < bytes; at += random.size() * 8)
    device.upload(from.data() + at, random.data(), std::min(bytes - at, random.size() * 8));
  double best = 0;
  for (int round = 0; round < 6; round++) {
    device.done(t.mark(device.handle(), 0), "mark");
    for (int i = 0; i < 4; i++) device.done(t.copy(device.handle(), to.data(), from.data(), bytes), "copy");
    device.done(t.mark(device.handle(), 1), "mark");
    device.finish();
    double seconds = 0;
    device.done(t.elapsed(device.handle(), 0, 1, &seconds), "elapsed");
    if (round > 0) best = std::max(best, 4 * 2.0 * double(bytes) / seconds / 1e9);
  }
  return best;
}

BenchReport bench(std::shared_ptr<const Model> model, const BenchSpec& spec) {
  const Config& c = model->config;
  const int64_t start_of_decode = std::max<int64_t>(spec.depth, spec.draft > 0 ? std::max<int64_t>(1, int64_t(spec.prompt.size())) : 0);
  const int64_t longest = std::max(spec.prefill, start_of_decode + spec.decode + (spec.draft > 0 ? 1 : 0));
  if (longest < 1) throw Error(ErrorKind::usage, "assay bench", "nothing to measure", "--prefill or --decode above 0", "0");
  if (c.context > 0 && longest > c.context)
    throw Error(ErrorKind::usage, "assay bench", "context overflow", fmt::format("at most {} positions", c.context), std::to_string(longest));
  BenchReport report;
  EngineOptions options = spec.engine;
  options.context = longest;
  options.slots = int(spec.rows);
  const double start = now();
  Engine engine(model, options);
  report.load_seconds = now() - start;
  report.panel_bytes = engine.backend().panel_bytes();
  // A trace of a device pass has no times of its own unless they are asked for, and costs the host some.
  if (!options.device.module.empty() && !engine.device())   // figures of the CPU are none of the device's
    throw Error(ErrorKind::io, "assay bench", "there is no device to measure: " + engine.device_problem(), "", "", "assay limits counts without one.");
  const bool on_device = engine.device() != nullptr, traced = !on_device || options.device.timed;
  if (on_device) report.device = engine.device()->device().info().name;
  std::mt19937_64 rng(spec.seed);
  const auto id = [&] { return int32_t(rng() % uint64_t(c.vocab)); };
  const auto prompt = [&](int slot, int64_t rows) {
    Batch b;
    for (int64_t i = 0; i < rows; i++) b.ids.push_back(id());
    b.segments.push_back({slot, 0, rows, slot, 0});
    b.logit_rows = {rows - 1};
    b.ids_only = on_device;
    return b;
  };
  const auto clear = [&] {
    for (int s = 0; s < options.slots; s++) engine.truncate(s, 0);
  };
  const auto fill_to_depth = [&] {
    clear();
    if (spec.depth > 0)
      for (int s = 0; s < options.slots; s++) engine.forward(prompt(s, spec.depth));
  };
  const auto decode_step = [&](int64_t step) {
    Batch b;
    b.pass = Pass::decode;
    for (int s = 0; s < options.slots; s++) {
      b.ids.push_back(id());
      b.segments.push_back({s, spec.depth + step, 1, s, step});
      b.logit_rows.push_back(s);
    }
    b.ids_only = on_device;
    return b;
  };
  if (spec.prefill > 0) {
    BenchResult r;
    r.pass = "prefill";
    r.tokens = spec.prefill;
    count(engine, PassLoad::of_sequence(0, spec.prefill, options.kv), r);
    Clock clock(r);
    for (int rep = 0; rep <= spec.repetitions; rep++) {
      clear();
      const Batch b = prompt(0, spec.prefill);
      Trace trace;
      const double t = now();
      engine.forward(b, nullptr, traced ? &trace : nullptr);
      if (rep > 0) clock.add(now() - t, engine.program(), trace);
    }
    clock.finish();
    report.results.push_back(std::move(r));
  }
  if (on_device)
    report.copy_gbps = device_copy_gbps(engine.device()->device());
  else
    report.read_gbps = plain_read_gbps(options.threads);
  if (spec.decode > 0 && spec.draft > 0) {
    BenchResult r;
    r.pass = "speculation";
    Request request;
    request.ids = spec.prompt;
    while (request.ids.empty() || int64_t(request.ids.size()) < spec.depth) request.ids.push_back(id());
    request.decode = spec.decode;
    SpeculationOptions o;
    o.draft = spec.draft;
    Clock clock(r);
    for (int rep = 0; rep <= spec.repetitions; rep++) {
      double decode_start = 0;
      Trace trace;
      const Speculation s = speculate(engine, request, o, nullptr, traced ? &trace : nullptr, [&] { decode_start = now(); });
      if (rep > 0) clock.add(now() - decode_start, engine.program(), trace);
      r.tokens = int64_t(s.ids.size()) - 1;
      r.rounds = s.rounds;
      r.drafted = s.drafted;
      r.accepted = s.accepted;
    }
    clock.finish();
    report.results.push_back(std::move(r));
  }
  if (spec.decode > 0) {
    BenchResult r;
    r.pass = "decode";
    r.tokens = spec.decode * spec.rows;
    const int64_t middle = spec.rows * (spec.depth + spec.decode / 2 + 1);   // positions of the step in the middle
    count(engine, {spec.rows, spec.rows, middle, middle, options.kv}, r);
    Clock clock(r);
    for (int rep = 0; rep <= spec.repetitions; rep++) {
      fill_to_depth();
      Trace trace;
      const double t = now();
      for (int64_t step = 0; step < spec.decode; step++) engine.forward(decode_step(step), nullptr, traced ? &trace : nullptr);
      if (rep > 0) clock.add(now() - t, engine.program(), trace);
    }
    if (on_device) {   // one more repetition, watched
      fill_to_depth();
      Trace trace;
      for (int64_t step = 0; step < std::min<int64_t>(spec.decode, 3); step++) engine.forward(decode_step(step), nullptr, &trace);
      r.traffic = trace.traffic.back();
    }
    r.operations *= double(spec.decode);
    clock.finish();
    report.results.push_back(std::move(r));
  }
  return report;
}

std::string render(const BenchReport& report, const BenchSpec& spec, const Model& model, bool by_phase) {
  const EngineOptions& o = spec.engine;
  ThreadPool pool(o.threads);
  std::string out = fmt::format("  model      {} ({})\n  setup      {}, {} thread{}, activations {}, cache {}; repacked {:.0f} MB in {:.2f} s\n",
                                model.provenance.path, model.provenance.quantisation, name_of(o.isa), pool.threads(), pool.threads() == 1 ? "" : "s",
                                model.quantised() ? name_of(o.activations) : "f32", name_of(o.kv), double(report.panel_bytes) / 1e6, report.load_seconds);
  if (report.device.empty())
    out += fmt::format("  plain read {:.2f} GB/s\n\n", report.read_gbps);
  else
    out += fmt::format("  device     {}, copy {:.0f} GB/s (read + written){}\n\n", report.device, report.copy_gbps,
                       o.device.timed ? ", timed step by step: no graphs" : "");
  const double reference = report.device.empty() ? report.read_gbps : report.copy_gbps;
  const char* reference_name = report.device.empty() ? "plain read" : "copy";
  for (const BenchResult& r : report.results) {
    const auto [low, high] = std::minmax_element(r.all_seconds.begin(), r.all_seconds.end());
    out += fmt::format("  {:<8} {:>9.2f} tokens/s  ({:.2f} to {:.2f})", r.pass, r.tokens_per_second(), double(r.tokens) / *high, double(r.tokens) / *low);
    if (r.operations > 0) out += fmt::format("   {:.1f} GOP/s", r.operations / r.seconds / 1e9);
    if (r.pass == "decode") {
      const double gbps = r.bytes * double(spec.decode) / r.seconds / 1e9;
      out += fmt::format("   {:.3f} GB per step, {:.2f} GB/s, {:.0f}% of {}", r.bytes / 1e9, gbps, 100 * gbps / reference, reference_name);
      if (r.traffic)
        out += fmt::format("\n           one step: {} launches, {} B up, {} B down, {} allocations, {} frees, {} syncs", r.traffic->launches,
                           r.traffic->upload_bytes, r.traffic->download_bytes, r.traffic->allocations, r.traffic->frees, r.traffic->syncs);
    }
    if (r.rounds > 0) {
      out += fmt::format("   {:.3f} tokens per round, {} rounds\n           drafts right, by place:", double(r.tokens) / double(r.rounds), r.rounds);
      for (size_t d = 0; d < r.drafted.size(); d++) {
        out += fmt::format(" {}: {} of {} ({:.0f}%)", d + 1, r.accepted[d], r.drafted[d], r.drafted[d] ? 100.0 * double(r.accepted[d]) / double(r.drafted[d]) : 0.0);
      }
    }
    out += "\n";
    if (!by_phase) continue;
    for (const auto& [phase, seconds] : r.by_phase)
      out += fmt::format("    {:<16} {:>10.3f} ms {:>5.1f}%\n", phase, 1e3 * seconds, 100 * seconds / r.seconds);
    out += fmt::format("    {:<16} {:>10.3f} ms {:>5.1f}%\n", "between nodes", 1e3 * r.gap, 100 * r.gap / r.seconds);
  }
  return out;
}

std::vector<nlohmann::ordered_json> records(const BenchReport& report, const BenchSpec& spec, const Model& model) {
  std::vector<nlohmann::ordered_json> out;
  for (const BenchResult& r : report.results) {
    nlohmann::ordered_json phases = nlohmann::ordered_json::object();
    for (const auto& [phase, seconds] : r.by_phase) phases[phase] = seconds;
    out.push_back({{"record", "bench"},
                   {"pass", r.pass},
                   {"model", model.provenance.path},
                   {"quantisation", model.provenance.quantisation},
                   {"isa", name_of(spec.engine.isa)},
                   {"threads", spec.engine.threads},
                   {"activations", model.quantised() ? name_of(spec.engine.activations) : "f32"},
                   {"kv", name_of(spec.engine.kv)},
                   {"rows", r.pass == "decode" ? spec.rows : r.tokens},
                   {"depth", spec.depth},
                   {"tokens", r.tokens},
                   {"seconds", r.seconds},
                   {"all_seconds", r.all_seconds},
                   {"tokens_per_second", r.tokens_per_second()},
                   {"bytes_per_pass", r.bytes},
                   {"operations", r.operations},
                   {"plain_read_gbps", report.read_gbps},
                   {"seconds_by_phase", phases},
                   {"seconds_between_nodes", r.gap}});
    if (r.rounds > 0)
      out.back()["speculation"] = {{"draft", spec.draft}, {"rounds", r.rounds}, {"tokens_per_round", double(r.tokens) / double(r.rounds)},
                                   {"drafted", r.drafted}, {"accepted", r.accepted}};
    if (report.device.empty()) continue;
    out.back()["device"] = report.device;
    out.back()["copy_gbps"] = report.copy_gbps;
    out.back()["fused"] = spec.engine.device.fused;
    out.back()["graph"] = spec.engine.device.graph && !spec.engine.device.timed;
    if (const auto& t = r.traffic)
      out.back()["one_step"] = {{"launches", t->launches}, {"upload_bytes", t->upload_bytes}, {"download_bytes", t->download_bytes},
                                {"allocations", t->allocations}, {"frees", t->frees}, {"syncs", t->syncs}, {"replays", t->replays}};
  }
  return out;
}

}  // namespace assay
