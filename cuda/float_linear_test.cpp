// Linears by the float rule, byte for byte against the scalar kernel of engine/ops: every weight type with float activations,
// every kernel (one token, few, tiles), bias, residual and matrices that share an input.
#include <cctype>
#include <limits>

#include "cuda/test_support.h"

namespace assay::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
constexpr WeightType kWeightTypes[] = {WeightType::f32,  WeightType::f16,  WeightType::bf16, WeightType::q8_0,
                                       WeightType::q4_0, WeightType::q4_1, WeightType::q5_0, WeightType::q5_1,
                                       WeightType::q4_k, WeightType::q5_k, WeightType::q6_k};

/// "float_gemv_bf16".
std::string variant_of(const char* kernel, WeightType type) {
  std::string name(name_of(type));
  for (char& c : name) c = char(std::tolower(static_cast<unsigned char>(c)));
  return std::string(kernel) + "_" + name;
}

struct Case {
  std::vector<WeightType> types;  // one per matrix
  std::vector<int64_t> outputs;
  int64_t columns, tokens;
  bool bias = false, residual = false;
  Inputs kind = Inputs::plain;
  bool in_place = false;  // y is residual
};
std::string text(const Case& c) {
  std::string t = joined(c.tokens, " tokens, ", c.columns, " columns, bias ", c.bias, ", residual ", c.residual, ":");
  for (size_t i = 0; i < c.types.size(); i++) t += joined(" ", name_of(c.types[i]), " ", c.outputs[i]);
  return t;
}

/// Runs the case on both sides; returns the variant that ran, "" where it was refused, as it may be on a small device alone.
/// `shift`: elements that x begins behind an aligned address.
std::string check(Rng& rng, const Case& c, int64_t shift = 0, bool may_refuse = false) {
  auto x = inputs(rng, shift + c.tokens * c.columns, c.kind);
  if (c.kind == Inputs::special && c.columns > 1) x[size_t(shift + c.columns - 1)] = kInf;  // beside the padding
  const Device device;
  const Buffer<float> dx(device, x);
  AssayLinear a{};
  a.activations = ASSAY_ACTIVATIONS_F32;
  a.count = int32_t(c.types.size());
  a.x = dx.get() + shift;
  a.rows = c.tokens;
  std::vector<PackedWeight> packed;
  std::vector<Buffer<float>> y, bias, residual;
  std::vector<std::vector<float>> want;
  for (size_t i = 0; i < c.types.size(); i++) {
    const int64_t n = c.outputs[i];
    const HostWeight w = random_weight(rng, c.types[i], n, c.columns, c.kind == Inputs::plain ? Weights::plain : Weights::odd);
    const auto b = inputs(rng, n), r = inputs(rng, c.tokens * n, c.kind);
    want.emplace_back(size_t(c.tokens * n), kNan);
    kernels(Isa::scalar).linear({w.matrix, c.bias ? b.data() : nullptr, x.data() + shift, want[i].data(), c.tokens}, 0, n);
    if (c.residual) {
      for (size_t j = 0; j < r.size(); j++) want[i][j] = r[j] + want[i][j];
      residual.emplace_back(device, r);
      a.residual = residual.back().get();
    }
    packed.emplace_back(device, w.matrix);
    y.emplace_back(device, size_t(c.tokens * n));
    bias.emplace_back(device, b);
    a.w[i] = packed[i].get();
    a.y[i] = c.in_place ? residual[i].get() : y[i].get();
    a.bias[i] = c.bias ? bias[i].get() : nullptr;
  }
  const int result = device.module().linear(device, &a);
  if (may_refuse && result == ASSAY_REFUSED) {
    EXPECT_EQ(device.variant(), "");
    return "";
  }
  device.ok(result);
  const std::string variant = device.variant();
  for (size_t i = 0; i < c.types.size(); i++) {
    EXPECT_TRUE(same_rows((c.in_place ? residual : y)[i].download(), want[i], c.outputs[i]))
        << text(c) << " " << variant << " matrix " << i;
  }
  return variant;
}

TEST(CudaFloatLinear, OneTokenOfEveryType) {
  Rng rng = seeded(201);
  for (WeightType type : kWeightTypes) {
    for (int64_t columns : {1, 7, 8, 33, 256, 300, 512, 777, 2048, 2304, 2560}) {
      if (columns % block_elements(type) != 0) continue;
      for (Inputs kind : {Inputs::plain, Inputs::special}) {
        const Case c{{type}, {uniform(rng, 1, 70)}, columns, 1, uniform(rng, 0, 1) == 1, uniform(rng, 0, 1) == 1, kind};
        EXPECT_EQ(check(rng, c), variant_of("float_gemv", type));
      }
    }
  }
}

TEST(CudaFloatLinear, FewTokensOfFloatTypes) {
  Rng rng = seeded(202);
  for (WeightType type : {WeightType::f32, WeightType::f16, WeightType::bf16}) {
    for (int64_t tokens : {2, 3, 4, 5, 8, 13, 16}) {
      for (int64_t columns : {1, 9, 64, 257, 1000, 1536}) {
        const Inputs kind = uniform(rng, 0, 1) ? Inputs::special : Inputs::plain;
        const Case c{{type}, {uniform(rng, 1, 50)}, columns, tokens, uniform(rng, 0, 1) == 1, uniform(rng, 0, 1) == 1, kind};
        EXPECT_EQ(check(rng, c), variant_of("float_few", type));
      }
    }
  }
}

