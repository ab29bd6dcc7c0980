#include "dumps/digest.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace assay {
namespace {

template <typename Bits>
int64_t canonicalise_bits(void* data, int64_t n, Bits infinity, Bits nan) {
  constexpr Bits kSign = Bits(Bits(1) << (sizeof(Bits) * 8 - 1));
  auto* p = static_cast<unsigned char*>(data);
  int64_t found = 0;
  for (int64_t i = 0; i < n; ++i) {
    Bits v;
    std::memcpy(&v, p + i * int64_t(sizeof v), sizeof v);
    const bool is_nan = Bits(v & Bits(~kSign)) > infinity;
    found += is_nan;
    v = is_nan ? nan : v;
    std::memcpy(p + i * int64_t(sizeof v), &v, sizeof v);
  }
  return found;
}

float widen_f16(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 0x3ff;
  uint32_t bits = 0;
  if (exponent == 31) {
    bits = sign | 0x7f800000 | (mantissa << 13);
  } else if (exponent != 0) {
    bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
  } else {  // zero or subnormal: mantissa * 2^-24 is exact in float32
    const float magnitude = float(mantissa) * 0x1p-24f;
    std::memcpy(&bits, &magnitude, 4);
    bits |= sign;
  }
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

template <typename T>
double load(const unsigned char* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return static_cast<double>(v);
}
struct Half {};
struct Brain {};
template <>
double load<Half>(const unsigned char* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return widen_f16(v);
}
template <>
double load<Brain>(const unsigned char* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  const uint32_t bits = uint32_t(v) << 16;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

// Sums of a row run in eight lanes by column, so that they vectorise and still have one order. Lanes are folded in order at
// the end of the row, rows are added in order.
constexpr int kLanes = 8;
struct Lanes {
  double least[kLanes], most[kLanes], sum[kLanes], squares[kLanes];
  int64_t finite[kLanes];
  void reset() {
    for (int l = 0; l < kLanes; ++l) {
      least[l] = std::numeric_limits<double>::infinity();
      most[l] = -least[l];
      sum[l] = squares[l] = 0;
      finite[l] = 0;
    }
  }
  void take(int l, double v) {
    const bool ok = std::abs(v) <= std::numeric_limits<double>::max();
    const double x = ok ? v : 0.0;
    least[l] = ok && v < least[l] ? v : least[l];
    most[l] = ok && v > most[l] ? v : most[l];
    sum[l] += x;
    squares[l] += x * x;
    finite[l] += ok;
  }
};

template <typename T>
void accumulate(Lanes& lanes, int64_t column, const unsigned char* p, int64_t n, int64_t step) {
  int64_t i = 0;
  while (i < n && (column + i) % kLanes != 0) lanes.take(int((column + i) % kLanes), load<T>(p + i * step)), ++i;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) lanes.take(l, load<T>(p + (i + l) * step));
  }
  for (int l = 0; i < n; ++i, ++l) lanes.take(l, load<T>(p + i * step));
}

using Accumulate = void (*)(Lanes&, int64_t, const unsigned char*, int64_t, int64_t);
Accumulate accumulate_for(DType t) {
  switch (t) {
    case DType::f64: return accumulate<double>;
    case DType::f32: return accumulate<float>;
    case DType::f16: return accumulate<Half>;
    case DType::bf16: return accumulate<Brain>;
    case DType::i64: return accumulate<int64_t>;
    case DType::i32: return accumulate<int32_t>;
    case DType::i16: return accumulate<int16_t>;
    case DType::i8: return accumulate<int8_t>;
    case DType::u64: return accumulate<uint64_t>;
    case DType::u32: return accumulate<uint32_t>;
    case DType::u16: return accumulate<uint16_t>;
    case DType::u8: case DType::boolean: return accumulate<uint8_t>;
  }
  return nullptr;
}

std::string hex(XXH128_hash_t h) { return fmt::format("{:016x}{:016x}", uint64_t(h.high64), uint64_t(h.low64)); }

}  // namespace

