#include "dumps/greedy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "dumps/metrics.h"
#include "dumps/names.h"

namespace assay {
namespace {

// Errors taken for one percentile. Of more than this many, positions at equal distances are taken: the figure then speaks
// for a part, but memory stays bounded (128 MiB).
constexpr int64_t kMostErrors = int64_t(1) << 24;

/// One row of logits: what the model says after a position of a prompt.
struct LogitRow {
  const DumpTensor* tensor = nullptr;
  int64_t row = 0;
  explicit operator bool() const { return tensor != nullptr; }
  int64_t columns() const { return tensor->columns(); }
  /// Whether `id` is a best one; of a NaN none is.
  bool may_choose(int64_t id) const {
    const int64_t best = argmax();
    return best >= 0 && id >= 0 && id < columns() && at(id) == at(best);
  }
  double at(int64_t id) const { return value_at(tensor->dtype, tensor->data, row * columns() + id); }
  /// The best id, ties to the lower one; -1 where a NaN leaves no choice.
  int64_t argmax() const {
    int64_t best = 0;
    for (int64_t i = 0; i < columns(); i++) {
      const double x = at(i);
      if (std::isnan(x)) return -1;
      if (x > at(best)) best = i;
    }
    return columns() > 0 ? best : -1;
  }
};

const DumpTensor* with_values(const Dump& d, const std::string& name) {
  const DumpTensor* t = d.find(name);
  return t && t->data && t->elements() > 0 && is_float(t->dtype) ? t : nullptr;
}

/// The logits that choose the greedy id of `step`: after the prompt (0), after decode/<step-1> otherwise.
LogitRow logits_of(const Dump& d, const std::string& prompt, int64_t step) {
  const std::string pass = step == 0 ? "/prefill/0/" : fmt::format("/decode/{}/", step - 1);
  for (const char* phase : {"logits_last", "logits"}) {
    if (const DumpTensor* t = with_values(d, prompt + pass + phase)) return {t, t->rows() - 1};
  }
  return {};
}

const nlohmann::ordered_json* prompt_entry(const Dump& d, const std::string& prompt) {
  const auto& m = d.manifest();
  if (!m.contains("prompts") || !m["prompts"].is_array()) return nullptr;
  size_t index = 0;
  for (const auto& p : m["prompts"]) {
    const bool named = p.is_object() && p.contains("name") && p["name"].is_string();
    if (named ? p["name"].get<std::string>() == prompt : prompt == fmt::format("prompt{}", index)) return &p;
    index++;
  }
  return nullptr;
}

std::optional<std::vector<int64_t>> manifest_ids(const Dump& d, const std::string& prompt, const char* key) {
  const auto* p = prompt_entry(d, prompt);
  if (!p || !p->is_object() || !p->contains(key) || !(*p)[key].is_array()) return std::nullopt;
  std::vector<int64_t> ids;
  for (const auto& x : (*p)[key]) {
    if (!x.is_number_integer()) return std::nullopt;
    ids.push_back(x.get<int64_t>());
  }
  return ids;
}

/// Ids as the tensor holds them, else (dumps without values) as the manifest does.
std::optional<std::vector<int64_t>> ids_of(const Dump& d, const std::string& prompt, const char* what) {
  const DumpTensor* t = d.find(prompt + "/" + what);
  if (t && t->data && t->dtype == DType::i64) {
    std::vector<int64_t> ids(size_t(t->elements()));
    std::memcpy(ids.data(), t->data, t->bytes());
    return ids;
  }
  if (t && t->data && !is_float(t->dtype)) {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < t->elements(); i++) ids.push_back(int64_t(value_at(t->dtype, t->data, i)));
    return ids;
  }
  return manifest_ids(d, prompt, what);
}

bool same_hash(const Dump& a, const Dump& b, const std::string& name) {
  const DumpTensor *x = a.find(name), *y = b.find(name);
  return x && y && !x->xxh3_128.empty() && x->xxh3_128 == y->xxh3_128 && x->dtype == y->dtype && x->shape == y->shape;
}

/// As dumped, else chosen from the dumped logits.
std::optional<std::vector<int64_t>> greedy_ids(const Dump& d, const std::string& prompt, int64_t most) {
  if (auto ids = ids_of(d, prompt, "greedy_ids")) return ids;
  std::vector<int64_t> ids;
  for (int64_t s = 0; s < most; s++) {
    const LogitRow row = logits_of(d, prompt, s);
    if (!row) break;
    ids.push_back(row.argmax());
  }
  return ids.empty() ? std::nullopt : std::optional(ids);
}

/// The tokens that decode/0, decode/1, ... consumed: given by the manifest where they were forced, else the greedy ids.
std::optional<std::vector<int64_t>> fed_ids(const Dump& d, const std::string& prompt,
                                            const std::optional<std::vector<int64_t>>& greedy) {
  for (const char* key : {"fed_ids", "forced_ids"}) {
    auto ids = manifest_ids(d, prompt, key);
    if (ids && !ids->empty()) {
      // A forced list shorter than the run is followed by the run's own choices.
      if (greedy) {
        for (size_t s = ids->size(); s < greedy->size(); s++) ids->push_back((*greedy)[s]);
      }
      return ids;
    }
  }
  return greedy;
}

int64_t common_prefix(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  size_t n = 0;
  while (n < std::min(a.size(), b.size()) && a[n] == b[n]) n++;
  return n == std::min(a.size(), b.size()) ? kAllFed : int64_t(n);
}

/// A position of a prompt with logits on both sides that saw the same tokens.
struct Position {
  std::string prompt;
  int64_t step;  // of the greedy id chosen there; negative: rows of the prompt before its last
  LogitRow base, target;
};

class NoiseMeter {
 public:
  NoiseMeter(const Dump& base, const Dump& target, const std::map<std::string, int64_t>& common_fed) {
    for (const auto& [prompt, fed] : common_fed) {
      if (fed < 0) continue;
      const DumpTensor* b = with_values(base, prompt + "/prefill/0/logits");
      const DumpTensor* t = with_values(target, prompt + "/prefill/0/logits");
      if (b && t && b->shape == t->shape) {
        for (int64_t r = 0; r + 1 < b->rows(); r++) positions_.push_back({prompt, r - b->rows(), {b, r}, {t, r}});
      }
      for (int64_t step = 0; step <= fed; step++) {
        const LogitRow x = logits_of(base, prompt, step), y = logits_of(target, prompt, step);
        if (!x && step > 0) break;
        if (x && y && x.columns() == y.columns()) positions_.push_back({prompt, step, x, y});
      }
    }
  }

