#include "dumps/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "dumps/compare.h"
#include "dumps/error.h"
#include "dumps/map.h"
#include "dumps/map_tables.h"
#include "dumps/metrics.h"
#include "dumps/names.h"
#include "dumps/rows.h"
#include "dumps/suggest_axes.h"
#include "dumps/text.h"

namespace assay::suggesting {
namespace {

constexpr double kRight =
    0.15;  // max_rel up to which a rule is held for right: bfloat16 through many layers stays below

struct Rule {
  std::string text, reason;
  std::vector<std::string> passes;  // lines that it needs
  bool good = false;
};

// Caches and phases can hold the same values; their names tell which is looked at first.
bool sounds_like_cache(const std::string& name) {
  for (const char* word : {"cache", "after_", "past", "kv."}) {
    if (name.find(word) != std::string::npos) return true;
  }
  return false;
}

class Suggester {
 public:
  Suggester(const Dump& base, const Dump& theirs) : base_(base), theirs_(theirs), families_(families_of(theirs)) {}

  Suggestion run() {
    choose_prompt();
    find_rows_tables();
    Index index(tokens_);
    for (const DumpTensor& t : base_.tensors()) {
      const auto n = parse_tensor_name(t.name);
      const bool wanted = n && n->prompt == prompt_name_ && n->pass == "prefill" && n->step == "0" &&
                          t.shape.size() == 2 && t.shape[0] == tokens_ && is_float(t.dtype) && in_view(t.name);
      if (wanted) index.add(t.name, columns_of(t, {0}, every(tokens_)));
    }
    index.finish();
    for (auto& [key, f] : families_) ids(f);
    for (auto& [key, f] : families_) {
      if (!sounds_like_cache(key)) phases(f, index);
    }
    for (const char* when : {"after_prefill", "after_decode"}) caches(when);
    for (auto& [key, f] : families_) phases(f, index);
    return write();
  }

 private:
  // The prompt of ours with the most tensors over the same tokens.
  void choose_prompt() {
    std::map<std::pair<std::string, int64_t>, int64_t> counts;
    for (const DumpTensor& t : base_.tensors()) {
      if (!t.data)
        throw Error(ErrorKind::usage, base_.path().string(), "a map is suggested by values", "mode full",
                    std::string(name_of(base_.mode())));
      const auto n = parse_tensor_name(t.name);
      if (n && n->pass == "prefill" && n->step == "0" && t.shape.size() == 2 && is_float(t.dtype))
        ++counts[{n->prompt, t.shape[0]}];
    }
    int64_t most = 0;
    for (const auto& [at, n] : counts) {
      if (at.second >= 2 && n > most) most = n, prompt_name_ = at.first, tokens_ = at.second;
    }
    if (most == 0)
      throw Error(ErrorKind::usage, base_.path().string(), "a map is suggested by a prefill",
                  "phases of a prefill of two or more tokens");
    prompt_ = std::stoll(prompt_name_.substr(6));
  }

  // The first two layers tell layers apart.
  static bool in_view(const std::string& name) {
    const auto layer = layer_of(name);
    return !layer || *layer <= 1;
  }

  static std::vector<int64_t> every(int64_t n) {
    std::vector<int64_t> out(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) out[size_t(i)] = i;
    return out;
  }

  // Tokens lie along the axes `special`; token k at `places[k]`, counted along these axes, slowest first. All else is
  // columns.
  static Columns columns_of(const DumpTensor& t, const std::vector<size_t>& special,
                            const std::vector<int64_t>& places) {
    Columns out;
    std::vector<int64_t> strides(t.shape.size(), 1);
    for (size_t i = t.shape.size(); i-- > 1;) strides[i - 1] = strides[i] * t.shape[i];
    std::vector<size_t> rest;
    out.columns = 1;
    for (size_t i = 0; i < t.shape.size(); ++i) {
      if (std::find(special.begin(), special.end(), i) != special.end()) continue;
      rest.push_back(i);
      out.columns *= t.shape[i];
    }
    out.tokens = int64_t(places.size());
    out.x.resize(size_t(out.tokens * out.columns));
    for (int64_t c = 0; c < out.columns; ++c) {
      int64_t at = 0, left = c;
      for (size_t k = rest.size(); k-- > 0; left /= t.shape[rest[k]]) at += left % t.shape[rest[k]] * strides[rest[k]];
      for (int64_t k = 0; k < out.tokens; ++k) {
        int64_t token = at;
        left = places[size_t(k)];
        for (size_t a = special.size(); a-- > 0; left /= t.shape[special[a]])
          token += left % t.shape[special[a]] * strides[special[a]];
        out.x[size_t(c * out.tokens + k)] = value_at(t.dtype, t.data, token);
      }
    }
    return out;
  }

