#include "cuda/prim_expected.h"

#include <algorithm>
#include <utility>

#include "cuda/prim_check.h"
#include "engine/numerics.h"

namespace assay {
namespace {

constexpr int kAll = ASSAY_PRIMITIVE_WORDS, kBlock = 1024, kOfThread = 16;
using Words = PrimitiveWords;

/// Word `i` of thread `t` (of the block) of the block of `at`.
uint32_t word(const Words& in, int at, int t, int i) {
  return in[size_t(at / kBlock * kBlock + t * kOfThread + i)];
}
int thread_of(int at) {
  return at % kBlock / kOfThread;
}
int byte_of(uint32_t w, int i) {
  return int8_t(w >> 8 * i);
}
uint64_t pair_of(const Words& in, int at, int t, int i) {
  return uint64_t(word(in, at, t, i)) << 32 | word(in, at, t, i + 1);
}
uint32_t part(uint64_t v, int i) {
  return i % 2 ? uint32_t(v) : uint32_t(v >> 32);
}
uint32_t bits_or_nan(float x) {
  return bits_of(is_nan(x) ? canonical_nan() : x);
}

using OfWord = uint32_t (*)(const Words& in, int at);
template <OfWord kWord>
Words each(const Words& in) {
  Words out(kAll);
  for (int at = 0; at < kAll; at++) out[size_t(at)] = kWord(in, at);
  return out;
}

uint32_t lane_of_warp(const Words&, int at) {
  return uint32_t(thread_of(at) % 32 + 32 * (at % 16));
}
uint32_t sync_block(const Words& in, int at) {
  return word(in, at, 63 - thread_of(at), at % 16);
}
uint32_t sync_warp(const Words& in, int at) {
  return word(in, at, thread_of(at) ^ 31, at % 16);
}
uint32_t shuffle_xor(const Words& in, int at) {
  const int t = thread_of(at), i = at % 16;
  if (i < 5) return word(in, at, t ^ 1 << i, i);
  if (i < 10) return word(in, at, t ^ (7 * i & 31), i) & 0xff7fffffu;
  return part(pair_of(in, at, t ^ (i & ~1), i & ~1), i);
}
uint32_t shuffle(const Words& in, int at) {
  const int t = thread_of(at), i = at % 16, warp = t / 32 * 32;
  if (i < 12) return word(in, at, warp + int(word(in, at, t, 15 - i) % 32), i);
  return part(pair_of(in, at, warp + (i & ~1), i & ~1), i);
}
uint32_t dp4a_s8(const Words& in, int at) {
  const int t = thread_of(at), i = at % 16;
  uint32_t sum = word(in, at, t, (i + 9) % 16);
  for (int b = 0; b < 4; b++)
    sum += uint32_t(byte_of(word(in, at, t, i), b) * byte_of(word(in, at, t, (i + 5) % 16), b));
  return sum;
}
/// One element of a warp's product by its definition. A[r][k] and B[k][c] as prim.cuh says who holds them.
uint32_t product(const Words& in, int at, int depth, int first, uint32_t c0) {
  const int warp = thread_of(at) / 32 * 32, t = thread_of(at) % 32, e = at % 4;
  const int row = t / 4 + 8 * (e / 2), column = 2 * (t % 4) + e % 2;
  uint32_t sum = c0;
  for (int k = 0; k < depth; k++) {
    const int half = k / 16, q = k % 16 / 4;
    const uint32_t a = word(in, at, warp + 4 * (row % 8) + q, first + 2 * half + row / 8);
    const uint32_t b = word(in, at, warp + 4 * column + q, first + (depth == 32 ? 4 : 2) + half);
    sum += uint32_t(byte_of(a, k % 4) * byte_of(b, k % 4));
  }
  return sum;
}
uint32_t mma_s8_k16(const Words& in, int at) {
  const int first = at % 16 / 4 * 4;
  return product(in, at, 16, first, first == 4 ? 0x4b400000u : uint32_t(first));
}
uint32_t mma_s8_k32(const Words& in, int at) {
  return at % 8 >= 4 ? 0u : product(in, at, 32, at % 16 / 8 * 8, at % 16 < 8 ? 0x4b400000u : 8u);
}
uint32_t copy_async(const Words& in, int at) {
  return word(in, at, thread_of(at) ^ 32, at % 16);
}
uint32_t copy_async_or_zero(const Words& in, int at) {
  const int i = at % 16, chosen_by = i < 4 ? 0 : i < 8 ? 1 : i < 10 ? 2 : i < 12 ? 3 : i;
  return word(in, at, thread_of(at), chosen_by) % 2 ? in[size_t(at)] : 0u;
}
uint32_t load_once(const Words& in, int at) {
  return in[size_t(at)];
}
uint32_t widen_f16(const Words&, int at) {
  return bits_or_nan(f32_of_f16(uint16_t(at)));
}
uint32_t widen_bf16(const Words&, int at) {
  return bits_or_nan(f32_of_bf16(uint16_t(at)));
}
uint32_t magic(const Words& in, int at) {
  return bits_of(float(int32_t(in[size_t(at)]) >> 10));
}
/// From the block that is three ranks before, its rank added to word 5.
template <int kCluster>
uint32_t clusters(const Words& in, int at) {
  const int block = at / kBlock, from = (block + kCluster - 3) % kCluster,
            other = (block / kCluster * kCluster + from) * kBlock + at % kBlock;
  return at % 16 == 5 ? in[size_t(other - 5)] + uint32_t(from) : in[size_t(other)];
}

Words atomics(const Words& in) {
  Words out(kAll);
  std::vector<int32_t> most(61, 0);
  std::vector<int64_t> least(59, 0);
  for (int at = 0; at < kAll; at++) {
    const uint32_t v = in[size_t(at)];
    most[v % 61] = std::max(most[v % 61], int32_t(v));
    const uint64_t wide = uint64_t(v) << 32 | word(in, at, thread_of(at), (at + 1) % 16);
    least[v % 59] = std::min(least[v % 59], int64_t(wide));
  }
  for (size_t i = 0; i < most.size(); i++) out[i] = uint32_t(most[i]);
  for (size_t i = 0; i < least.size(); i++) {
    out[64 + 2 * i] = uint32_t(least[i]);
    out[65 + 2 * i] = uint32_t(uint64_t(least[i]) >> 32);
  }
  return out;
}
Words wait_for_previous(const Words& in) {  // five launches, to and fro between input and output
  Words from = in, to(kAll);
  for (int i = 0; i < 5; i++, std::swap(from, to))
    for (uint32_t at = 0; at < kAll; at++) to[at] = from[(at * 40503u + 12345u) % kAll] * 2654435761u + at;
  return from;
}
Words numerics(const Words& in) {
  Words out(kAll);
  for (int at = 0; at < kAll; at += kOfThread) {
    const uint32_t* w = &in[size_t(at)];
    const float a = float_of(w[0]), b = float_of(w[1]), c = float_of(w[2]),
                usual = mul_f32(float(int32_t(w[3])), 0x1p-25f);
    const uint32_t all[kOfThread] = {bits_or_nan(fma_f32(a, b, c)),
                                     bits_or_nan(add_f32(a, b)),
                                     bits_or_nan(mul_f32(a, b)),
                                     bits_or_nan(div_f32(a, b)),
                                     bits_or_nan(sqrt_f32(a)),
                                     bits_or_nan(exp_f32(a)),
                                     bits_or_nan(exp_f32(usual)),
                                     bits_or_nan(log_f32(a)),
                                     bits_or_nan(silu_f32(usual)),
                                     bits_or_nan(sigmoid_f32(a)),
                                     bits_or_nan(softplus_f32(usual)),
                                     f16_of_f32(mul_f32(usual, 2048.0f)) | uint32_t(bf16_of_f32(a)) << 16,
                                     bits_or_nan(f32_of_f16(uint16_t(w[4]))),
                                     bits_or_nan(f32_of_bf16(uint16_t(w[4]))),
                                     f16_of_f32(mul_f32(usual, 0x1p-20f)),
                                     uint32_t(ordered_of(a))};
    std::copy(std::begin(all), std::end(all), &out[size_t(at)]);
  }
  return out;
}

constexpr ExpectedPrimitive kExpected[] = {
    {"lane_of_warp", each<lane_of_warp>},
    {"sync_block", each<sync_block>},
    {"sync_warp", each<sync_warp>},
    {"shuffle_xor", each<shuffle_xor>},
    {"shuffle", each<shuffle>},
    {"dp4a_s8", each<dp4a_s8>},
    {"mma_s8_k16", each<mma_s8_k16>},
    {"mma_s8_k32", each<mma_s8_k32>},
    {"copy_async", each<copy_async>},
    {"copy_async_or_zero", each<copy_async_or_zero>},
    {"load_once", each<load_once>},
    {"atomics", atomics},
    {"widen_f16", each<widen_f16>},
    {"widen_bf16", each<widen_bf16>},
    {"magic", each<magic>},
    {"numerics", numerics},
    {"wait_for_previous", wait_for_previous},
    {"clusters_8", each<clusters<8>>},
    {"clusters_16", each<clusters<16>>},
};

}  // namespace

std::span<const ExpectedPrimitive> expected_primitives() {
  return kExpected;
}

}  // namespace assay
