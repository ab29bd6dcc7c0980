#include <bit>
#include <cmath>
#include <cstring>

#include "dumps/metrics_kernels.h"

namespace assay::metrics {
namespace {

template <class U>
bool equal_bits(const U* b, const U* t, int64_t n, U inf_bits, U* max_bits) {
  constexpr U kAbs = U(~U(0)) >> 1;
  U top = *max_bits;
  for (int64_t i = 0; i < n;) {
    const int64_t stop = i + 512 < n ? i + 512 : n;
    U differ = 0;
    for (; i < stop; i++) {
      differ |= U(b[i] ^ t[i]);
      const U magnitude = b[i] & kAbs;
      top = magnitude > top ? magnitude : top;
    }
    if (differ || top >= inf_bits) return false;
  }
  *max_bits = top;
  return true;
}

bool equal16(const uint16_t* b, const uint16_t* t, int64_t n, uint16_t inf_bits, uint16_t* max_bits) {
  return equal_bits<uint16_t>(b, t, n, inf_bits, max_bits);
}
bool equal32(const uint32_t* b, const uint32_t* t, int64_t n, uint32_t* max_bits) {
  return equal_bits<uint32_t>(b, t, n, 0x7f800000u, max_bits);
}
bool equal64(const uint64_t* b, const uint64_t* t, int64_t n, uint64_t* max_bits) {
  return equal_bits<uint64_t>(b, t, n, 0x7ff0000000000000u, max_bits);
}

/// Bits of a float as an integer in the order of the values; -0 and +0 both give 0.
template <class U>
U ordered(U bits) {
  constexpr U kAbs = U(~U(0)) >> 1;
  const U sign = (bits > kAbs) ? U(~U(0)) : U(0);
  return U((bits ^ (sign & kAbs)) - sign);
}

template <class U>
void ulps(const U* b, const U* t, int64_t n, RowSums* sums) {
  int64_t le1 = 0, le4 = 0, equal = 0;
  for (int64_t i = 0; i < n; i++) {
    // The difference wraps, yet never onto 0..4: finite values span less than the type by 2^7 codes or more.
    const U d = U(ordered<U>(b[i]) - ordered<U>(t[i]));
    le1 += U(d + 1) <= 2;
    le4 += U(d + 4) <= 8;
    equal += b[i] == t[i];
  }
  sums->ulp_le_1 += le1;
  sums->ulp_le_4 += le4;
  sums->equal += equal;
}

void row_f64(const double* b, const double* t, int64_t n, RowSums* sums) {
  double max_diff = sums->max_diff, max_base = sums->max_base;
  bool bad = false;
  int64_t equal = 0;
  for (int64_t i = 0; i < n; i++) {
    const double base = b[i], d = std::fabs(t[i] - base), magnitude = std::fabs(base);
    // Not `d`: it may overflow to Inf between finite values.
    bad |= !(magnitude < INFINITY) | !(std::fabs(t[i]) < INFINITY);
    max_diff = d > max_diff ? d : max_diff;
    max_base = magnitude > max_base ? magnitude : max_base;
    sums->diff2[i & 7] += d * d;
    sums->base2[i & 7] += base * base;
    equal += base == t[i];
  }
  sums->max_diff = max_diff;
  sums->max_base = max_base;
  sums->equal += equal;
  sums->non_finite |= bad;
}

void row_f32(const float* b, const float* t, int64_t n, RowSums* sums) {
  double max_diff = sums->max_diff;
  uint32_t max_base = 0, max_target = 0;
  for (int64_t i = 0; i < n; i++) {
    const double base = b[i], d = std::fabs(double(t[i]) - base);
    const uint32_t mb = std::bit_cast<uint32_t>(b[i]) & 0x7fffffffu, mt = std::bit_cast<uint32_t>(t[i]) & 0x7fffffffu;
    max_base = mb > max_base ? mb : max_base;
    max_target = mt > max_target ? mt : max_target;
    max_diff = d > max_diff ? d : max_diff;
    sums->diff2[i & 7] += d * d;
    sums->base2[i & 7] += base * base;
  }
  ulps<uint32_t>(reinterpret_cast<const uint32_t*>(b), reinterpret_cast<const uint32_t*>(t), n, sums);
  sums->max_diff = max_diff;
  const double top = std::bit_cast<float>(max_base);
  sums->max_base = top > sums->max_base ? top : sums->max_base;
  sums->non_finite |= max_base >= 0x7f800000u || max_target >= 0x7f800000u;
}

void bf16_to_f32(const uint16_t* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = std::bit_cast<float>(uint32_t(x[i]) << 16);
}

void f16_to_f32(const uint16_t* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    const uint32_t sign = uint32_t(x[i] & 0x8000u) << 16, exponent = (x[i] >> 10) & 31u, fraction = x[i] & 1023u;
    uint32_t bits;
    if (exponent == 31) {
      bits = 0x7f800000u | (fraction << 13);
    } else if (exponent != 0) {
      bits = ((exponent + 112u) << 23) | (fraction << 13);
    } else {
      bits = std::bit_cast<uint32_t>(float(fraction) * 0x1p-24f);  // a subnormal or zero, exact
    }
    y[i] = std::bit_cast<float>(sign | bits);
  }
}

void f32_to_f64(const float* x, double* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i];
}

void f64_to_f32(const double* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = float(x[i]);
}

void f32_to_bf16(const float* x, uint16_t* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    const uint32_t bits = std::bit_cast<uint32_t>(x[i]);
    y[i] = uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
}

void ulp16(const uint16_t* b, const uint16_t* t, int64_t n, RowSums* sums) { ulps<uint16_t>(b, t, n, sums); }
void ulp32(const uint32_t* b, const uint32_t* t, int64_t n, RowSums* sums) { ulps<uint32_t>(b, t, n, sums); }
void ulp64(const uint64_t* b, const uint64_t* t, int64_t n, RowSums* sums) { ulps<uint64_t>(b, t, n, sums); }

}  // namespace

const Kernels kGeneric = {equal16,     equal32,    equal64,    row_f32,    row_f64,    ulp16,      ulp32,
                          ulp64,       bf16_to_f32, f16_to_f32, f32_to_f64, f64_to_f32, f32_to_bf16};

}  // namespace assay::metrics
