// Official cases keep the best k logits of every position instead of all: how well the target's logits agree with them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "dumps/compare_plan.h"
#include "dumps/metrics.h"

namespace assay::comparing {
namespace {

int64_t id_at(const DumpTensor& t, int64_t i) { return int64_t(value_at(t.dtype, t.data, i)); }

/// The k best ids of a row, ties to the lower id, NaN last.
std::vector<int64_t> best_ids(const DumpTensor& logits, int64_t row, int64_t k) {
  const int64_t n = logits.columns();
  std::vector<double> x(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; i++) x[size_t(i)] = value_at(logits.dtype, logits.data, row * n + i);
  std::vector<int64_t> ids(static_cast<size_t>(n));
  std::iota(ids.begin(), ids.end(), 0);
  k = std::min(k, n);
  std::partial_sort(ids.begin(), ids.begin() + ptrdiff_t(k), ids.end(), [&](int64_t a, int64_t b) {
    const double p = x[size_t(a)], q = x[size_t(b)];
    if (std::isnan(p) || std::isnan(q)) return !std::isnan(p) && std::isnan(q) ? true : std::isnan(p) == std::isnan(q) && a < b;
    return p != q ? p > q : a < b;
  });
  ids.resize(size_t(k));
  return ids;
}

}  // namespace

TopkRecord top_k(const Dump& target, const Dump& base, const DumpTensor& top_ids) {
  TopkRecord out;
  out.name = top_ids.name;
  out.k = top_ids.columns();
  const std::string stem = top_ids.name.substr(0, top_ids.name.rfind('/') + 1);
  const DumpTensor* logits = target.find(stem + "logits");
  const DumpTensor* own = target.find(top_ids.name);
  int64_t first = 0;  // row of the baseline that the target's first row answers
  if (logits && logits->data && logits->rows() == top_ids.rows()) {
  } else if (own && own->data && own->shape == top_ids.shape) {
    logits = nullptr;
  } else {
    logits = target.find(stem + "logits_last");
    own = nullptr;
    first = top_ids.rows() - 1;
    if (!logits || !logits->data || logits->rows() != 1) return out;
  }
  const DumpTensor* values = base.find(stem + "logits_top_values");
  if (values && (!values->data || values->shape != top_ids.shape)) values = nullptr;
  for (int64_t row = first; row < top_ids.rows(); row++) {
    std::vector<int64_t> want, got;
    for (int64_t i = 0; i < out.k; i++) want.push_back(id_at(top_ids, row * out.k + i));
    if (logits) {
      got = best_ids(*logits, row - first, out.k);
      for (int64_t i = 0; values && i < out.k; i++) {
        const int64_t id = want[size_t(i)];
        if (id < 0 || id >= logits->columns()) continue;
        const double t = value_at(logits->dtype, logits->data, (row - first) * logits->columns() + id);
        const double d = std::fabs(t - value_at(values->dtype, values->data, row * out.k + i));
        if (!(d <= out.values_max_abs)) out.values_max_abs = std::isnan(d) ? INFINITY : d;
      }
    } else {
      for (int64_t i = 0; i < out.k; i++) got.push_back(id_at(*own, row * out.k + i));
    }
    out.rows++;
    out.top1 += !want.empty() && !got.empty() && want[0] == got[0];
    out.order += want == got;
    std::sort(want.begin(), want.end());
    std::sort(got.begin(), got.end());
    std::vector<int64_t> both;
    std::set_intersection(want.begin(), want.end(), got.begin(), got.end(), std::back_inserter(both));
    out.common += int64_t(both.size());
  }
  return out;
}

}  // namespace assay::comparing
