// heads and attention as one op against the scalar kernels one after the other, byte for byte: cache, rotated q, y and the
// report of an overflow. One row of a short sequence is one launch; everything else is what heads and attention do.
#include <algorithm>
#include <cmath>

#include "cuda/test_support.h"

namespace assay {
namespace {

using namespace test;

struct Shape {
  KvType type;
  int64_t dim, rotary, kv_heads, group;
  std::vector<RowPlace> places;
  bool q_norm = true, k_norm = true;
  Inputs kind = Inputs::plain;
  int64_t heads() const { return kv_heads * group; }
};

/// Both sides: what was in the cache before, q, k and v of the rows, and all of it after the op.
struct Problem {
  Shape s;
  int64_t slots = 1, longest = 1, context, rows;
  std::vector<float> q, k, v, q_norm, k_norm, cos, sin;
  std::vector<std::byte> cached_k, cached_v;
  float eps = 1e-6f, scale;

  Problem(Rng& rng, const Shape& shape) : s(shape), rows(int64_t(s.places.size())), scale(float(1 / std::sqrt(double(s.dim)))) {
    for (const RowPlace& p : s.places) slots = std::max<int64_t>(slots, p.slot + 1), longest = std::max(longest, p.position + 1);
    context = longest + 3;
    q = inputs(rng, rows * s.heads() * s.dim, s.kind), k = inputs(rng, rows * s.kv_heads * s.dim, s.kind), v = inputs(rng, int64_t(k.size()), s.kind);
    q_norm = inputs(rng, s.dim), k_norm = inputs(rng, s.dim);
    cos = inputs(rng, std::max<int64_t>(1, context * (s.rotary / 2))), sin = inputs(rng, int64_t(cos.size()));
    // Behind the positions that rows see lies poison.
    const int64_t n = slots * s.kv_heads * context * s.dim;
    cached_k.assign(size_t(n) * size_of(s.type), std::byte(0xff));
    cached_v = cached_k;
    for (const RowPlace& p : s.places) {
      for (int64_t h = 0; h < s.kv_heads; h++) {
        std::vector<float> old_k = inputs(rng, p.position * s.dim + 1, s.kind), old_v = inputs(rng, p.position * s.dim + 1, s.kind);
        for (int64_t i = 0; i < p.position * s.dim; i++) {
          store(cached_k, ((p.slot * s.kv_heads + h) * context) * s.dim + i, old_k[size_t(i)]);
          store(cached_v, ((p.slot * s.kv_heads + h) * context) * s.dim + i, old_v[size_t(i)]);
        }
      }
    }
  }
  void store(std::vector<std::byte>& cache, int64_t at, float x) const {
    const uint16_t half = s.type == KvType::f16 ? f16_of_f32(x) : bf16_of_f32(x);
    if (s.type == KvType::f32) std::memcpy(&cache[size_t(4 * at)], &x, 4);
    else std::memcpy(&cache[size_t(2 * at)], &half, 2);
  }
  std::vector<AssayPlace> places() const {
    std::vector<AssayPlace> out;
    for (const RowPlace& p : s.places) out.push_back({p.slot, 0, p.position});
    return out;
  }
};

struct After {
  std::vector<float> q, y;
  std::vector<std::byte> k, v;
  int64_t overflow = 0x7f7f7f7f7f7f7f7f;
};

After by_cpu(const Problem& p) {
  const Shape& s = p.s;
  const Kernels& cpu = kernels(Isa::scalar);
  After a;
  a.k = p.cached_k, a.v = p.cached_v;
  std::vector<float> q = p.q, k = p.k, turned_k(p.k.size());
  if (s.q_norm) cpu.head_norm({p.q.data(), p.q_norm.data(), q.data(), 0, s.heads(), s.dim, p.eps}, 0, p.rows);
  if (s.k_norm) cpu.head_norm({p.k.data(), p.k_norm.data(), k.data(), 0, s.kv_heads, s.dim, p.eps}, 0, p.rows);
  std::vector<int64_t> positions;
  for (const RowPlace& place : s.places) positions.push_back(place.position);
  a.q.resize(q.size()), a.y.resize(q.size());
  cpu.rope({q.data(), a.q.data(), positions.data(), p.cos.data(), p.sin.data(), s.heads(), s.dim, s.rotary}, 0, p.rows);
  cpu.rope({k.data(), turned_k.data(), positions.data(), p.cos.data(), p.sin.data(), s.kv_heads, s.dim, s.rotary}, 0, p.rows);
  const KvLayer cache{s.type, p.slots, s.kv_heads, p.context, s.dim, a.k.data(), a.v.data()};
  cpu.kv_store({turned_k.data(), p.v.data(), s.places.data(), cache, p.rows, &a.overflow}, 0, p.rows);
  std::vector<float> scratch(size_t(p.context));
  cpu.attention({a.q.data(), a.y.data(), s.places.data(), cache, s.heads(), p.scale}, 0, p.rows * s.heads(), scratch.data());
  return a;
}

/// The problem in device memory, and the call.
struct OnDevice {
  Buffer<float> q, k, v, q_norm, k_norm, q_out, y, cos, sin;
  Buffer<std::byte> cached_k, cached_v;
  Buffer<AssayPlace> places;
  Buffer<int64_t> overflow;
  AssayHeads heads;
  AssayAttention attention{};

