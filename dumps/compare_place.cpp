// Saying where: rows as positions, heads or channels, and the first failing node of a comparison.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <tuple>

#include "dumps/compare_plan.h"
#include "dumps/metrics.h"
#include "dumps/names.h"

namespace assay::comparing {
namespace {

int64_t prompt_length(const Dump& base, const std::string& prompt) {
  if (const DumpTensor* ids = base.find(prompt + "/ids")) return ids->elements();
  return -1;
}

/// [kv head, position, head_dim]
bool is_kv(const TensorName& n, const std::vector<int64_t>& shape) {
  return n.is_state() && (n.phase == "k" || n.phase == "v") && shape.size() == 3;
}

std::string layer_text(const std::string& layer) {
  return layer.starts_with("layer.") ? "layer " + layer.substr(6) : layer;
}

/// How far down the forward pass a tensor stands, whatever its prompt: the MTP head behind the model, caches last.
auto depth(const std::string& name) {
  const ExecutionKey k = execution_key(name);
  const int part = k.group < int(Pass::mtp_prefill) ? 0 : k.group < 100 ? 1 : k.group;
  return std::tuple(part, k.layer, k.rank, k.prompt, k.group, k.step);
}

/// The first row that breaks the tolerance, its worst element.
void find_row(const Pair& p, const CompareRecord& r, Divergence& d) {
  const TensorMetrics& m = *r.metrics;
  Place at;
  if (r.kind == "ids" || r.kind == "bits" || r.kind == "dtype") {
    at = m.first_difference;
  } else if (r.kind == "value" || r.kind == "non_finite") {
    const double limit = r.tolerance >= 0 ? r.tolerance : 0;
    auto bad = [&](const TensorMetrics& x) { return x.non_finite_mismatch > 0 || !(x.max_rel <= limit); };
    const int64_t step = std::max<int64_t>(1, 65536 / std::max<int64_t>(1, p.base.columns()));
    for (int64_t first = 0; first < p.base.rows() && at.row < 0; first += step) {
      const int64_t stop = std::min(p.base.rows(), first + step);
      if (!bad(measure_rows(p.base, p.target, first, stop - first, p.scale))) continue;
      for (int64_t row = first; row < stop && at.row < 0; row++) {
        const TensorMetrics x = measure_rows(p.base, p.target, row, 1, p.scale);
        if (bad(x)) at = x.non_finite_mismatch > 0 ? x.non_finite_at : x.max_rel_at;
      }
    }
  } else {  // no tolerance: where it differs most
    at = m.max_rel_at;
  }
  if (at.row < 0) return;
  d.row = at.row;
  d.column = at.column;
  d.base = at.base;
  d.target = at.target;
}

}  // namespace

int64_t position_of(const Dump& base, const std::string& name, const std::vector<int64_t>& shape, int64_t row) {
  const auto n = parse_tensor_name(name);
  if (!n || row < 0) return -1;
  if (is_kv(*n, shape)) return shape[1] > 0 ? row % shape[1] : -1;
  if (n->is_state() || shape.size() != 2) return -1;
  const int64_t length = prompt_length(base, n->prompt), step = n->step_number();
  if (n->phase == "logits_last" && length > 0) return length - 1;
  if (n->pass == "prefill" || n->pass == "mtp_prefill") return row;
  if (length < 0 || step < 0) return -1;
  if (n->pass == "decode" || n->pass == "mtp_decode") return length + step + row;
  if (n->pass == "mtp_draft") return length + step - 1 + row;
  return -1;
}

int64_t positions_of(const Dump& base, const std::string& name, const std::vector<int64_t>& shape) {
  if (position_of(base, name, shape, 0) < 0) return 0;
  return shape.size() == 3 ? shape[1] : shape[0];
}

std::string place_text(const Dump& base, const std::string& name, const std::vector<int64_t>& shape, int64_t row, int64_t column) {
  std::string out;
  const auto n = parse_tensor_name(name);
  const int64_t position = position_of(base, name, shape, row);
  if (shape.size() == 1) {
    out = "";
  } else if (n && is_kv(*n, shape)) {
    out = fmt::format("kv head {}, position {}", row / shape[1], position);
  } else if (n && n->is_state() && n->phase == "conv_state") {
    out = fmt::format("channel {}", row);
  } else if (n && n->is_state() && n->phase == "recurrent_state" && shape.size() == 3 && shape[1] > 0) {
    out = fmt::format("v head {}, key dim {}", row / shape[1], row % shape[1]);
  } else if (position >= 0) {
    out = fmt::format("row {} (position {})", row, position);
  } else {
    out = fmt::format("row {}", row);
  }
  if (column >= 0) out += fmt::format("{}{} {}", out.empty() ? "" : ", ", shape.size() == 1 ? "element" : "column", column);
  return out;
}

std::optional<Divergence> find_divergence(const Dump& base, const Plan& plan, const std::vector<GreedyRecord>& greedy) {
  // Of each prompt the first failing tensor: what fails behind it may be its consequence. What is wrong comes before what
  // is missing: a part that was not dumped may be meant.
  const CompareRecord* first = nullptr;
  for (const bool missing : {false, true}) {
    std::map<std::string, const CompareRecord*> by_prompt;
    for (const CompareRecord& r : plan.records) {
      if (r.status != Status::fail || r.kind == "extra" || (r.kind == "missing") != missing) continue;
      const auto n = parse_tensor_name(r.name);
      const CompareRecord*& kept = by_prompt[n ? n->prompt : ""];
      if (!kept || execution_key(r.name) < execution_key(kept->name)) kept = &r;
    }
    for (const auto& [prompt, r] : by_prompt)
      if (!first || depth(r->name) < depth(first->name)) first = r;
    if (first) break;
  }
  if (!first) {
    for (const CompareRecord& r : plan.records) {
      if (r.status == Status::fail) {
        first = &r;
        break;
      }
    }
  }
  Divergence d;
  if (!first) {
    for (const GreedyRecord& g : greedy) {
      if (g.status != Status::fail) continue;
      d.name = g.prompt + "/greedy_ids";
      d.prompt = g.prompt;
      d.phase = "greedy_ids";
      d.kind = "greedy";
      for (const GreedyRecord::Flip& f : g.flips) {
        if (f.near_tie) continue;
        d.column = f.step;
        d.base = double(f.base_id);
        d.target = double(f.target_id);
        break;
      }
      d.text = fmt::format("{}, greedy ids: {}", d.prompt, g.reason);
      return d;
    }
    return std::nullopt;
  }

  const CompareRecord& r = *first;
  d.name = r.name;
  d.kind = r.kind;
  d.from = r.from;
  std::string node = r.name;
  if (const auto n = parse_tensor_name(r.name)) {
    d.prompt = n->prompt;
    d.pass = n->pass;
    d.step = n->step;
    d.layer = n->layer;
    d.phase = n->phase;
    node = n->prompt;
    if (!n->pass.empty()) node += fmt::format(", {} {}/{}", n->is_state() ? "at" : "step", n->pass, n->step);
    if (!n->layer.empty()) node += ", " + layer_text(n->layer);
    node += (n->is_state() ? ", state " : ", phase ") + n->phase;
  } else {
    d.phase = phase_key(r.name);
  }
  if (r.kind == "added" && r.added_at.row >= 0) {
    d.row = r.added_at.row;
    d.column = r.added_at.column;
    d.base = r.added_at.base;
    d.target = r.added_at.target;
  }
  for (const Pair& p : plan.pairs) {
    if (plan.records[p.record].name != r.name || d.row >= 0) continue;
    if (r.metrics && p.base.data && p.target.data) {
      find_row(p, r, d);
    } else if (p.base.row_hashes && p.target.row_hashes && p.base.shape == p.target.shape) {
      for (int64_t row = 0; row < p.base.rows() && d.row < 0; row++) {
        if (p.base.row_hashes[row] != p.target.row_hashes[row]) d.row = row;
      }
    }
  }
  if (d.row >= 0) {
    d.position = position_of(base, r.name, r.shape, d.row);
    d.where = place_text(base, r.name, r.shape, d.row, d.column);
  }
  d.text = node;
  if (!d.where.empty() && r.kind != "added") d.text += ", " + d.where;  // there the reason says where
  if (r.kind == "added") {
    d.text += ": " + r.reason;
  } else if (d.base && d.target) {
    d.text += fmt::format(": base {:.9g}, target {:.9g}", *d.base, *d.target);
    if (r.kind == "value") d.text += fmt::format(" (worst row {:.3g}, tolerance {:.3g})", r.metrics->max_rel, r.tolerance);
    if (r.kind != "value" && r.kind != "bits" && r.kind != "ids") d.text += "; " + r.reason;
  } else {
    d.text += ": " + r.reason;
  }
  if (!d.from.empty()) d.text += " (from " + d.from + ")";
  return d;
}

}  // namespace assay::comparing
