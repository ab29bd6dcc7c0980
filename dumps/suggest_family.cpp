#include "dumps/suggest_family.h"

#include <algorithm>
#include <set>

#include "dumps/error.h"
#include "dumps/names.h"

namespace assay::suggesting {
namespace {

constexpr double kExact = 1e-4,
                 kLoose = 0.08;  // largest difference of a column, of its largest value: float32, bfloat16

constexpr size_t kMostDigits = 18;  // of a number in a name
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

constexpr size_t kLooks = 3;                // members of a family that are looked at before it is given up
constexpr int64_t kMostTerms = 64;          // ranks of a sum
constexpr double kPromising = kEnough / 2;  // share of a sample

bool differs_only_in(const Numbers& a, const Numbers& b, size_t k) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (i != k && a[i] != b[i]) return false;
  }
  return true;
}

double share_of(const std::vector<Hit>& hits) {
  const auto found = std::count_if(hits.begin(), hits.end(), [](const Hit& h) { return h.tensor >= 0; });
  return hits.empty() ? 0 : double(found) / double(hits.size());
}

}  // namespace

const DumpTensor* Family::member(const Numbers& numbers) const {
  const auto it = by_numbers.find(numbers);
  return it == by_numbers.end() ? nullptr : it->second;
}

bool Family::has(Role role) const {
  return std::find(roles.begin(), roles.end(), role) != roles.end();
}

std::string Family::capture(size_t k) const {
  switch (roles[k]) {
    case Role::layer:
      return "{L}";
    case Role::rank:
    case Role::same:
    case Role::sum:
      return "{R}";
    case Role::step:
      return "{S}";
    case Role::prompt:
      return "{P}";
    case Role::constant:
    case Role::unknown:
      break;
  }
  return digits(k);
}

std::string Family::digits(size_t k) const {
  const DumpTensor* t = values.empty() ? nullptr : member(values);
  const std::string& name = (t ? t : members[0].second)->name;
  size_t at = 0;
  for (size_t i = 0;; ++i) {
    at += texts[i].size();
    size_t end = at;
    while (end < name.size() && end - at < kMostDigits && is_digit(name[end])) ++end;
    if (i == k) return name.substr(at, end - at);
    at = end;
  }
}

std::string Family::pattern(size_t text, size_t at) const {
  std::string out = texts[text].substr(at);
  for (size_t k = text; k < roles.size(); ++k) out += capture(k) + texts[k + 1];
  return out;
}

std::map<std::string, Family> families_of(const Dump& dump) {
  std::map<std::string, Family> out;
  for (const DumpTensor& t : dump.tensors()) {
    if (!t.data) {
      throw Error(ErrorKind::usage, dump.path().string(), "a map is suggested by values", "mode full",
                  std::string(name_of(dump.mode())));
    }
    std::vector<std::string> texts(1);
    Numbers numbers;
    for (size_t i = 0; i < t.name.size();) {
      size_t end = i;
      while (end < t.name.size() && end - i < kMostDigits && is_digit(t.name[end])) ++end;
      if (end == i) {
        texts.back() += t.name[i++];
        continue;
      }
      numbers.push_back(std::stoll(t.name.substr(i, end - i)));
      texts.emplace_back();
      i = end;
    }
    std::string key;
    for (const std::string& s : texts) key += s + "#";
    Family& f = out[key];
    f.texts = texts;
    f.roles.assign(numbers.size(), Role::constant);
    f.by_numbers.emplace(numbers, &t);
    f.members.emplace_back(std::move(numbers), &t);
  }
  return out;
}

std::string word_before(const std::string& text) {
  size_t n = text.size();
  while (n > 0 && ((text[n - 1] >= 'a' && text[n - 1] <= 'z') || (text[n - 1] >= 'A' && text[n - 1] <= 'Z'))) --n;
  return text.substr(n);
}

double probe(const Columns& sample, const Index& index) {
  const double exact = share_of(index.find(sample, kExact));
  if (exact >= kPromising) return exact;
  int64_t found = 0;
  for (int64_t c = 0; c < sample.columns; ++c) {
    if (c == 16 && found == 0) return 0;  // each costs a walk through most of ours
    found += index.find(sample.x.data() + c * sample.tokens, kLoose).tensor >= 0;
  }
  return sample.columns ? double(found) / double(sample.columns) : 0;
}

Seen find(const DumpTensor& t, const std::vector<size_t>& special, const std::vector<int64_t>& places,
          const Index& index) {
  const std::vector<int64_t> which = sample_of(count_columns(t, special));
  Seen s;
  s.share = probe(columns_of(t, special, places, &which), index);
  if (s.share < kPromising) {
    s.hits.resize(size_t(count_columns(t, special)));
  } else {
    s = find(columns_of(t, special, places), index);
  }
  s.special = special;
  s.places = places;
  return s;
}

