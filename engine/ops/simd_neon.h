// simd.h for NEON (armv8-a, no extension).
#pragma once
#include <arm_neon.h>

#include "engine/ops/op.h"

namespace assay::inline ASSAY_ISA {

constexpr int kLanes = 4;
using vf = float32x4_t;
using vi = int32x4_t;
constexpr int kRegisters = 32;
struct vf8 {
  vf low, high;
};
struct vi8 {
  vi low, high;
};

/// Elements of any alignment. memcpy: the vld1 of narrow types would promise the compiler more than is true.
template <class V>
ASSAY_V V load_as(const void* p) {
  V v;
  memcpy(&v, p, sizeof v);
  return v;
}

ASSAY_V vf v_zero() {
  return vdupq_n_f32(0.0f);
}
ASSAY_V vf v_set(float x) {
  return vdupq_n_f32(x);
}
ASSAY_V vf v_load(const float* p) {
  return vld1q_f32(p);
}
ASSAY_V vf v_load_first(const float* p, int64_t n) {
  float padded[kLanes] = {};
  memcpy(padded, p, (size_t)(4 * n));
  return vld1q_f32(padded);
}
ASSAY_V void v_store(float* p, vf x) {
  vst1q_f32(p, x);
}
ASSAY_V void v_store_first(float* p, vf x, int64_t n) {
  float all[kLanes];
  vst1q_f32(all, x);
  memcpy(p, all, (size_t)(4 * n));
}
ASSAY_V vf v_add(vf a, vf b) {
  return vaddq_f32(a, b);
}
ASSAY_V vf v_sub(vf a, vf b) {
  return vsubq_f32(a, b);
}
ASSAY_V vf v_mul(vf a, vf b) {
  return vmulq_f32(a, b);
}
ASSAY_V vf v_div(vf a, vf b) {
  return vdivq_f32(a, b);
}
ASSAY_V vf v_fma(vf a, vf b, vf c) {
  return vfmaq_f32(c, a, b);
}
ASSAY_V vf v_max(vf a, vf b) {  // vmaxq gives NaN where one is NaN
  return vbslq_f32(vcgtq_f32(a, b), a, b);
}
ASSAY_V vf v_min(vf a, vf b) {
  return vbslq_f32(vcltq_f32(a, b), a, b);
}
ASSAY_V vf v_nan_from(vf x, vf y) {
  return vbslq_f32(vceqq_f32(x, x), y, vreinterpretq_f32_u32(vdupq_n_u32(0x7fc00000u)));
}
ASSAY_V vi v_bits(vf x) {
  return vreinterpretq_s32_f32(x);
}
ASSAY_V vf vi_float_bits(vi x) {
  return vreinterpretq_f32_s32(x);
}
ASSAY_V vi v_to_int(vf x) {
  return vcvtq_s32_f32(x);
}
ASSAY_V vf vi_to_float(vi x) {
  return vcvtq_f32_s32(x);
}
ASSAY_V vi vi_set(int32_t x) {
  return vdupq_n_s32(x);
}
ASSAY_V vi vi_add(vi a, vi b) {
  return vaddq_s32(a, b);
}
ASSAY_V vi vi_sub(vi a, vi b) {
  return vsubq_s32(a, b);
}
ASSAY_V vi vi_and(vi a, vi b) {
  return vandq_s32(a, b);
}
ASSAY_V vi vi_or(vi a, vi b) {
  return vorrq_s32(a, b);
}
ASSAY_V vi vi_xor(vi a, vi b) {
  return veorq_s32(a, b);
}
ASSAY_V vi vi_max(vi a, vi b) {
  return vmaxq_s32(a, b);
}
template <int kBits>
ASSAY_V vi vi_shl(vi a) {
  return vshlq_n_s32(a, kBits);
}
template <int kBits>
ASSAY_V vi vi_srl(vi a) {
  return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a), kBits));
}
template <int kBits>
ASSAY_V vi vi_sra(vi a) {
  return vshrq_n_s32(a, kBits);
}
ASSAY_V vi vi_srl_by(vi a, int count) {  // a shift to the left by -count
  return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), vdupq_n_s32(-count)));
}
ASSAY_V vi vi_bits_of(uint32_t x) {
  constexpr int32_t kLaneBit[kLanes] = {1, 2, 4, 8};
  const uint32x4_t set = vtstq_s32(vdupq_n_s32((int32_t)x), vld1q_s32(kLaneBit));
  return vreinterpretq_s32_u32(vshrq_n_u32(set, 31));
}
ASSAY_V bool vi_any_negative(vi a) {
  return vminvq_s32(a) < 0;
}
ASSAY_V vi vi_load_u8(const std::byte* p) {
  const uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32(load_u32(p)));
  return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes))));
}
ASSAY_V vi vi_load_i8(const std::byte* p) {
  const int8x8_t bytes = vreinterpret_s8_u32(vdup_n_u32(load_u32(p)));
  return vmovl_s16(vget_low_s16(vmovl_s8(bytes)));
}
ASSAY_V vi vi_load_u16(const std::byte* p) {
  return vreinterpretq_s32_u32(vmovl_u16(load_as<uint16x4_t>(p)));
}
ASSAY_V void vi_store_u16(std::byte* p, vi x) {
  const int16x4_t low = vmovn_s32(x);
  memcpy(p, &low, sizeof low);
}
ASSAY_V vf v_load_f16(const std::byte* p) {
  return vcvt_f32_f16(load_as<float16x4_t>(p));
}
ASSAY_V vi v_f16_bits(vf x) {
  return vreinterpretq_s32_u32(vmovl_u16(vreinterpret_u16_f16(vcvt_f16_f32(x))));
}
ASSAY_V float s_load_f16(const std::byte* p) {
  return (float)load_as<__fp16>(p);
}
ASSAY_V float v_fold(vf x) {
  return vpadds_f32(vadd_f32(vget_low_f32(x), vget_high_f32(x)));
}
/// [x0, x1, y0, y1] and [x2, x3, y2, y3], added: lanes by half.
ASSAY_V vf halves_of_two(vf x, vf y) {
  return vaddq_f32(vcombine_f32(vget_low_f32(x), vget_low_f32(y)), vcombine_f32(vget_high_f32(x), vget_high_f32(y)));
}
ASSAY_V vf8 v_fold_8(const vf* r) {
  return {vpaddq_f32(halves_of_two(r[0], r[1]), halves_of_two(r[2], r[3])),
          vpaddq_f32(halves_of_two(r[4], r[5]), halves_of_two(r[6], r[7]))};
}

