// Compiled once per vector instruction set, for the tests.
#include "engine/ops/simd_probe.h"

#include "engine/ops/simd.h"

namespace assay::inline ASSAY_ISA {

static void run(Simd what, const float* a, const float* b, const float* c, float* out, int64_t n, int64_t count) {
  if (what == Simd::fold_8) {  // 8 vectors to 8 values, stored times 0.5 + 1 by the functions of 8
    for (int64_t i = 0; i < n / kLanes; i += 8) {
      vf rows[8];
      for (int r = 0; r < 8; r++) rows[r] = v_load(a + (i + r) * kLanes);
      vf8_store(out + i, vf8_add(vf8_mul(v_fold_8(rows), vf8_set(0.5f)), vf8_set(1.0f)));
    }
    return;
  }
  if (what == Simd::max_ordered) {  // of every 8 elements (a -0 counts as +0: they come by way of a fold)
    for (int64_t i = 0; i < n; i += 8) {
      vf rows[8];
      for (int r = 0; r < 8; r++) rows[r] = v_load_first(a + i + r, 1);
      const vi8 max = vi8_max(vi8_set(INT32_MIN), vf8_ordered(v_fold_8(rows)));
      out[i / 8] = float_of((uint32_t)vi8_max_of(max));
    }
    return;
  }
  for (int64_t i = 0; i < n; i += kLanes) {
    const vf x = v_load(a + i), y = v_load(b + i), z = v_load(c + i);
    const vi u = v_bits(x), w = v_bits(y);
    const std::byte* bytes = reinterpret_cast<const std::byte*>(a);
    vf r = v_zero();
    switch (what) {
      case Simd::load_store:
        r = x;
        break;
      case Simd::load_first:
        r = v_load_first(a + i, count);
        break;
      case Simd::store_first:
        v_store_first(out + i, x, count);
        continue;
      case Simd::add:
        r = v_add(x, y);
        break;
      case Simd::sub:
        r = v_sub(x, y);
        break;
      case Simd::mul:
        r = v_mul(x, y);
        break;
      case Simd::div:
        r = v_div(x, y);
        break;
      case Simd::fma:
        r = v_fma(x, y, z);
        break;
      case Simd::max:
        r = v_max(x, y);
        break;
      case Simd::min:
        r = v_min(x, y);
        break;
      case Simd::nan_from:
        r = v_nan_from(x, y);
        break;
      case Simd::negate:
        r = v_negate(x);
        break;
      case Simd::exp:
        r = v_exp(x);
        break;
      case Simd::silu:
        r = v_silu(x);
        break;
      case Simd::to_int:
        r = vi_float_bits(v_to_int(x));
        break;
      case Simd::to_float:
        r = vi_to_float(u);
        break;
      case Simd::int_add:
        r = vi_float_bits(vi_add(u, w));
        break;
      case Simd::int_sub:
        r = vi_float_bits(vi_sub(u, w));
        break;
      case Simd::int_and:
        r = vi_float_bits(vi_and(u, w));
        break;
      case Simd::int_or:
        r = vi_float_bits(vi_or(u, w));
        break;
      case Simd::int_xor:
        r = vi_float_bits(vi_xor(u, w));
        break;
      case Simd::int_max:
        r = vi_float_bits(vi_max(u, w));
        break;
      case Simd::shl_23:
        r = vi_float_bits(vi_shl<23>(u));
        break;
      case Simd::srl_16:
        r = vi_float_bits(vi_srl<16>(u));
        break;
      case Simd::sra_31:
        r = vi_float_bits(vi_sra<31>(u));
        break;
      case Simd::srl_by:
        r = vi_float_bits(vi_srl_by(u, (int)count));
        break;
      case Simd::bits_of:  // of the vector's first element
        r = vi_to_float(vi_bits_of(bits_of(a[i])));
        break;
      case Simd::abs_bits:
        r = vi_float_bits(vi_abs_bits(x));
        break;
      case Simd::any_negative:
        r = v_set(vi_any_negative(u) ? 1.0f : 0.0f);
        break;
      case Simd::fold:
        r = v_set(v_fold(x));
        break;
      case Simd::load_u8:
        r = vi_to_float(vi_load_u8(bytes + i));
        break;
      case Simd::load_i8:
        r = vi_to_float(vi_load_i8(bytes + i));
        break;
      case Simd::load_u16:
        r = vi_to_float(vi_load_u16(bytes + 2 * i));
        break;
      case Simd::store_u16:
        vi_store_u16(reinterpret_cast<std::byte*>(out) + 2 * i, u);
        continue;
      case Simd::load_f16:
        r = v_load_f16(bytes + 2 * i);
        break;
      case Simd::load_bf16:
        r = v_load_bf16(bytes + 2 * i);
        break;
      case Simd::load_f16_first:
        r = v_load_f16_first(bytes + 2 * i, count);
        break;
      case Simd::load_bf16_first:
        r = v_load_bf16_first(bytes + 2 * i, count);
        break;
      case Simd::to_f16:
        r = vi_float_bits(v_to_f16(x));
        break;
      case Simd::to_bf16:
        r = vi_float_bits(v_to_bf16(x));
        break;
      case Simd::fold_8:
      case Simd::max_ordered:
      case Simd::count:
        break;
    }
    v_store(out + i, r);
  }
}

extern const SimdProbe kProbe;
const SimdProbe kProbe = {kLanes, run};

}  // namespace assay::inline ASSAY_ISA