  // [n, 3] integers of prompt, position, kind, one for each physical pass.
  void find_rows_tables() {
    for (auto& [key, f] : families_) {
      bool rows = f.texts.size() == 2;
      for (const auto& [numbers, t] : f.members) {
        rows = rows && mapping::is_integer(t->dtype) && t->shape.size() == 2 && t->shape[1] == 3 && t->shape[0] > 0;
        for (int64_t r = 0; rows && r < t->shape[0]; ++r) {
          const int64_t kind = mapping::int_at(*t, 3 * r + 2);
          rows = kind >= 0 && kind <= 2;
        }
      }
      if (!rows) continue;
      rows_ = &f;
      done_.insert(&f);
      return;
    }
  }

  // Where our tokens stand in `size` rows of a tensor of this name; empty: another pass.
  std::vector<int64_t> rows_of(const Family& f, const Numbers& numbers, int64_t size) const {
    if (!rows_) return size == tokens_ ? every(tokens_) : std::vector<int64_t>();
    const std::string label = word_before(rows_->texts[0]);
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (word_before(f.texts[i]) != label) continue;
      const DumpTensor* table = rows_->member({numbers[i]});
      if (!table || table->shape[0] != size) continue;
      std::vector<int64_t> out(static_cast<size_t>(tokens_), -1);
      for (int64_t r = 0; r < size; ++r) {
        const int64_t position = mapping::int_at(*table, 3 * r + 1);
        const bool ours = mapping::int_at(*table, 3 * r + 2) == 0 && mapping::int_at(*table, 3 * r) == prompt_;
        if (ours && position >= 0 && position < tokens_) out[size_t(position)] = r;
      }
      if (std::find(out.begin(), out.end(), -1) == out.end()) return out;
    }
    return {};
  }

  int64_t length_of(int64_t prompt) const {
    const DumpTensor* ids = base_.find(fmt::format("prompt{}/ids", prompt));
    return ids ? ids->elements() : -1;
  }

  void ids(Family& f) {
    for (const auto& [numbers, t] : f.members) {
      if (role_of(t->name) == "ids") done_.insert(&f);  // they need no line
      if (!mapping::is_integer(t->dtype) || done_.contains(&f) || t->elements() < 2) continue;
      for (const DumpTensor& b : base_.tensors()) {
        const auto n = parse_tensor_name(b.name);
        if (!n || !n->pass.empty() || b.elements() != t->elements()) continue;
        bool equal = true;
        for (int64_t i = 0; i < b.elements() && equal; ++i) equal = mapping::int_at(b, i) == mapping::int_at(*t, i);
        if (!equal) continue;
        rules_.push_back(
            {fmt::format("/{} -> /{}{}", t->name, b.name, t->shape.size() == 2 ? " : 1 token => token" : ""),
             "the same ids",
             {},
             true});
        done_.insert(&f);
        break;
      }
    }
  }

  void phases(Family& f, const Index& index) {
    if (done_.contains(&f)) return;
    std::map<const DumpTensor*, std::optional<Seen>> cache;
    Numbering numbering{index,
                        [&](const Numbers& numbers, const DumpTensor& t) -> const Seen* {
                          auto [it, added] = cache.try_emplace(&t);
                          for (size_t axis = 0; added && axis < t.shape.size() && is_float(t.dtype); ++axis) {
                            const std::vector<int64_t> rows = rows_of(f, numbers, t.shape[axis]);
                            if (!rows.empty()) keep(it->second, t, {axis}, {"token"}, rows, nullptr, index);
                          }
                          return it->second ? &*it->second : nullptr;
                        },
                        [&](int64_t p) { return length_of(p); },
                        prompt_,
                        false,
                        rows_ != nullptr};
    const std::optional<Seen> seen = numbering.tell(f);
    if (seen) rule(f, numbering, *seen, "token", "");
  }

  // Keeps the better of two views.
  static void keep(std::optional<Seen>& best, const DumpTensor& t, std::vector<size_t> special,
                   std::vector<std::string> names, const std::vector<int64_t>& places, const DumpTensor* table,
                   const Index& index) {
    Seen s = find(columns_of(t, special, places), index);
    if (best && s.share <= best->share) return;
    s.special = std::move(special);
    s.special_names = std::move(names);
    s.table = table;
    best = std::move(s);
  }