Seen find(const Columns& columns, const Index& index) {
  Seen s;
  Columns sample{columns.tokens, 0, {}};
  for (int64_t c : sample_of(columns.columns)) {
    const double* column = columns.x.data() + c * columns.tokens;
    sample.x.insert(sample.x.end(), column, column + columns.tokens);
    ++sample.columns;
  }
  s.share = probe(sample, index);
  if (s.share < kPromising) {
    s.hits.resize(size_t(columns.columns));
    return s;
  }
  double tolerance = kExact;
  s.hits = index.find(columns, tolerance);
  s.share = share_of(s.hits);
  if (s.share < 0.9) {
    tolerance = kLoose;
    s.hits = index.find(columns, tolerance);
    s.share = share_of(s.hits);
  }
  // Columns of neighbouring phases can be nearly equal (RoPE turns the last pairs by next to nothing): one tensor that
  // holds all of them counts more than the nearest.
  const std::vector<int> tensors = tensors_of(s.hits);
  for (size_t i = 0; tensors.size() > 1 && i < tensors.size(); ++i) {
    if (index.columns_of(tensors[i]) < columns.columns) continue;
    std::vector<Hit> hits = index.find(columns, tolerance, tensors[i]);
    if (share_of(hits) < 0.97 * s.share) continue;
    s.hits = std::move(hits);
    break;
  }
  // So can columns of one tensor (logits of ids that were never trained): where all stand at their own places, they do.
  const std::vector<int> left = tensors_of(s.hits);
  if (left.size() != 1 || index.columns_of(left[0]) != columns.columns) return s;
  std::vector<Hit> own = s.hits;
  for (int64_t c = 0; c < columns.columns; ++c) {
    const double* column = columns.x.data() + c * columns.tokens;
    own[size_t(c)] = index.is_near(column, tolerance, left[0], c) ? Hit{left[0], c} : Hit{};
  }
  if (share_of(own) >= 0.97 * s.share) s.hits = std::move(own);
  return s;
}

std::vector<int> tensors_of(const std::vector<Hit>& hits) {
  std::map<int, int64_t> counts;
  int64_t all = 0;
  for (const Hit& h : hits) {
    if (h.tensor >= 0) ++counts[h.tensor], ++all;
  }
  std::vector<int> out;
  for (const auto& [t, n] : counts) {
    if (double(n) >= 0.08 * double(all)) out.push_back(t);
  }
  std::stable_sort(out.begin(), out.end(), [&](int a, int b) { return counts[a] > counts[b]; });
  return out;
}

std::optional<int64_t> layer_of(const std::string& name) {
  const auto n = parse_tensor_name(name);
  if (!n || !n->layer.starts_with("layer.")) return std::nullopt;
  return std::stoll(n->layer.substr(6));
}

std::optional<Seen> Numbering::tell(Family& f) const {
  const Seen* best = nullptr;
  size_t looked = 0;
  for (const auto* member : probable_first(f)) {
    const Seen* s = look(member->first, *member->second);
    if (!s) continue;
    if (!best || s->share > best->share + 0.2) best = s, f.values = member->first;
    if (best->share > 0.97 || ++looked == std::max(kLooks, f.roles.size() + 1)) break;
  }
  if (!best) return std::nullopt;
  for (size_t k = 0; k < f.values.size(); ++k) {
    std::set<int64_t> values;
    for (const auto& [numbers, t] : f.members) values.insert(numbers[k]);
    f.roles[k] = values.size() > 1 ? Role::unknown : Role::constant;
  }
  std::optional<Seen> reference;
  std::optional<size_t> summed;
  if (best->share >= kEnough) {
    reference = *best;
  } else {  // no member alone is ours: is a sum over one number?
    for (size_t k = 0; k < f.values.size() && !summed; ++k) {
      if (f.roles[k] == Role::constant) continue;
      std::optional<Seen> sum = sum_over(f, f.values, k);
      if (!sum || sum->share < kEnough) continue;
      f.roles[k] = Role::sum;
      summed = k;
      reference = std::move(sum);
    }
  }
  if (!reference) return std::nullopt;
  for (size_t k = 0; k < f.values.size(); ++k) {
    if (f.roles[k] != Role::unknown) continue;
    // The nearest numbers: of our layers only the first two are in view.
    std::vector<std::pair<int64_t, const DumpTensor*>> others;
    for (const auto& [numbers, t] : f.members) {
      if (differs_only_in(f.values, numbers, k) && numbers[k] != f.values[k]) others.emplace_back(numbers[k], t);
    }
    std::stable_sort(others.begin(), others.end(), [&](const auto& a, const auto& b) {
      return std::abs(a.first - f.values[k]) < std::abs(b.first - f.values[k]);
    });
    for (size_t i = 0; i < std::min(kLooks, others.size()) && f.roles[k] == Role::unknown; ++i) {
      Numbers numbers = f.values;
      numbers[k] = others[i].first;
      f.roles[k] = role_of(f, k, numbers, *others[i].second, *reference, summed);
    }
  }
  return reference;
}