  /// The percentile over all positions but one; nullopt: no other position, or one whose logits are not finite.
  std::optional<double> measure(const std::string& prompt, int64_t step) const {
    std::vector<const Position*> others;
    for (const Position& p : positions_) {
      if (p.prompt != prompt || p.step != step) others.push_back(&p);
    }
    if (others.empty()) return std::nullopt;
    const int64_t room = std::max<int64_t>(1, kMostErrors / std::max<int64_t>(1, others[0]->base.columns()));
    const int64_t stride = (int64_t(others.size()) + room - 1) / room;
    std::vector<double> errors;
    for (size_t i = 0; i < others.size(); i += size_t(stride)) {
      for (int64_t id = 0; id < others[i]->base.columns(); id++) {
        const double x = others[i]->base.at(id), y = others[i]->target.at(id);
        if (x == y) {
          errors.push_back(0);
        } else if (std::isfinite(x) && std::isfinite(y)) {
          errors.push_back(std::fabs(y - x));
        } else {
          return std::nullopt;
        }
      }
    }
    return percentile_999(errors);
  }

 private:
  std::vector<Position> positions_;
};

std::vector<double> manifest_margins(const Dump& base, const std::string& prompt) {
  std::vector<double> out;
  const auto* p = prompt_entry(base, prompt);
  if (!p || !p->is_object() || !p->contains("margins") || !(*p)["margins"].is_array()) return out;
  for (const auto& x : (*p)["margins"]) out.push_back(x.is_number() ? x.get<double>() : NAN);
  return out;
}

/// Largest absolute error of the official run's logits, where a case tells it: noise for a baseline without logits.
double manifest_logit_noise(const Dump& base, const Tolerance& t) {
  double most = 0;
  for (const char* part : {"noise_floor", "noise_floor_other_prompts"}) {
    const auto& m = base.manifest();
    if (!m.is_object() || !m.contains(part) || !m[part].is_object() || !m[part].contains(t.floor)) continue;
    const auto& table = m[part][t.floor];
    for (const char* phase : {"logits", "logits_last"}) {
      if (!table.contains(phase) || !table[phase].contains("max_abs") || !table[phase]["max_abs"].is_number()) continue;
      most = std::max(most, table[phase]["max_abs"].get<double>());
    }
  }
  return most * t.noise_factor;
}

/// The baseline's margin at one step: its best logit less the second.
std::optional<double> best_margin(const LogitRow& row) {
  if (!row || row.columns() < 2) return std::nullopt;
  double first = -INFINITY, second = -INFINITY;
  for (int64_t i = 0; i < row.columns(); i++) {
    const double x = row.at(i);
    if (std::isnan(x)) return std::nullopt;
    if (x > first) {
      second = first;
      first = x;
    } else if (x > second) {
      second = x;
    }
  }
  return first - second;
}

}  // namespace