int64_t canonicalise(DType type, void* data, int64_t elements) {
  switch (type) {
    case DType::f64:
      return canonicalise_bits<uint64_t>(data, elements, 0x7ff0000000000000, 0x7ff8000000000000);
    case DType::f32: return canonicalise_bits<uint32_t>(data, elements, 0x7f800000, 0x7fc00000);
    case DType::f16: return canonicalise_bits<uint16_t>(data, elements, 0x7c00, 0x7e00);
    case DType::bf16: return canonicalise_bits<uint16_t>(data, elements, 0x7f80, 0x7fc0);
    default: return 0;
  }
}

struct TensorDigest::Impl {
  Impl(DType t, int64_t c, bool s, RowSink k)
      : size(int64_t(size_of(t))), columns(c), with_stats(s), sink(std::move(k)), add(accumulate_for(t)) {
    XXH3_128bits_reset(&whole);
    lanes.reset();
  }
  XXH3_state_t whole;  // aligned to 64 bytes by its own declaration
  XXH3_state_t row;    // used only for rows that come in pieces
  Lanes lanes;
  int64_t size, columns;
  bool with_stats;
  RowSink sink;
  Accumulate add;
  int64_t column = 0;  // elements of the current row that are in
  double least = std::numeric_limits<double>::infinity(), most = -std::numeric_limits<double>::infinity();
  double sum = 0, squares = 0;
  int64_t elements = 0, finite = 0;

  void end_row() {
    if (!with_stats) return;
    for (int l = 0; l < kLanes; ++l) {
      least = std::min(least, lanes.least[l]);
      most = std::max(most, lanes.most[l]);
      finite += lanes.finite[l];
    }
    double row_sum = 0, row_squares = 0;
    for (int l = 0; l < kLanes; ++l) row_sum += lanes.sum[l], row_squares += lanes.squares[l];
    sum += row_sum;
    squares += row_squares;
    lanes.reset();
  }
};

TensorDigest::TensorDigest(DType type, int64_t columns, bool with_stats, RowSink sink)
    : impl_(std::make_unique<Impl>(type, columns, with_stats, std::move(sink))) {}
TensorDigest::~TensorDigest() = default;
TensorDigest::TensorDigest(TensorDigest&&) noexcept = default;

void TensorDigest::update(const void* data, int64_t elements) {
  Impl& d = *impl_;
  const auto* p = static_cast<const unsigned char*>(data);
  XXH3_128bits_update(&d.whole, p, size_t(elements * d.size));
  d.elements += elements;
  while (elements > 0) {
    const int64_t n = std::min(elements, d.columns - d.column);
    if (n == d.columns) {
      d.sink(XXH3_64bits(p, size_t(n * d.size)));
    } else {
      if (d.column == 0) XXH3_64bits_reset(&d.row);
      XXH3_64bits_update(&d.row, p, size_t(n * d.size));
      if (d.column + n == d.columns) d.sink(XXH3_64bits_digest(&d.row));
    }
    if (d.with_stats) d.add(d.lanes, d.column, p, n, d.size);
    d.column += n;
    if (d.column == d.columns) {
      d.end_row();
      d.column = 0;
    }
    p += n * d.size;
    elements -= n;
  }
}

std::string TensorDigest::hash() const { return hex(XXH3_128bits_digest(&impl_->whole)); }

TensorStats TensorDigest::stats() const {
  const Impl& d = *impl_;
  TensorStats out;
  out.non_finite = d.elements - d.finite;
  if (d.finite == 0) return out;
  // A float64 tensor may overflow its own sums; JSON has no infinity.
  const auto bounded = [](double v) {
    return std::clamp(v, -std::numeric_limits<double>::max(), std::numeric_limits<double>::max());
  };
  out.min = d.least;
  out.max = d.most;
  out.mean = bounded(std::isnan(d.sum) ? 0.0 : d.sum / double(d.finite));
  out.rms = bounded(std::sqrt(d.squares / double(d.finite)));
  return out;
}

std::string xxh3_128_hex(const void* data, size_t bytes) { return hex(XXH3_128bits(data, bytes)); }
uint64_t xxh3_64(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

}  // namespace assay
