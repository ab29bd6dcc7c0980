// One set of bits on every machine: digests of every op's output on inputs made of integers, equal to constants that
// x86-64 and AArch64 share. The other op tests compare the sets of one machine with each other and with the rule as
// that machine computes it; this one sees a machine whose scalar code differs too.
#include <algorithm>

#include "engine/numerics.h"
#include "engine/ops/common/rope_table.h"
#include "engine/ops/panel.h"
#include "engine/ops/test_support.h"

namespace assay {
namespace {

using namespace test;

/// FNV-1a, 64 bits, over the bits of floats, every NaN being the canonical one.
class Digest {
 public:
  void take(const void* data, size_t bytes) {
    const auto* p = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < bytes; i++) value_ = (value_ ^ p[i]) * 0x100000001b3u;
  }
  void take(float x) {
    const uint32_t u = bits_of(is_nan(x) ? canonical_nan() : x);
    take(&u, sizeof u);
  }
  void take(const std::vector<float>& x) {
    for (float f : x) take(f);
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

/// From 2^-12 to below 2^4, of both signs; by integers alone, one draw each: C++ distributions and the order of draws
/// in an expression promise no bits.
float any_value(Rng& rng) {
  const uint64_t u = rng();
  return float_of((uint32_t(u) & 0x807fffffu) | (115 + uint32_t(u >> 32) % 16) << 23);
}
std::vector<float> values(Rng& rng, int64_t n) {
  std::vector<float> out(size_t(n), 0.0f);
  for (float& x : out) x = any_value(rng);
  return out;
}
std::vector<float> with_specials(std::vector<float> x, Rng& rng) {
  for (uint32_t bits :
       {0u, 0x80000000u, 1u, 0x80012345u, 0x7f800000u, 0xff800000u, 0x7fc00000u, 0xc2d00000u, 0x42b00000u})
    x[rng() % x.size()] = float_of(bits);
  return x;
}

/// Rows of random bytes; of quantised blocks d and m, of float types every element, is a finite number near 1.
std::vector<std::byte> weight_rows(Rng& rng, WeightType t, int64_t rows, int64_t columns) {
  std::vector<std::byte> out(size_t(rows) * row_bytes(t, columns));
  for (std::byte& b : out) b = std::byte(rng());
  const auto f16_near_1 = [&](std::byte* p) {
    const uint32_t u = uint32_t(rng());
    const uint16_t h = uint16_t((u & 0x83ffu) | (10 + (u >> 16) % 8) << 10);
    std::memcpy(p, &h, 2);
  };
  for (size_t at = 0; at < out.size(); at += block_bytes(t)) {
    std::byte* p = &out[at];
    const float x = any_value(rng);
    const uint16_t narrow = uint16_t(bits_of(x) >> 16);
    switch (t) {
      case WeightType::f32:
        std::memcpy(p, &x, 4);
        break;
      case WeightType::bf16:
        std::memcpy(p, &narrow, 2);
        break;
      case WeightType::q6_k:
        f16_near_1(p + 208);
        break;
      case WeightType::q4_1:
      case WeightType::q5_1:
      case WeightType::q4_k:
      case WeightType::q5_k:
        f16_near_1(p);
        f16_near_1(p + 2);
        break;
      default:
        f16_near_1(p);
    }
  }
  return out;
}

constexpr WeightType kTypes[] = {WeightType::f32,  WeightType::f16,  WeightType::bf16, WeightType::q8_0,
                                 WeightType::q4_0, WeightType::q4_1, WeightType::q5_0, WeightType::q5_1,
                                 WeightType::q4_k, WeightType::q5_k, WeightType::q6_k};

uint64_t linear_digest(const Kernels& k) {
  Rng rng(1);
  Digest d;
  for (WeightType t : kTypes) {
    const int64_t rows = 7, columns = block_elements(t) == 256 ? 1280 : block_elements(t) == 32 ? 608 : 613;
    const auto w = weight_rows(rng, t, rows, columns);
    const Matrix m{t, rows, columns, w.data()};
    const auto bias = values(rng, rows);
    for (int64_t tokens : {1, 2, 3, 9}) {
      const auto x = values(rng, tokens * columns);
      std::vector<float> y(size_t(tokens * rows));
      k.linear({m, tokens % 2 ? bias.data() : nullptr, x.data(), y.data(), tokens}, 0, rows);
      d.take(y);
    }
    const int32_t ids[] = {3, 0, 6};
    std::vector<float> embedded(size_t(3 * columns));
    k.embed({m, ids, embedded.data()}, 0, 3);
    d.take(embedded);
  }
  return d.value();
}

uint64_t quant_linear_digest(const Kernels& k) {
  Rng rng(2);
  Digest d;
  for (WeightType t : kTypes) {
    if (!is_quantised(t)) continue;
    const int64_t rows = 35, columns = 1280, groups = columns / 32, tokens = 7;
    const auto w = weight_rows(rng, t, rows, columns);
    const Matrix m{t, rows, columns, w.data()};
    std::vector<std::byte> storage(panel_bytes(m) + 4096 + 64);  // a kernel may fetch ahead of the last panel
    std::byte* panels = &storage[63 - (reinterpret_cast<uintptr_t>(storage.data()) + 63) % 64];
    repack(m, panels, 0, panels_of(m));
    const auto bias = values(rng, rows);
    for (Activations kind : {Activations::s16, Activations::s8}) {
      auto x = values(rng, tokens * columns);
      x[size_t(3 * columns + 5)] = float_of(0x7f800000u);  // row 3 is NaN
      std::fill(x.begin() + 64, x.begin() + 96, 0.0f);
      const int bytes = code_bytes_for(k.isa, t, kind);
      std::vector<int16_t> codes(size_t(tokens * columns));
      std::vector<float> scales(size_t(tokens * groups)), y(size_t(tokens * rows));
      std::vector<int32_t> sums(size_t(2 * tokens * groups));
      const QuantisedRows q{kind,          bytes,      tokens, columns, reinterpret_cast<std::byte*>(codes.data()),
                            scales.data(), sums.data()};
      k.quantise({x.data(), q}, 0, tokens * groups);
      k.quant_linear({m, panels, q, bias.data(), y.data()}, 0, panels_of(m));
      d.take(scales);
      d.take(sums.data(), sums.size() * sizeof sums[0]);
      d.take(y);
    }
  }
  return d.value();
}

uint64_t norm_digest(const Kernels& k) {
  Rng rng(3);
  Digest d;
  for (int64_t columns : {1, 33, 100, 613}) {
    const auto x = values(rng, 3 * columns), w = values(rng, columns);
    std::vector<float> y(x.size());
    const NormArgs a{x.data(), w.data(), y.data(), columns, 1, columns, 1e-6f};
    k.rms_norm(a, 0, 3);
    d.take(y);
    k.head_norm(a, 0, 3);
    d.take(y);
  }
  return d.value();
}

/// Table of the host, rope, cache and attention.
uint64_t attention_digest(const Kernels& k) {
  Rng rng(4);
  Digest d;
  RopeConfig config;
  config.rotary = 24;
  config.theta = 500000;
  const RopeTable table = make_rope_table(config, 5000);
  d.take(table.cos);
  d.take(table.sin);
  const int64_t dim = 40, heads = 4, kv_heads = 2, length = 300, context = 310;
  for (KvType type : {KvType::f32, KvType::f16, KvType::bf16}) {
    std::vector<std::byte> kc(size_t(kv_heads * context * dim) * size_of(type)), vc(kc.size());
    const KvLayer cache{type, 1, kv_heads, context, dim, kc.data(), vc.data()};
    auto key = values(rng, length * kv_heads * dim), value = with_specials(values(rng, length * kv_heads * dim), rng);
    std::vector<RowPlace> places;
    std::vector<int64_t> positions;
    for (int64_t p = 0; p < length; p++) places.push_back({0, p}), positions.push_back(p);
    k.rope({key.data(), key.data(), positions.data(), table.cos.data(), table.sin.data(), kv_heads, dim, config.rotary},
           0, length);
    int64_t overflow = INT64_MAX;
    k.kv_store({key.data(), value.data(), places.data(), cache, length, &overflow}, 0, length);
    d.take(kc.data(), kc.size());
    d.take(vc.data(), vc.size());
    const auto q = values(rng, 2 * heads * dim);
    std::vector<float> y(q.size()), scratch(size_t(attention_scratch_floats(length, dim)));
    const RowPlace asked[] = {{0, 10}, {0, length - 1}};
    k.attention({q.data(), y.data(), asked, cache, heads, 0.158113883f}, 0, 2 * heads, scratch.data());
    d.take(y);
  }
  return d.value();
}

uint64_t pointwise_digest(const Kernels& k) {
  Rng rng(5);
  Digest d;
  const int64_t columns = 1003;
  auto a = values(rng, 2 * columns);
  for (float& x : a) x *= 8;  // exact
  a = with_specials(a, rng);
  const auto b = with_specials(values(rng, 2 * columns), rng);
  std::vector<float> y(a.size());
  k.silu_mul({a.data(), b.data(), y.data(), columns}, 0, 2);
  d.take(y);
  k.add({a.data(), b.data(), y.data(), columns}, 0, 2);
  d.take(y);
  return d.value();
}

uint64_t experts_digest(const Kernels& k) {
  Rng rng(6);
  Digest d;
  for (int64_t experts : {8, 33, 128, 300}) {
    const int64_t rows = 5, chosen = 7, columns = 37;
    auto x = values(rng, rows * experts);
    x[size_t(2 * experts + 1)] = x[size_t(2 * experts + 5)];  // a tie
    x[size_t(3 * experts)] = float_of(0x7fc00000u);           // row 3 chooses nothing
    std::vector<float> ids(size_t(rows * chosen)), w(ids.size()), sum(size_t(rows * columns)), y(sum.size());
    k.topk({x.data(), ids.data(), experts, chosen}, 0, rows);
    d.take(ids);
    for (bool normalised : {false, true}) {
      k.topk_weights({x.data(), ids.data(), w.data(), experts, chosen, normalised}, 0, rows);
      d.take(w);
    }
    const auto products = values(rng, rows * chosen * columns), shared = values(rng, rows * columns), gate = values(rng, rows);
    k.expert_sum({w.data(), products.data(), sum.data(), chosen, columns}, 0, rows);
    d.take(sum);
    k.gated_add({gate.data(), shared.data(), sum.data(), y.data(), columns}, 0, rows);
    d.take(y);
  }
  return d.value();
}

/// Norms, gates, decay, convolution and delta rule of gated DeltaNet layers, the states with them.
uint64_t gdn_digest(const Kernels& k) {
  Rng rng(6);
  Digest d;
  const int64_t rows = 5, k_heads = 2, v_heads = 6, d_k = 40, d_v = 33, channels = 2 * k_heads * d_k + v_heads * d_v, width = 4;
  const RowSpan spans[] = {{1, 0, 3}, {0, 3, 2}};
  const auto x = with_specials(values(rng, rows * channels), rng);
  const auto taps = values(rng, width * channels);
  std::vector<float> held = values(rng, 2 * width * channels), mixed(x.size());
  k.conv({x.data(), taps.data(), mixed.data(), held.data(), spans, channels, width}, 0, 2 * conv_blocks(channels));
  d.take(mixed);
  d.take(held);
  std::vector<float> q(size_t(rows * k_heads * d_k)), key = q;
  k.l2_norm({mixed.data(), q.data(), channels, k_heads, d_k, 0.158113883f}, 0, rows);
  k.l2_norm({mixed.data() + k_heads * d_k, key.data(), channels, k_heads, d_k, 1}, 0, rows);
  d.take(q);
  d.take(key);
  const auto b = with_specials(values(rng, rows * v_heads), rng), a = values(rng, rows * v_heads), rates = values(rng, 2 * v_heads),
             v = values(rng, rows * v_heads * d_v), z = values(rng, rows * v_heads * d_v), w = values(rng, d_v);
  std::vector<float> beta(b.size()), decay(b.size()), core(v.size()), normed(v.size()), state = values(rng, 2 * v_heads * d_k * d_v);
  k.sigmoid({b.data(), beta.data(), v_heads}, 0, rows);
  k.decay({a.data(), rates.data(), decay.data(), v_heads}, 0, rows);
  k.delta_rule({q.data(), key.data(), v.data(), beta.data(), decay.data(), core.data(), state.data(), spans, k_heads, v_heads, d_k, d_v}, 0,
               2 * v_heads * delta_blocks(d_v));
  k.gated_norm({v.data(), z.data(), w.data(), normed.data(), v_heads, d_v, 1e-6f}, 0, rows);
  for (const auto* part : {&beta, &decay, &core, &state, &normed}) d.take(*part);
  k.sigmoid_mul({v.data(), z.data(), normed.data(), v_heads * d_v}, 0, rows);
  d.take(normed);
  return d.value();
}

struct Wanted {
  const char* op;
  uint64_t (*digest)(const Kernels&);
  uint64_t value;
};
constexpr Wanted kWanted[] = {
    {"linear, embed", linear_digest, 0x9cbda71ee80fd04fu},
    {"quantise, quant_linear", quant_linear_digest, 0xeb7cb5d0b5c52992u},
    {"norms", norm_digest, 0x693f66203d5f5e4bu},
    {"rope table, rope, kv_store, attention", attention_digest, 0x5d64d12af357429fu},
    {"silu_mul, add", pointwise_digest, 0x2e291bf199f421e6u},
    {"ops of gated DeltaNet", gdn_digest, 0x0u},
    {"topk, topk_weights, expert_sum, gated_add", experts_digest, 0x29270e1b85eb1155u},
};

TEST(Digests, EveryOpHasTheSameBytesOnEveryMachine) {
  for (Isa isa : isas()) {
    for (const Wanted& w : kWanted) {
      const uint64_t got = w.digest(kernels(isa));
      EXPECT_EQ(got, w.value) << name_of(isa) << ": " << w.op << std::hex << " " << got;
    }
  }
}

TEST(Digests, ElementaryFunctionsHaveTheSameBytesOnEveryMachine) {
  Digest f32, f64, narrow;
  for (uint64_t u = 0; u <= 0xffffffffu; u += 100003) {
    const float x = float_of(uint32_t(u));
    for (float y : {exp_f32(x), log_f32(x), log1p_f32(x), sigmoid_f32(x), silu_f32(x), softplus_f32(x), sqrt_f32(x)})
      f32.take(y);
    const uint16_t halves[] = {f16_of_f32(x), bf16_of_f32(x)};
    narrow.take(halves, sizeof halves);
    narrow.take(f32_of_f16(uint16_t(u)));
    narrow.take(f32_of_bf16(uint16_t(u)));
  }
  for (int i = -40000; i <= 40000; i++) {
    const double x = i * 0x1.91p-5;
    for (double y : {exp2_f64(x), log2_f64(x < 0 ? -x : x), sin_f64(x * 1000), cos_f64(x * 1000)})
      f64.take(&y, sizeof y);
  }
  EXPECT_EQ(f32.value(), 0x34371c3d0094e1bcu) << std::hex << f32.value();
  EXPECT_EQ(narrow.value(), 0xe7c7e5e12479ac63u) << std::hex << narrow.value();
  EXPECT_EQ(f64.value(), 0xb9dc357ececee2ebu) << std::hex << f64.value();
}

}  // namespace
}  // namespace assay
