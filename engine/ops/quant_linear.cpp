// y[t][n] by the rule of quantised weights (NUMERICS.md, "Quantised weights"), then bias[n] in one add. Per group of
// 32: d = sum q * w, an exact integer; f = (float)d; lane g mod 8: acc = fma(s, sw * f, acc), then for types with a
// minimum acc = fma(s, mw * (float)sum(q), acc); Q6_K has two terms, low half first. Fold of the eight lanes:
// neighbours first. Bound against exact sums: sum_g h_g sum_k |w_k| + 2^-24 (m ceil(G/8) + 6) sum_g s_g (|sw_g f_g| +
// |mw_g sum q|) + e. The scalar form reads the file's blocks, the SIMD form panels (panel.h): they share no decoding of
// a code in registers.
#include "engine/ops/group.h"
#include "engine/ops/op.h"
#ifndef ASSAY_ISA_scalar
#include "engine/ops/simd_int.h"
#endif

namespace assay::inline ASSAY_ISA {

#ifdef ASSAY_ISA_scalar

/// Code k of a row of activations.
ASSAY_NUMERICS_FN int32_t activation_at(const QuantisedRows& x, int64_t t, int64_t k) {
  if (x.code_bytes == 2) return reinterpret_cast<const int16_t*>(x.codes)[t * x.columns + k];
  const int64_t in4 = k % 4, place = in4 == 1 ? k + 1 : in4 == 2 ? k - 1 : k;
  return reinterpret_cast<const int8_t*>(x.codes)[t * x.columns + place];
}

ASSAY_NUMERICS_FN int32_t dot_codes(const QuantisedRows& x, int64_t t, int64_t k, const int32_t* w, int count) {
  int32_t d = 0;
  for (int i = 0; i < count; i++) d += activation_at(x, t, k + i) * w[i];
  return d;
}

void quant_linear(const QuantLinearArgs& a, int64_t begin, int64_t end) {
  const QuantisedRows& x = a.x;
  const int64_t groups = x.columns / kQuantGroup, row_size = bytes_of_row(a.w.type, a.w.columns);
  const int64_t last = end * kPanelRows < a.w.rows ? end * kPanelRows : a.w.rows;
  float* lanes = thread_scratch(8 * x.rows);  // [token][lane]
  for (int64_t n = begin * kPanelRows; n < last; n++) {
    const std::byte* row = a.w.data + n * row_size;
    for (int64_t i = 0; i < 8 * x.rows; i++) lanes[i] = 0.0f;
    for (int64_t g = 0; g < groups; g++) {
      uint8_t codes[kQuantGroup];
      int32_t w[kQuantGroup];
      group_codes(a.w.type, row, g, codes);
      for (int i = 0; i < kQuantGroup; i++) w[i] = (int32_t)codes[i] - code_bias(a.w.type);
      const GroupScales scales = group_scales(a.w.type, row, g);
      for (int64_t t = 0; t < x.rows; t++) {
        const float s = x.scales[t * groups + g];
        float& acc = lanes[8 * t + g % 8];
        if (a.w.type == WeightType::q6_k) {
          const int32_t low = dot_codes(x, t, g * 32, w, 16), high = dot_codes(x, t, g * 32 + 16, w + 16, 16);
          acc = fma_f32(s, mul_f32(scales.low, (float)low), acc);
          acc = fma_f32(s, mul_f32(scales.high, (float)high), acc);
          continue;
        }
        acc = fma_f32(s, mul_f32(scales.low, (float)dot_codes(x, t, g * 32, w, 32)), acc);
        if (!has_minimum(a.w.type)) continue;
        const int32_t* sums = x.sums + 2 * (t * groups + g);
        acc = fma_f32(s, mul_f32(scales.minimum, (float)(sums[0] + sums[1])), acc);
      }
    }
    for (int64_t t = 0; t < x.rows; t++) {
      const float* l = lanes + 8 * t;
      const float y =
          add_f32(add_f32(add_f32(l[0], l[1]), add_f32(l[2], l[3])), add_f32(add_f32(l[4], l[5]), add_f32(l[6], l[7])));
      a.y[t * a.w.rows + n] = a.bias ? add_f32(y, a.bias[n]) : y;
    }
  }
}

#else

constexpr int kParts = kPanelRows / kLanes;  // vectors side by side in a panel

/// Scales of one group for the rows of one part.
struct ScaleVectors {
  vf low, high, minimum;
};
template <WeightType kType>
ASSAY_V ScaleVectors load_scales(const std::byte* scales, int64_t g, int part) {
  if constexpr (!is_k_quant(kType)) {
    const std::byte* p = scales + g * (has_minimum(kType) ? 64 : 32) + part * kLanes * 2;
    const vf d = v_load_f16(p);
    return {d, d, has_minimum(kType) ? v_load_f16(p + 32) : v_zero()};
  } else {
    constexpr bool kSix = kType == WeightType::q6_k;
    const std::byte* block = scales + g / 8 * ((kSix ? 32 : 64) + 8 * 32);
    const std::byte* mine = block + (kSix ? 32 : 64) + 32 * (g % 8) + part * kLanes;
    const vf d = v_load_f16(block + part * kLanes * 2);
    if constexpr (kSix) {
      return {v_mul(d, vi_to_float(vi_load_i8(mine))), v_mul(d, vi_to_float(vi_load_i8(mine + 16))), v_zero()};
    } else {
      const vf scale = v_mul(d, vi_to_float(vi_load_u8(mine)));
      const vf minimum = v_mul(v_load_f16(block + 32 + part * kLanes * 2), vi_to_float(vi_load_u8(mine + 16)));
      return {scale, scale, v_negate(minimum)};
    }
  }
}

/// The high bits of half-step s, at their place above the nibbles in every byte.
template <int kBits>
ASSAY_V vi high_bits(const std::byte* high, int s, int part) {
  if constexpr (kBits == 5) {
    const vi h = vi_load(high + part * kLanes * 4);
    switch (s) {  // a shift by s, then the bit to place 4
      case 0:
        return vi_and(vi_shl<4>(h), vi_set(0x10101010));
      case 1:
        return vi_and(vi_shl<3>(h), vi_set(0x10101010));
      case 2:
        return vi_and(vi_shl<2>(h), vi_set(0x10101010));
      case 3:
        return vi_and(vi_shl<1>(h), vi_set(0x10101010));
      case 4:
        return vi_and(h, vi_set(0x10101010));
      case 5:
        return vi_and(vi_srl<1>(h), vi_set(0x10101010));
      case 6:
        return vi_and(vi_srl<2>(h), vi_set(0x10101010));
      default:
        return vi_and(vi_srl<3>(h), vi_set(0x10101010));
    }
  } else {
    const vi h = vi_load(high + 64 * (s / 4) + part * kLanes * 4);
    switch (s % 4) {
      case 0:
        return vi_and(vi_shl<4>(h), vi_set(0x30303030));
      case 1:
        return vi_and(vi_shl<2>(h), vi_set(0x30303030));
      case 2:
        return vi_and(h, vi_set(0x30303030));
      default:
        return vi_and(vi_srl<2>(h), vi_set(0x30303030));
    }
  }
}
/// Codes of half-step s (4 s .. 4 s + 3 of the group), one byte each.
template <int kBits>
ASSAY_V vi byte_codes(const std::byte* codes, const std::byte* high, int s, int part) {
  if constexpr (kBits == 8) return vi_load(codes + 64 * s + part * kLanes * 4);
  vi v = vi_load(codes + 64 * (s / 2) + part * kLanes * 4);
  if (s % 2) v = vi_srl<4>(v);
  v = vi_and(v, vi_set(0x0f0f0f0f));
  if constexpr (kBits == 5 || kBits == 6) v = vi_or(v, high_bits<kBits>(high, s, part));
  return v;
}

// The dots below take the parts of a panel together, so that a broadcast activation serves all of them. d[part * kT +
// t] is for token t, whose codes lie `stride` bytes after those of token t - 1. The fences keep the compiler from
// carrying dozens of broadcasts from one half-step to the next, through memory.
#define ASSAY_FENCE asm volatile("" ::: "memory")

/// Half-steps kFrom .. kTo - 1 of a group.
template <int kBits, int kT, int kFrom, int kTo>
ASSAY_V void dot_s16(const std::byte* codes, const std::byte* high, const std::byte* x, int64_t stride, vi* d) {
  // Few tokens: nibbles are masked where they stand, 16 and 256 times too large, and shifted once per group.
  constexpr bool kInPlace = kBits == 4 && kParts * kT <= 2;
  vi by16[kParts * kT], by256[kParts * kT];
  if constexpr (kInPlace) {
    ASSAY_UNROLL for (int i = 0; i < kParts * kT; i++) by16[i] = by256[i] = vi_set(0);
  }
  ASSAY_UNROLL for (int s = kFrom; s < kTo; s++) {
    vi w0[kParts], w1[kParts];  // words of even and odd bytes: k = 4 s, 4 s + 1 and 4 s + 2, 4 s + 3
    ASSAY_UNROLL for (int p = 0; p < kParts; p++) {
      if constexpr (kBits == 4) {
        const vi v = vi_load(codes + 64 * (s / 2) + p * kLanes * 4);
        if (s % 2) {
          w0[p] = kInPlace ? vi_and(v, vi_set(0x00f000f0)) : vi_and(vi_srl<4>(v), vi_set(0x000f000f));
          w1[p] = vi_srl16<12>(v);
        } else {
          w0[p] = vi_and(v, vi_set(0x000f000f));
          w1[p] = kInPlace ? vi_and(v, vi_set(0x0f000f00)) : vi_and(vi_srl16<8>(v), vi_set(0x000f000f));
        }
      } else {
        const vi v = byte_codes<kBits>(codes, high, s, p);
        w0[p] = vi_and(v, vi_set(0x00ff00ff));
        w1[p] = vi_srl16<8>(v);
      }
    }
    ASSAY_UNROLL for (int t = 0; t < kT; t++) {
      const vi q0 = vi_spread(x + t * stride + 8 * s), q1 = vi_spread(x + t * stride + 8 * s + 4);
      ASSAY_UNROLL for (int p = 0; p < kParts; p++) {
        const int i = p * kT + t;
        vi& sum0 = kInPlace && s % 2 == 1 ? by16[i] : d[i];
        vi& sum1 = kInPlace && s % 2 == 0 ? by256[i] : d[i];
        sum0 = vi_dot_words(sum0, w0[p], q0);
        sum1 = vi_dot_words(sum1, w1[p], q1);
      }
    }
    if (s % 2) ASSAY_FENCE;
  }
  if constexpr (kInPlace) {
    ASSAY_UNROLL for (int i = 0; i < kParts * kT; i++) d[i] =
        vi_add(d[i], vi_add(vi_sra<4>(by16[i]), vi_sra<8>(by256[i])));
  }
}

template <int kBits, int kT, int kFrom, int kTo>
ASSAY_V void dot_s8(const std::byte* codes, const std::byte* high, const std::byte* x, int64_t stride, vi* d) {
#if defined(ASSAY_ISA_avx512vnni)
  ASSAY_UNROLL for (int s = kFrom; s < kTo; s++) {
    ASSAY_UNROLL for (int p = 0; p < kParts; p++) {
      const vi v = byte_codes<kBits>(codes, high, s, p);
      ASSAY_UNROLL for (int t = 0; t < kT; t++) d[p * kT + t] =
          vi_dot_bytes(d[p * kT + t], v, vi_spread(x + t * stride + 4 * s));
    }
    if (s % 2) ASSAY_FENCE;
  }
#else
  // Words hold 16 products of a nibble, 8 of a 5-bit code, 4 of a 6-bit one (15 * 127 * 16, 31 * 127 * 8, 63 * 127 * 4
  // < 2^15). For codes of 8 bits, code_bytes_for() asks for words.
  constexpr int kHold = kBits == 5 ? 4 : kBits == 6 ? 2 : 8;  // half-steps until words become lanes
  const vi ones = vi_set(0x00010001);
  vi words[kParts * kT];
  ASSAY_UNROLL for (int s = kFrom; s < kTo; s++) {
    if (s % kHold == 0) {
      ASSAY_UNROLL for (int i = 0; i < kParts * kT; i++) words[i] = vi_set(0);
    }
    vi w[kParts];
    ASSAY_UNROLL for (int p = 0; p < kParts; p++) w[p] = byte_codes<kBits>(codes, high, s, p);
    ASSAY_UNROLL for (int t = 0; t < kT; t++) {
      const vi q = vi_spread(x + t * stride + 4 * s);
      ASSAY_UNROLL for (int p = 0; p < kParts; p++) {
        words[p * kT + t] = vi_dot_byte_pairs(words[p * kT + t], w[p], q);
      }
    }
    if (s % 2) ASSAY_FENCE;
    if (s % kHold == kHold - 1) {
      ASSAY_UNROLL for (int i = 0; i < kParts * kT; i++) {
        d[i] = vi_dot_words(d[i], words[i], ones);
      }
    }
  }
#endif
}

/// One panel, tokens t .. t + kT - 1.
template <WeightType kType, bool kWide, int kT>
[[gnu::noinline]] static void panel_tile(const QuantLinearArgs& a, int64_t p, int64_t t) {
  constexpr int kBits = code_bits(kType), kBias = code_bias(kType);
  constexpr bool kHalves = kType == WeightType::q6_k;
  constexpr int64_t kCodes = kBits == 8 ? 512 : 256, kHigh = kBits == 5 ? 64 : kBits == 6 ? 128 : 0;
  constexpr int64_t kAhead = 4096;  // bytes of codes fetched before they are needed
  const PanelLayout l = panel_layout(kType, a.w.columns);
  const std::byte* panel = a.panels + p * (int64_t)l.bytes;
  const int64_t groups = l.groups, stride = a.x.columns * (kWide ? 2 : 1);
  const std::byte* x = a.x.codes + t * stride;
  const float* scales = a.x.scales + t * groups;
  const int32_t* sums = a.x.sums + 2 * t * groups;
  vf acc[8][kParts * kT];
  for (int lane = 0; lane < 8; lane++) {
    ASSAY_UNROLL for (int i = 0; i < kParts * kT; i++) acc[lane][i] = v_zero();
  }
  for (int64_t g = 0; g < groups; g++) {
    const std::byte* codes = panel + g * kCodes;
    if constexpr (kT == 1) {
      ASSAY_UNROLL for (int64_t i = 0; i < kCodes; i += 64)
          prefetch(codes + kAhead + i);
    }
    const std::byte* high = panel + (int64_t)l.high + g * kHigh;
    const std::byte* xg = x + g * (kWide ? 64 : 32);
    vf* sum = acc[g % 8];
    const auto term = [&]<int kFrom, int kTo>() __attribute__((always_inline)) {
      vi d[kParts * kT];
      ASSAY_UNROLL for (int s = 0; s < kT; s++) {
        const int32_t* both = sums + 2 * (s * groups + g);
        const vi bias = kBias == 0 ? vi_set(0) : vi_set(-kBias * (kHalves ? both[kFrom / 4] : both[0] + both[1]));
        ASSAY_UNROLL for (int part = 0; part < kParts; part++) d[part * kT + s] = bias;
      }
      if constexpr (kWide) {
        dot_s16<kBits, kT, kFrom, kTo>(codes, high, xg, stride, d);
      } else {
        dot_s8<kBits, kT, kFrom, kTo>(codes, high, xg, stride, d);
      }
      ASSAY_UNROLL for (int part = 0; part < kParts; part++) {
        const ScaleVectors w = load_scales<kType>(panel + l.scales, g, part);
        ASSAY_UNROLL for (int s = 0; s < kT; s++) {
          const vf scale = v_set(scales[s * groups + g]);
          vf y = v_fma(scale, v_mul(kFrom == 0 ? w.low : w.high, vi_to_float(d[part * kT + s])), sum[part * kT + s]);
          if constexpr (has_minimum(kType)) {
            const int32_t* both = sums + 2 * (s * groups + g);
            y = v_fma(scale, v_mul(w.minimum, v_set((float)(both[0] + both[1]))), y);
          }
          sum[part * kT + s] = y;
        }
      }
      ASSAY_FENCE;
    };
    if constexpr (kHalves) {
      term.template operator()<0, 4>();
      term.template operator()<4, 8>();
    } else {
      term.template operator()<0, 8>();
    }
  }
  ASSAY_UNROLL for (int part = 0; part < kParts; part++) {
    const int64_t n = p * kPanelRows + part * kLanes, rows = a.w.rows - n;
    if (rows <= 0) return;
    ASSAY_UNROLL for (int s = 0; s < kT; s++) {
      const auto lane = [&](int i) __attribute__((always_inline)) {
        return acc[i][part * kT + s];
      };
      vf y = v_add(v_add(v_add(lane(0), lane(1)), v_add(lane(2), lane(3))),
                   v_add(v_add(lane(4), lane(5)), v_add(lane(6), lane(7))));
      if (a.bias) y = v_add(y, v_load_n(a.bias + n, rows));
      v_store_n(a.y + (t + s) * a.w.rows + n, y, rows);
    }
  }
}

constexpr int kTile = 4;        // tokens per tile
constexpr int64_t kBlock = 32;  // tokens whose codes stay in the second cache while panels pass

template <WeightType kType, bool kWide>
static void quant_linear_of(const QuantLinearArgs& a, int64_t begin, int64_t end) {
  for (int64_t from = 0; from < a.x.rows; from += kBlock) {
    const int64_t to = from + kBlock < a.x.rows ? from + kBlock : a.x.rows;
    for (int64_t p = begin; p < end; p++) {
      int64_t t = from;
      for (; t + kTile <= to; t += kTile) panel_tile<kType, kWide, kTile>(a, p, t);
      for (; t + 2 <= to; t += 2) panel_tile<kType, kWide, 2>(a, p, t);
      for (; t < to; t++) panel_tile<kType, kWide, 1>(a, p, t);
    }
  }
}

template <WeightType kType>
static void quant_linear_of(const QuantLinearArgs& a, int64_t begin, int64_t end) {
#if defined(ASSAY_ISA_avx512vnni)
  constexpr bool kBytes = true;
#else
  constexpr bool kBytes = code_bits(kType) < 8;
#endif
  if (a.x.code_bytes == 2) return quant_linear_of<kType, true>(a, begin, end);
  if constexpr (kBytes) quant_linear_of<kType, false>(a, begin, end);
}

void quant_linear(const QuantLinearArgs& a, int64_t begin, int64_t end) {
  switch (a.w.type) {
    case WeightType::q8_0:
      return quant_linear_of<WeightType::q8_0>(a, begin, end);
    case WeightType::q4_0:
      return quant_linear_of<WeightType::q4_0>(a, begin, end);
    case WeightType::q4_1:
      return quant_linear_of<WeightType::q4_1>(a, begin, end);
    case WeightType::q5_0:
      return quant_linear_of<WeightType::q5_0>(a, begin, end);
    case WeightType::q5_1:
      return quant_linear_of<WeightType::q5_1>(a, begin, end);
    case WeightType::q4_k:
      return quant_linear_of<WeightType::q4_k>(a, begin, end);
    case WeightType::q5_k:
      return quant_linear_of<WeightType::q5_k>(a, begin, end);
    case WeightType::q6_k:
      return quant_linear_of<WeightType::q6_k>(a, begin, end);
    case WeightType::f32:
    case WeightType::f16:
    case WeightType::bf16:
      return;  // the caller's precondition
  }
}

#endif

}  // namespace assay::inline ASSAY_ISA
