#include "dumps/metrics.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "dumps/metrics_kernels.h"

namespace assay {
namespace {

using metrics::Kernels;
using metrics::RowSums;

constexpr int64_t kBlock = 4096;    // elements whose equality is looked at before anything else
constexpr int64_t kSegment = 1024;  // columns widened at a time; a multiple of 8 (see RowSums)

std::atomic<const Kernels*> g_kernels{nullptr};

const Kernels& kernels() {
  const Kernels* k = g_kernels.load(std::memory_order_acquire);
  if (!k) {
    k = metrics::avx2_kernels();
    if (!k) k = &metrics::kGeneric;
    g_kernels.store(k, std::memory_order_release);
  }
  return *k;
}

template <class T>
T load(const std::byte* data, int64_t i) {
  T x;
  std::memcpy(&x, data + size_t(i) * sizeof(T), sizeof(T));
  return x;
}

bool is_integer(DType t) { return !is_float(t); }

/// Exact for every dtype where long double has 64 bits of mantissa or more (x86, AArch64).
long double exact_at(DType t, const std::byte* data, int64_t i) {
  if (t == DType::i64) return load<int64_t>(data, i);
  if (t == DType::u64) return load<uint64_t>(data, i);
  return value_at(t, data, i);
}

uint64_t bits_at(DType t, const std::byte* data, int64_t i) {
  switch (size_of(t)) {
    case 1: return load<uint8_t>(data, i);
    case 2: return load<uint16_t>(data, i);
    case 4: return load<uint32_t>(data, i);
    default: return load<uint64_t>(data, i);
  }
}

struct Format {
  int fraction_bits, exponent_bits;
};
Format format_of(DType t) {
  switch (t) {
    case DType::f64: return {52, 11};
    case DType::f32: return {23, 8};
    case DType::f16: return {10, 5};
    default: return {7, 8};  // bf16
  }
}

/// |x| rounded to the nearest value of a float format (ties to even), as that format's bits without the sign. x is not NaN.
int64_t magnitude_bits(DType type, double x) {
  const Format f = format_of(type);
  const uint64_t bits = std::bit_cast<uint64_t>(x) & ~(uint64_t(1) << 63);
  if (type == DType::f64) return int64_t(bits);
  const int64_t infinity = ((int64_t(1) << f.exponent_bits) - 1) << f.fraction_bits;
  if (bits == 0) return 0;
  if (bits >= 0x7ff0000000000000u) return infinity;
  int exponent = int(bits >> 52);
  uint64_t fraction = bits & 0xfffffffffffffu;
  if (exponent == 0) return 0;  // a subnormal double is below half of every narrower format's smallest value
  fraction |= uint64_t(1) << 52;
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  int e = exponent - 1023 + bias;          // exponent field in the format
  int shift = 52 - f.fraction_bits;        // bits to drop
  if (e < 1) shift += 1 - e;               // subnormal there: more to drop
  if (shift > 54) return 0;
  const uint64_t kept = fraction >> shift, dropped = fraction & ((uint64_t(1) << shift) - 1);
  const uint64_t half = uint64_t(1) << (shift - 1);
  uint64_t rounded = kept + (dropped > half || (dropped == half && (kept & 1)));
  // A carry runs into the exponent by itself: the implicit bit of a normal value is taken off, one of a subnormal is not there.
  const int64_t out = e < 1 ? int64_t(rounded) : (int64_t(e - 1) << f.fraction_bits) + int64_t(rounded);
  return std::min(out, infinity);
}

double fold(const double* lanes) {
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

/// Some rows of one side; `data` is aligned for its type.
struct Slice {
  DType dtype;
  const std::byte* data;
};

/// Safetensors promises no alignment: rows that lie badly are copied first.
Slice aligned(const DumpTensor& t, int64_t first_row, int64_t n, std::vector<uint64_t>& copy) {
  const size_t row = size_t(t.columns()) * size_of(t.dtype);
  const std::byte* data = t.data + size_t(first_row) * row;
  if (reinterpret_cast<uintptr_t>(data) % size_of(t.dtype) != 0) {
    copy.resize((size_t(n) * row + 7) / 8);
    std::memcpy(copy.data(), data, size_t(n) * row);
    data = reinterpret_cast<const std::byte*>(copy.data());
  }
  return {t.dtype, data};
}

/// Indices of rows are relative to the slice; only places carry absolute ones.
class RowMeasurer {
 public:
  RowMeasurer(const Slice& base, const Slice& target, int64_t columns, int64_t first_row, double usual, double* row_rel)
      : b_(base),
        t_(target),
        row_rel_(row_rel),
        usual_(usual),
        columns_(columns),
        first_row_(first_row),
        k_(kernels()),
        same_(base.dtype == target.dtype) {
    integers_ = is_integer(b_.dtype) || is_integer(t_.dtype);
    if (!integers_) narrow_ = narrower(b_.dtype, t_.dtype);
    wide_ = b_.dtype == DType::f64 || t_.dtype == DType::f64;
  }

  TensorMetrics run(int64_t n) {
    m_.scale = usual_;
    m_.elements = n * columns_;
    if (row_rel_) std::fill(row_rel_, row_rel_ + n, 0);
    if (columns_ == 0) return m_;
    const int64_t block = std::max<int64_t>(1, kBlock / columns_), end = n;
    int skip = 0;  // blocks for which equality is not tried: in a tensor that differs everywhere the look would be wasted
    for (int64_t r = 0; r < end;) {
      const int64_t rows = std::min(block, end - r);
      if (same_ && skip == 0) {
        if (block_equal(r * columns_, rows * columns_)) {
          r += rows;
          continue;
        }
        skip = 4;
      } else if (skip > 0) {
        skip--;
      }
      for (int64_t stop = r + rows; r < stop; r++) row(r);
    }
    return m_;
  }

 private:
  template <class T>
  const T* base_ptr(int64_t i) const { return reinterpret_cast<const T*>(b_.data) + i; }
  template <class T>
  const T* target_ptr(int64_t i) const { return reinterpret_cast<const T*>(t_.data) + i; }

  void add_equal(int64_t n, double max_base) {
    m_.bits_equal += n;
    m_.ulp_le_1 += n;
    m_.ulp_le_4 += n;
    m_.max_base = std::max(m_.max_base, max_base);
  }

  bool block_equal(int64_t i, int64_t n) {
    switch (b_.dtype) {
      case DType::f32: {
        uint32_t top = 0;
        if (!k_.equal32(base_ptr<uint32_t>(i), target_ptr<uint32_t>(i), n, &top)) return false;
        add_equal(n, std::bit_cast<float>(top));
        return true;
      }
      case DType::f64: {
        uint64_t top = 0;
        if (!k_.equal64(base_ptr<uint64_t>(i), target_ptr<uint64_t>(i), n, &top)) return false;
        add_equal(n, std::bit_cast<double>(top));
        return true;
      }
      case DType::f16:
      case DType::bf16: {
        uint16_t top = 0;
        const uint16_t inf = b_.dtype == DType::f16 ? 0x7c00 : 0x7f80;
        if (!k_.equal16(base_ptr<uint16_t>(i), target_ptr<uint16_t>(i), n, inf, &top)) return false;
        add_equal(n, value_at(b_.dtype, reinterpret_cast<const std::byte*>(&top), 0));
        return true;
      }
      default: {
        const size_t size = size_of(b_.dtype);
        if (std::memcmp(b_.data + size_t(i) * size, t_.data + size_t(i) * size, size_t(n) * size) != 0) return false;
        double top = 0;
        for (int64_t j = i; j < i + n; j++) top = std::max(top, std::fabs(value_at(b_.dtype, b_.data, j)));
        add_equal(n, top);
        return true;
      }
    }
  }

  void row(int64_t r) {
    if (integers_) return careful_row(r);
    RowSums s;
    for (int64_t c = 0; c < columns_; c += kSegment) segment(r * columns_ + c, std::min(kSegment, columns_ - c), &s);
    if (s.non_finite) return careful_row(r);
    finish_row(r, s);
  }

  /// Widened values of one side: f32 where that is exact for both sides, else f64.
  const float* widen32(const Slice& x, int64_t i, int64_t n, float* buffer) const {
    const auto* raw16 = reinterpret_cast<const uint16_t*>(x.data) + i;
    if (x.dtype == DType::f32) return reinterpret_cast<const float*>(x.data) + i;
    if (x.dtype == DType::bf16) {
      k_.bf16_to_f32(raw16, buffer, n);
    } else {
      k_.f16_to_f32(raw16, buffer, n);
    }
    return buffer;
  }
  const double* widen64(const Slice& x, int64_t i, int64_t n, double* buffer) const {
    if (x.dtype == DType::f64) return reinterpret_cast<const double*>(x.data) + i;
    float narrow[kSegment];
    k_.f32_to_f64(widen32(x, i, n, narrow), buffer, n);
    return buffer;
  }

  void segment(int64_t i, int64_t n, RowSums* s) const {
    if (b_.dtype == DType::f32 && same_) return k_.row_f32(base_ptr<float>(i), target_ptr<float>(i), n, s);
    if (!wide_) {
      float bb[kSegment], tb[kSegment];
      const float *b = widen32(b_, i, n, bb), *t = widen32(t_, i, n, tb);
      RowSums counts;  // the counts of row_f32 are f32's: replaced below
      counts = *s;
      k_.row_f32(b, t, n, s);
      s->equal = counts.equal;
      s->ulp_le_1 = counts.ulp_le_1;
      s->ulp_le_4 = counts.ulp_le_4;
      if (s->non_finite) return;
      if (same_) return k_.ulp16(base_ptr<uint16_t>(i), target_ptr<uint16_t>(i), n, s);
      ulps_of_pair(b, t, i, n, s);
      for (int64_t j = 0; j < n; j++) s->equal += b[j] == t[j];
      return;
    }
    double bb[kSegment], tb[kSegment];
    const double *b = widen64(b_, i, n, bb), *t = widen64(t_, i, n, tb);
    const int64_t equal = s->equal;
    k_.row_f64(b, t, n, s);
    if (s->non_finite) return;
    if (same_) {
      s->equal = equal;  // bits, not values: -0 is not +0
      return k_.ulp64(base_ptr<uint64_t>(i), target_ptr<uint64_t>(i), n, s);
    }
    const int64_t equal_values = s->equal;
    if (narrow_ == DType::f32) {
      float rounded[kSegment];
      const bool base_is_wide = b_.dtype == DType::f64;
      k_.f64_to_f32(base_is_wide ? b : t, rounded, n);
      const auto* own = base_is_wide ? target_ptr<uint32_t>(i) : base_ptr<uint32_t>(i);
      k_.ulp32(reinterpret_cast<const uint32_t*>(rounded), own, n, s);
    } else {
      for (int64_t j = 0; j < n; j++) count_ulps(ulp_distance(narrow_, b[j], t[j]), s);
    }
    s->equal = equal_values;
  }

  /// Two different types of at most 32 bits: f32 against bf16 or f16, or f16 against bf16.
  void ulps_of_pair(const float* b, const float* t, int64_t i, int64_t n, RowSums* s) const {
    const int64_t equal = s->equal;
    if (narrow_ == DType::bf16 && (b_.dtype == DType::f32 || t_.dtype == DType::f32)) {
      uint16_t rounded[kSegment];
      const bool base_is_wide = b_.dtype == DType::f32;
      k_.f32_to_bf16(base_is_wide ? b : t, rounded, n);
      k_.ulp16(rounded, base_is_wide ? target_ptr<uint16_t>(i) : base_ptr<uint16_t>(i), n, s);
    } else {
      for (int64_t j = 0; j < n; j++) count_ulps(ulp_distance(narrow_, b[j], t[j]), s);
    }
    s->equal = equal;
  }

  static void count_ulps(int64_t d, RowSums* s) {
    s->ulp_le_1 += d <= 1;
    s->ulp_le_4 += d <= 4;
  }

  Place place(int64_t r, int64_t c) const {
    const int64_t i = r * columns_ + c;
    return {first_row_ + r, c, value_at(b_.dtype, b_.data, i), value_at(t_.dtype, t_.data, i)};
  }

  /// |t-b| as the kernels form it: widened, subtracted and rounded once in double. Integers: exactly, then rounded.
  double difference(int64_t i) const {
    if (integers_) return double(std::fabs(exact_at(t_.dtype, t_.data, i) - exact_at(b_.dtype, b_.data, i)));
    return std::fabs(value_at(t_.dtype, t_.data, i) - value_at(b_.dtype, b_.data, i));
  }

  int64_t column_of(int64_t r, double diff) const {
    for (int64_t c = 0; c < columns_; c++) {
      const int64_t i = r * columns_ + c;
      if (difference(i) != diff) continue;
      // Inf - x is Inf like an overflow between finite values, which alone counts.
      if (std::isfinite(value_at(b_.dtype, b_.data, i)) && std::isfinite(value_at(t_.dtype, t_.data, i))) return c;
    }
    return 0;
  }

  bool bits_equal(int64_t i) const {
    if (same_) return bits_at(b_.dtype, b_.data, i) == bits_at(t_.dtype, t_.data, i);
    return exact_at(b_.dtype, b_.data, i) == exact_at(t_.dtype, t_.data, i);
  }

  void note_first_difference(int64_t r) {
    if (m_.first_difference.row >= 0) return;
    for (int64_t c = 0; c < columns_; c++) {
      if (!bits_equal(r * columns_ + c)) {
        m_.first_difference = place(r, c);
        return;
      }
    }
  }

  void finish_row(int64_t r, const RowSums& s) {
    m_.bits_equal += s.equal;
    m_.ulp_le_1 += s.ulp_le_1;
    m_.ulp_le_4 += s.ulp_le_4;
    m_.max_base = std::max(m_.max_base, s.max_base);
    if (s.equal < columns_) note_first_difference(r);
    if (s.max_diff == 0) return;
    const double rel = s.max_diff / row_scale(s.max_base, usual_);
    if (row_rel_) row_rel_[r] = std::max(row_rel_[r], rel);
    int64_t column = -1;
    if (s.max_diff > m_.max_abs) {
      column = column_of(r, s.max_diff);
      m_.max_abs = s.max_diff;
      m_.max_abs_at = place(r, column);
    }
    if (rel > m_.max_rel) {
      if (column < 0) column = column_of(r, s.max_diff);
      m_.max_rel = rel;
      m_.max_rel_at = place(r, column);
    }
    const double l2 = row_l2(r, s);
    if (l2 > m_.worst_row_l2) {
      m_.worst_row_l2 = l2;
      m_.worst_row_l2_at = first_row_ + r;
    }
  }

  /// A root mean square, as m * 2^e: squares may leave the range of a double where the values do not.
  struct Rms {
    double m = 0;
    int e = 0;
  };

  template <class Value>
  Rms rms(double sum, double top, Value value) const {
    const double n = double(columns_);
    if (top == 0) return {};
    if (!(top < HUGE_VAL)) return {top, 0};
    if (sum < HUGE_VAL && sum >= 1e-280) return {std::sqrt(sum / n), 0};
    // Only f64 values come here: they are summed again, scaled by a power of two.
    const int e = std::ilogb(top);
    double scaled = 0;
    for (int64_t c = 0; c < columns_; c++) {
      const double x = std::scalbn(value(c), -e);
      if (std::isfinite(x)) scaled += x * x;
    }
    return {std::sqrt(scaled / n), e};
  }

  /// ||t-b|| / max(||b||, least * sqrt(columns)), the smaller of the two quotients.
  double row_l2(int64_t r, const RowSums& s) const {
    const Rms diff = rms(fold(s.diff2), s.max_diff, [&](int64_t c) { return difference(r * columns_ + c); });
    const Rms base = rms(fold(s.base2), s.max_base, [&](int64_t c) { return value_at(b_.dtype, b_.data, r * columns_ + c); });
    Rms least;
    least.m = std::frexp(std::max(kUsualShare * usual_, kLeastScale), &least.e);
    const double to_least = std::scalbn(diff.m / least.m, diff.e - least.e);
    return base.m == 0 ? to_least : std::min(to_least, std::scalbn(diff.m / base.m, diff.e - base.e));
  }

  /// A row that holds NaN or Inf on some side, or integers: one element after the other.
  void careful_row(int64_t r) {
    RowSums s;
    for (int64_t c = 0; c < columns_; c++) {
      const int64_t i = r * columns_ + c;
      const double b = value_at(b_.dtype, b_.data, i), t = value_at(t_.dtype, t_.data, i);
      const bool fb = std::isfinite(b), ft = std::isfinite(t);
      if (fb) {
        s.max_base = std::max(s.max_base, std::fabs(b));
        s.base2[c & 7] += b * b;
      }
      if (fb && ft) {
        const double d = difference(i);
        s.max_diff = std::max(s.max_diff, d);
        s.diff2[c & 7] += d * d;
        s.equal += bits_equal(i);
        if (integers_) {
          count_ulps(bits_equal(i) ? 0 : std::numeric_limits<int64_t>::max(), &s);
        } else {
          count_ulps(ulp_distance(narrow_, b, t), &s);
        }
        continue;
      }
      bool agree = false;
      if (!fb && !ft) {
        m_.non_finite_both++;
        if (std::isnan(b) && std::isnan(t)) m_.nan_both++;
        agree = std::isinf(b) && std::isinf(t) && std::signbit(b) == std::signbit(t);
        s.equal += agree;
        s.ulp_le_1 += agree;
        s.ulp_le_4 += agree;
      } else if (fb) {
        m_.non_finite_target_only++;
      } else {
        m_.non_finite_base_only++;
      }
      if (!agree) {
        if (m_.non_finite_mismatch == 0) m_.non_finite_at = place(r, c);
        m_.non_finite_mismatch++;
        if (row_rel_) row_rel_[r] = HUGE_VAL;
      }
    }
    finish_row(r, s);
  }

  const Slice b_, t_;
  double* const row_rel_;
  const double usual_;
  const int64_t columns_, first_row_;
  const Kernels& k_;
  const bool same_;
  bool integers_ = false, wide_ = false;
  DType narrow_ = DType::f32;
  TensorMetrics m_;
};

/// Ranges of whole rows of about 2^20 elements.
std::vector<std::pair<int64_t, int64_t>> row_chunks(int64_t columns, int64_t first_row, int64_t n) {
  const int64_t step = std::max<int64_t>(1, (int64_t(1) << 20) / std::max<int64_t>(1, columns));
  std::vector<std::pair<int64_t, int64_t>> out;
  for (int64_t r = first_row, end = first_row + n; r < end; r += step) out.emplace_back(r, std::min(step, end - r));
  return out;
}

}  // namespace

double value_at(DType t, const std::byte* data, int64_t i) {
  switch (t) {
    case DType::f64: return load<double>(data, i);
    case DType::f32: return load<float>(data, i);
    case DType::bf16: return std::bit_cast<float>(uint32_t(load<uint16_t>(data, i)) << 16);
    case DType::f16: {
      const uint16_t x = load<uint16_t>(data, i);
      float y;
      metrics::kGeneric.f16_to_f32(&x, &y, 1);
      return y;
    }
    case DType::i64: return double(load<int64_t>(data, i));
    case DType::i32: return load<int32_t>(data, i);
    case DType::i16: return load<int16_t>(data, i);
    case DType::i8: return load<int8_t>(data, i);
    case DType::u64: return double(load<uint64_t>(data, i));
    case DType::u32: return load<uint32_t>(data, i);
    case DType::u16: return load<uint16_t>(data, i);
    case DType::u8:
    case DType::boolean: return load<uint8_t>(data, i);
  }
  return 0;
}

DType narrower(DType a, DType b) { return format_of(a).fraction_bits <= format_of(b).fraction_bits ? a : b; }

int64_t ulp_distance(DType type, double a, double b) {
  const int64_t x = magnitude_bits(type, a), y = magnitude_bits(type, b);
  if (std::signbit(a) == std::signbit(b)) return x > y ? x - y : y - x;
  const uint64_t sum = uint64_t(x) + uint64_t(y);
  return sum > uint64_t(std::numeric_limits<int64_t>::max()) ? std::numeric_limits<int64_t>::max() : int64_t(sum);
}

double ulp_of(DType type, double x) {
  const Format f = format_of(type);
  const int least = 2 - (1 << (f.exponent_bits - 1));  // exponent of the smallest normal value
  const int e = (x == 0 || !std::isfinite(x)) ? least : std::max(std::ilogb(x), least);
  return std::scalbn(1.0, e - f.fraction_bits);
}

double max_abs_finite(const DumpTensor& t, int64_t first_row, int64_t n) {
  const Kernels& k = kernels();
  const int64_t columns = t.columns();
  double top = 0;
  std::vector<uint64_t> copy;
  for (const auto& [first, rows] : row_chunks(columns, first_row, n)) {
    const Slice s = aligned(t, first, rows, copy);
    for (int64_t i = 0, end = rows * columns; i < end; i += kBlock) {
      const int64_t count = std::min(kBlock, end - i);
      bool finite = false;
      double found = 0;
      if (t.dtype == DType::f32) {
        uint32_t bits = 0;
        const auto* x = reinterpret_cast<const uint32_t*>(s.data) + i;
        finite = k.equal32(x, x, count, &bits);
        found = std::bit_cast<float>(bits);
      } else if (t.dtype == DType::f64) {
        uint64_t bits = 0;
        const auto* x = reinterpret_cast<const uint64_t*>(s.data) + i;
        finite = k.equal64(x, x, count, &bits);
        found = std::bit_cast<double>(bits);
      } else if (t.dtype == DType::f16 || t.dtype == DType::bf16) {
        uint16_t bits = 0;
        const auto* x = reinterpret_cast<const uint16_t*>(s.data) + i;
        finite = k.equal16(x, x, count, t.dtype == DType::f16 ? 0x7c00 : 0x7f80, &bits);
        found = value_at(t.dtype, reinterpret_cast<const std::byte*>(&bits), 0);
      }
      if (!finite) {  // integers, or a value that is NaN or Inf
        found = 0;
        for (int64_t j = i; j < i + count; j++) {
          const double x = std::fabs(value_at(t.dtype, s.data, j));
          if (std::isfinite(x)) found = std::max(found, x);
        }
      }
      top = std::max(top, found);
    }
  }
  return top;
}

TensorMetrics measure_rows(const DumpTensor& base, const DumpTensor& target, int64_t first_row, int64_t n,
                           double usual_scale, double* row_max_rel) {
  TensorMetrics m;
  m.scale = usual_scale;
  std::vector<uint64_t> base_copy, target_copy;
  for (const auto& [first, rows] : row_chunks(base.columns(), first_row, n)) {
    const Slice b = aligned(base, first, rows, base_copy), t = aligned(target, first, rows, target_copy);
    double* const row_rel = row_max_rel ? row_max_rel + (first - first_row) : nullptr;
    merge(m, RowMeasurer(b, t, base.columns(), first, usual_scale, row_rel).run(rows));
  }
  return m;
}

TensorMetrics measure(const DumpTensor& base, const DumpTensor& target, double scale) {
  return measure_rows(base, target, 0, base.rows(), scale);
}

void merge(TensorMetrics& into, const TensorMetrics& next) {
  into.elements += next.elements;
  into.bits_equal += next.bits_equal;
  into.ulp_le_1 += next.ulp_le_1;
  into.ulp_le_4 += next.ulp_le_4;
  into.max_base = std::max(into.max_base, next.max_base);
  if (next.max_abs > into.max_abs) {
    into.max_abs = next.max_abs;
    into.max_abs_at = next.max_abs_at;
  }
  if (next.max_rel > into.max_rel) {
    into.max_rel = next.max_rel;
    into.max_rel_at = next.max_rel_at;
  }
  if (next.worst_row_l2 > into.worst_row_l2) {
    into.worst_row_l2 = next.worst_row_l2;
    into.worst_row_l2_at = next.worst_row_l2_at;
  }
  if (into.non_finite_mismatch == 0) into.non_finite_at = next.non_finite_at;
  into.non_finite_base_only += next.non_finite_base_only;
  into.non_finite_target_only += next.non_finite_target_only;
  into.non_finite_both += next.non_finite_both;
  into.non_finite_mismatch += next.non_finite_mismatch;
  into.nan_both += next.nan_both;
  if (into.first_difference.row < 0) into.first_difference = next.first_difference;
}

MetricsIsa use_metrics_isa(MetricsIsa isa) {
  const Kernels* k = &metrics::kGeneric;
  const Kernels* fast = metrics::avx2_kernels();
  if (isa != MetricsIsa::generic && fast) k = fast;
  g_kernels.store(k, std::memory_order_release);
  return k == fast ? MetricsIsa::avx2 : MetricsIsa::generic;
}

}  // namespace assay
