// The emulated primitives against what the PTX manual and numerics.h say, written down plainly. prim_compare.cpp holds them
// against a device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "cuda/prim_check.h"
#include "engine/numerics.h"
#include "engine/ops/test_support.h"

namespace assay {
namespace {

constexpr int kAll = ASSAY_PRIMITIVE_WORDS, kBlock = 1024, kOfThread = 16;
using Bits = std::vector<uint32_t>;

Bits random_bits(uint64_t seed) {
  std::mt19937_64 rng(seed);
  Bits in(kAll);
  for (uint32_t& v : in) v = uint32_t(rng());
  return in;
}
Bits run(int which, const Bits& in) {
  Bits out(kAll);
  char words[512];
  EXPECT_EQ(assay_check_primitive(0, which, in.data(), out.data(), words), 1) << words;
  return out;
}
int number_of(const std::string& name) {
  for (int i = 0; assay_primitive_name(i); i++)
    if (name == assay_primitive_name(i)) return i;
  return -1;
}
/// Word `i` of thread `t` (of the block) of the block of `at`.
uint32_t word(const Bits& in, int at, int t, int i) { return in[size_t(at / kBlock * kBlock + t * kOfThread + i)]; }
int thread_of(int at) { return at % kBlock / kOfThread; }
int byte_of(uint32_t w, int i) { return int8_t(w >> 8 * i); }

/// One element of a warp's product by its definition. A[r][k] and B[k][c] as prim.cuh says who holds them.
uint32_t product(const Bits& in, int at, int depth, int first, uint32_t c0) {
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
uint64_t pair_of(const Bits& in, int at, int t, int i) { return uint64_t(word(in, at, t, i)) << 32 | word(in, at, t, i + 1); }
uint32_t part(uint64_t v, int i) { return i % 2 ? uint32_t(v) : uint32_t(v >> 32); }

/// From the block that is three ranks before, its rank added to word 5.
template <int kCluster>
uint32_t from_cluster(const Bits& in, int at) {
  const int block = at / kBlock, from = (block + kCluster - 3) % kCluster, other = (block / kCluster * kCluster + from) * kBlock + at % kBlock;
  return at % 16 == 5 ? in[size_t(other - 5)] + uint32_t(from) : in[size_t(other)];
}

using Expected = std::function<uint32_t(const Bits&, int at)>;
const std::map<std::string, Expected> kExpected = {
    {"lane_of_warp", [](const Bits&, int at) { return uint32_t(thread_of(at) % 32 + 32 * (at % 16)); }},
    {"sync_block", [](const Bits& in, int at) { return word(in, at, 63 - thread_of(at), at % 16); }},
    {"sync_warp", [](const Bits& in, int at) { return word(in, at, thread_of(at) ^ 31, at % 16); }},
    {"shuffle_xor",
     [](const Bits& in, int at) {
       const int t = thread_of(at), i = at % 16;
       if (i < 5) return word(in, at, t ^ 1 << i, i);
       if (i < 10) return word(in, at, t ^ (7 * i & 31), i) & 0xff7fffffu;
       return part(pair_of(in, at, t ^ (i & ~1), i & ~1), i);
     }},
    {"shuffle",
     [](const Bits& in, int at) {
       const int t = thread_of(at), i = at % 16, warp = t / 32 * 32;
       if (i < 12) return word(in, at, warp + int(word(in, at, t, 15 - i) % 32), i);
       return part(pair_of(in, at, warp + (i & ~1), i & ~1), i);
     }},
    {"dp4a_s8",
     [](const Bits& in, int at) {
       const int t = thread_of(at), i = at % 16;
       uint32_t sum = word(in, at, t, (i + 9) % 16);
       for (int b = 0; b < 4; b++) sum += uint32_t(byte_of(word(in, at, t, i), b) * byte_of(word(in, at, t, (i + 5) % 16), b));
       return sum;
     }},
    {"mma_s8_k16",
     [](const Bits& in, int at) {
       const int first = at % 16 / 4 * 4;
       return product(in, at, 16, first, first == 4 ? 0x4b400000u : uint32_t(first));
     }},
    {"mma_s8_k32",
     [](const Bits& in, int at) {
       return at % 8 >= 4 ? 0u : product(in, at, 32, at % 16 / 8 * 8, at % 16 < 8 ? 0x4b400000u : 8u);
     }},
    {"copy_async", [](const Bits& in, int at) { return word(in, at, thread_of(at) ^ 32, at % 16); }},
    {"copy_async_or_zero",
     [](const Bits& in, int at) {
       const int i = at % 16, chosen_by = i < 4 ? 0 : i < 8 ? 1 : i < 10 ? 2 : i < 12 ? 3 : i;
       return word(in, at, thread_of(at), chosen_by) % 2 ? in[size_t(at)] : 0u;
     }},
    {"load_once", [](const Bits& in, int at) { return in[size_t(at)]; }},
    {"widen_f16", [](const Bits&, int at) { return bits_of(f32_of_f16(uint16_t(at))); }},
    {"widen_bf16", [](const Bits&, int at) { return bits_of(f32_of_bf16(uint16_t(at))); }},
    {"clusters_8", [](const Bits& in, int at) { return from_cluster<8>(in, at); }},
    {"clusters_16", [](const Bits& in, int at) { return from_cluster<16>(in, at); }},
    {"magic", [](const Bits& in, int at) { return bits_of(float(int32_t(in[size_t(at)]) >> 10)); }},
};

TEST(Primitives, DoWhatTheManualSays) {
  const Bits in = random_bits(1);
  for (const char* copies : {"late", "early", "random"}) {
    setenv("ASSAY_SIMT_COPIES", copies, 1);
    for (const auto& [name, expected] : kExpected) {
      const int which = number_of(name);
      ASSERT_GE(which, 0) << name;
      const Bits out = run(which, in);
      for (int at = 0; at < kAll; at++)
        ASSERT_EQ(out[size_t(at)], expected(in, at)) << name << ", word " << at << ", copies " << copies;
    }
  }
  unsetenv("ASSAY_SIMT_COPIES");
}
TEST(Primitives, AtomicsKeepTheExtreme) {
  const Bits in = random_bits(2), out = run(number_of("atomics"), in);
  std::vector<int32_t> most(61, 0);
  std::vector<int64_t> least(59, 0);
  for (int at = 0; at < kAll; at++) {
    const uint32_t v = in[size_t(at)];
    most[v % 61] = std::max(most[v % 61], int32_t(v));
    const uint64_t wide = uint64_t(v) << 32 | word(in, at, thread_of(at), (at + 1) % 16);
    least[v % 59] = std::min(least[v % 59], int64_t(wide));
  }
  for (size_t i = 0; i < most.size(); i++) EXPECT_EQ(int32_t(out[i]), most[i]);
  for (size_t i = 0; i < least.size(); i++) EXPECT_EQ(int64_t(uint64_t(out[65 + 2 * i]) << 32 | out[64 + 2 * i]), least[i]);
}
TEST(Primitives, LaunchesFollowEachOther) {
  const Bits in = random_bits(3), out = run(number_of("wait_for_previous"), in);
  // The chain writes in -> out -> in -> out -> in -> out.
  Bits from = in, to(kAll);
  for (int i = 0; i < 5; i++, from = to)
    for (uint32_t at = 0; at < kAll; at++) to[at] = from[(at * 40503u + 12345u) % kAll] * 2654435761u + at;
  EXPECT_EQ(out, to);
}
/// A primitive that no check calls could do one thing here and another on a device.
TEST(Primitives, EachOfPrimHasACheck) {
  const auto text_of = [](const char* name) {
    std::ifstream file(std::string(ASSAY_SOURCE_DIR "/cuda/") + name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string declared = text_of("prim.cuh"), checks = text_of("prim_check.cu");
  const std::regex function("__device__ __forceinline__ \\w+ (\\w+)\\(");
  int functions = 0;
  for (std::sregex_iterator i(declared.begin(), declared.end(), function), end; i != end; ++i, functions++) {
    const std::string name = (*i)[1];
    EXPECT_TRUE(std::regex_search(checks, std::regex("\\b" + name + "(<\\d+>)?\\("))) << name << " of prim.cuh is called by no check";
  }
  EXPECT_GT(functions, 20);
}
TEST(Primitives, AreAllNamed) {
  EXPECT_EQ(number_of("numerics") >= 0, true);
  for (int i = 0; assay_primitive_name(i); i++) {
    const std::string name = assay_primitive_name(i);
    EXPECT_TRUE(kExpected.count(name) || name == "atomics" || name == "numerics" || name == "wait_for_previous") << name;
  }
}

}  // namespace
}  // namespace assay
