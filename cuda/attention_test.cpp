// Attention of the module against the scalar CPU kernel, byte for byte: cache types, head dims, lengths, groups, rows of other
// slots, runs, chunks that start late, poison behind every length, special values, scratch that holds little.
#include <algorithm>
#include <numeric>

#ifdef ASSAY_SIMT
#include "cuda/attention.cuh"
#endif
#include "cuda/test_support.h"

namespace assay {
namespace {

using namespace test;

constexpr int64_t kMargin = 3;  // positions of the cache that no row sees

enum class Kind { plain, special, infinite_values, wide };

struct Shape {
  KvType type;
  int64_t dim, kv_heads, group;
  std::vector<RowPlace> places;
  Kind kind = Kind::plain;
  int64_t heads() const { return kv_heads * group; }
};

/// Rows of one slot, one position after the other.
void add_run(std::vector<RowPlace>& places, int32_t slot, int64_t start, int64_t rows) {
  for (int64_t i = 0; i < rows; i++) places.push_back({slot, start + i});
}

std::string text(const Shape& s) {
  std::string places;
  for (size_t i = 0; i < s.places.size() && i < 4; i++) {
    places += joined(" ", s.places[i].slot, ":", s.places[i].position);
  }
  return joined("type ", int(s.type), " dim ", s.dim, " heads ", s.heads(), "/", s.kv_heads, " kind ", int(s.kind), " rows ",
                s.places.size(), " at", places, s.places.size() > 4 ? " ..." : "");
}

/// Values of a cache: what lies behind the last position that a row of the slot sees is NaN.
struct Problem {
  Shape s;
  int64_t slots = 1, longest = 1, context;
  std::vector<float> q;
  std::vector<uint8_t> k, v;

  Problem(Rng& rng, const Shape& shape) : s(shape) {
    for (const RowPlace& p : s.places) {
      slots = std::max<int64_t>(slots, p.slot + 1);
      longest = std::max(longest, p.position + 1);
    }
    context = longest + kMargin;
    q = inputs(rng, int64_t(s.places.size()) * s.heads() * s.dim);
    for (float& x : q) x *= s.kind == Kind::wide ? 40 : 2;
    if (s.kind == Kind::special) {
      constexpr float kSpecials[] = {NAN, INFINITY, -INFINITY, -NAN, 1e38f, 1e-42f, -0.0f};
      for (int i = 0; i < 3; i++) q[size_t(uniform(rng, 0, int64_t(q.size()) - 1))] = kSpecials[uniform(rng, 0, 6)];
    }
    fill(rng, k, false);
    fill(rng, v, true);
  }

  void fill(Rng& rng, std::vector<uint8_t>& bytes, bool values) {
    const int64_t n = slots * s.kv_heads * context * s.dim;
    std::vector<int64_t> seen(size_t(slots), 0);
    for (const RowPlace& p : s.places) seen[size_t(p.slot)] = std::max(seen[size_t(p.slot)], p.position + 1);
    bytes.resize(size_t(n) * size_of(s.type));
    const std::vector<float> plain = inputs(rng, n);
    for (int64_t i = 0; i < n; i++) {
      float x = plain[size_t(i)];
      if (s.kind == Kind::special && uniform(rng, 0, n) < 2) x = uniform(rng, 0, 1) ? NAN : -INFINITY;
      if (s.kind == Kind::infinite_values && values && uniform(rng, 0, 4 * s.dim) == 0) x = uniform(rng, 0, 1) ? NAN : INFINITY;
      if (s.kind == Kind::wide && uniform(rng, 0, 40) == 0) x = uniform(rng, 0, 1) ? -0.0f : std::ldexp(x, -20);
      if (i / s.dim % context >= seen[size_t(i / (s.dim * context * s.kv_heads))]) x = NAN;
      if (s.type == KvType::f32) {
        std::memcpy(&bytes[size_t(4 * i)], &x, 4);
        continue;
      }
      const uint16_t half = s.type == KvType::f16 ? f16_of_f32(x) : bf16_of_f32(x);
      std::memcpy(&bytes[size_t(2 * i)], &half, 2);
    }
  }

