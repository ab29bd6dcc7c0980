// The op table of one instruction set.
#include "engine/ops/op.h"

namespace assay::inline ASSAY_ISA {

extern const Kernels kKernels;
const Kernels kKernels = {Isa::ASSAY_ISA, linear,  quantise,     quant_linear, embed,    rms_norm,
                          head_norm,      rope,    kv_store,     attention,    silu_mul, add,
                          sigmoid_mul,    sigmoid, l2_norm,      gated_norm,   decay,    conv,
                          delta_rule,     topk,    topk_weights, expert_sum,   gated_add};

}  // namespace assay::inline ASSAY_ISA