  OnDevice(const Device& d, const Problem& p, bool in_place = false)
      : q(d, p.q), k(d, p.k), v(d, p.v), q_norm(d, p.q_norm), k_norm(d, p.k_norm), q_out(d, p.q.size()), y(d, p.q.size()), cos(d, p.cos),
        sin(d, p.sin), cached_k(d, p.cached_k), cached_v(d, p.cached_v), places(d, p.places()),
        overflow(d, std::vector<int64_t>{After().overflow}) {
    const AssayCache cache{int32_t(p.s.type), 0, p.slots, p.s.kv_heads, p.context, p.s.dim, cached_k.get(), cached_v.get()};
    float* const out = in_place ? q.get() : q_out.get();
    heads = {q.get(), k.get(), v.get(), p.s.q_norm ? q_norm.get() : nullptr, p.s.k_norm ? k_norm.get() : nullptr, out, places.get(),
             cos.get(), sin.get(), cache, p.rows, p.s.heads(), p.s.rotary, p.eps, 0, overflow.get()};
    attention.q = out, attention.y = y.get(), attention.places = places.get(), attention.cache = cache;
    attention.rows = p.rows, attention.heads = p.s.heads(), attention.longest = p.longest, attention.scale = p.scale;
    attention.heads_of = &heads;
    d.reserve({p.rows, 32, p.s.heads(), p.s.dim, p.context, 0, 0});
  }
  void expect(const Problem& p, const After& want) const {
    const int64_t columns = p.s.heads() * p.s.dim;
    const std::string what = joined(name_of(p.s.type), " dim ", p.s.dim, " rotary ", p.s.rotary, " heads ", p.s.heads(), "/", p.s.kv_heads,
                                    " position ", p.s.places[0].position, " rows ", p.rows, " kind ", int(p.s.kind));
    EXPECT_TRUE(same_rows(y.download(), want.y, columns)) << what;
    EXPECT_TRUE(same_rows((attention.q == q.get() ? q : q_out).download(), want.q, columns)) << what;
    EXPECT_EQ(cached_k.download(), want.k) << what;
    EXPECT_EQ(cached_v.download(), want.v) << what;
    EXPECT_EQ(overflow.download()[0], want.overflow) << what;
  }
};

class AttentionShort : public testing::Test {
 protected:
  Device d;
  std::string variant;
  uint64_t launches = 0;
  void check(Rng& rng, const Shape& s, bool in_place = false) {
    const Problem p(rng, s);
    const OnDevice on(d, p, in_place);
    const uint64_t before = d.counters().launches;
    d.ok(d.module().attention(d, &on.attention));
    launches = d.counters().launches - before;
    variant = d.variant();
    on.expect(p, by_cpu(p));
  }
};

constexpr KvType kTypes[] = {KvType::f32, KvType::f16, KvType::bf16};
constexpr Inputs kKinds[] = {Inputs::plain, Inputs::wide, Inputs::special};

TEST_F(AttentionShort, OneRowOfEveryTypeHeadDimAndLengthInOneLaunch) {
  Rng rng = seeded(201);
  int turn = 0;
  for (KvType type : kTypes) {
    for (int64_t dim : {32, 64, 96, 128, 256}) {
      for (int64_t position : {0, 1, 15, 16, 31, 63, 64, 127, 128, 130, 255}) {
        const int64_t group = 1 + turn % 5, rotary = turn % 4 == 3 ? dim / 2 : turn % 7 == 6 ? 0 : dim;
        const bool norm = turn % 3 != 0;
        check(rng, {type, dim, rotary, 1 + turn % 2, group, {{int32_t(turn % 2), position}}, norm, norm, kKinds[turn % 3]}, turn % 2 == 1);
        // 256 positions of keys and values that long do not fit.
        const bool fits = 2 * (position + 1) * (dim * int64_t(size_of(type)) + 16) + 80 * dim + 1200 <= 227 << 10;
        EXPECT_EQ(launches == 1, fits) << variant;
        EXPECT_EQ(variant == joined("attention_short_", name_of(type)), fits) << variant;
        turn++;
      }
    }
  }
}

TEST_F(AttentionShort, ReportsTheFirstOverflowOnce) {
  Rng rng = seeded(202);
  for (bool of_k : {true, false}) {
    Problem p(rng, {KvType::f16, 64, 0, 2, 3, {{0, 9}}, false, false});
    (of_k ? p.k : p.v)[70] = 70000.0f;
    (of_k ? p.k : p.v)[90] = -1e30f;
    const OnDevice on(d, p);
    d.ok(d.module().attention(d, &on.attention));
    EXPECT_EQ(d.variant(), "attention_short_f16");
    const After want = by_cpu(p);
    EXPECT_EQ(want.overflow, of_k ? 70 : 128 + 70);
    on.expect(p, want);
  }
}

TEST_F(AttentionShort, OtherRowsGoThroughHeadsAndAttention) {
  Rng rng = seeded(203);
  check(rng, {KvType::f16, 128, 128, 2, 4, {{0, 256}}});
  EXPECT_EQ(variant.find("heads"), 0u) << variant;
  check(rng, {KvType::f16, 40, 40, 2, 4, {{0, 20}}});
  EXPECT_EQ(variant.find("heads"), 0u) << variant;
  check(rng, {KvType::bf16, 64, 64, 2, 2, {{0, 20}, {1, 33}}});
  EXPECT_EQ(variant.find("heads"), 0u) << variant;
  Shape run{KvType::f16, 64, 64, 1, 2, {}};
  for (int64_t i = 0; i < 20; i++) run.places.push_back({0, i});
  check(rng, run);
  EXPECT_NE(variant.find("attention_tile"), std::string::npos) << variant;
}

TEST_F(AttentionShort, ACapturedCallFollowsItsPlace) {
  Rng rng = seeded(204);
  for (int64_t longest : {128, 256}) {
    Problem p(rng, {KvType::f16, 128, 128, 2, 2, {{1, longest - 1}}});
    OnDevice on(d, p);
    on.attention.longest = longest;
    d.ok(d.module().capture_begin(d));
    d.ok(d.module().attention(d, &on.attention));
    void* graph = nullptr;
    d.ok(d.module().capture_end(d, &graph));
    for (const int64_t position : {longest - 1, int64_t(0), int64_t(77)}) {
      p.s.places = {{1, position}};
      on.places.upload(p.places());
      on.y.poison();
      d.ok(d.module().replay(d, graph));
      const After want = by_cpu(p);
      on.expect(p, want);
      p.cached_k = want.k, p.cached_v = want.v;
    }
    d.module().release_graph(d, graph);
  }
}

TEST_F(AttentionShort, WhatEitherOpCantDoIsRefusedBeforeAnythingIsWritten) {
  Rng rng = seeded(205);
  Problem p(rng, {KvType::f16, 64, 64, 1, 1, {{0, 5}}});
  OnDevice on(d, p);
  on.heads.rotary = 65;
  EXPECT_EQ(d.module().attention(d, &on.attention), ASSAY_REFUSED);
  on.heads.rotary = 64;
  on.attention.longest = p.context + 1;
  EXPECT_EQ(d.module().attention(d, &on.attention), ASSAY_REFUSED);
  on.attention.longest = p.longest;
  on.attention.rows = 0;
  EXPECT_EQ(d.module().attention(d, &on.attention), ASSAY_DONE);
  EXPECT_EQ(on.cached_k.download(), p.cached_k);
  for (float x : on.q_out.download()) EXPECT_TRUE(std::isnan(x));
}

#ifdef ASSAY_SIMT
/// Where a short sequence does not fit, heads and attention follow each other, where they do: else both are the CPU's.
TEST(AttentionShortOnOtherDevices, WithLessSharedMemory) {
  for (const OtherDevice& other : kOtherDevices) {
    SCOPED_TRACE(other.name);
    const Emulated emulated(other);
    const Device d;
    Rng rng = seeded(209);
    int at_once = 0, in_steps = 0, refused = 0, turn = 0;
    for (KvType type : kTypes)
      for (int64_t dim : {64, 128, 256})
        for (int64_t position : {0, 40, 255}) {
          const Problem p(rng, {type, dim, dim, 2, 1 + turn % 5, {{int32_t(turn % 2), position}}, true, turn % 3 == 0, kKinds[turn % 3]});
          const OnDevice on(d, p, false);
          const int result = d.module().attention(d, &on.attention);
          turn++;
          if (result == ASSAY_REFUSED) {
            refused++;
            for (float y : on.y.download()) ASSERT_TRUE(std::isnan(y));
            continue;
          }
          d.ok(result);
          (d.variant().find("attention_short") == 0 ? at_once : in_steps)++;
          on.expect(p, by_cpu(p));
        }
    EXPECT_EQ(refused > 0, other.kib() < 99) << refused << " of " << turn;
    EXPECT_EQ(at_once > 0, other.kib() >= 99);
    EXPECT_GT(in_steps + refused, 0);
    EXPECT_EQ(at_once + in_steps + refused, turn);
  }
}
#endif

}  // namespace
}  // namespace assay
