#include "conformance/kernel/bounds.h"

#include <cmath>
#include <limits>

namespace assay::bounds {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kMax = std::numeric_limits<float>::max();
constexpr double kUlp = 0x1p-24;        // half a unit in the last place of a value of magnitude 1
constexpr double kDenormal = 0x1p-149;  // the smallest denormal

}  // namespace

double sum(int64_t k, double magnitude, double bias, int lanes) {
  if (!(magnitude < kMax) || !(bias < kMax)) return kInf;
  return kUlp * (double((k + lanes - 1) / lanes + 9) * magnitude + bias) + kDenormal * double(k + 9);
}

double rms_norm(int64_t k, double want, double w, double sum_of_squares, int lanes) {
  if (!(sum_of_squares < kMax) || !(std::fabs(want) < kMax)) return kInf;
  const double relative = kUlp * (double((k + lanes - 1) / lanes + 9) / 2 + 6);
  return relative * std::fabs(want) + kDenormal * (std::fabs(w) + 1);
}

double rope(double x0, double x1, double angle) {
  const double size = std::fabs(x0) + std::fabs(x1);
  if (!(size < kMax)) return kInf;
  return size * (3 * kUlp + std::ldexp(std::fabs(angle), -48)) + 2 * kDenormal;
}

double attention(int64_t n, int64_t head_dim, double dot, double score, double spread, double mixed) {
  if (!(dot * std::sqrt(double(head_dim)) < kMax) || !(mixed * double(n) < kMax)) return kInf;
  const double of_score =
      kUlp * (double((head_dim + 31) / 32 + 10) * dot + 2 * score + spread) + kDenormal * double(head_dim + 11);
  const double relative = std::expm1(2 * of_score) + kUlp * (2 * double(n + 255) / 256 + 24);
  // A p below 2^-126 is rounded to a multiple of 2^-149: n of them, beside the largest, which is 1.
  return relative * mixed + kDenormal * double(n + 3);
}

double silu_mul(double gate, double up, double want) {
  if (!(std::fabs(want) < kMax)) return kInf;
  const double e = kDenormal * (2 * std::fabs(up) + 1);
  return gate < -88.72 ? 0x1p-121 * std::fabs(up) + e : 6 * kUlp * std::fabs(want) + e;
}

double topk_weight(int64_t experts, int64_t chosen, double spread, double want, bool normalised) {
  // exp: its own error, 1 ulp (numerics.h), and that of a difference of `spread` at most, which is relative in p.
  if (!(spread * kUlp < 0.1)) return kInf;
  const double of_exp = std::expm1(kUlp * spread) + 2 * kUlp;
  double relative = 2 * of_exp + kUlp * (double((experts + 255) / 256 + 8) + 1);
  if (normalised) relative = 2 * relative + kUlp * double(chosen + 1);
  return relative * std::fabs(want) * (1 + relative) + double(chosen + 2) * kDenormal * double(normalised ? experts + 1 : 1);
}

double expert_sum(int64_t chosen, double magnitude) {
  return magnitude < kMax ? double(chosen) * (kUlp * magnitude + kDenormal) : kInf;
}

double gated_add(double gate, double shared, double want) {
  if (!(std::fabs(want) < kMax)) return kInf;
  const double of_gate = gate < -88.72 ? 0x1p-126 : 5 * kUlp / (1 + std::exp(-gate));
  return of_gate * std::fabs(shared) + kUlp * std::fabs(want) + 2 * kDenormal;
}

double sigmoid_mul(double a, double gate, double want) {
  if (!(std::fabs(want) < kMax) || !(std::fabs(a) < kMax)) return kInf;
  const double e = kDenormal * (2 * std::fabs(a) + 1);
  return gate < -88.72 ? 0x1p-127 * std::fabs(a) + e : 6 * kUlp * std::fabs(want) + e;
}

double l2_norm(int64_t k, double want, double sum_of_squares) {
  if (!(sum_of_squares < kMax) || !(std::fabs(want) < kMax)) return kInf;
  return kUlp * (double((k + 31) / 32 + 9) / 2 + 5) * std::fabs(want) + 2 * kDenormal;
}

double add(double want) {
  return std::fabs(want) < kMax ? kUlp * std::fabs(want) + kDenormal : kInf;
}

}  // namespace assay::bounds