  void caches(const std::string& when) {
    int64_t positions = 0;
    std::vector<const DumpTensor*> ours;
    for (const DumpTensor& t : base_.tensors()) {
      const auto n = parse_tensor_name(t.name);
      if (!n || !n->is_state() || n->prompt != prompt_name_ || n->step != when || t.shape.size() != 3 ||
          !in_view(t.name))
        continue;
      if (n->phase != "k" && n->phase != "v") continue;
      positions = t.shape[1];
      ours.push_back(&t);
    }
    if (positions < 2) return;
    Index index(positions);
    for (const DumpTensor* t : ours) index.add(t->name, columns_of(*t, {1}, every(positions)));
    index.finish();
    std::vector<const DumpTensor*> tables;
    for (auto& [key, f] : families_) {
      for (const auto& [numbers, t] : f.members) {
        const bool table = mapping::is_integer(t->dtype) && !done_.contains(&f) &&
                           (t->shape.size() == 1 || (t->shape.size() == 2 && t->shape[0] > prompt_));
        if (table) tables.push_back(t);
      }
    }
    for (auto& [key, f] : families_) {
      const bool other = key.find(when == "after_decode" ? "after_prefill" : "after_decode") != std::string::npos;
      if (done_.contains(&f) || other || !is_float(f.members[0].second->dtype)) continue;
      std::map<const DumpTensor*, std::optional<Seen>> cache;
      Numbering numbering{index,
                          [&](const Numbers&, const DumpTensor& t) -> const Seen* {
                            auto [it, added] = cache.try_emplace(&t);
                            if (added) look_at_cache(it->second, t, positions, tables, index);
                            return it->second ? &*it->second : nullptr;
                          },
                          [&](int64_t p) {
                            const DumpTensor* k = base_.find(fmt::format("prompt{}/state/{}/layer.0/k", p, when));
                            return k && k->shape.size() == 3 ? k->shape[1] : -1;
                          },
                          prompt_,
                          true,
                          false};
      const std::optional<Seen> seen = numbering.tell(f);
      if (seen) rule(f, numbering, *seen, "position", when);
    }
  }

  void look_at_cache(std::optional<Seen>& best, const DumpTensor& t, int64_t positions,
                     const std::vector<const DumpTensor*>& tables, const Index& index) const {
    for (size_t axis = 0; axis < t.shape.size(); ++axis) {
      if (t.shape[axis] == positions) keep(best, t, {axis}, {"position"}, every(positions), nullptr, index);
    }
    for (const DumpTensor* table : tables) {
      const int64_t blocks = table->shape.back(), first = table->shape.size() == 2 ? prompt_ * blocks : 0;
      for (size_t page = 0; page < t.shape.size(); ++page) {
        for (size_t slot = 0; slot < t.shape.size(); ++slot) {
          const int64_t slots = t.shape[slot];
          if (page == slot || slots < 1 || (positions + slots - 1) / slots > blocks) continue;
          std::vector<int64_t> places;
          for (int64_t p = 0; p < positions; ++p) {
            const int64_t number = mapping::int_at(*table, first + p / slots);
            if (number < 0 || number >= t.shape[page]) break;
            places.push_back(number * slots + p % slots);
          }
          if (int64_t(places.size()) == positions) keep(best, t, {page, slot}, {"page", "slot"}, places, table, index);
        }
      }
    }
  }