  std::vector<float> by_cpu() {
    std::vector<float> y(q.size()), scratch(size_t(attention_scratch_floats(longest, s.dim)));
    const KvLayer cache{s.type, slots, s.kv_heads, context, s.dim, reinterpret_cast<std::byte*>(k.data()),
                        reinterpret_cast<std::byte*>(v.data())};
    const AttentionArgs a{q.data(), y.data(), s.places.data(), cache, s.heads(), float(1.0 / std::sqrt(double(s.dim)))};
    kernels(Isa::scalar).attention(a, 0, int64_t(s.places.size()) * s.heads(), scratch.data());
    return y;
  }

  AssayLimits limits() const { return {int64_t(s.places.size()), 32, s.heads(), s.dim, context, 0, 0}; }
};

/// The problem in device memory.
struct OnDevice {
  Buffer<float> q, y;
  Buffer<uint8_t> k, v;
  Buffer<AssayPlace> places;
  AssayAttention a;

  static std::vector<AssayPlace> of(const std::vector<RowPlace>& places) {
    std::vector<AssayPlace> out;
    for (const RowPlace& p : places) out.push_back({p.slot, 0, p.position});
    return out;
  }
  OnDevice(const Device& d, const Problem& p)
      : q(d, p.q), y(d, p.q.size()), k(d, p.k), v(d, p.v), places(d, of(p.s.places)) {
    a = {q.get(), y.get(), places.get(),
         {int32_t(p.s.type), 0, p.slots, p.s.kv_heads, p.context, p.s.dim, k.get(), v.get()},
         int64_t(p.s.places.size()), p.s.heads(), p.longest, float(1.0 / std::sqrt(double(p.s.dim))), 0, nullptr};
  }
};

class AttentionOnDevice : public testing::Test {
 protected:
  Device d;
  void check(Rng& rng, const Shape& shape) {
    Problem p(rng, shape);
    OnDevice on(d, p);
    d.reserve(p.limits());
    const std::vector<float> want = p.by_cpu();
#ifdef ASSAY_SIMT  // few rows go one way on a device with clusters and another without
    if (shape.places.size() <= 8) {
      setenv("ASSAY_SIMT_CLUSTERS", "0", 1);
      d.ok(d.module().attention(d, &on.a));
      without_clusters = d.variant();
      EXPECT_TRUE(same_rows(on.y.download(), want, p.s.heads() * p.s.dim)) << text(shape) << "\n" << without_clusters;
      setenv("ASSAY_SIMT_CLUSTERS", "16", 1);
      on.y.poison();
    }
#endif
    d.ok(d.module().attention(d, &on.a));
    variant = d.variant();
    EXPECT_TRUE(same_rows(on.y.download(), want, p.s.heads() * p.s.dim)) << text(shape) << "\n" << variant;
  }
  bool ran(const char* kernel) const { return variant.find(kernel) != std::string::npos; }
  std::string variant, without_clusters;
};

constexpr KvType kTypes[] = {KvType::f32, KvType::f16, KvType::bf16};
constexpr int64_t kGroupSizes[] = {1, 2, 3, 4, 5, 7, 8, 9};
constexpr Kind kKinds[] = {Kind::plain, Kind::special, Kind::infinite_values, Kind::wide};

TEST_F(AttentionOnDevice, OneRowOfEveryTypeHeadDimAndLength) {
  Rng rng = seeded(41);
  int turn = 0;
  for (KvType type : kTypes) {
    for (int64_t dim : {1, 16, 33, 40, 64, 96, 128, 256}) {
      for (int64_t length : {1, 2, 31, 33, 255, 256, 257, 600, 1500}) {
        if (length == 1500 && dim > 128) continue;  // time
        check(rng, {type, dim, uniform(rng, 1, 2), kGroupSizes[turn % 8], {{int32_t(turn % 2), length - 1}}, kKinds[turn % 4]});
        turn++;
      }
    }
  }
  EXPECT_FALSE(ran("attention_tile")) << variant;
#ifdef ASSAY_SIMT
  EXPECT_EQ(variant, "attention_cluster_bf16_h8");
  EXPECT_EQ(without_clusters, "attention_score_bf16_h8+attention_mix_bf16_h8+attention_finish");
#endif
}

TEST_F(AttentionOnDevice, EveryGroupOfHeads) {
  Rng rng = seeded(42);
  for (KvType type : kTypes) {
    for (int64_t group = 1; group <= 17; group++) {
      if (type != KvType::f16 && group > 9) continue;  // a block has 8 heads: from 9 on they repeat
      check(rng, {type, 64, 2, group, {{0, 70}, {1, 300}}});
    }
  }
}

TEST_F(AttentionOnDevice, FewRowsOfOtherSlotsAndOfOne) {
  Rng rng = seeded(43);
  for (int64_t rows : {2, 5, 8}) {
    std::vector<RowPlace> scattered, run;
    for (int64_t r = 0; r < rows; r++) scattered.push_back({int32_t((r * 5) % 7), uniform(rng, 0, 400)});
    add_run(run, 1, 250, rows);
    for (KvType type : kTypes) {
      check(rng, {type, 128, 2, 4, scattered});
      check(rng, {type, 40, 1, 3, run, Kind::infinite_values});
    }
  }
}

TEST_F(AttentionOnDevice, ALongContext) {
  Rng rng = seeded(44);
  check(rng, {KvType::f16, 128, 1, 4, {{0, 9000}}});
  check(rng, {KvType::bf16, 64, 1, 8, {{0, 5119}, {0, 5120}}, Kind::infinite_values});
}

TEST_F(AttentionOnDevice, LongHeads) {
  Rng rng = seeded(45);
  for (int64_t dim : {288, 512, 576, 1000}) {
    std::vector<RowPlace> run;
    add_run(run, 0, 30, 9);
    check(rng, {KvType::f16, dim, 1, 2, {{0, 300}}});
    check(rng, {KvType::f32, dim, 1, 5, run});
    EXPECT_FALSE(ran("attention_tile")) << variant;
  }
  Problem p(rng, {KvType::f16, 20000, 1, 1, {{0, 1}}});
  OnDevice on(d, p);
  d.reserve(p.limits());
  EXPECT_EQ(d.module().attention(d, &on.a), ASSAY_REFUSED);
  for (float y : on.y.download()) EXPECT_TRUE(std::isnan(y));
}

TEST_F(AttentionOnDevice, RunsFromTheStartAndFromLater) {
  Rng rng = seeded(46);
  int turn = 0;
  for (int64_t start : {0, 300}) {
    for (int64_t rows : {1, 7, 9, 31, 32, 33, 63, 64, 65, 70}) {
      for (KvType type : kTypes) {
        std::vector<RowPlace> run;
        add_run(run, 1, start, rows);
        const int64_t dims[] = {128, 64, 33, 96, 16, 1, 40, 256};
        check(rng, {type, dims[turn % 8], 1, kGroupSizes[turn % 3], run, kKinds[turn % 4]});
        EXPECT_EQ(ran("attention_tile_score"), rows > 8) << variant;
        turn++;
      }
    }
  }
}

TEST_F(AttentionOnDevice, RunsOfEveryHeadDim) {
  Rng rng = seeded(47);
  for (KvType type : kTypes) {
    for (int64_t dim : {1, 16, 33, 40, 64, 72, 96, 128, 160, 200, 256}) {
      std::vector<RowPlace> run;
      add_run(run, 0, uniform(rng, 0, 200), 40);
      check(rng, {type, dim, 1, 2, run, kKinds[dim % 4]});
    }
  }
}

TEST_F(AttentionOnDevice, ALongRun) {
  Rng rng = seeded(48);
  std::vector<RowPlace> run;
  add_run(run, 0, 1100, 140);
  check(rng, {KvType::f16, 128, 1, 2, run});
  run.clear();
  add_run(run, 0, 0, 600);
  check(rng, {KvType::bf16, 64, 1, 1, run, Kind::infinite_values});
}

TEST_F(AttentionOnDevice, RunsAndSingleRowsInOnePass) {
  Rng rng = seeded(49);
  for (KvType type : kTypes) {
    for (int turn = 0; turn < 3; turn++) {
      std::vector<RowPlace> places;
      add_run(places, 0, uniform(rng, 0, 90), 20 + turn);  // two runs of one window, the second not at a multiple of 8
      add_run(places, 2, uniform(rng, 0, 300), 44 - turn);
      for (int64_t r = 0; r < 64; r++) places.push_back({int32_t(3 + r % 5), uniform(rng, 0, 200)});
      add_run(places, 1, 17, 30);
      check(rng, {type, turn == 2 ? 40 : 64, 1, 2, places, kKinds[turn]});
      std::shuffle(places.begin(), places.end(), rng);
      places.resize(size_t(uniform(rng, 9, 80)));
      check(rng, {type, 64, 1, 2, places, kKinds[turn]});
    }
  }
}

TEST_F(AttentionOnDevice, ScratchOfFewRowsAndHeads) {
  Rng rng = seeded(50);
  std::vector<RowPlace> run, single;
  add_run(run, 0, 100, 200);
  for (int64_t r = 0; r < 40; r++) single.push_back({int32_t(r % 3), uniform(rng, 0, 300)});
  for (const auto& places : {run, single}) {
    for (int64_t heads : {1, 2, 6}) {
      const Device fresh;
      Problem p(rng, {KvType::f16, 64, 2, 3, places});
      OnDevice on(fresh, p);
      fresh.reserve({9, 32, heads, 64, p.context, 0, 0});
      const int result = fresh.module().attention(fresh, &on.a);
      if (result != ASSAY_DONE) {
        EXPECT_EQ(result, ASSAY_ERROR);
        EXPECT_NE(fresh.error().find("scratch"), std::string::npos) << fresh.error();
        EXPECT_LT(heads, 6);
        continue;
      }
      EXPECT_TRUE(same_rows(on.y.download(), p.by_cpu(), 6 * 64)) << heads << " " << text(p.s);
    }
  }
}

TEST_F(AttentionOnDevice, ACapturedCallFollowsItsPlaces) {
  Rng rng = seeded(51);
  for (int64_t rows : {1, 3, 12}) {
    std::vector<RowPlace> places;
    for (int64_t r = 0; r < rows; r++) places.push_back({int32_t(r % 4), 390});
    Problem p(rng, {KvType::f16, 128, 2, 2, places});
    OnDevice on(d, p);
    d.reserve(p.limits());
    on.a.longest = p.context;
    d.ok(d.module().capture_begin(d));
    d.ok(d.module().attention(d, &on.a));
    void* graph = nullptr;
    d.ok(d.module().capture_end(d, &graph));
    for (int turn = 0; turn < 4; turn++) {
      for (RowPlace& place : p.s.places) place = {int32_t(uniform(rng, 0, p.slots - 1)), uniform(rng, 0, 390)};
      if (turn == 3) {
        p.s.places.clear();
        add_run(p.s.places, 0, 200, rows);
      }
      on.places.upload(OnDevice::of(p.s.places));
      on.y.poison();
      d.ok(d.module().replay(d, graph));
      EXPECT_TRUE(same_rows(on.y.download(), p.by_cpu(), 4 * 128)) << text(p.s);
    }
    d.module().release_graph(d, graph);
  }
}

TEST_F(AttentionOnDevice, WhatItCantDoIsRefused) {
  Rng rng = seeded(52);
  Problem p(rng, {KvType::f16, 32, 1, 1, {{0, 5}}});
  OnDevice on(d, p);
  d.reserve(p.limits());
  AssayAttention a = on.a;
  a.cache.type = ASSAY_Q8_0;
  EXPECT_EQ(d.module().attention(d, &a), ASSAY_REFUSED);
  a = on.a;
  a.cache.kv_heads = 3;
  EXPECT_EQ(d.module().attention(d, &a), ASSAY_REFUSED);
  a = on.a;
  a.rows = 0;
  EXPECT_EQ(d.module().attention(d, &a), ASSAY_DONE);
  for (float y : on.y.download()) EXPECT_TRUE(std::isnan(y));
}

#ifdef ASSAY_SIMT
// All inputs were compared once: no difference over 2^31 negative floats and the NaNs.
TEST(AttentionExp, OfADifferenceHasTheBitsOfExp) {
  const auto same = [](float x) {
    float both[2] = {x, -1.0f}, alone[1] = {x};
    exp_of_differences(both);
    exp_of_differences(alone);
    const float y = exp_f32(x);
    return (bits_of(y) == bits_of(both[0]) && bits_of(y) == bits_of(alone[0]) && bits_of(both[1]) == bits_of(exp_f32(-1.0f))) ||
           (is_nan(y) && is_nan(both[0]) && is_nan(alone[0]));
  };
  for (uint64_t u = 0x80000000u; u <= 0xffffffffu; u += 997) ASSERT_TRUE(same(float_of(uint32_t(u)))) << float_of(uint32_t(u));
  for (float x : {0.0f, -79.99999f, -80.0f, -80.00001f, -87.5f, -104.0f, NAN}) EXPECT_TRUE(same(x)) << x;
}
#endif

#ifdef ASSAY_SIMT
TEST(AttentionOnOtherDevices, WithLessSharedMemory) {
  for (const OtherDevice& other : kOtherDevices) {
    SCOPED_TRACE(other.name);
    const Emulated emulated(other);
    const Device d;
    Rng rng = seeded(54);
    int refused = 0, done = 0, turn = 0;
    const auto ask = [&](const Shape& shape) {
      Problem p(rng, shape);
      OnDevice on(d, p);
      d.reserve(p.limits());
      const uint64_t before = d.counters().launches;
      const int result = d.module().attention(d, &on.a);
      if (result == ASSAY_REFUSED) {
        refused++;
        EXPECT_EQ(d.counters().launches, before) << text(shape);
        for (float y : on.y.download()) ASSERT_TRUE(std::isnan(y)) << text(shape);
        return;
      }
      d.ok(result);
      done++;
      const bool clusters = d.variant().find("cluster") != std::string::npos;
      EXPECT_TRUE(!clusters || *other.clusters != '0') << d.variant();
      EXPECT_TRUE(same_rows(on.y.download(), p.by_cpu(), p.s.heads() * p.s.dim)) << text(shape) << "\n" << d.variant();
    };
    for (KvType type : kTypes)
      for (int64_t dim : {33, 64, 128, 256})
        for (int64_t length : {1, 100, 300}) {
          ask({type, dim, 2, kGroupSizes[turn % 8], {{0, length - 1}}, kKinds[turn % 4]});
          turn++;
        }
    for (KvType type : kTypes)
      for (int64_t dim : {64, 128, 256}) {
        std::vector<RowPlace> run;
        add_run(run, 1, turn % 2 * 100, 40);
        ask({type, dim, 1, kGroupSizes[turn % 3], run, kKinds[turn % 4]});
        turn++;
      }
    EXPECT_EQ(refused > 0, other.kib() < 99) << refused << " of " << refused + done;
  }
}
#endif

}  // namespace
}  // namespace assay