// The member with the smallest numbers (first rank, first step, first layer), the same of the prompt that is looked
// for, then the others: a family that is none of ours must not be read whole.
std::vector<const std::pair<Numbers, const DumpTensor*>*> Numbering::probable_first(const Family& f) const {
  std::vector<const std::pair<Numbers, const DumpTensor*>*> out;
  Numbers least = f.members[0].first;
  for (const auto& [numbers, t] : f.members) {
    for (size_t k = 0; k < numbers.size(); ++k) least[k] = std::min(least[k], numbers[k]);
  }
  std::vector<Numbers> wanted = {least};
  for (size_t k = 0; k < least.size(); ++k) {
    wanted.push_back(least);
    wanted.back()[k] = prompt;
  }
  const auto rank = [&](const Numbers& numbers) {
    return std::find(wanted.begin(), wanted.end(), numbers) - wanted.begin();
  };
  for (const auto& member : f.members) out.push_back(&member);
  std::stable_sort(out.begin(), out.end(), [&](auto* a, auto* b) { return rank(a->first) < rank(b->first); });
  return out;
}

// The terms are read as the member `numbers` is: ranks have the same rows.
std::optional<Seen> Numbering::sum_over(const Family& f, const Numbers& numbers, size_t k) const {
  const DumpTensor* first = f.member(numbers);
  const Seen* seen = first ? look(numbers, *first) : nullptr;
  if (!seen) return std::nullopt;
  std::vector<const DumpTensor*> terms;
  for (const auto& [n, t] : f.members) {
    if (!differs_only_in(numbers, n, k)) continue;
    if (t->shape != first->shape || !is_float(t->dtype) || int64_t(terms.size()) == kMostTerms) return std::nullopt;
    terms.push_back(t);
  }
  if (terms.size() < 2) return std::nullopt;
  Columns sum;
  for (const DumpTensor* t : terms) {
    Columns c = columns_of(*t, seen->special, seen->places);
    for (size_t i = 0; i < sum.x.size(); ++i) c.x[i] += sum.x[i];
    sum = std::move(c);
  }
  Seen out = find(sum, index);
  out.special = seen->special;
  out.special_names = seen->special_names;
  out.places = seen->places;
  out.table = seen->table;
  return out;
}

Role Numbering::role_of(Family& f, size_t k, const Numbers& numbers, const DumpTensor& t, const Seen& reference,
                        std::optional<size_t> summed) const {
  const Seen* alone = look(numbers, t);
  std::optional<Seen> other;
  if (alone && summed) {
    other = sum_over(f, numbers, *summed);
  } else if (alone) {
    other = *alone;
  }
  if (!other || other->share < kEnough) {  // another pass, or another prompt
    const bool has_length = std::find(t.shape.begin(), t.shape.end(), length(numbers[k])) != t.shape.end();
    if (cache) return f.values[k] == prompt ? Role::prompt : Role::unknown;
    if (!physical && f.values[k] == prompt && numbers[k] != prompt && has_length) return Role::prompt;
    return !other || physical ? Role::step : Role::unknown;
  }
  const std::vector<int> of_a = tensors_of(reference.hits), of_b = tensors_of(other->hits);
  if (of_a.empty() || of_b.empty()) return Role::unknown;
  const auto layer_a = layer_of(index.names()[size_t(of_a[0])]), layer_b = layer_of(index.names()[size_t(of_b[0])]);
  if (layer_a && layer_b && *layer_a != *layer_b) {
    f.layer_add = *layer_a - f.values[k];
    return *layer_b - numbers[k] == f.layer_add ? Role::layer : Role::unknown;
  }
  int64_t equal = 0, both = 0;
  for (size_t i = 0; i < reference.hits.size() && i < other->hits.size(); ++i) {
    const Hit &a = reference.hits[i], &b = other->hits[i];
    if (a.tensor < 0 || b.tensor < 0) continue;
    ++both;
    equal += a.tensor == b.tensor && a.column == b.column;
  }
  return double(equal) > 0.9 * double(both) ? Role::same : Role::rank;
}

}  // namespace assay::suggesting