std::optional<PromptTokens> prompt_tokens(const Dump& dump, const std::string& prompt) {
  auto ids = ids_of(dump, prompt, "ids");
  if (!ids) return std::nullopt;
  return PromptTokens{std::move(*ids), fed_ids(dump, prompt, ids_of(dump, prompt, "greedy_ids")).value_or(std::vector<int64_t>())};
}

double near_tie_noise(double measured, double ulp, double cap) { return std::min(std::max(measured, ulp), cap); }

double percentile_999(std::vector<double>& errors) {
  if (errors.empty()) return 0;
  // The smallest value with at least 99.9% of all at or below it, in integers: n - floor(n / 1000).
  const size_t n = errors.size(), index = n - n / 1000 - 1;
  std::nth_element(errors.begin(), errors.begin() + ptrdiff_t(index), errors.end());
  return errors[index];
}

GreedyOutcome compare_greedy(const Dump& base, const Dump& target, const Tolerance& tolerance) {
  GreedyOutcome out;
  struct Sides {
    std::string prompt;
    std::optional<std::vector<int64_t>> base, target;
    bool dumped = false;  // the target's ids are its own words, not taken from its logits
  };
  std::vector<Sides> prompts;
  std::vector<std::string> names;
  for (const DumpTensor& t : base.tensors()) {
    const auto n = parse_tensor_name(t.name);
    if (n && (names.empty() || names.back() != n->prompt)) names.push_back(n->prompt);  // sorted by prompt
  }
  for (const std::string& prompt : names) {
    Sides s{prompt, ids_of(base, prompt, "greedy_ids"), {}};
    // Logits give the target's ids where it has dumped none; a baseline without ids has nothing to hold them against.
    s.dumped = ids_of(target, prompt, "greedy_ids").has_value();
    s.target = greedy_ids(target, prompt, s.base ? int64_t(s.base->size()) : 0);
    if (!s.target && s.base && same_hash(base, target, prompt + "/greedy_ids")) s.target = s.base;   // a hash dump holds no ids
    const auto ids_b = ids_of(base, prompt, "ids"), ids_t = ids_of(target, prompt, "ids");
    const auto fed_b = fed_ids(base, prompt, s.base), fed_t = fed_ids(target, prompt, s.target);
    int64_t& fed = out.common_fed[prompt];
    fed = fed_b && fed_t ? common_prefix(*fed_b, *fed_t) : kAllFed;
    if (ids_b && ids_t && *ids_b != *ids_t) fed = -1;
    if (s.base) prompts.push_back(std::move(s));
  }

  std::optional<NoiseMeter> meter;  // made at the first flip only
  for (const Sides& s : prompts) {
    GreedyRecord r;
    r.prompt = s.prompt;
    const int64_t fed = out.common_fed[s.prompt], wanted = int64_t(s.base->size());
    const std::vector<double> margins = manifest_margins(base, s.prompt);
    if (!s.target) {
      r.status = Status::fail;
      r.reason = "the target has no greedy ids and no logits to take them from";
      out.records.push_back(r);
      continue;
    }
    if (wanted == 0) {
      r.status = Status::fail;
      r.reason = "no greedy ids to compare: the baseline's list is empty";
      out.records.push_back(r);
      continue;
    }
    if (fed < 0) {
      r.status = Status::fail;
      r.reason = "another prompt: the ids differ";
      out.records.push_back(r);
      continue;
    }
    const std::vector<int64_t>&b = *s.base, &t = *s.target;
    bool failed = false;
    int64_t step = 0;
    r.prefix = -1;
    for (; step < std::min<int64_t>(wanted, int64_t(t.size())); step++) {
      if (step > fed) {
        // Without forced ids a flip changes what comes after: nothing there can be compared.
        if (!failed) r.reason = fmt::format("ends after step {}: from there on another token was fed", step - 1);
        if (!failed && r.flips.empty()) {   // no near tie explains it: this is another experiment, and most of it was not compared
          failed = true;
          r.reason = fmt::format("the target was fed other tokens than the baseline from decode/{} on; wanted the same --force-ids", fed);
        }
        break;
      }
      if (const LogitRow own = logits_of(target, s.prompt, step); own && s.dumped && t[size_t(step)] >= 0 && !own.may_choose(t[size_t(step)])) {
        failed = true;
        r.reason = fmt::format("step {}: the target's greedy_ids say {}, its own logits {}", step, t[size_t(step)],
                               own.argmax() < 0 ? "hold a NaN" : "choose " + std::to_string(own.argmax()));
        break;
      }
      const LogitRow row = logits_of(base, s.prompt, step);
      std::optional<double> margin = best_margin(row);
      if (!margin && size_t(step) < margins.size() && std::isfinite(margins[size_t(step)])) margin = margins[size_t(step)];
      if (margin) r.min_margin = std::min(r.min_margin.value_or(INFINITY), *margin);
      if (b[size_t(step)] == t[size_t(step)] && t[size_t(step)] >= 0) {
        r.agreed++;
        continue;
      }
      if (r.prefix < 0) r.prefix = step;
      GreedyRecord::Flip f{step, b[size_t(step)], t[size_t(step)], NAN, 0, false, {}};
      // Between the two ids where the logits are known: the target may have taken the baseline's third choice.
      const bool in_range = row && f.base_id >= 0 && f.base_id < row.columns() && f.target_id >= 0 && f.target_id < row.columns();
      if (in_range) {
        f.margin = row.at(f.base_id) - row.at(f.target_id);
      } else if (!row && margin) {
        f.margin = *margin;
      }
      if (f.target_id < 0) {
        f.reason = "no id was chosen: the target's logits hold NaN";
      } else if (!std::isfinite(f.margin)) {
        f.reason = row ? "the id is outside the vocabulary or the logits are not finite" : "no logits to judge the margin by";
      } else if (tolerance.greedy_margin_cap == 0) {
        f.reason = fmt::format("margin {:.3g}; no margin is a near tie without a preset", f.margin);
      } else {
        const LogitRow other = logits_of(target, s.prompt, step);
        double measured = 0, ulp = 0;
        bool known = true;
        if (row && other) {
          if (!meter) meter.emplace(base, target, out.common_fed);
          const std::optional<double> noise = meter->measure(s.prompt, step);
          measured = noise.value_or(0);
          ulp = ulp_of(narrower(row.tensor->dtype, other.tensor->dtype), row.at(f.base_id));
        } else if (!row) {
          measured = manifest_logit_noise(base, tolerance);
          known = measured > 0;
        } else {
          known = false;
        }
        f.noise = known ? near_tie_noise(measured, ulp, tolerance.greedy_margin_cap) : 0;
        f.near_tie = known && f.margin >= 0 && f.margin <= f.noise;
        if (!known) {
          f.reason = fmt::format("margin {:.3g}, and no logits on both sides to measure the noise by", f.margin);
        } else if (!f.near_tie) {
          f.reason = fmt::format("margin {:.3g} above noise {:.3g}{}", f.margin, f.noise,
                                 std::max(measured, ulp) > tolerance.greedy_margin_cap ? " (the preset's cap)" : "");
        }
      }
      if (!f.near_tie) {
        if (!failed) r.reason = fmt::format("step {}: id {}, wanted {}: {}", step, f.target_id, f.base_id, f.reason);
        failed = true;
      }
      r.flips.push_back(f);
    }
    r.length = step;
    if (r.prefix < 0) r.prefix = step;
    if (int64_t(t.size()) < wanted && step == int64_t(t.size())) {
      failed = true;
      if (r.reason.empty()) r.reason = fmt::format("{} ids, wanted {}", t.size(), wanted);
    } else if (int64_t(t.size()) > wanted && !base.partial() && base.kind() == Dump::Kind::dump) {
      failed = true;
      if (r.reason.empty()) r.reason = fmt::format("{} ids, wanted {}", t.size(), wanted);
    }
    if (!failed && r.agreed == 0) {
      failed = true;
      r.reason = fmt::format("no id in common: id {}, wanted {}, is a near tie, but nothing agrees. Feed the target the baseline's ids "
                             "(assay dump --force-ids) and the steps behind it count",
                             r.flips[0].target_id, r.flips[0].base_id);
    }
    r.status = failed ? Status::fail : r.flips.empty() ? Status::pass : Status::near_tie;
    out.records.push_back(r);
  }
  return out;
}

}  // namespace assay
