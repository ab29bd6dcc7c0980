// What every op file includes. Op files are compiled once per instruction set into namespace ASSAY_ISA and must leave
// no symbol that another object could share (NUMERICS.md "ISA files"): everything here is static, and std templates,
// members defined in other headers included, are not used in them (ci/check_isa_symbols holds this).
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/numerics.h"
#include "engine/ops/common/scratch.h"
#include "engine/ops/group.h"
#include "engine/ops/kernels.h"

#ifndef ASSAY_ISA
#error "an op file is compiled with ASSAY_ISA set"
#endif

namespace assay::inline ASSAY_ISA {

// ---- the ops, one file each; isa_table.cpp collects them
void linear(const LinearArgs& a, int64_t begin, int64_t end);
void quantise(const QuantiseArgs& a, int64_t begin, int64_t end);
void quant_linear(const QuantLinearArgs& a, int64_t begin, int64_t end);
void embed(const EmbedArgs& a, int64_t begin, int64_t end);
void rms_norm(const NormArgs& a, int64_t begin, int64_t end);
void head_norm(const NormArgs& a, int64_t begin, int64_t end);
void rope(const RopeArgs& a, int64_t begin, int64_t end);
void kv_store(const KvStoreArgs& a, int64_t begin, int64_t end);
void attention(const AttentionArgs& a, int64_t begin, int64_t end, float* scratch);
void silu_mul(const BinaryArgs& a, int64_t begin, int64_t end);
void add(const BinaryArgs& a, int64_t begin, int64_t end);
void sigmoid_mul(const BinaryArgs& a, int64_t begin, int64_t end);
void sigmoid(const SigmoidArgs& a, int64_t begin, int64_t end);
void l2_norm(const L2NormArgs& a, int64_t begin, int64_t end);
void gated_norm(const GatedNormArgs& a, int64_t begin, int64_t end);
void decay(const DecayArgs& a, int64_t begin, int64_t end);
void conv(const ConvArgs& a, int64_t begin, int64_t end);
void delta_rule(const DeltaRuleArgs& a, int64_t begin, int64_t end);
void topk(const TopkArgs& a, int64_t begin, int64_t end);
void topk_weights(const TopkWeightsArgs& a, int64_t begin, int64_t end);
void expert_sum(const ExpertSumArgs& a, int64_t begin, int64_t end);
void gated_add(const GatedAddArgs& a, int64_t begin, int64_t end);

// ---- elements where they lie (group.h): nothing is assumed about alignment
ASSAY_NUMERICS_FN float load_cached(KvType type, const std::byte* base, int64_t i) {
  if (type == KvType::f32) return load_f32(base + 4 * i);
  const uint16_t bits = load_u16(base + 2 * i);
  return type == KvType::f16 ? f32_of_f16(bits) : f32_of_bf16(bits);
}

/// Element k of a weight row, widened: the exact sw*w + mw rounded once to f32. Every product with a scale below is
/// exact (11 bits of f16, 7 of an int8 or 6 of a scale, 5 of a code, at most 23), so only types with a minimum round,
/// in their fma. Layouts: formats/quant.h.
ASSAY_NUMERICS_FN float weight_at(WeightType type, const std::byte* row, int64_t k) {
  const int i = (int)(k % kQuantGroup);
  switch (type) {
    case WeightType::f32:
      return load_f32(row + 4 * k);
    case WeightType::f16:
      return f32_of_f16(load_u16(row + 2 * k));
    case WeightType::bf16:
      return f32_of_bf16(load_u16(row + 2 * k));
    case WeightType::q8_0: {
      const std::byte* b = group_block(type, row, k / kQuantGroup);
      return mul_f32(f32_of_f16(load_u16(b)), (float)load_i8(b + offsetof(BlockQ8_0, codes) + i));
    }
    case WeightType::q4_0: {
      const std::byte* b = group_block(type, row, k / kQuantGroup);
      const int pair = load_u8(b + offsetof(BlockQ4_0, codes) + i % 16), code = i < 16 ? pair & 15 : pair >> 4;
      return mul_f32(f32_of_f16(load_u16(b)), (float)(code - 8));
    }
    case WeightType::q4_1: {
      const std::byte* b = group_block(type, row, k / kQuantGroup);
      const int pair = load_u8(b + offsetof(BlockQ4_1, codes) + i % 16), code = i < 16 ? pair & 15 : pair >> 4;
      return fma_f32(f32_of_f16(load_u16(b)), (float)code, f32_of_f16(load_u16(b + offsetof(BlockQ4_1, m))));
    }
    case WeightType::q5_0: {
      const std::byte* b = group_block(type, row, k / kQuantGroup);
      const int pair = load_u8(b + offsetof(BlockQ5_0, codes) + i % 16), low = i < 16 ? pair & 15 : pair >> 4;
      const int high = (int)(load_u32(b + offsetof(BlockQ5_0, high)) >> i & 1);
      return mul_f32(f32_of_f16(load_u16(b)), (float)((low | high << 4) - 16));
    }
    case WeightType::q5_1: {
      const std::byte* b = group_block(type, row, k / kQuantGroup);
      const int pair = load_u8(b + offsetof(BlockQ5_1, codes) + i % 16), low = i < 16 ? pair & 15 : pair >> 4;
      const int high = (int)(load_u32(b + offsetof(BlockQ5_1, high)) >> i & 1);
      return fma_f32(f32_of_f16(load_u16(b)), (float)(low | high << 4),
                     f32_of_f16(load_u16(b + offsetof(BlockQ5_1, m))));
    }
    case WeightType::q4_k: {
      const std::byte* b = group_block(type, row, k / kQuantGroup);
      const int g = (int)(k % kKElements / kQuantGroup);
      const int code = load_u8(b + offsetof(BlockQ4_K, codes) + 32 * (g / 2) + i) >> (g % 2 * 4) & 15;
      return fma_f32(k_group_scale(b, g), (float)code, k_group_minimum(b, g));
    }
    case WeightType::q5_k: {
      const std::byte* b = group_block(type, row, k / kQuantGroup);
      const int g = (int)(k % kKElements / kQuantGroup);
      const int low = load_u8(b + offsetof(BlockQ5_K, codes) + 32 * (g / 2) + i) >> (g % 2 * 4) & 15;
      const int high = load_u8(b + offsetof(BlockQ5_K, high) + i) >> g & 1;
      return fma_f32(k_group_scale(b, g), (float)(low | high << 4), k_group_minimum(b, g));
    }
    case WeightType::q6_k: {
      const std::byte* b = group_block(type, row, k / kQuantGroup);
      const int r = (int)(k % kKElements), half = r / 128, quarter = r % 128 / 32;
      const int low = load_u8(b + 64 * half + 32 * (quarter % 2) + i) >> (quarter / 2 * 4) & 15;
      const int high = load_u8(b + offsetof(BlockQ6_K, high) + 32 * half + i) >> (2 * quarter) & 3;
      const float d = f32_of_f16(load_u16(b + offsetof(BlockQ6_K, d)));
      const float scale = mul_f32(d, (float)load_i8(b + offsetof(BlockQ6_K, scales) + r / 16));
      return mul_f32(scale, (float)((low | high << 4) - 32));
    }
  }
  return canonical_nan();
}

ASSAY_NUMERICS_FN int64_t bytes_of_row(WeightType type, int64_t columns) {
  return columns / block_elements(type) * (int64_t)block_bytes(type);
}

}  // namespace assay::inline ASSAY_ISA