ASSAY_V vf8 vf8_set(float x) {
  return {v_set(x), v_set(x)};
}
ASSAY_V vf8 vf8_add(vf8 a, vf8 b) {
  return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)};
}
ASSAY_V vf8 vf8_mul(vf8 a, vf8 b) {
  return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)};
}
ASSAY_V void vf8_store(float* p, vf8 x) {
  vst1q_f32(p, x.low);
  vst1q_f32(p + 4, x.high);
}
ASSAY_V vi ordered_bits(vi bits) {
  return veorq_s32(bits, vandq_s32(vshrq_n_s32(bits, 31), vdupq_n_s32(0x7fffffff)));
}
ASSAY_V vi8 vf8_ordered(vf8 x) {
  return {ordered_bits(v_bits(x.low)), ordered_bits(v_bits(x.high))};
}
ASSAY_V vi8 vi8_set(int32_t x) {
  return {vi_set(x), vi_set(x)};
}
ASSAY_V vi8 vi8_max(vi8 a, vi8 b) {
  return {vmaxq_s32(a.low, b.low), vmaxq_s32(a.high, b.high)};
}
ASSAY_V int32_t vi8_max_of(vi8 x) {
  return vmaxvq_s32(vmaxq_s32(x.low, x.high));
}

}  // namespace assay::inline ASSAY_ISA
