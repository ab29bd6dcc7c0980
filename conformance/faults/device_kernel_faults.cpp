// Faults of a device's kernels: another order of sums, what lies behind the last position, and variants of the emulated
// module that are built from changed sources (kernels/).
#include <cmath>

#include "conformance/faults/device_probe.h"

namespace assay {
namespace device_faults {
namespace {

/// D12: the weighted sum also takes in the position behind the last one, with weight 0.
void zero_times_tail(AssayModule& t) {
  t.attention = [](AssayDevice* d, const AssayAttention* a) {
    const int result = kept.real->attention(d, a);
    if (result != ASSAY_DONE || a->rows == 0) return result;
    const AssayCache& c = a->cache;
    const size_t element = c.type == ASSAY_F32 ? 4 : 2, count = size_t(c.slots * c.kv_heads * c.context * c.head_dim);
    std::vector<std::byte> v(count * element);
    std::vector<AssayPlace> places(static_cast<size_t>(a->rows));
    kept.real->download(d, v.data(), c.v, v.size());
    kept.real->download(d, places.data(), a->places, places.size() * sizeof(AssayPlace));
    std::vector<float> y = fetch(d, a->y, a->rows * a->heads * c.head_dim);
    const auto is_nan = [&](size_t i) {
      uint32_t bits = 0;
      std::memcpy(&bits, v.data() + i * element, element);
      if (c.type == ASSAY_F32) return (bits & 0x7fffffffu) > 0x7f800000u;
      return c.type == ASSAY_F16 ? (bits & 0x7fffu) > 0x7c00u : (bits & 0x7fffu) > 0x7f80u;
    };
    for (int64_t row = 0; row < a->rows; row++) {
      const AssayPlace& p = places[size_t(row)];
      if (p.position + 1 >= c.context) continue;
      for (int64_t h = 0; h < a->heads; h++)
        for (int64_t j = 0; j < c.head_dim; j++) {
          const int64_t kv_head = h / (a->heads / c.kv_heads);
          if (is_nan(size_t(((p.slot * c.kv_heads + kv_head) * c.context + p.position + 1) * c.head_dim + j)))
            y[size_t((row * a->heads + h) * c.head_dim + j)] = std::nanf("");
        }
    }
    kept.real->upload(d, a->y, y.data(), y.size() * sizeof(float));
    return kept.real->finish(d);
  };
}

/// D13: from 256 rows on a norm rounds otherwise; what another order of the sum would do is done by a nudge of eps.
void norm_by_rows(AssayModule& t) {
  t.norm = [](AssayDevice* d, const AssayNorm* a) {
    AssayNorm other = *a;
    if (a->heads == 0 && a->rows >= 256) other.eps *= 2;
    return kept.real->norm(d, &other);
  };
}

/// B10: products of some counts of rows are summed from the other end.
int reversed_sums(AssayDevice* d, const AssayLinear* a) {
  const AssayWeight& w = a->w[0];
  if (a->count != 1 || w.type != ASSAY_F32 || a->norm || a->residual || a->gated) throw NoPlace("B10");
  void* raw = nullptr;
  if (kept.real->allocate(d, uint64_t(w.rows * w.columns) * 4, &raw) != ASSAY_DONE) return ASSAY_OUT_OF_MEMORY;
  kept.real->unpack_weight(d, w.type, w.rows, w.columns, w.data, raw);
  const std::vector<float> weights = fetch(d, static_cast<const float*>(raw), w.rows * w.columns);
  const std::vector<float> x = fetch(d, a->x, a->rows * w.columns);
  const std::vector<float> bias = a->bias[0] ? fetch(d, a->bias[0], w.rows) : std::vector<float>(size_t(w.rows), 0.0f);
  std::vector<float> y;
  for (int64_t row = 0; row < a->rows; row++)
    for (int64_t n = 0; n < w.rows; n++) {
      float sum = 0;
      for (int64_t k = w.columns; k-- > 0;) sum += weights[size_t(n * w.columns + k)] * x[size_t(row * w.columns + k)];
      y.push_back(a->bias[0] ? sum + bias[size_t(n)] : sum);
    }
  kept.real->upload(d, a->y[0], y.data(), y.size() * sizeof(float));
  kept.real->finish(d);
  kept.real->release(d, raw);
  return ASSAY_DONE;
}
template <bool (*concerned)(int64_t rows)>
void other_order(AssayModule& t) {
  t.linear = [](AssayDevice* d, const AssayLinear* a) {
    return a->rows > 0 && concerned(a->rows) ? reversed_sums(d, a) : kept.real->linear(d, a);
  };
}
bool one(int64_t rows) {
  return rows == 1;
}
bool at_most_3(int64_t rows) {
  return rows <= 3;
}
bool multiple_of_4(int64_t rows) {
  return rows % 4 == 0;
}

}  // namespace
}  // namespace device_faults

void add_device_kernel_faults(std::vector<Fault>& out) {
  using namespace device_faults;
  add(out, "A7/scratch-not-cleared", "what lies behind a quantised row in scratch is as its last user left it",
      How::kernel, {.build = "scratch_not_cleared"});
  add(out, "A7/scratch-of-other-geometry",
      "parts of a row are read from scratch as if it were laid out for more of them", How::kernel,
      {.build = "scratch_other_geometry"});
  add(out, "A29/device-silu-mul-tail",
      "silu_mul on the device loses the last element where elements are no multiple of four", How::kernel,
      {.build = "silu_mul_tail"},
      "whole-model byte equality says nothing of branches the model never takes: integration passes, kernel scope "
      "fails");
  add(out, "B9/scores-too-small", "the buffer of attention's scores has room for one head of several", How::kernel,
      {.build = "scores_too_small"});
  add(out, "B10/batch-1", "products of one row are summed in another order on the device", How::kernel,
      {.module = other_order<one>});
  add(out, "B10/batch-3", "products of up to three rows are summed in another order on the device", How::kernel,
      {.module = other_order<at_most_3>});
  add(out, "B10/multiple-of-4", "products of 4, 8, 12 ... rows are summed in another order on the device", How::kernel,
      {.module = other_order<multiple_of_4>});
  add(out, "B14/barrier-removed", "attention folds its threads' mixes without waiting for them", How::kernel,
      {.build = "barrier_removed"});
  add(out, "D12/zero-times-tail", "attention adds 0 times the V row behind the last position", How::kernel,
      {.module = zero_times_tail});
  add(out, "D13/norm-by-rows", "a norm rounds otherwise from 256 rows on", How::kernel, {.module = norm_by_rows});
}

}  // namespace assay
