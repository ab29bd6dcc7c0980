#include "dumps/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "dumps/error.h"
#include "dumps/map_tables.h"
#include "dumps/names.h"
#include "dumps/rows.h"
#include "dumps/suggest_axes.h"
#include "dumps/suggest_tables.h"
#include "dumps/suggest_write.h"
#include "dumps/text.h"

namespace assay::suggesting {
namespace {

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
    for (const DumpTensor& b : base_.tensors()) {
      const auto n = parse_tensor_name(b.name);
      if (n && n->pass.empty() && mapping::is_integer(b.dtype)) base_ids_.push_back(&b);
    }
    for (auto& [key, f] : families_) ids(f);
    for (auto& [key, f] : families_) {
      if (!sounds_like_cache(key)) phases(f, index);
    }
    for (const char* when : {"after_prefill", "after_decode"}) caches(when);
    for (auto& [key, f] : families_) phases(f, index);
    Suggestion out = write();
    out.searched = searched_ + index.searched();
    return out;
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
    if (done_.contains(&f)) return;
    if (role_of(f.members[0].second->name) == "ids") {  // they need no line
      done_.insert(&f);
      return;
    }
    std::vector<Rule> rules;
    size_t again = 0, others = 0;  // equal to ids that a member above is; no ids
    for (const auto& [numbers, t] : f.members) {
      const DumpTensor* ours = nullptr;
      bool equal = false;
      for (const DumpTensor* b : base_ids_) {
        if (ours || !same_ids(*b, *t)) continue;
        equal = true;
        if (made_ids_.insert(b).second) ours = b;
      }
      if (ours) rules.push_back({ids_text(t->name, *t, ours->name, ""), "the same ids", {}, ours->name, false, {}});
      again += equal && !ours;
      others += !equal;
    }
    if (rules.empty()) return;
    done_.insert(&f);
    if (rules.size() == 1 && again > 0 && others == 0 && f.texts.size() == 2) {  // each rank has them
      rules[0].text = ids_text(f.texts[0] + "{R}" + f.texts[1], *f.members[0].second, rules[0].ids, "same R");
    } else if (again + others > 0) {
      left_.push_back(leftover(f, "in part ids of prompts, by the lines above; the others are not known"));
    }
    rules_.insert(rules_.end(), rules.begin(), rules.end());
  }

  // By values, and all but one axis of size 1.
  static bool same_ids(const DumpTensor& b, const DumpTensor& t) {
    if (!mapping::is_integer(t.dtype) || t.elements() < 2 || b.elements() != t.elements()) return false;
    if (std::find(t.shape.begin(), t.shape.end(), t.elements()) == t.shape.end()) return false;
    for (int64_t i = 0; i < b.elements(); ++i) {
      if (mapping::int_at(b, i) != mapping::int_at(t, i)) return false;
    }
    return true;
  }

  static std::string ids_text(const std::string& theirs, const DumpTensor& t, const std::string& ours,
                              const std::string& ranks) {
    std::string axes;
    for (int64_t n : t.shape) axes += std::string(axes.empty() ? "" : " ") + (n == 1 ? "1" : "token");
    std::string clauses = t.shape.size() == 1 ? "" : axes + " => token";
    if (!ranks.empty()) clauses += (clauses.empty() ? "" : ", ") + ranks;
    return fmt::format("/{} -> /{}{}{}", theirs, ours, clauses.empty() ? "" : " : ", clauses);
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
  static void keep(std::optional<Seen>& best, const DumpTensor& t, const std::vector<size_t>& special,
                   std::vector<std::string> names, const std::vector<int64_t>& places, const DumpTensor* table,
                   const Index& index) {
    Seen s = find(t, special, places, index);
    if (best && s.share <= best->share) return;
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
    const std::vector<PageTable> tables = page_tables(families_, done_, prompt_);
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
    searched_ += index.searched();
  }

  void look_at_cache(std::optional<Seen>& best, const DumpTensor& t, int64_t positions,
                     const std::vector<PageTable>& tables, const Index& index) const {
    for (size_t axis = 0; axis < t.shape.size(); ++axis) {
      if (t.shape[axis] == positions) keep(best, t, {axis}, {"position"}, every(positions), nullptr, index);
    }
    for (const PageTable& table : tables) {
      for (size_t page = 0; page < t.shape.size(); ++page) {
        for (size_t slot = 0; slot < t.shape.size(); ++slot) {
          if (page == slot) continue;
          const std::vector<int64_t> places = table.places(positions, t.shape[page], t.shape[slot]);
          if (!places.empty()) keep(best, t, {page, slot}, {"page", "slot"}, places, table.tensor, index);
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
      if (!s) break;
      if (r == 0) ranks.clear();
      ranks.push_back(s->hits);
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
  std::string relative(const Family& f, const std::vector<std::string>& names,
                       std::vector<std::pair<std::string, std::string>>& passes) const {
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
      first += f.texts[k] + (f.roles[k] == Role::step ? f.digits(k) : f.capture(k));
      if (f.roles[k] == Role::step) step = f.values[k];
    }
    any += f.texts[text].substr(0, at);
    first += f.texts[text].substr(0, at);
    const std::string prompt = f.has(Role::prompt) ? "{P}" : std::to_string(prompt_);
    if (rows_ && f.has(Role::step)) {
      passes.emplace_back(any, word_before(rows_->texts[0]) + "{S}/");
    } else {
      passes.emplace_back(first, fmt::format("prompt{}/prefill/0/", prompt));
      if (f.has(Role::step)) passes.emplace_back(any, fmt::format("prompt{}/decode/{{S-{}}}/", prompt, step + 1));
    }
    return fmt::format("{} -> {}", f.pattern(text, at), ours_text(f, names, ""));
  }

  std::string rows_line() const {
    if (!rows_) return {};
    const std::string label = word_before(rows_->texts[0]);
    return fmt::format("rows {}{{S}} = {}{{S}}{}\n", label, rows_->texts[0], rows_->texts[1]);
  }

  Suggestion write() {
    Found found{std::move(rules_), rows_line(), std::move(left_)};
    for (auto& [key, f] : families_) {
      if (done_.contains(&f) || (f.members.size() == 1 && taken_.contains(f.members[0].second))) continue;
      const auto note = notes_.find(&f);
      found.left.push_back(leftover(f, note == notes_.end() ? "nothing of ours was found in it" : note->second));
    }
    return write_suggestion(base_, theirs_, std::move(found));
  }

  static Leftover leftover(const Family& f, const std::string& note) {
    std::string name = f.texts[0], glob;
    for (size_t k = 1; k < f.texts.size(); ++k) name += "*" + f.texts[k];
    for (char c : name) {
      const bool any = c == '*' || c == '#' || c == '{' || c == '}';  // a map can't hold these in a name
      if (!any || !glob.ends_with('*')) glob += any ? '*' : c;
    }
    const DumpTensor& t = *f.members[0].second;
    return {glob,
            fmt::format("{} tensors as {} {}: {}", f.members.size(), name_of(t.dtype), shape_text(t.shape), note)};
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
  std::vector<Leftover> left_;  // of families that rules take in part
  std::vector<const DumpTensor*> base_ids_;
  std::set<const DumpTensor*> made_ids_;
  int64_t searched_ = 0;
};

}  // namespace
}  // namespace assay::suggesting

namespace assay {

Suggestion suggest_map(const Dump& base, const Dump& theirs) {
  const Dump logical = align_rows(base);
  return suggesting::Suggester(logical, theirs).run();
}

}  // namespace assay
