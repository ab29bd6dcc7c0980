// Picks the kernel of a linear by type, kind of activations and number of token rows; all of them keep the same order of sums,
// so the choice moves no bit. Weights that are not quantised, and quantised ones with f32 activations: the float rule.
#include "cuda/device.h"
#include "cuda/layout.cuh"
#include "cuda/quantise.cuh"

namespace assay {

/// Up to so many token rows chunks of eight that share each weight read from L2 are faster than tiles of 128, most of which
/// would be padding.
constexpr int64_t kFewRows = 32;

int linear(AssayDevice& d, const AssayLinear& a) {
  if (a.count < 1 || a.count > 3 || a.rows < 0) return ASSAY_REFUSED;
  bool quantised = false, all_quantised = true;
  for (int i = 0; i < a.count; i++) {
    if (!type_known(a.w[i].type)) return ASSAY_REFUSED;
    quantised = quantised || type_quantised(a.w[i].type);
    all_quantised = all_quantised && type_quantised(a.w[i].type);
  }
  if (!quantised || a.activations == ASSAY_ACTIVATIONS_F32) return float_linear(d, a);
  if (!all_quantised || (a.activations != ASSAY_ACTIVATIONS_S16 && a.activations != ASSAY_ACTIVATIONS_S8)) return ASSAY_REFUSED;
  if (a.rows == 0) {  // would it be done? The gated form by the kernel of one row, every other by those of any number
    AssayLinear one = a;
    one.rows = 1;
    one.x = one.norm = nullptr;
    return a.gated ? (gemv_takes(one) ? ASSAY_DONE : ASSAY_REFUSED) : linear_on_tokens(one) ? ASSAY_DONE : ASSAY_REFUSED;
  }
  if (a.rows == 1) {
    const int result = quant_gemv(d, a);
    if (result != ASSAY_REFUSED) return result;  // refused: a row too wide for shared memory, or what the others refuse, too
  }
  if (a.rows > kFewRows) {
    const int result = quant_gemm(d, a);
    if (result != ASSAY_REFUSED) return result;  // refused: its tiles want more shared memory than sm_90 alone has
  }
  return quant_few(d, a);
}

}  // namespace assay