  void rule(Family& f, const Numbering& numbering, const Seen& seen, const std::string& token,
            const std::string& when) {
    if (f.has(Role::unknown)) {
      notes_[&f] = "its columns were found, but a number in its name counts what is not known";
      return;
    }
    std::vector<std::vector<Hit>> ranks = {seen.hits};
    const size_t rank = size_t(std::find(f.roles.begin(), f.roles.end(), Role::rank) - f.roles.begin());
    for (int64_t r = 0; rank < f.roles.size() && r < int64_t(f.members.size()); ++r) {
      Numbers numbers = f.values;
      numbers[rank] = r;
      const DumpTensor* t = f.member(numbers);
      const Seen* s = t ? numbering.look(numbers, *t) : nullptr;
      if (r == 0) ranks.clear();
      if (s) ranks.push_back(s->hits);
    }
    const AxesText axes = axes_text(*f.member(f.values), seen, ranks, numbering.index, token);
    if (!axes.problem.empty()) {
      notes_[&f] = axes.problem;
      return;
    }
    std::vector<std::string> clauses;
    if (!axes.clause.empty()) clauses.push_back(axes.clause);
    if (f.has(Role::sum)) clauses.push_back("sum R");
    if (f.has(Role::same)) clauses.push_back("same R");
    const bool by_row = seen.table && seen.table->shape.size() == 2;
    if (seen.table) clauses.push_back("pages " + seen.table->name + (by_row ? "[P]" : "")), taken_.insert(seen.table);
    Rule r;
    std::string& text = r.text = when.empty() ? relative(f, axes.names, r.passes) : full(f, axes.names, when, by_row);
    for (size_t i = 0; i < clauses.size(); ++i) text += (i ? ", " : " : ") + clauses[i];
    r.reason = fmt::format("{:.0f}% of its columns found", 100 * seen.share);
    rules_.push_back(std::move(r));
    done_.insert(&f);
  }

  static std::string layer_text(const Family& f, const std::string& name) {
    const auto layer = layer_of(name);
    if (!layer || !f.has(Role::layer)) return layer ? fmt::format("layer.{}/", *layer) : "";
    return f.layer_add ? fmt::format("layer.{{L{}{}}}/", f.layer_add > 0 ? "+" : "", f.layer_add) : "layer.{L}/";
  }

  std::string ours_text(const Family& f, const std::vector<std::string>& names, const std::string& prefix) const {
    std::string out;
    for (size_t i = 0; i < names.size(); ++i) {
      const std::string phase = parse_tensor_name(names[i])->phase;
      out += i ? " | " + phase : prefix + layer_text(f, names[i]) + phase;
    }
    return out;
  }

  std::string full(const Family& f, const std::vector<std::string>& names, const std::string& when, bool by_row) const {
    const std::string prompt = by_row || f.has(Role::prompt) ? "{P}" : std::to_string(prompt_);
    return fmt::format("/{} -> {}", f.pattern(), ours_text(f, names, fmt::format("/prompt{}/state/{}/", prompt, when)));
  }

  // What stands before the last / in front of the layer becomes a pass.
  std::string relative(const Family& f, const std::vector<std::string>& names, std::vector<std::string>& passes) const {
    size_t text = 0, at = 0;
    for (size_t k = 0; k < f.texts.size(); ++k) {
      const size_t slash = f.texts[k].rfind('/');
      if (slash != std::string::npos) text = k, at = slash + 1;
      if (k < f.roles.size() && f.roles[k] == Role::layer) break;
    }
    std::string any, first;  // prefix for all steps, and for the prefill
    int64_t step = 0;
    for (size_t k = 0; k < text; ++k) {
      any += f.texts[k] + f.capture(k);
      first += f.texts[k] + (f.roles[k] == Role::step ? std::to_string(f.values[k]) : f.capture(k));
      if (f.roles[k] == Role::step) step = f.values[k];
    }
    any += f.texts[text].substr(0, at);
    first += f.texts[text].substr(0, at);
    const std::string gap = any.empty() ? "" : " ", prompt = f.has(Role::prompt) ? "{P}" : std::to_string(prompt_);
    if (rows_ && f.has(Role::step)) {
      passes.push_back(fmt::format("pass {} -> {}{{S}}/", any, word_before(rows_->texts[0])));
    } else {
      passes.push_back(fmt::format("pass {}{}-> prompt{}/prefill/0/", first, gap, prompt));
      if (f.has(Role::step))
        passes.push_back(fmt::format("pass {} -> prompt{}/decode/{{S-{}}}/", any, prompt, step + 1));
    }
    return fmt::format("{} -> {}", f.pattern(text, at), ours_text(f, names, ""));
  }

  // ---- the whole, held against ours
  std::string head() const {
    std::vector<std::string> lines;
    for (const Rule& r : rules_) {
      for (const std::string& p : r.passes) {
        if (r.good && std::find(lines.begin(), lines.end(), p) == lines.end()) lines.push_back(p);
      }
    }
    std::string out;
    for (const std::string& p : lines) out += p + "\n";
    return out;
  }
  std::string rows_line() const {
    if (!rows_) return {};
    const std::string label = word_before(rows_->texts[0]);
    return fmt::format("rows {}{{S}} = {}{{S}}{}\n", label, rows_->texts[0], rows_->texts[1]);
  }

