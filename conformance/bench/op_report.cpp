// What bench_ops() found, for people and as records.
#include <fmt/format.h>

#include <algorithm>

#include "conformance/bench/op_bench.h"
#include "dumps/text.h"
#include "engine/thread_pool.h"

namespace assay {
namespace {

std::string duration(double seconds) {
  return seconds < 1e-3 ? fmt::format("{:.2f} us", 1e6 * seconds)
         : seconds < 1  ? fmt::format("{:.3f} ms", 1e3 * seconds)
                        : fmt::format("{:.3f} s", seconds);
}
std::string gbps(const OpResult& r) {
  const double v = r.per_second(r.bytes) / 1e9;
  return v < 100 ? fmt::format("{:.2f}", v) : fmt::format("{:.0f}", v);
}
bool is_product(OpKind op) {
  return op == OpKind::linear || op == OpKind::attention;
}
std::string share(const OpResult& r, const OpReport& report) {
  return report.reference_gbps > 0 ? fmt::format("{:.0f}%", 100 * r.per_second(r.bytes) / 1e9 / report.reference_gbps)
                                   : "";
}
std::string rate(const OpShape& s, const OpResult& r) {
  return is_product(s.op) ? fmt::format("{:.3f}", r.per_second(r.operations) / 1e12) : "";
}
/// "Q4_0", where the op has a weight.
std::string type_of(const OpShape& s) {
  return s.op == OpKind::linear || s.op == OpKind::embed ? std::string(name_of(s.type)) : "";
}
std::string kind_of(const OpShape& s, const OpBenchSpec& spec) {
  return std::string(name_of(is_quantised(s.type) ? spec.engine.activations : Activations::f32));
}

std::string curve(const OpReport& report, const OpBenchSpec& spec, const char* reference) {
  const OpShape& s = spec.shapes[0];
  std::string out =
      fmt::format("    {:>6}  {:>11}  {:>25}  {:>9}  {:>8}  {:>10}  {:>8}  {}\n", "rows", "time", "fastest to slowest",
                  "bytes", "GB/s", fmt::format("of {}", reference), "TFLOP/s", "kernel");
  for (const OpResult& r : report.results) {
    if (r.refused) {
      out += fmt::format("    {:>6}  the module refuses it\n", r.rows);
      continue;
    }
    const auto [low, high] = std::minmax_element(r.all_seconds.begin(), r.all_seconds.end());
    out += fmt::format("    {:>6}  {:>11}  {:>25}  {:>9}  {:>8}  {:>10}  {:>8}  {}\n", r.rows, duration(r.seconds),
                       duration(*low) + " to " + duration(*high), bytes_text(uint64_t(r.bytes)), gbps(r),
                       share(r, report), rate(s, r), r.variant);
  }
  return out;
}

/// A row per shape, of one number of rows; the sum of a layer, and of a pass where the shapes are all of a model's.
std::string table(const OpReport& report, const OpBenchSpec& spec, int64_t rows, int64_t layers,
                  const char* reference) {
  double layer = 0, outside = 0;
  bool whole = true;
  for (const OpResult& r : report.results) {
    if (r.rows != rows) continue;
    const OpShape& s = spec.shapes[r.shape];
    (s.count ? layer : outside) += r.seconds * double(std::max<int64_t>(s.count, 1));
    whole = whole && !r.refused;
  }
  const char* sum = layers > 0 ? "layer" : "together";
  std::string out = fmt::format(
      "  {} row{}, {}\n\n", rows, rows == 1 ? "" : "s",
      spec.prefill ? fmt::format("one sequence, from position {} on", spec.depth)
                   : fmt::format("{} at position {}", rows == 1 ? "a sequence" : "a sequence each", spec.depth));
  size_t w = 26, v = 12;  // of names and shapes
  for (const OpShape& s : spec.shapes) w = std::max(w, s.name.size()), v = std::max(v, s.text().size());
  out += fmt::format("    {:<{}} {:>{}} {:>5} {:>3} {:>11} {:>11} {:>8} {:>9} {:>8} {:>9} {:>8}\n", "op", w, "shape", v,
                     "type", "x", "each", "all", "share", "bytes", "GB/s", fmt::format("of {}", reference), "TFLOP/s");
  const auto line = [&](const OpResult& r) {
    const OpShape& s = spec.shapes[r.shape];
    if (r.refused)
      return fmt::format("    {:<{}} {:>{}} {:>5} {:>3}   the module refuses it\n", s.name, w, s.text(), v, type_of(s),
                         std::max<int64_t>(s.count, 1));
    const double all = r.seconds * double(std::max<int64_t>(s.count, 1));
    const std::string products = rate(s, r);  // the last column: empty of other ops
    return fmt::format("    {:<{}} {:>{}} {:>5} {:>3} {:>11} {:>11} {:>8} {:>9} {:>8} {:>9}{}\n", s.name, w, s.text(),
                       v, type_of(s), std::max<int64_t>(s.count, 1), duration(r.seconds), duration(all),
                       s.count ? fmt::format("{:.1f}%", 100 * all / layer) : "", bytes_text(uint64_t(r.bytes)), gbps(r),
                       share(r, report), products.empty() ? "" : fmt::format(" {:>8}", products));
  };
  for (const OpResult& r : report.results)
    if (r.rows == rows && spec.shapes[r.shape].count) out += line(r);
  if (layer > 0) out += fmt::format("    {:<{}} {:>11}\n", sum, w + v + 24, duration(layer));
  for (const OpResult& r : report.results)
    if (r.rows == rows && !spec.shapes[r.shape].count) out += line(r);
  if (layers > 0)
    out += fmt::format(
        "    {:<{}} {:>11}   {}\n", fmt::format("{} layers{}", layers, outside > 0 ? " and the rest" : ""), w + v + 24,
        duration(layer * double(layers) + outside),
        whole ? "one after another: what is fused or overlaps takes less" : "without the ops that are refused");
  return out;
}

}  // namespace

std::string render(const OpReport& report, const OpBenchSpec& spec, const std::string& model, int64_t layers) {
  const EngineOptions& o = spec.engine;
  const bool on_device = !report.device.empty();
  std::string out;
  if (!model.empty()) out += fmt::format("  model      {}\n", model);
  const bool alone = spec.shapes.size() == 1;
  const OpShape& first = spec.shapes[0];
  if (alone)
    out += fmt::format("  op         {} {}{}\n", first.name, first.text(),
                       first.op == OpKind::linear
                           ? fmt::format(" {}, activations {}", type_of(first), kind_of(first, spec))
                           : " " + type_of(first));
  if (on_device) {
    out += fmt::format("  setup      {}, activations {}, cache {}; each round one graph\n", report.device,
                       name_of(o.activations), name_of(o.kv));
  } else {
    ThreadPool pool(o.threads);
    out += fmt::format("  setup      {}, {} thread{}, activations {}, cache {}\n", name_of(o.isa), pool.threads(),
                       pool.threads() == 1 ? "" : "s", name_of(o.activations), name_of(o.kv));
  }
  out += fmt::format(
      "  operands   random; weights and caches in copies of {} together, so that no cache serves them; {} rounds, "
      "medians\n",
      bytes_text(spec.cold_bytes), spec.repetitions);
  out += fmt::format("  {:<10} {:.2f} GB/s{}\n\n", on_device ? "copy" : "plain read", report.reference_gbps,
                     on_device ? " (read + written)" : "");
  const char* reference = on_device ? "copy" : "read";
  if (alone) return out + curve(report, spec, reference);
  for (int64_t rows : spec.rows) out += table(report, spec, rows, layers, reference) + "\n";
  out.pop_back();
  return out;
}

std::vector<nlohmann::ordered_json> records(const OpReport& report, const OpBenchSpec& spec, const std::string& model) {
  std::vector<nlohmann::ordered_json> out;
  for (const OpResult& r : report.results) {
    const OpShape& s = spec.shapes[r.shape];
    nlohmann::ordered_json j = {{"record", "bench_op"},
                                {"op", name_of(s.op)},
                                {"name", s.name},
                                {"shape", s.text()},
                                {"type", type_of(s)},
                                {"model", model},
                                {"per_layer", s.count},
                                {"fused", s.fused()},
                                {"rows", r.rows},
                                {"op_rows", r.op_rows},
                                {"depth", spec.depth},
                                {"pass", spec.prefill ? "prefill" : "decode"},
                                {"backend", report.device.empty() ? "cpu" : "cuda"},
                                {"device", report.device},
                                {"isa", name_of(spec.engine.isa)},
                                {"threads", spec.engine.threads},
                                {"activations", s.op == OpKind::linear ? kind_of(s, spec) : "f32"},
                                {"kv", name_of(spec.engine.kv)},
                                {"refused", r.refused}};
    if (!r.refused) {
      j["kernel"] = r.variant;
      j["copies"] = r.copies;
      j["seconds"] = r.seconds;
      j["all_seconds"] = r.all_seconds;
      j["bytes"] = r.bytes;
      j["operations"] = r.operations;
      j["gbps"] = r.per_second(r.bytes) / 1e9;
      j["tflops"] = r.per_second(r.operations) / 1e12;
    }
    j["reference"] = report.device.empty() ? "plain read" : "copy";
    j["reference_gbps"] = report.reference_gbps;
    out.push_back(std::move(j));
  }
  return out;
}

}  // namespace assay
