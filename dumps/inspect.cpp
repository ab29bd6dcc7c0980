#include "dumps/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <ostream>
#include <set>

#include "dumps/names.h"
#include "dumps/text.h"

namespace assay {
namespace {

using Json = nlohmann::ordered_json;

struct Group {
  int64_t tensors = 0, non_finite = 0, elements = 0;
  uint64_t bytes = 0;
  std::set<std::string> dtypes, steps;
  std::set<int64_t> columns;
  bool has_stats = false;
  double min = 0, max = 0, squares = 0;
  int64_t finite = 0;

  void add(const DumpTensor& t, const std::optional<TensorStats>& s) {
    ++tensors;
    bytes += t.bytes();
    elements += t.elements();
    dtypes.emplace(name_of(t.dtype));
    columns.insert(t.columns());
    if (!s) return;
    non_finite += s->non_finite;
    const int64_t n = t.elements() - s->non_finite;
    if (n <= 0) return;
    min = has_stats ? std::min(min, s->min) : s->min;
    max = has_stats ? std::max(max, s->max) : s->max;
    has_stats = true;
    squares += s->rms * s->rms * double(n);
    finite += n;
  }
};

std::optional<TensorStats> stats_of(const DumpTensor& t) {
  if (t.stats || !t.data) return t.stats;
  TensorDigest digest(t.dtype, std::max<int64_t>(t.columns(), 1), true, [](uint64_t) {});
  digest.update(t.data, t.elements());
  return digest.stats();
}

// Tensors of one kind share a line: the phase; for foreign names, the name with its numbers left open.
std::string kind_of(const DumpTensor& t) {
  if (const std::optional<TensorName> n = parse_tensor_name(t.name)) return (n->is_state() ? "state/" : "") + n->phase;
  std::string out;
  for (size_t i = 0; i < t.name.size(); ++i) {
    const bool digit = t.name[i] >= '0' && t.name[i] <= '9';
    if (!digit) out += t.name[i];
    if (digit && (out.empty() || out.back() != '#')) out += '#';
  }
  return out;
}

std::string joined(const std::set<std::string>& s) {
  std::string out;
  for (const std::string& v : s) out += (out.empty() ? "" : ",") + v;
  return out;
}

// A block of the manifest as "key value, key value"; nested things in JSON.
std::string flat(const Json& v) {
  if (v.is_string()) return v.get<std::string>();
  if (!v.is_object()) return v.dump();
  std::string out;
  for (const auto& [key, value] : v.items()) {
    if (!out.empty()) out += ", ";
    out += key;
    out += " " + (value.is_string() ? value.get<std::string>() : value.dump());
  }
  return out;
}

// Text of others on a terminal: no control bytes, not too long.
std::string shown(const std::string& s, size_t max = 160) {
  const std::string q = in_quotes(s, max);
  const bool plain = s.size() <= max && std::all_of(s.begin(), s.end(), [](unsigned char c) { return c >= 0x20 && c < 0x7f; });
  return plain ? s : q;
}

}  // namespace

Json inspect_facts(const Dump& dump, const InspectOptions& options) {
  Json out;
  out["path"] = dump.path().string();
  out["kind"] = dump.kind() == Dump::Kind::dump ? "dump" : dump.kind() == Dump::Kind::official_case ? "official case" : "bare";
  out["mode"] = name_of(dump.mode());
  out["partial"] = dump.partial();
  out["hashes"] = dump.has_hashes();
  std::map<ExecutionKey, std::string> pass_order, phase_order;
  std::map<std::string, Group> passes, phases;
  Json bad = Json::array(), lines = Json::array();
  uint64_t bytes = 0;
  int64_t non_finite = 0;
  constexpr size_t kMaxBad = 20;
  for (const DumpTensor& t : dump.tensors()) {
    const std::optional<TensorStats> s = stats_of(t);
    const std::optional<TensorName> n = parse_tensor_name(t.name);
    const std::string pass = !n ? "(other names)" : n->pass.empty() ? "(ids)" : n->pass;
    ExecutionKey key = execution_key(t.name);
    key.prompt = key.step = 0;
    if (!passes.contains(pass)) pass_order.emplace(key, pass);
    passes[pass].add(t, s);
    if (n) passes[pass].steps.insert(n->step);
    const std::string kind = kind_of(t);
    // Layer by layer is too long a table: phases in the order of the vocabulary.
    ExecutionKey phase_key;
    phase_key.group = n ? (n->is_state() ? 1 : n->pass.empty() ? 2 : 0) : 3;
    phase_key.rank = n ? phase_rank(n->phase) : 0;
    phase_key.name = kind;
    phase_order.emplace(phase_key, kind);
    phases[kind].add(t, s);
    bytes += t.bytes();
    if (s && s->non_finite > 0) {
      non_finite += s->non_finite;
      if (bad.size() < kMaxBad) bad.push_back({{"name", t.name}, {"count", s->non_finite}});
    }
    if (options.tensors) {
      Json line = {{"name", t.name}, {"dtype", name_of(t.dtype)}, {"shape", t.shape}};
      if (!t.xxh3_128.empty()) line["xxh3_128"] = t.xxh3_128;
      if (s) {
        for (const auto& [k, v] : {std::pair("min", s->min), {"max", s->max}, {"mean", s->mean}, {"rms", s->rms}}) line[k] = v;
        line["non_finite"] = s->non_finite;
      }
      lines.push_back(std::move(line));
    }
  }
  out["tensors"] = dump.tensors().size();
  out["bytes"] = bytes;
  out["non_finite"] = non_finite;
  out["non_finite_tensors"] = bad;
  out["not_materialised"] = dump.not_materialised();
  for (const char* key : {"case", "family", "model_type", "provenance", "engine", "device", "model", "numerics", "options",
                          "rows", "imported"}) {
    if (dump.manifest().contains(key)) out["manifest"][key] = dump.manifest()[key];
  }
  if (dump.manifest().contains("capture")) out["manifest"]["capture"] = dump.manifest()["capture"];
  out["prompts"] = Json::array();
  if (dump.manifest().contains("prompts")) {
    const Json& prompts = dump.manifest()["prompts"];
    for (size_t i = 0; i < prompts.size(); ++i) {
      Json p = {{"name", fmt::format("prompt{}", i)}};
      if (prompts[i].contains("ids")) p["ids"] = prompts[i]["ids"].size();
      if (prompts[i].contains("greedy_ids")) p["greedy_ids"] = prompts[i]["greedy_ids"].size();
      out["prompts"].push_back(std::move(p));
    }
  }
  out["passes"] = Json::array();
  for (const auto& [key, name] : pass_order) {
    const Group& g = passes[name];
    out["passes"].push_back({{"pass", name}, {"steps", g.steps.size()}, {"tensors", g.tensors}, {"bytes", g.bytes}});
  }
  out["phases"] = Json::array();
  for (const auto& [key, name] : phase_order) {
    const Group& g = phases[name];
    Json line = {{"phase", name}, {"tensors", g.tensors}, {"dtype", joined(g.dtypes)}, {"bytes", g.bytes}};
    line["columns"] = {*g.columns.begin(), *g.columns.rbegin()};
    if (g.has_stats) {
      line["min"] = g.min;
      line["max"] = g.max;
      const double rms = std::sqrt(g.squares / double(std::max<int64_t>(g.finite, 1)));
      line["rms"] = std::isfinite(rms) ? rms : std::numeric_limits<double>::max();
    }
    line["non_finite"] = g.non_finite;
    const auto floor = dump.noise_floor().find(name);
    if (floor != dump.noise_floor().end()) line["noise_floor"] = floor->second;
    out["phases"].push_back(std::move(line));
  }
  if (options.verify) out["hash_faults"] = dump.verify_hashes();
  if (options.tensors) out["tensor_list"] = std::move(lines);
  return out;
}

static void render(const Json& f, std::ostream& out) {
  const auto line = [&](const std::string& key, const std::string& value) { out << fmt::format("{:<12}{}\n", key, value); };
  line(f["kind"] == "bare" ? "safetensors" : f["kind"].get<std::string>() == "dump" ? "dump" : "case",
       shown(f["path"].get<std::string>(), 400));
  line("holds", fmt::format("{} tensors, {}{}{}", f["tensors"].get<uint64_t>(), bytes_text(f["bytes"].get<uint64_t>()),
                            f["kind"] == "dump" ? " of values, mode " + f["mode"].get<std::string>() : "",
                            f["partial"].get<bool>() ? ", partial" : ""));
  if (f["kind"] == "dump") line("hashes", f["hashes"].get<bool>() ? "per tensor and row" : "none (assay import adds them)");
  if (f.contains("manifest")) {
    for (const auto& [key, value] : f["manifest"].items()) line(key, shown(flat(value), 400));
  }
  const Json& prompts = f["prompts"];
  for (size_t i = 0; i < prompts.size() && i < 8; ++i) {
    std::string text = prompts[i]["name"].get<std::string>();
    if (prompts[i].contains("ids")) text += fmt::format("  {} ids", prompts[i]["ids"].get<uint64_t>());
    if (prompts[i].contains("greedy_ids")) text += fmt::format(", {} greedy", prompts[i]["greedy_ids"].get<uint64_t>());
    line(i == 0 ? "prompts" : "", text);
  }
  if (prompts.size() > 8) line("", fmt::format("... {} in all", prompts.size()));
  if (!f["not_materialised"].empty()) line("fused away", fmt::format("{} phases not materialised", f["not_materialised"].size()));
  const int64_t non_finite = f["non_finite"].get<int64_t>();
  if (f["kind"] == "dump" && f["mode"] == "hash") {
    line("non-finite", "unknown (mode hash has no statistics)");
  } else {
    line("non-finite", non_finite == 0 ? "none" : fmt::format("{} VALUES", non_finite));
  }
  for (const Json& b : f["non_finite_tensors"]) {
    line("", fmt::format("{}  {}", shown(b["name"].get<std::string>()), b["count"].get<int64_t>()));
  }
  if (f.contains("hash_faults")) {
    const Json& faults = f["hash_faults"];
    line("verified", !f["hashes"].get<bool>() ? "there are no hashes" : faults.empty() ? "all values agree with their hashes"
                                                                                  : fmt::format("{} TENSORS DIFFER", faults.size()));
    for (const Json& b : faults) line("", shown(b.get<std::string>(), 400));
  }
  out << fmt::format("\n{:<16}{:>6}{:>9}{:>12}\n", "pass", "steps", "tensors", "bytes");
  for (const Json& p : f["passes"]) {
    out << fmt::format("{:<16}{:>6}{:>9}{:>12}\n", p["pass"].get<std::string>(), p["steps"].get<uint64_t>(),
                       p["tensors"].get<int64_t>(), bytes_text(p["bytes"].get<uint64_t>()));
  }
  size_t width = 20;
  bool floors = false;
  for (const Json& p : f["phases"]) {
    width = std::max(width, std::min<size_t>(shown(p["phase"].get<std::string>()).size(), 48));
    floors = floors || p.contains("noise_floor");
  }
  out << fmt::format("\n{:<{}}{:>9}  {:<9}{:>9}{:>12}{:>12}{:>12}{:>11}{}\n", "phase", width, "tensors", "dtype", "columns",
                     "min", "max", "rms", "non-finite", floors ? "   f32 floor" : "");
  for (const Json& p : f["phases"]) {
    const int64_t least = p["columns"][0].get<int64_t>(), most = p["columns"][1].get<int64_t>();
    const auto number = [&](const char* key) { return p.contains(key) ? fmt::format("{:.4g}", p[key].get<double>()) : "-"; };
    out << fmt::format("{:<{}}{:>9}  {:<9}{:>9}{:>12}{:>12}{:>12}{:>11}", shown(p["phase"].get<std::string>()), width,
                       p["tensors"].get<int64_t>(), p["dtype"].get<std::string>(),
                       least == most ? fmt::format("{}", least) : fmt::format("{}-{}", least, most), number("min"),
                       number("max"), number("rms"), p["non_finite"].get<int64_t>());
    if (p.contains("noise_floor")) out << fmt::format("{:>12.3g}", p["noise_floor"].get<double>());
    out << "\n";
  }
  if (f.contains("tensor_list")) {
    out << "\n";
    for (const Json& t : f["tensor_list"]) {
      out << fmt::format("{:<56} {:<5} {:<14} {}\n", shown(t["name"].get<std::string>()), t["dtype"].get<std::string>(),
                         shape_text(t["shape"].get<std::vector<int64_t>>()),
                         t.contains("xxh3_128") ? t["xxh3_128"].get<std::string>() : "");
    }
  }
}

bool inspect(const std::filesystem::path& path, std::ostream& out, const InspectOptions& options) {
  const Json facts = inspect_facts(Dump::open(path), options);
  if (options.json) {
    out << facts.dump(1, ' ', false, Json::error_handler_t::replace) << "\n";
  } else {
    render(facts, out);
  }
  return !facts.contains("hash_faults") || facts["hash_faults"].empty();
}

}  // namespace assay