  // What the rule alone makes, beside ours.
  void judge(Rule& r) const {
    std::string text;
    for (const std::string& p : r.passes) text += p + "\n";
    if (!r.passes.empty()) text += rows_line();
    text += r.text + "\nignore *\n";
    try {
      const DumpMap map = DumpMap::parse(text, "suggestion");
      const Dump made = align_rows(Mapping(theirs_, map).dump());
      double worst = 0;
      int64_t compared = 0, wrong = 0;
      for (const DumpTensor& t : made.tensors()) {
        const DumpTensor* b = base_.find(t.name);
        if (!b || role_of(t.name) == "ids") continue;
        if (t.shape != b->shape || !t.fault.empty()) {
          ++wrong;
          continue;
        }
        const TensorMetrics m = measure(*b, t, 0);
        worst = std::max(worst, m.non_finite_mismatch ? HUGE_VAL : m.max_rel);
        ++compared;
      }
      r.good = compared > 0 && wrong == 0 && worst <= kRight;
      r.reason += fmt::format("; {} tensor{}, worst max_rel {:.2g}", compared, compared == 1 ? "" : "s", worst);
      if (wrong) r.reason += fmt::format("; {} of another shape or with replicas that differ", wrong);
    } catch (const Error& e) {
      r.reason += "; can't be applied: " + std::string(e.what());
    }
  }

  Suggestion write() {
    Suggestion out;
    out.text = fmt::format("# Suggested from names and values: {} beside {}. Read it before you use it.\n",
                           theirs_.path().string(), base_.path().string());
    for (Rule& r : rules_) {
      if (!r.good) judge(r);  // ids are equal already
    }
    out.text += head() + "\n";
    for (const Rule& r : rules_) {
      out.text += fmt::format("{}{}    # {}\n", r.good ? "" : "# ? ", r.text, r.reason);
      ++(r.good ? out.rules : out.unsure);
    }
    out.text += "\n" + rows_line();
    for (auto& [key, f] : families_) {
      if (done_.contains(&f) || (f.members.size() == 1 && taken_.contains(f.members[0].second))) continue;
      const auto note = notes_.find(&f);
      const DumpTensor& t = *f.members[0].second;
      out.text +=
          fmt::format("# ? ignore {}    # {} tensors as {} {}: {}\n", globbed(f), f.members.size(), name_of(t.dtype),
                      shape_text(t.shape), note == notes_.end() ? "nothing of ours was found in it" : note->second);
      ++out.unsure;
    }
    absent(out);
    return out;
  }

  static std::string globbed(const Family& f) {
    std::string out = f.texts[0];
    for (size_t k = 1; k < f.texts.size(); ++k) out += "*" + f.texts[k];
    return out;
  }

  // Phases of ours that no rule makes. They can be excused only where nothing of theirs is left that could be them.
  void absent(Suggestion& out) const {
    std::set<std::string> made, missing;
    for (const Rule& r : rules_) {
      const size_t arrow = r.text.find(" -> "), colon = r.text.find(" : ");
      const std::string ours =
          r.text.substr(arrow + 4, colon == std::string::npos ? std::string::npos : colon - arrow - 4);
      std::string word;
      for (char c : ours + " ") {
        if (c != ' ' && c != '/' && c != '|') {
          word += c;
          continue;
        }
        if (!word.empty()) made.insert(word);
        word.clear();
      }
    }
    for (const DumpTensor& t : base_.tensors()) {
      const auto n = parse_tensor_name(t.name);
      if (!n || n->pass != "prefill" || n->phase.starts_with("logits_") || made.contains(n->phase)) continue;
      missing.insert((n->layer.empty() ? "*/" : "*/layer.*/") + n->phase);
    }
    for (const std::string& s : missing) {
      out.text += fmt::format("{}absent {}    # nothing of theirs was found to be this\n", out.unsure ? "# ? " : "", s);
    }
  }

  const Dump &base_, &theirs_;
  std::map<std::string, Family> families_;
  const Family* rows_ = nullptr;
  std::string prompt_name_;
  int64_t prompt_ = 0, tokens_ = 0;
  std::set<const Family*> done_;
  std::set<const DumpTensor*> taken_;
  std::map<const Family*, std::string> notes_;
  std::vector<Rule> rules_;
};

}  // namespace
}  // namespace assay::suggesting

namespace assay {

Suggestion suggest_map(const Dump& base, const Dump& theirs) {
  const Dump logical = align_rows(base);
  return suggesting::Suggester(logical, theirs).run();
}

}  // namespace assay
