// Metrics on request: a second, plain pass over the values in double.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "dumps/metrics.h"

namespace assay {
namespace {

double log_sum_exp(const std::vector<double>& x) {
  const double top = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (double v : x) sum += std::exp(v - top);
  return top + std::log(sum);
}

/// KL(softmax(b) || softmax(t)) in nats.
double divergence(const std::vector<double>& b, const std::vector<double>& t) {
  const double zb = log_sum_exp(b), zt = log_sum_exp(t);
  double kl = 0;
  for (size_t i = 0; i < b.size(); i++) kl += std::exp(b[i] - zb) * ((b[i] - zb) - (t[i] - zt));
  return std::max(kl, 0.0);  // rounding alone makes it negative
}

std::vector<size_t> first_ids(const std::vector<double>& x, size_t k) {
  std::vector<size_t> ids(x.size());
  std::iota(ids.begin(), ids.end(), size_t(0));
  k = std::min(k, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + ptrdiff_t(k), ids.end(),
                    [&](size_t a, size_t b) { return x[a] != x[b] ? x[a] > x[b] : a < b; });
  ids.resize(k);
  return ids;
}

}  // namespace

ExtraMetrics measure_extra(const DumpTensor& base, const DumpTensor& target, double usual_scale, bool logits) {
  ExtraMetrics m;
  m.logits = logits;
  const int64_t columns = base.columns();
  const double least = std::max(kUsualShare * usual_scale, kLeastScale);
  double bt = 0, bb = 0, tt = 0, dd = 0, kl_sum = 0;
  std::vector<double> b(static_cast<size_t>(columns)), t(static_cast<size_t>(columns));
  for (int64_t r = 0; r < base.rows(); r++) {
    double row_bt = 0, row_bb = 0, row_tt = 0;
    bool finite = true;
    for (int64_t c = 0; c < columns; c++) {
      const int64_t i = r * columns + c;
      const double x = b[size_t(c)] = value_at(base.dtype, base.data, i);
      const double y = t[size_t(c)] = value_at(target.dtype, target.data, i);
      if (!std::isfinite(x) || !std::isfinite(y)) {
        finite = false;
        continue;
      }
      const double d = std::fabs(y - x);
      row_bt += x * y;
      row_bb += x * x;
      row_tt += y * y;
      dd += d * d;
      const double rel = d == 0 ? 0 : x == 0 ? std::numeric_limits<double>::infinity() : d / std::fabs(x);
      if (rel > m.max_elementwise_rel) {
        m.max_elementwise_rel = rel;
        m.max_elementwise_rel_at = {r, c, x, y};
      }
    }
    bt += row_bt;
    bb += row_bb;
    tt += row_tt;
    // A row far below the usual scale has no direction worth judging, unless the target makes something of it.
    const double floor2 = least * least * double(columns);
    const bool quiet = row_bb < floor2 * 1e-12 && row_tt < floor2 * 1e-12;
    double cosine = 1;
    if (!quiet) cosine = row_bb == 0 || row_tt == 0 ? (row_bb == row_tt ? 1 : 0) : row_bt / std::sqrt(row_bb) / std::sqrt(row_tt);
    if (cosine < m.worst_row_cosine) {
      m.worst_row_cosine = cosine;
      m.worst_row_cosine_at = r;
    }
    if (!logits || columns < 2) continue;
    m.rows++;
    if (!finite) continue;
    const double kl = divergence(b, t);
    kl_sum += kl;
    if (kl > m.kl_max) {
      m.kl_max = kl;
      m.kl_max_at = r;
    }
    const std::vector<size_t> ids_b = first_ids(b, 5), ids_t = first_ids(t, 5);
    m.top1_agree += ids_b[0] == ids_t[0];
    m.top5_agree += ids_b == ids_t;
    const double margin = b[ids_b[0]] - b[ids_b[1]];
    if (m.min_margin_at < 0 || margin < m.min_margin) {
      m.min_margin = margin;
      m.min_margin_at = r;
    }
  }
  if (m.rows > 0) m.kl_mean = kl_sum / double(m.rows);
  m.cosine = bb == 0 || tt == 0 ? (bb == tt ? 1 : 0) : bt / std::sqrt(bb) / std::sqrt(tt);
  m.nmse = dd == 0 ? 0 : dd / std::max(bb, kLeastScale);
  return m;
}

}  // namespace assay
