#include "dumps/suggest_family.h"

#include <algorithm>
#include <set>

#include "dumps/error.h"
#include "dumps/names.h"

namespace assay::suggesting {
namespace {

constexpr double kExact = 1e-4,
                 kLoose = 0.08;  // largest difference of a column, of its largest value: float32, bfloat16

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
  for (const auto& [n, t] : members) {
    if (n == numbers) return t;
  }
  return nullptr;
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
  return std::to_string(values.empty() ? members[0].first[k] : values[k]);
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
      while (end < t.name.size() && end - i < 18 && t.name[end] >= '0' && t.name[end] <= '9') ++end;
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
    f.members.emplace_back(std::move(numbers), &t);
  }
  return out;
}

std::string word_before(const std::string& text) {
  size_t n = text.size();
  while (n > 0 && ((text[n - 1] >= 'a' && text[n - 1] <= 'z') || (text[n - 1] >= 'A' && text[n - 1] <= 'Z'))) --n;
  return text.substr(n);
}

Seen find(Columns columns, const Index& index) {
  Seen s;
  s.columns = std::move(columns);
  double tolerance = kExact;
  s.hits = index.find(s.columns, tolerance);
  s.share = share_of(s.hits);
  if (s.share < 0.9) {
    tolerance = kLoose;
    s.hits = index.find(s.columns, tolerance);
    s.share = share_of(s.hits);
  }
  // Columns of neighbouring phases can be nearly equal (RoPE turns the last pairs by next to nothing): one tensor that
  // holds all of them counts more than the nearest.
  const std::vector<int> tensors = tensors_of(s.hits);
  for (size_t i = 0; tensors.size() > 1 && i < tensors.size(); ++i) {
    if (index.columns_of(tensors[i]) < s.columns.columns) continue;
    std::vector<Hit> hits = index.find(s.columns, tolerance, tensors[i]);
    if (share_of(hits) < 0.97 * s.share) continue;
    s.hits = std::move(hits);
    break;
  }
  // So can columns of one tensor (logits of ids that were never trained): where all stand at their own places, they do.
  const std::vector<int> left = tensors_of(s.hits);
  if (left.size() != 1 || index.columns_of(left[0]) != s.columns.columns) return s;
  std::vector<Hit> own = s.hits;
  for (int64_t c = 0; c < s.columns.columns; ++c) {
    const double* column = s.columns.x.data() + c * s.columns.tokens;
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
  for (const auto& [numbers, t] : f.members) {
    const Seen* s = look(numbers, *t);
    if (s && (!best || s->share > best->share + 0.2)) best = s, f.values = numbers;
    if (best && best->share > 0.97) break;
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
    for (const auto& [numbers, t] : f.members) {
      if (f.roles[k] != Role::unknown) break;
      if (!differs_only_in(f.values, numbers, k) || numbers[k] == f.values[k]) continue;
      f.roles[k] = role_of(f, k, numbers, *t, *reference, summed);
    }
  }
  return reference;
}

std::optional<Seen> Numbering::sum_over(const Family& f, const Numbers& numbers, size_t k) const {
  Columns sum;
  const Seen* first = nullptr;
  size_t terms = 0;
  for (const auto& [n, t] : f.members) {
    if (!differs_only_in(numbers, n, k)) continue;
    const Seen* s = look(n, *t);
    if (!s || (first && s->columns.x.size() != sum.x.size())) return std::nullopt;
    if (!first) {
      first = s;
      sum = s->columns;
    } else {
      for (size_t i = 0; i < sum.x.size(); ++i) sum.x[i] += s->columns.x[i];
    }
    ++terms;
  }
  if (terms < 2) return std::nullopt;
  Seen out = find(std::move(sum), index);
  out.special = first->special;
  out.special_names = first->special_names;
  out.table = first->table;
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
