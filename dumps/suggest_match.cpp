#include "dumps/suggest_match.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "dumps/metrics.h"

namespace assay::suggesting {

int64_t count_columns(const DumpTensor& t, const std::vector<size_t>& special) {
  int64_t n = 1;
  for (size_t i = 0; i < t.shape.size(); ++i) {
    if (std::find(special.begin(), special.end(), i) == special.end()) n *= t.shape[i];
  }
  return n;
}

Columns columns_of(const DumpTensor& t, const std::vector<size_t>& special, const std::vector<int64_t>& places,
                   const std::vector<int64_t>* which) {
  Columns out;
  std::vector<int64_t> strides(t.shape.size(), 1);
  for (size_t i = t.shape.size(); i-- > 1;) strides[i - 1] = strides[i] * t.shape[i];
  std::vector<size_t> rest;
  for (size_t i = 0; i < t.shape.size(); ++i) {
    if (std::find(special.begin(), special.end(), i) == special.end()) rest.push_back(i);
  }
  out.columns = which ? int64_t(which->size()) : count_columns(t, special);
  out.tokens = int64_t(places.size());
  out.x.resize(size_t(out.tokens * out.columns));
  for (int64_t c = 0; c < out.columns; ++c) {
    int64_t at = 0, left = which ? (*which)[size_t(c)] : c;
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

std::vector<int64_t> sample_of(int64_t n) {
  constexpr int64_t kMost = 64;
  std::vector<int64_t> out;
  for (int64_t i = 0; i < std::min(n, kMost); ++i) {
    // One of each 64th, not always the first: parts and heads have periods.
    const int64_t k = n > kMost ? i * 37 % kMost : i, begin = k * n / kMost, end = (k + 1) * n / kMost;
    out.push_back(n > kMost ? begin + i * 40503 % (end - begin) : i);
  }
  return out;
}

Index::Index(int64_t tokens) : tokens_(tokens) {
  // Weights of about equal size and no pattern, the same in every run.
  for (int64_t t = 0; t < tokens; ++t) weights_.push_back(0.5 + std::fmod(double(t + 1) * 0.6180339887498949, 1.0));
  for (int64_t t = 1; t < tokens; t += 2) weights_[size_t(t)] = -weights_[size_t(t)];
}

double Index::project(const double* column) const {
  double sum = 0;
  for (int64_t t = 0; t < tokens_; ++t) sum += weights_[size_t(t)] * column[t];
  return sum;
}

void Index::add(const std::string& name, Columns columns) {
  const int tensor = int(names_.size());
  names_.push_back(name);
  for (int64_t c = 0; c < columns.columns; ++c) {
    const double* x = columns.x.data() + c * tokens_;
    double scale = 0;
    for (int64_t t = 0; t < tokens_; ++t) scale = std::max(scale, std::fabs(x[t]));
    if (!(scale > 0) || !std::isfinite(scale)) continue;  // a column of zeros tells nothing
    entries_.push_back({project(x), scale, tensor, c});
  }
  columns_.push_back(std::move(columns));
}

void Index::finish() {
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.key < b.key; });
}

Hit Index::find(const double* column, double tolerance, int only) const {
  ++searched_;
  double scale = 0, weight = 0;
  for (int64_t t = 0; t < tokens_; ++t) {
    if (!std::isfinite(column[t])) return {};
    scale = std::max(scale, std::fabs(column[t]));
    weight += std::fabs(weights_[size_t(t)]);
  }
  if (scale == 0) return {};
  const double key = project(column), reach = weight * tolerance * scale * 1.5;
  Hit best;
  double best_difference = tolerance;
  auto it = std::lower_bound(entries_.begin(), entries_.end(), key - reach,
                             [](const Entry& e, double k) { return e.key < k; });
  for (; it != entries_.end() && it->key <= key + reach; ++it) {
    if (only >= 0 && it->tensor != only) continue;
    const double* y = columns_[size_t(it->tensor)].x.data() + it->column * tokens_;
    double difference = 0;
    for (int64_t t = 0; t < tokens_ && difference <= best_difference; ++t) {
      difference = std::max(difference, std::fabs(column[t] - y[t]) / it->scale);
    }
    if (difference < best_difference || (difference == best_difference && best.tensor < 0)) {
      best_difference = difference;
      best = {it->tensor, it->column};
    }
  }
  return best;
}

bool Index::is_near(const double* column, double tolerance, int tensor, int64_t at) const {
  const double* y = columns_[size_t(tensor)].x.data() + at * tokens_;
  double scale = 0, difference = 0;
  for (int64_t t = 0; t < tokens_; ++t) {
    scale = std::max(scale, std::fabs(y[t]));
    difference = std::max(difference, std::fabs(column[t] - y[t]));
  }
  return difference <= tolerance * scale;
}

std::vector<Hit> Index::find(const Columns& columns, double tolerance, int only) const {
  std::vector<Hit> out;
  for (int64_t c = 0; c < columns.columns; ++c) out.push_back(find(columns.x.data() + c * tokens_, tolerance, only));
  return out;
}

namespace {

// A candidate: our place of feature i within a block of `d`, and its axes.
struct Inner {
  int64_t d;
  std::function<int64_t(int64_t)> place;
  std::string theirs, ours;
};

}  // namespace

Order find_order(const std::vector<std::vector<int64_t>>& hits, const std::string& name) {
  const int64_t ranks = int64_t(hits.size()), n = int64_t(hits[0].size());
  std::vector<Inner> inners = {{n, [](int64_t i) { return i; }, fmt::format("f{}:{}", name, n), "f" + name}};
  for (int64_t d = 4; d <= n; d += 2) {
    if (n % d) continue;
    const std::string j = "j" + name, sized = fmt::format("j{}:{}", name, d / 2);
    inners.push_back({d, [d](int64_t i) { return i % 2 * (d / 2) + i / 2; }, sized + " pair:2", "pair " + j});
    inners.push_back({d, [d](int64_t i) { return i % (d / 2) * 2 + i / (d / 2); }, "pair:2 " + sized, j + " pair"});
  }
  for (int64_t d = 2; d < n; ++d) {
    if (n % d == 0) inners.push_back({d, [](int64_t i) { return i; }, fmt::format("d{}:{}", name, d), "d" + name});
  }
  Order best;
  const std::string h = "h" + name;
  auto propose = [&](int64_t right, int64_t found, Order order) {
    order.agreed = found > 0 ? double(right) / double(found) : 0;
    if (order.agreed > best.agreed + 1e-9) best = std::move(order);
  };
  for (const Inner& inner : inners) {
    const int64_t d = inner.d, blocks = n / d;
    // Where each block of theirs begins among ours: by majority.
    std::vector<std::vector<int64_t>> begins;
    int64_t right = 0, found = 0;
    for (int64_t k = 0; k < ranks; ++k) {
      begins.emplace_back();
      for (int64_t b = 0; b < blocks; ++b) {
        std::map<int64_t, int64_t> votes;
        for (int64_t i = 0; i < d; ++i) {
          const int64_t c = hits[size_t(k)][size_t(b * d + i)];
          if (c < 0) continue;
          ++found;
          ++votes[c - inner.place(i)];
        }
        int64_t begin = -1, most = 0;
        for (const auto& [at, count] : votes) {
          if (count > most && at >= 0 && at % d == 0) begin = at, most = count;
        }
        right += most;
        begins.back().push_back(begin < 0 ? -1 : begin / d);
      }
    }
    // The blocks must be all of ours once: rank behind rank in their order, or with the heads in another order.
    std::vector<int64_t> list(static_cast<size_t>(blocks), -1);
    bool plain = true, permuted = true;
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t to = begins[0][size_t(b)];
      for (int64_t k = 0; k < ranks; ++k) {
        const int64_t at = begins[size_t(k)][size_t(b)];
        plain = plain && (at < 0 || at == k * blocks + b);
        permuted = permuted && to >= 0 && to < blocks && at == k * blocks + to;
      }
      if (permuted) list[size_t(to)] = b;
    }
    permuted = permuted && std::find(list.begin(), list.end(), -1) == list.end();
    const std::string sized = fmt::format("{}:{}", h, blocks);
    if (plain) {
      propose(right, found,
              {blocks > 1 ? sized : "", inner.theirs, blocks > 1 ? h : "", inner.ours, d, 0,
               d == n && &inner == &inners[0]});
    } else if (permuted) {
      std::string text;
      for (int64_t x : list) text += fmt::format("{}{}", text.empty() ? "" : ",", x);
      propose(right, found, {fmt::format("{}[{}]", sized, text), inner.theirs, h, inner.ours, d, 0, false});
    }
  }
  for (int64_t d = 2; d <= n / 2; ++d) {  // the heads innermost
    if (n % d) continue;
    const int64_t heads = n / d;
    int64_t right = 0, found = 0;
    for (int64_t k = 0; k < ranks; ++k) {
      for (int64_t i = 0; i < n; ++i) {
        const int64_t c = hits[size_t(k)][size_t(i)];
        found += c >= 0;
        right += c == k * n + i % heads * d + i / heads;
      }
    }
    propose(right, found,
            {fmt::format("d{}:{}", name, d), fmt::format("{}:{}", h, heads), h, "d" + name, heads, 0, false});
  }
  return best;
}

}  // namespace assay::suggesting
