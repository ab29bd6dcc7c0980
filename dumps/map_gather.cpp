#include "dumps/map_gather.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "dumps/error.h"
#include "dumps/metrics.h"
#include "dumps/text.h"

namespace assay::mapping {
namespace {

// Copies the axes from `axis` on; `to` moves forward.
void copy(const Walk& w, const std::vector<const DumpTensor*>& sources, size_t axis, size_t source, int64_t at,
          size_t bytes, std::byte*& to) {
  if (axis == w.axes.size()) {
    std::memcpy(to, sources[source]->data + size_t(at) * bytes, bytes);
    to += bytes;
    return;
  }
  const ViewAxis& a = w.axes[axis];
  const bool last = axis + 1 == w.axes.size();
  if (last && a.source_stride == 0) {
    const std::byte* data = sources[source]->data;
    if (a.offsets.empty() && a.stride == 1) {
      std::memcpy(to, data + size_t(at) * bytes, size_t(a.size) * bytes);
      to += size_t(a.size) * bytes;
      return;
    }
    for (int64_t i = 0; i < a.size; ++i, to += bytes) {
      std::memcpy(to, data + size_t(at + (a.offsets.empty() ? i * a.stride : a.offsets[size_t(i)])) * bytes, bytes);
    }
    return;
  }
  for (int64_t i = 0; i < a.size; ++i) {
    const int64_t offset = a.offsets.empty() ? i * a.stride : a.offsets[size_t(i)];
    copy(w, sources, axis + 1, source + size_t(i * a.source_stride), at + offset, bytes, to);
  }
}

int64_t elements_of(const Walk& w, const std::string& where) {
  int64_t n = 1;
  for (const ViewAxis& a : w.axes) {
    if (__builtin_mul_overflow(n, a.size, &n))
      throw Error(ErrorKind::malformed, where, "the tensor would be absurdly large");
  }
  return n;
}

std::string replica_fault(const Walk& w, DType dtype, const std::vector<int64_t>& shape, const std::byte* first,
                          const std::byte* other, size_t replica) {
  const size_t bytes = size_of(dtype);
  int64_t i = 0;
  while (std::memcmp(first + size_t(i) * bytes, other + size_t(i) * bytes, bytes) == 0) ++i;
  const int64_t columns = shape.empty() ? 1 : shape.back();
  return fmt::format("replicas differ: {} is not {}, first at row {}, column {}: {:.9g}, {:.9g}",
                     w.replica_names[replica], w.replica_names[0], i / columns, i % columns, value_at(dtype, other, i),
                     value_at(dtype, first, i));
}

}  // namespace

void round_to(DType dtype, double x, std::byte* to) {
  if (dtype == DType::f64) {
    if (std::isnan(x)) x = std::bit_cast<double>(uint64_t(0x7ff8000000000000));
    std::memcpy(to, &x, 8);
    return;
  }
  if (dtype == DType::f32) {
    const float y = std::isnan(x) ? std::bit_cast<float>(0x7fc00000u) : float(x);
    std::memcpy(to, &y, 4);
    return;
  }
  // 16 bits, straight from double so that nothing is rounded twice. m mantissa bits, least normal exponent e0.
  const int m = dtype == DType::f16 ? 10 : 7, bias = dtype == DType::f16 ? 15 : 127, e0 = 1 - bias;
  const uint16_t inf = dtype == DType::f16 ? 0x7c00 : 0x7f80;
  uint16_t bits = 0;
  if (std::isnan(x)) {
    bits = inf | uint16_t(1u << (m - 1));
  } else {
    const double a = std::fabs(x);
    if (std::isinf(a)) {
      bits = inf;
    } else if (a > 0) {
      const int e = std::max(std::ilogb(a), e0);
      const double steps =
          std::nearbyint(std::ldexp(a, m - e));  // exact but for the one rounding; 2^m or more if normal
      const double code = steps + std::ldexp(double(e - e0), m);  // the exponent field, counted in the same steps
      bits = code >= double(inf) ? inf : uint16_t(code);
    }
    if (std::signbit(x)) bits |= 0x8000;
  }
  std::memcpy(to, &bits, 2);
}

void simplify(Walk& walk) {
  std::vector<ViewAxis> out;
  for (ViewAxis& a : walk.axes) {
    if (a.size == 1) {
      walk.base += a.offsets.empty() ? 0 : a.offsets[0];
      continue;
    }
    // Offsets that are a plain stride again (a range).
    if (a.offsets.size() > 1) {
      const int64_t step = a.offsets[1] - a.offsets[0];
      bool plain = true;
      for (size_t i = 1; i < a.offsets.size() && plain; ++i) plain = a.offsets[i] - a.offsets[i - 1] == step;
      if (plain && step > 0) {
        walk.base += a.offsets[0];
        a.stride = step;
        a.offsets.clear();
      }
    }
    if (!out.empty() && out.back().offsets.empty() && a.offsets.empty() && out.back().source_stride == 0 &&
        a.source_stride == 0 && out.back().stride == a.stride * a.size) {
      out.back().size *= a.size;
      out.back().stride = a.stride;
    } else {
      out.push_back(std::move(a));
    }
  }
  walk.axes = std::move(out);
}

bool is_one_piece(const Walk& walk, int64_t* first) {
  if (walk.reduce != Walk::Reduce::none) return false;
  if (walk.axes.size() > 1) return false;
  if (walk.axes.size() == 1) {
    const ViewAxis& a = walk.axes[0];
    if (!a.offsets.empty() || a.stride != 1 || a.source_stride != 0) return false;
  }
  *first = walk.base;
  return true;
}

Gathered gather(const Walk& walk, DType dtype, const std::vector<int64_t>& shape, const std::string& where) {
  const size_t bytes = size_of(dtype);
  const size_t n = size_t(elements_of(walk, where));
  Gathered out;
  auto collect = [&](size_t replica) {
    std::vector<std::byte> values(n * bytes);
    std::byte* to = values.data();
    if (n > 0) copy(walk, walk.sources[replica], 0, 0, walk.base, bytes, to);
    return values;
  };
  if (walk.reduce != Walk::Reduce::sum) {
    out.values = collect(0);
    for (size_t r = 1; r < walk.sources.size() && out.fault.empty(); ++r) {
      const std::vector<std::byte> other = collect(r);
      if (other != out.values) out.fault = replica_fault(walk, dtype, shape, out.values.data(), other.data(), r);
    }
    return out;
  }
  std::vector<double> sum(n, 0.0);
  for (size_t r = 0; r < walk.sources.size(); ++r) {
    const std::vector<std::byte> term = collect(r);
    for (size_t i = 0; i < n; ++i) {
      const double x = value_at(dtype, term.data(), int64_t(i));
      sum[i] = r == 0 ? x : sum[i] + x;
    }
  }
  out.values.resize(n * bytes);
  for (size_t i = 0; i < n; ++i) round_to(dtype, sum[i], out.values.data() + i * bytes);
  return out;
}

}  // namespace assay::mapping
