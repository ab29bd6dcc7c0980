// The result of a comparison as JSON records (schemas/record.schema.json). Numbers are exact; what JSON can't hold (NaN, Inf)
// is one of the strings "NaN", "Infinity", "-Infinity".

#include <unordered_map>

#include "dumps/compare.h"
#include "dumps/compare_plan.h"
#include "dumps/json.h"
#include "dumps/names.h"

namespace assay {
namespace {

using Json = nlohmann::ordered_json;

Json place(const Place& p) {
  if (p.row < 0) return nullptr;
  return {{"row", p.row}, {"column", p.column}, {"base", json_number(p.base)}, {"target", json_number(p.target)}};
}

Json place(const Place& p, const Dump& base, const CompareRecord& r) {
  Json out = place(p);
  if (!out.is_null()) {
    const int64_t position = comparing::position_of(base, r.name, r.shape, p.row);
    if (position >= 0) out["position"] = position;
    out["text"] = comparing::place_text(base, r.name, r.shape, p.row, p.column);
  }
  return out;
}

Json level(const std::optional<Level>& l) { return l ? Json(name_of(*l)) : Json(nullptr); }

Json metrics_json(const TensorMetrics& m) {
  return {{"elements", m.elements},
          {"bits_equal", m.bits_equal},
          {"scale", json_number(m.scale)},
          {"max_base", json_number(m.max_base)},
          {"max_abs", json_number(m.max_abs)},
          {"max_abs_at", place(m.max_abs_at)},
          {"max_rel", json_number(m.max_rel)},
          {"max_rel_at", place(m.max_rel_at)},
          {"worst_row_l2", json_number(m.worst_row_l2)},
          {"worst_row_l2_at", m.worst_row_l2_at < 0 ? Json(nullptr) : Json(m.worst_row_l2_at)},
          {"ulp_le_1", m.ulp_le_1},
          {"ulp_le_4", m.ulp_le_4},
          {"non_finite",
           {{"base_only", m.non_finite_base_only},
            {"target_only", m.non_finite_target_only},
            {"both", m.non_finite_both},
            {"nan_both", m.nan_both},
            {"mismatch", m.non_finite_mismatch},
            {"at", place(m.non_finite_at)}}},
          {"first_difference", place(m.first_difference)}};
}

Json extra(const ExtraMetrics& m) {
  auto row = [](int64_t r) { return r < 0 ? Json(nullptr) : Json(r); };
  Json out = {{"cosine", json_number(m.cosine)},
              {"worst_row_cosine", json_number(m.worst_row_cosine)},
              {"worst_row_cosine_at", row(m.worst_row_cosine_at)},
              {"nmse", json_number(m.nmse)},
              {"max_elementwise_rel", json_number(m.max_elementwise_rel)},
              {"max_elementwise_rel_at", place(m.max_elementwise_rel_at)}};
  if (m.logits) {
    out["logits"] = {{"rows", m.rows},
                     {"kl_mean", json_number(m.kl_mean)},
                     {"kl_max", json_number(m.kl_max)},
                     {"kl_max_at", row(m.kl_max_at)},
                     {"top1_agree", m.top1_agree},
                     {"top5_agree", m.top5_agree},
                     {"min_margin", json_number(m.min_margin)},
                     {"min_margin_at", row(m.min_margin_at)}};
  }
  return out;
}

Json tolerance(const Tolerance& t) {
  Json by_phase = Json::object();
  for (const auto& [phase, x] : t.by_phase) by_phase[phase] = json_number(x);
  return {{"preset", t.preset},
          {"fixed", json_number(t.fixed)},
          {"noise_factor", json_number(t.noise_factor)},
          {"floor", t.floor},
          {"by_phase", by_phase},
          {"cache_ulps", json_number(t.cache_ulps)},
          {"cache_ulp", json_number(t.cache_ulp)},
          {"unit", json_number(t.unit)},
          {"greedy_margin_cap", json_number(t.greedy_margin_cap)},
          {"max_near_ties", t.max_near_ties},
          {"regret_cap", json_number(t.regret_cap)},
          {"max_flip_share", json_number(t.max_flip_share)}};
}

Json side(const Dump& d) {
  const char* kind = d.kind() == Dump::Kind::official_case ? "official_case" : d.kind() == Dump::Kind::bare ? "bare" : "dump";
  Json out = {{"path", d.path().string()}, {"kind", kind}, {"mode", name_of(d.mode())}, {"partial", d.partial()}};
  // Who made it, as the manifest says it; for people, nothing is concluded from it.
  for (const char* key : {"engine", "engine_version", "version", "device", "backend", "isa", "case", "transformers"}) {
    if (d.manifest().is_object() && d.manifest().contains(key)) out["made_by"][key] = d.manifest()[key];
  }
  return out;
}

Json divergence(const Divergence& d) {
  Json out = {{"name", d.name}, {"kind", d.kind}};
  for (const auto& [key, text] : {std::pair{"prompt", &d.prompt}, {"pass", &d.pass}, {"step", &d.step}, {"layer", &d.layer},
                                  {"phase", &d.phase}, {"where", &d.where}, {"from", &d.from}}) {
    if (!text->empty()) out[key] = *text;
  }
  for (const auto& [key, n] : {std::pair{"row", d.row}, {"position", d.position}, {"column", d.column}}) {
    if (n >= 0) out[key] = n;
  }
  if (d.base) out["base"] = json_number(*d.base);
  if (d.target) out["target"] = json_number(*d.target);
  out["text"] = d.text;
  return out;
}

}  // namespace

Json to_json(const CompareRecord& r) {
  Json out = {{"record", "tensor"}, {"name", r.name}};
  if (const auto n = parse_tensor_name(r.name)) {
    out["prompt"] = n->prompt;
    if (!n->pass.empty()) out["pass"] = n->pass;
    if (!n->step.empty()) out["step"] = n->step;
    if (!n->layer.empty()) out["layer"] = n->layer;
    out["phase"] = comparing::phase_key(r.name);
  } else {
    out["phase"] = comparing::phase_key(r.name);
  }
  out["order"] = r.order;
  out["status"] = name_of(r.status);
  out["kind"] = r.kind;
  if (!r.reason.empty()) out["reason"] = r.reason;
  out["dtype"] = {{"base", r.dtype_base}, {"target", r.dtype_target}};
  out["shape"] = r.shape;
  if (!r.answered_by.empty()) out["answered_by"] = r.answered_by;
  if (!r.from.empty()) out["from"] = r.from;
  out["tolerance"] = r.tolerance < 0 ? Json(nullptr) : json_number(r.tolerance);
  if (r.added_limit) out["added_limit"] = json_number(*r.added_limit);
  out["reached"] = level(r.reached);
  if (r.metrics) out["metrics"] = metrics_json(*r.metrics);
  if (r.extra) out["extra"] = extra(*r.extra);
  if (!r.row_max_rel.empty()) {
    out["row_position"] = r.row_position;
    out["rows_per_bin"] = r.rows_per_bin;
    Json& errors = out["row_max_rel"] = Json::array();
    for (double x : r.row_max_rel) errors.push_back(json_number(x));
  }
  return out;
}

Json to_json(const GreedyRecord& r) {
  Json flips = Json::array();
  for (const GreedyRecord::Flip& f : r.flips) {
    flips.push_back({{"step", f.step}, {"base_id", f.base_id}, {"target_id", f.target_id}, {"margin", json_number(f.margin)},
                     {"noise", json_number(f.noise)}, {"near_tie", f.near_tie}, {"reason", f.reason}});
  }
  Json out = {{"record", "greedy"}, {"prompt", r.prompt}, {"status", name_of(r.status)}, {"prefix", r.prefix}, {"agreed", r.agreed}, {"length", r.length}};
  if (!r.reason.empty()) out["reason"] = r.reason;
  out["min_margin"] = r.min_margin ? json_number(*r.min_margin) : Json(nullptr);
  out["flips"] = std::move(flips);
  return out;
}

std::vector<Json> to_records(const CompareResult& r, const Dump& base, const Dump& target) {
  std::vector<Json> out;
  out.push_back({{"record", "compare"}, {"version", 1}, {"level", name_of(r.level)}, {"base", side(base)}, {"target", side(target)},
                 {"tolerance", tolerance(r.tolerance)}, {"partial", r.partial}});
  for (const CompareRecord& record : r.records) {
    Json j = to_json(record);
    if (record.metrics) {  // places with their words: only here are the prompts' lengths known
      const TensorMetrics& m = *record.metrics;
      j["metrics"]["max_abs_at"] = place(m.max_abs_at, base, record);
      j["metrics"]["max_rel_at"] = place(m.max_rel_at, base, record);
      j["metrics"]["non_finite"]["at"] = place(m.non_finite_at, base, record);
      j["metrics"]["first_difference"] = place(m.first_difference, base, record);
    }
    out.push_back(std::move(j));
  }
  for (const GreedyRecord& g : r.greedy) out.push_back(to_json(g));
  for (const RoutingRecord& c : r.routing) {
    if (c.flips == 0) continue;   // the summary counts the others
    out.push_back({{"record", "routing"}, {"name", c.name}, {"status", name_of(c.status)}, {"rows", c.rows}, {"flips", c.flips},
                   {"worst_regret", json_number(c.worst_regret)}, {"row", c.row}, {"position", c.position}, {"base_ids", c.base_ids},
                   {"target_ids", c.target_ids}, {"reason", c.reason}});
  }
  for (const TopkRecord& t : r.topk) {
    out.push_back({{"record", "topk"}, {"name", t.name}, {"k", t.k}, {"rows", t.rows}, {"top1", t.top1}, {"order", t.order},
                   {"common", t.common}, {"values_max_abs", json_number(t.values_max_abs)}});
  }
  std::unordered_map<std::string, double> limits;
  for (const CompareRecord& record : r.records)
    if (record.added_limit) limits.emplace(record.name, *record.added_limit);
  for (const NodeError& e : r.added) {
    const auto it = limits.find(e.name);
    out.push_back(to_json(e, "target", it == limits.end() ? std::nullopt : std::optional(it->second)));
  }
  for (const NodeError& e : r.added_base) out.push_back(to_json(e, "base"));
  for (const std::string& w : r.warnings) out.push_back({{"record", "warning"}, {"text", w}});
  out.push_back({{"record", "summary"},
                 {"exit_code", r.exit_code()},
                 {"verdict", r.exit_code() == 0 ? "pass" : "fail"},
                 {"level", name_of(r.level)},
                 {"reached", level(r.reached)},
                 {"partial", r.partial},
                 {"compared", r.compared},
                 {"failed", r.failed},
                 {"near_ties", r.near_ties},
                 {"max_near_ties", r.tolerance.max_near_ties},
                 {"choices", r.choices},
                 {"flips", r.flips},
                 {"skipped", r.skipped},
                 {"missing", r.missing},
                 {"extra", r.extra},
                 {"elements", r.elements},
                 {"bytes_read", r.bytes_read},
                 {"smallest_passing_tolerance", json_number(r.smallest_passing_tolerance)},
                 {"first_divergence", r.divergence ? divergence(*r.divergence) : Json(nullptr)}});
  return out;
}

}  // namespace assay
