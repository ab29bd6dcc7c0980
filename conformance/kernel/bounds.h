// How far a kernel's value may be from the same op in float64 on the same inputs: NUMERICS.md "Bounds", as functions of
// operand magnitudes. Kernel scope holds single ops to them, integration scope the nodes of whole models.
// Infinite: an intermediate value may overflow f32, and only bytes can judge.
#pragma once
#include <cstdint>

namespace assay::bounds {

/// Float rule, `lanes` 256, or head rule, 32, over K terms with sum |w x| = magnitude; `bias`: |y| where one is added,
/// else 0. 2^-24 * (ceil(K / lanes) + 9) * magnitude + 2^-24 * bias + 2^-149 * (K + 9).
double sum(int64_t k, double magnitude, double bias = 0, int lanes = 256);

/// RMS norm of one element: `want` the value in float64, `w` its weight, `mean` = sum x^2 / K + eps. The sum is
/// relatively accurate (no term is negative), its error is halved by the root; then division, root, reciprocal and two
/// products.
double rms_norm(int64_t k, double want, double w, double sum_of_squares, int lanes);

/// One element of a rotated pair: cos and sin rounded once, a product and an fma; `angle` in radians, which double
/// carries with 2^-48 relative.
double rope(double x0, double x1, double angle);

/// One element of attention over n positions. In scaled units: `dot` the largest sum |q k|, `score` the largest
/// |score|, `spread` the largest |score - max|; `mixed` = sum p |v| / sum p. Errors of a score enter exp as relative
/// ones, in the mix and in the sum.
double attention(int64_t n, int64_t head_dim, double dot, double score, double spread, double mixed);

/// silu(gate) * up = want. exp, sum, quotient, product: 6 roundings; below -88.72 exp(-gate) overflows, and silu,
/// which is smaller than 2^-121 there, becomes -0.
double silu_mul(double gate, double up, double want);

/// a * sigmoid(gate) = want: exp, sum, quotient, product; below -88.72 exp(-gate) overflows, and the sigmoid, which is smaller than
/// 2^-127 there, becomes 0.
double sigmoid_mul(double a, double gate, double want);

/// l2 norm of one element over K; as rms_norm, of which it has no mean.
double l2_norm(int64_t k, double want, double sum_of_squares);

/// The weight of a chosen expert, `want`: a difference of logits that spread over `spread`, exp, the sum of `experts` terms (none is
/// negative, each off as `want` is), a division; normalised: the sum of `chosen` such and a division more.
double topk_weight(int64_t experts, int64_t chosen, double spread, double want, bool normalised);

/// Sum of `chosen` products in order, with sum |w x| = magnitude.
double expert_sum(int64_t chosen, double magnitude);

/// fma(sigmoid(gate), shared, x) = want: exp, sum, quotient and the fma; beyond -88.72 exp(-gate) overflows.
double gated_add(double gate, double shared, double want);

/// a + b = want.
double add(double want);

}  // namespace assay::bounds