TEST(CudaFloatLinear, ManyTokensOfEveryType) {
  Rng rng = seeded(203);
  for (WeightType type : kWeightTypes) {
    for (int64_t columns : {5, 32, 250, 256, 257, 768, 2048, 2500, 2560}) {
      if (columns % block_elements(type) != 0) continue;
      const int64_t tokens = is_quantised(type) ? uniform(rng, 2, 40) : uniform(rng, 17, 70);
      const Inputs kind = uniform(rng, 0, 1) ? Inputs::special : Inputs::plain;
      const Case c{{type}, {uniform(rng, 1, 70)}, columns, tokens, uniform(rng, 0, 1) == 1, uniform(rng, 0, 1) == 1, kind};
      EXPECT_EQ(check(rng, c), variant_of("float_tile", type));
    }
  }
}

/// Tiles in more than one band of tokens, none of them full.
TEST(CudaFloatLinear, TilesOfManyTokens) {
  Rng rng = seeded(204);
  check(rng, {{WeightType::bf16}, {33}, 40, 32 * 16 + 31, true});
  check(rng, {{WeightType::f32}, {65}, 24, 32 * 33 + 1});
}

TEST(CudaFloatLinear, MatricesThatShareAnInput) {
  Rng rng = seeded(205);
  const auto b = WeightType::bf16, f = WeightType::f32, h = WeightType::f16, q = WeightType::q4_k, p = WeightType::q6_k;
  for (int64_t tokens : {1, 3, 18}) {
    for (bool bias : {false, true}) {
      check(rng, {{b, b, b}, {37, 5, 6}, 256, tokens, bias});
      check(rng, {{b, b}, {1, 31}, 300, tokens, bias, false, Inputs::special});
      check(rng, {{h, f, f}, {3, 9, 4}, 96, tokens, bias});
      check(rng, {{q, p, q}, {9, 4, 5}, 512, tokens, bias});
      check(rng, {{p, p, b}, {9, 4, 5}, 256, tokens, bias});
    }
  }
}

TEST(CudaFloatLinear, ResidualMayBeTheOutput) {
  Rng rng = seeded(206);
  for (int64_t tokens : {1, 4, 20})
    check(rng, {{WeightType::bf16}, {40}, 384, tokens, true, true, Inputs::wide, true});
}

TEST(CudaFloatLinear, InputsAtAnyAddress) {
  Rng rng = seeded(207);
  for (int64_t tokens : {1, 4, 20})
    for (int64_t shift : {1, 2, 3}) check(rng, {{WeightType::f16}, {21}, 320, tokens, false, false, Inputs::special}, shift);
}

/// x of one token doesn't fit shared memory.
TEST(CudaFloatLinear, AVeryWideInput) {
  Rng rng = seeded(208);
  EXPECT_EQ(check(rng, {{WeightType::bf16}, {3}, 60001, 1}), "float_few_bf16");
  EXPECT_EQ(check(rng, {{WeightType::q8_0}, {3}, 60000, 1}), "float_tile_q8_0");
}

/// Many rows per warp and block: the rings run across the ends of rows.
TEST(CudaFloatLinear, ManyRowsOfFewColumns) {
  Rng rng = seeded(209);
  for (int64_t tokens : {1, 2, 16})
    for (WeightType type : {WeightType::f32, WeightType::bf16}) check(rng, {{type}, {3001}, tokens == 1 ? 300 : 40, tokens});
}

TEST(CudaFloatLinear, OtherFormsAreRefused) {
  Rng rng = seeded(210);
  const HostWeight w = random_weight(rng, WeightType::bf16, 4, 64);
  const Device device;
  const PackedWeight packed(device, w.matrix);
  const Buffer<float> x(device, 64), y(device, 4), other(device, 4);
  AssayLinear a{};
  a.count = 1;
  a.w[0] = packed.get();
  a.x = x.get();
  a.y[0] = y.get();
  a.rows = 1;
  AssayLinear normed = a, gated = a, both = a;
  normed.norm = x.get();
  gated.count = both.count = 2;
  gated.w[1] = both.w[1] = packed.get();
  gated.gated = 1;
  both.residual = other.get();
  both.y[1] = other.get();
  const AssayModule& m = device.module();
  EXPECT_EQ(m.linear(device, &normed), ASSAY_REFUSED);
  EXPECT_EQ(m.linear(device, &gated), ASSAY_REFUSED);
  EXPECT_EQ(m.linear(device, &both), ASSAY_REFUSED);
  EXPECT_EQ(device.counters().launches, 1u);  // packing
}

#ifdef ASSAY_SIMT
TEST(CudaFloatLinear, OnDevicesWithLessSharedMemory) {
  for (const OtherDevice& other : kOtherDevices) {
    SCOPED_TRACE(other.name);
    const Emulated emulated(other);
    Rng rng = seeded(211);
    int refused = 0, done = 0;
    const bool tiles_fit = other.kib() >= 128;
    for (WeightType type : kWeightTypes)
      for (int64_t tokens : {1, 5, 40})
        for (int64_t columns : {512, 16384, 28672}) {  // 64 and 112 KiB of one row of floats
          if (columns > 512 && (tokens > 5 || (type != WeightType::f16 && type != WeightType::q4_k))) continue;  // time
          check(rng, {{type}, {9}, columns, tokens, true, false}, 0, !tiles_fit).empty() ? refused++ : done++;
        }
    EXPECT_EQ(refused > 0, !tiles_fit) << refused << " of " << refused + done;
    EXPECT_GT(done, 0);
  }
}
#endif

}  // namespace
}  // namespace assay::test
