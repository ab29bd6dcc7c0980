#include "dumps/routing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "dumps/compare_plan.h"
#include "dumps/metrics.h"

namespace assay {
namespace {

constexpr const char* kIds = "router_topk_ids";
constexpr double kInf = std::numeric_limits<double>::infinity();

std::vector<int64_t> ids_of(const DumpTensor& t, int64_t row) {
  std::vector<int64_t> out;
  for (int64_t k = 0; k < t.columns(); k++) out.push_back(int64_t(value_at(t.dtype, t.data, row * t.columns() + k)));
  return out;
}

/// The best k of a row, ties to the lower id; empty where one is NaN.
std::vector<int64_t> best_of(const DumpTensor& logits, int64_t row, int64_t k) {
  std::vector<double> x;
  for (int64_t e = 0; e < logits.columns(); e++) x.push_back(value_at(logits.dtype, logits.data, row * logits.columns() + e));
  if (std::any_of(x.begin(), x.end(), [](double d) { return std::isnan(d); })) return {};
  std::vector<int64_t> ids(x.size());
  std::iota(ids.begin(), ids.end(), int64_t(0));
  std::stable_sort(ids.begin(), ids.end(), [&](int64_t a, int64_t b) { return x[size_t(a)] > x[size_t(b)]; });
  ids.resize(size_t(k));
  return ids;
}

std::string list(const std::vector<int64_t>& ids) {
  std::string out;
  for (int64_t id : ids) out += (out.empty() ? "" : ",") + std::to_string(id);
  return out;
}

}  // namespace

Routing::Routing(const Dump& base, const Dump& target, const Tolerance& tolerance, bool on) : share_(tolerance.max_flip_share) {
  if (!on) return;
  for (const DumpTensor& b : base.tensors()) {   // in execution order: an earlier choice excuses what follows from it
    const auto n = parse_tensor_name(b.name);
    if (!n || n->phase != kIds || n->is_state()) continue;
    const DumpTensor* t = target.find(b.name);
    if (!t || !b.data || !t->data || b.dtype != DType::i64 || t->dtype != DType::i64 || b.shape != t->shape || behind(*n)) continue;
    judge(b, *t, base, *n, tolerance);
  }
}

void Routing::judge(const DumpTensor& b, const DumpTensor& t, const Dump& dump, const TensorName& n, const Tolerance& tolerance) {
  const std::string stem = b.name.substr(0, b.name.size() - std::string(kIds).size());
  const DumpTensor* logits = dump.find(stem + "router_logits");
  if (logits && (!logits->data || !is_float(logits->dtype) || logits->rows() != b.rows() || logits->columns() < b.columns())) logits = nullptr;
  RoutingRecord r;
  r.name = b.name;
  r.rows = b.rows();
  bool parted = false;
  for (int64_t row = 0; row < b.rows(); row++) {
    const std::vector<int64_t> ran = ids_of(b, row), theirs = ids_of(t, row);
    parted = parted || ran != theirs;
    // What the baseline's own scores say: where its run was forced, its experts are the target's.
    const std::vector<int64_t> own = logits ? best_of(*logits, row, b.columns()) : ran;
    if (own == theirs) continue;
    r.flips++;
    double regret = kInf;   // a NaN among the scores, no such expert, one expert twice
    if (logits && !own.empty()) {
      regret = 0;
      for (size_t k = 0; k < theirs.size(); k++) {
        const bool bad = theirs[k] < 0 || theirs[k] >= logits->columns() ||
                         std::find(theirs.begin(), theirs.begin() + int64_t(k), theirs[k]) != theirs.begin() + int64_t(k);
        if (bad) {
          regret = kInf;
          break;
        }
        const double mine = value_at(logits->dtype, logits->data, row * logits->columns() + own[k]);
        regret = std::max(regret, mine - value_at(logits->dtype, logits->data, row * logits->columns() + theirs[k]));
      }
    }
    if (r.row >= 0 && regret <= r.worst_regret) continue;
    r.worst_regret = regret;
    r.row = row;
    r.position = comparing::position_of(dump, b.name, b.shape, row);
    r.base_ids = own;
    r.target_ids = theirs;
  }
  if (logits) choices_ += r.rows, flips_ += r.flips;
  const bool admitted = r.flips == 0 || (tolerance.regret_cap > 0 && r.worst_regret <= tolerance.regret_cap);
  r.status = r.flips == 0 ? Status::pass : admitted ? Status::near_tie : Status::fail;
  if (r.flips > 0)
    r.reason = fmt::format("{} of {} choices differ, worst at {}: experts {} for {}, {}", r.flips, r.rows,
                           comparing::place_text(dump, b.name, b.shape, r.row, -1), list(r.target_ids),
                           r.base_ids.empty() ? "none (NaN)" : list(r.base_ids),
                           fmt::format("regret {:.3g}, {} {:.3g}", r.worst_regret, admitted ? "cap" : "above", tolerance.regret_cap));
  if (parted) parted_[n.prompt].push_back(execution_key(b.name));
  if (logits) records_.push_back(std::move(r));   // without scores the ids are integers like any others
}

const RoutingRecord* Routing::find(const std::string& name) const {
  const auto it = std::find_if(records_.begin(), records_.end(), [&](const RoutingRecord& r) { return r.name == name; });
  return it == records_.end() ? nullptr : &*it;
}

bool Routing::behind(const TensorName& n) const {
  const auto it = parted_.find(n.prompt);
  if (it == parted_.end() || n.pass.empty()) return false;
  std::string name = n.prompt + "/" + n.pass + "/" + n.step + "/" + (n.layer.empty() ? "" : n.layer + "/") + n.phase;
  const ExecutionKey key = execution_key(name);
  for (const ExecutionKey& f : it->second) {
    if (n.is_state()) {
      // Of layers above, once the pass is over: keys and values of the layer itself are made before its experts.
      const bool over = n.step == "after_decode" || f.group == int(Pass::prefill);
      if (over && key.layer > f.layer) return true;
      continue;
    }
    const bool later = std::pair(key.group, key.step) > std::pair(f.group, f.step);
    const bool same = key.group == f.group && key.step == f.step;
    if ((later || same) && key.layer > f.layer) return true;
    if (same && key.layer == f.layer && key.rank > f.rank) return true;
  }
  return false;
}

}  // namespace assay
