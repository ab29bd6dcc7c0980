// Every function of simd.h against scalar code, byte by byte, on every vector instruction set of this CPU; and the
// float arithmetic of numerics.h, as those sets compile it, over a sweep of all floats.
#include <algorithm>
#include <functional>

#include "engine/numerics.h"
#include "engine/ops/simd_probe.h"
#include "engine/ops/test_support.h"

namespace assay {

#if defined(__x86_64__)
namespace avx2 {
extern const SimdProbe kProbe;
}
#if defined(ASSAY_WITHOUT_AVX512)
const SimdProbe* simd_probe(Isa isa) {
  return isa == Isa::avx2 ? &avx2::kProbe : nullptr;
}
#else
namespace avx512 {
extern const SimdProbe kProbe;
}
const SimdProbe* simd_probe(Isa isa) {
  return isa == Isa::scalar ? nullptr : isa == Isa::avx2 ? &avx2::kProbe : &avx512::kProbe;
}
#endif
#elif defined(__aarch64__)
namespace neon {
extern const SimdProbe kProbe;
}
const SimdProbe* simd_probe(Isa isa) {
  return isa == Isa::scalar ? nullptr : &neon::kProbe;
}
#else
const SimdProbe* simd_probe(Isa) {
  return nullptr;
}
#endif

namespace {

using namespace test;

constexpr int64_t kN = 16 * 64;

std::vector<float> any_bits(Rng& rng) {
  auto x = inputs(rng, kN, Inputs::special);
  for (size_t i = 0; i < x.size(); i += 3) x[i] = float_of(uint32_t(rng()));
  return x;
}

/// The scalar meaning of a function that works element by element; null for the others.
std::function<float(float, float, float)> meaning(Simd what) {
  auto ints = [](auto f) {
    return [f](float a, float b, float) { return float_of(uint32_t(f(bits_of(a), bits_of(b)))); };
  };
  switch (what) {
    case Simd::load_store:
      return [](float a, float, float) { return a; };
    case Simd::add:
      return [](float a, float b, float) { return a + b; };
    case Simd::sub:
      return [](float a, float b, float) { return a - b; };
    case Simd::mul:
      return [](float a, float b, float) { return a * b; };
    case Simd::div:
      return [](float a, float b, float) { return a / b; };
    case Simd::fma:
      return [](float a, float b, float c) { return std::fma(a, b, c); };
    case Simd::max:
      return [](float a, float b, float) { return a > b ? a : b; };
    case Simd::min:
      return [](float a, float b, float) { return a < b ? a : b; };
    case Simd::nan_from:
      return [](float a, float b, float) { return std::isnan(a) ? float_of(0x7fc00000) : b; };
    case Simd::negate:
      return ints([](uint32_t a, uint32_t) { return a ^ 0x80000000u; });
    case Simd::exp:
      return [](float a, float, float) { return exp_f32(a); };
    case Simd::silu:
      return [](float a, float, float) { return silu_f32(a); };
    case Simd::to_float:
      return [](float a, float, float) { return float(int32_t(bits_of(a))); };
    case Simd::int_add:
      return ints([](uint32_t a, uint32_t b) { return a + b; });
    case Simd::int_sub:
      return ints([](uint32_t a, uint32_t b) { return a - b; });
    case Simd::int_and:
      return ints([](uint32_t a, uint32_t b) { return a & b; });
    case Simd::int_or:
      return ints([](uint32_t a, uint32_t b) { return a | b; });
    case Simd::int_xor:
      return ints([](uint32_t a, uint32_t b) { return a ^ b; });
    case Simd::int_max:
      return ints([](uint32_t a, uint32_t b) { return int32_t(a) > int32_t(b) ? a : b; });
    case Simd::shl_23:
      return ints([](uint32_t a, uint32_t) { return a << 23; });
    case Simd::srl_16:
      return ints([](uint32_t a, uint32_t) { return a >> 16; });
    case Simd::sra_31:
      return ints([](uint32_t a, uint32_t) { return a >> 31 ? 0xffffffffu : 0u; });
    case Simd::abs_bits:
      return ints([](uint32_t a, uint32_t) { return a & 0x7fffffffu; });
    case Simd::to_f16:
      return [](float a, float, float) { return float_of(f16_of_f32(a)); };
    case Simd::to_bf16:
      return [](float a, float, float) { return float_of(bf16_of_f32(a)); };
    default:
      return nullptr;
  }
}

/// Bytes, with no exception for NaN: of integer results and of functions that promise the canonical one.
bool bits_decide(Simd what) {
  switch (what) {
    case Simd::add:
    case Simd::sub:
    case Simd::mul:
    case Simd::div:
    case Simd::fma:
    case Simd::silu:
      return false;
    default:
      return true;
  }
}

struct Set {
  Isa isa;
  const SimdProbe* probe;
};
std::vector<Set> vector_sets() {
  std::vector<Set> sets;
  for (Isa isa : isas()) {
    if (simd_probe(isa) != nullptr) sets.push_back({isa, simd_probe(isa)});
  }
  return sets;
}

TEST(Simd, ElementwiseFunctionsEqualScalarCode) {
  Rng rng = seeded(41);
  int held = 0;
  for (auto [isa, probe] : vector_sets()) {
    for (int w = 0; w < int(Simd::count); w++) {
      const auto f = meaning(Simd(w));
      if (!f) continue;
      held++;
      for (int round = 0; round < 20; round++) {
        auto a = any_bits(rng), b = any_bits(rng), c = any_bits(rng), out = std::vector<float>(kN);
        if (Simd(w) == Simd::exp || Simd(w) == Simd::silu) {
          for (size_t i = 0; i < a.size(); i += 2) a[i] = float(uniform(rng, -110, 95)) + gaussian(rng);
        }
        probe->run(Simd(w), a.data(), b.data(), c.data(), out.data(), kN, 0);
        for (size_t i = 0; i < kN; i++) {
          const float want = f(a[i], b[i], c[i]);
          if (!bits_decide(Simd(w)) && std::isnan(want) && std::isnan(out[i])) continue;
          ASSERT_EQ(bits_of(out[i]), bits_of(want))
              << name_of(isa) << " function " << w << " of " << std::hexfloat << a[i] << " " << b[i] << " " << c[i];
        }
      }
    }
  }
  if (isas().size() > 1) {
    EXPECT_GE(held, 25);
  }
}

TEST(Simd, RuntimeShiftsAndBitsOfAWord) {
  Rng rng = seeded(44);
  for (auto [isa, probe] : vector_sets()) {
    const auto a = any_bits(rng);
    std::vector<float> out(kN);
    for (int count = 0; count < 32; count++) {
      probe->run(Simd::srl_by, a.data(), a.data(), a.data(), out.data(), kN, count);
      for (size_t i = 0; i < kN; i++) ASSERT_EQ(bits_of(out[i]), bits_of(a[i]) >> count) << name_of(isa);
    }
    probe->run(Simd::bits_of, a.data(), a.data(), a.data(), out.data(), kN, 0);
    for (size_t i = 0; i < kN; i++) {
      const size_t lane = i % size_t(probe->lanes);
      ASSERT_EQ(out[i], float(bits_of(a[i - lane]) >> lane & 1)) << name_of(isa) << " lane " << lane;
    }
  }
}

TEST(Simd, ExpAndNarrowingEqualNumericsOverASweepOfAllFloats) {
  const uint64_t stride = std::getenv("ASSAY_ALL_FLOATS") ? 1 : 4099;
  for (auto [isa, probe] : vector_sets()) {
    for (Simd what : {Simd::exp, Simd::to_f16, Simd::to_bf16}) {
      const auto f = meaning(what);
      std::vector<float> a(kN), out(kN);
      for (uint64_t i = 0; i <= 0xffffffffu;) {
        for (auto& x : a) x = float_of(uint32_t(std::min<uint64_t>(i, 0xffffffffu))), i += stride;
        probe->run(what, a.data(), a.data(), a.data(), out.data(), kN, 0);
        for (size_t k = 0; k < kN; k++)
          ASSERT_EQ(bits_of(out[k]), bits_of(f(a[k], 0, 0))) << name_of(isa) << " " << a[k];
      }
    }
  }
}

TEST(Simd, PartialLoadsAndStoresTouchNothingElse) {
  Rng rng = seeded(42);
  for (auto [isa, probe] : vector_sets()) {
    for (int64_t count = 1; count < probe->lanes; count++) {
      const auto a = any_bits(rng);
      const auto* halves = reinterpret_cast<const uint16_t*>(a.data());
      std::vector<float> first(kN), stored(kN, 77.0f), h(kN / 2), b(kN / 2);
      probe->run(Simd::load_first, a.data(), a.data(), a.data(), first.data(), kN, count);
      probe->run(Simd::store_first, a.data(), a.data(), a.data(), stored.data(), kN, count);
      probe->run(Simd::load_f16_first, a.data(), a.data(), a.data(), h.data(), kN / 2, count);
      probe->run(Simd::load_bf16_first, a.data(), a.data(), a.data(), b.data(), kN / 2, count);
      for (int64_t i = 0; i < kN; i++) {
        const bool in = i % probe->lanes < count;
        ASSERT_EQ(bits_of(first[size_t(i)]), in ? bits_of(a[size_t(i)]) : 0) << name_of(isa);
        ASSERT_EQ(bits_of(stored[size_t(i)]), bits_of(in ? a[size_t(i)] : 77.0f)) << name_of(isa);
        if (i >= kN / 2) continue;
        const float wide[2] = {in ? f32_of_f16(halves[i]) : 0, in ? f32_of_bf16(halves[i]) : 0};
        ASSERT_LT(first_difference(&h[size_t(i)], &wide[0], 1), 0) << name_of(isa);
        ASSERT_LT(first_difference(&b[size_t(i)], &wide[1], 1), 0) << name_of(isa);
      }
    }
  }
}

TEST(Simd, FoldsAreByHalvesAndMaximaAreOfIntegers) {
  Rng rng = seeded(43);
  for (auto [isa, probe] : vector_sets()) {
    const auto a = inputs(rng, kN, Inputs::wide);
    const auto special = inputs(rng, kN, Inputs::special);
    std::vector<float> out(kN), eight(kN), max(kN / 8), any(kN);
    probe->run(Simd::fold, a.data(), a.data(), a.data(), out.data(), kN, 0);
    probe->run(Simd::fold_8, a.data(), a.data(), a.data(), eight.data(), kN, 0);
    probe->run(Simd::max_ordered, special.data(), special.data(), special.data(), max.data(), kN, 0);
    auto fold = [&](int64_t at, int lanes) {
      std::vector<float> v(a.begin() + at, a.begin() + at + lanes);
      for (int half = lanes / 2; half >= 1; half /= 2) {
        for (int i = 0; i < half; i++) v[size_t(i)] += v[size_t(i + half)];
      }
      return v[0];
    };
    for (int64_t i = 0; i < kN; i++)
      ASSERT_EQ(out[size_t(i)], fold(i / probe->lanes * probe->lanes, probe->lanes)) << name_of(isa);
    for (int64_t i = 0; i < kN / probe->lanes; i++) {
      ASSERT_EQ(eight[size_t(i)], fold(i * probe->lanes, probe->lanes) * 0.5f + 1.0f) << name_of(isa);
    }
    for (int64_t i = 0; i < kN / 8; i++) {
      int32_t m = INT32_MIN;
      for (int64_t k = 0; k < 8; k++) m = std::max(m, ordered_of(special[size_t(8 * i + k)] + 0.0f));
      ASSERT_EQ(bits_of(max[size_t(i)]), uint32_t(m)) << name_of(isa);
    }
    for (int64_t at = -1; at < probe->lanes; at++) {  // one negative lane, or none
      std::vector<float> b(kN, 1.0f);
      if (at >= 0) b[size_t(at)] = -0.0f;
      probe->run(Simd::any_negative, b.data(), b.data(), b.data(), any.data(), kN, 0);
      EXPECT_EQ(any[0], at >= 0 ? 1.0f : 0.0f) << name_of(isa);
      EXPECT_EQ(any[size_t(probe->lanes)], 0.0f) << name_of(isa);
    }
  }
}

TEST(Simd, IntegersOfEveryWidth) {
  for (const Set& set : vector_sets()) {
    const Isa isa = set.isa;
    const SimdProbe* probe = set.probe;
    std::vector<float> a(0x10000 / 2), out(0x10000), small(kN);
    for (uint32_t i = 0; i < a.size(); i++)
      a[i] = float_of((2 * i) | (2 * i + 1) << 16);  // all 16-bit patterns in order
    std::vector<float> unused(0x10000);
    auto run = [&](Simd what, int64_t n) {
      probe->run(what, a.data(), unused.data(), unused.data(), out.data(), n, 0);
    };
    // run reads a[i] as floats too: only as many as there are.
    const int64_t n = int64_t(a.size());
    run(Simd::load_u16, n);
    for (int64_t i = 0; i < n; i++) ASSERT_EQ(out[size_t(i)], float(i)) << name_of(isa);
    run(Simd::load_f16, n);
    for (int64_t i = 0; i < n; i++) {
      const float want = f32_of_f16(uint16_t(i));
      ASSERT_LT(first_difference(&out[size_t(i)], &want, 1), 0) << name_of(isa);
    }
    run(Simd::load_bf16, n);
    for (int64_t i = 0; i < n; i++) {
      const float want = f32_of_bf16(uint16_t(i));
      ASSERT_LT(first_difference(&out[size_t(i)], &want, 1), 0) << name_of(isa);
    }
    const auto* bytes = reinterpret_cast<const unsigned char*>(a.data());
    run(Simd::load_u8, n);
    for (int64_t i = 0; i < n; i++) ASSERT_EQ(out[size_t(i)], float(bytes[i])) << name_of(isa);
    run(Simd::load_i8, n);
    for (int64_t i = 0; i < n; i++)
      ASSERT_EQ(out[size_t(i)], float(static_cast<signed char>(bytes[i]))) << name_of(isa);
    run(Simd::store_u16, n);
    const auto* halves = reinterpret_cast<const uint16_t*>(out.data());
    for (int64_t i = 0; i < n; i++) ASSERT_EQ(halves[i], uint16_t(bits_of(a[size_t(i)]))) << name_of(isa);
    std::vector<float> whole(kN);
    for (size_t i = 0; i < kN; i++) whole[i] = float(int(i) - 500);
    probe->run(Simd::to_int, whole.data(), whole.data(), whole.data(), small.data(), kN, 0);
    for (size_t i = 0; i < kN; i++) ASSERT_EQ(bits_of(small[i]), uint32_t(int(i) - 500)) << name_of(isa);
  }
}

}  // namespace
}  // namespace assay
