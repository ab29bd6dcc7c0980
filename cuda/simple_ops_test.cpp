// The ops of the module that are no linear and no attention, byte for byte against the scalar kernels of engine/ops.
#include <algorithm>
#include <functional>
#include <limits>

#include "cuda/test_support.h"

namespace assay::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kNoOverflow = std::numeric_limits<int64_t>::max();
constexpr Inputs kInputs[] = {Inputs::plain, Inputs::wide, Inputs::special};
constexpr WeightType kWeightTypes[] = {WeightType::f32,  WeightType::f16,  WeightType::bf16, WeightType::q8_0,
                                       WeightType::q4_0, WeightType::q4_1, WeightType::q5_0, WeightType::q5_1,
                                       WeightType::q4_k, WeightType::q5_k, WeightType::q6_k};
const Kernels& cpu() { return kernels(Isa::scalar); }

std::vector<float> poisoned(int64_t n) { return std::vector<float>(size_t(n), kNan); }

// ---- norm

struct NormCase {
  int64_t rows, columns, heads, head_dim;  // heads 0: over columns
  Inputs kind;
};
void check_norm(Rng& rng, const NormCase& c) {
  const int64_t width = c.heads == 0 ? c.columns : c.heads * c.head_dim;
  const auto x = inputs(rng, c.rows * width, c.kind), w = inputs(rng, c.heads == 0 ? c.columns : c.head_dim);
  auto want = poisoned(c.rows * width);
  const float eps = uniform(rng, 0, 1) ? 1e-6f : 1e-5f;
  const NormArgs host{x.data(), w.data(), want.data(), c.columns, c.heads, c.head_dim, eps};
  (c.heads == 0 ? cpu().rms_norm : cpu().head_norm)(host, 0, c.rows);
  const Device device;
  const Buffer<float> dx(device, x), dw(device, w), dy(device, x.size());
  const AssayNorm a{dx.get(), dw.get(), dy.get(), c.rows, c.heads == 0 ? c.columns : width, c.heads, c.head_dim, eps, 0};
  device.ok(device.module().norm(device, &a));
  EXPECT_TRUE(same_rows(dy.download(), want, width)) << c.rows << " x " << c.columns << ", " << c.heads << " x " << c.head_dim;
}

TEST(CudaNorm, RmsNormHasTheBytesOfTheScalar) {
  Rng rng = seeded(101);
  for (int64_t columns : {1, 5, 31, 64, 255, 256, 257, 576, 1000, 5120, 8191, 8192, 8193, 9001})
    for (Inputs kind : kInputs) check_norm(rng, {uniform(rng, 1, 4), columns, 0, 0, kind});
  check_norm(rng, {33, 300, 0, 0, Inputs::wide});
}

TEST(CudaNorm, HeadNormHasTheBytesOfTheScalar) {
  Rng rng = seeded(102);
  for (int64_t head_dim : {1, 7, 32, 33, 64, 80, 96, 128, 255, 256, 257, 300})
    for (Inputs kind : kInputs) check_norm(rng, {uniform(rng, 1, 5), 0, uniform(rng, 1, 9), head_dim, kind});
}

// ---- rope, kv_store and their fusion

/// A cache on both sides, poisoned alike, and rows with distinct places in it.
struct State {
  Rng& rng;
  KvType type;
  int64_t slots, kv_heads, context, head_dim, rows, rotary;
  std::vector<RowPlace> places;
  std::vector<int64_t> positions;
  std::vector<float> cos, sin;
  std::vector<std::byte> k, v;

  State(Rng& r, KvType t, int64_t head_dim_, int64_t rows_, int64_t rotary_)
      : rng(r),
        type(t),
        slots(3),
        kv_heads(uniform(r, 1, 3)),
        context(rows_ + 5),
        head_dim(head_dim_),
        rows(rows_),
        rotary(rotary_) {
    cos = inputs(rng, std::max<int64_t>(1, context * (rotary / 2)));
    sin = inputs(rng, int64_t(cos.size()));
    k.assign(size_t(slots * kv_heads * context * head_dim) * size_of(type), std::byte(0xff));
    v = k;
    place_rows();
  }
  void place_rows() {
    places.clear();
    positions.clear();
    std::vector<int64_t> all;
    for (int64_t i = 0; i < slots * context; i++) all.push_back(i);
    std::shuffle(all.begin(), all.end(), rng);
    for (int64_t i = 0; i < rows; i++) {
      places.push_back({int32_t(all[size_t(i)] / context), all[size_t(i)] % context});
      positions.push_back(places.back().position);
    }
  }
  KvLayer layer() { return {type, slots, kv_heads, context, head_dim, k.data(), v.data()}; }
  std::vector<AssayPlace> device_places() const {
    std::vector<AssayPlace> out;
    for (const RowPlace& p : places) out.push_back({p.slot, 0, p.position});
    return out;
  }
  AssayCache cache(void* on_k, void* on_v) const { return {int32_t(type), 0, slots, kv_heads, context, head_dim, on_k, on_v}; }
};
/// Bytes of a cache; NaNs are canonical there, so that all bytes count.
testing::AssertionResult same_cache(const std::vector<std::byte>& got, const std::vector<std::byte>& want, size_t element) {
  for (size_t i = 0; i < got.size(); i++)
    if (got[i] != want[i]) return testing::AssertionFailure() << "element " << i / element;
  return testing::AssertionSuccess();
}
/// Some values about the largest f16, on both sides of it.
void near_overflow(Rng& rng, std::vector<float>& x) {
  constexpr float kNear[] = {65504.0f, 65519.996f, 65520.0f, -65520.0f, 1e30f, -70000.0f, kInf, -kInf};
  for (int i = 0; i < 3; i++) x[size_t(uniform(rng, 0, int64_t(x.size()) - 1))] = kNear[uniform(rng, 0, std::size(kNear) - 1)];
}

TEST(CudaRope, HasTheBytesOfTheScalar) {
  Rng rng = seeded(103);
  for (auto [head_dim, rotary] : std::vector<std::pair<int64_t, int64_t>>{
           {128, 128}, {128, 32}, {64, 64}, {80, 80}, {96, 24}, {256, 64}, {7, 6}, {33, 2}, {300, 300}, {16, 0}}) {
    for (bool in_place : {false, true}) {
      State s(rng, KvType::f32, head_dim, uniform(rng, 1, 6), rotary);
      const int64_t heads = uniform(rng, 1, 5), n = s.rows * heads * head_dim;
      const auto x = inputs(rng, n, kInputs[uniform(rng, 0, 2)]);
      auto want = poisoned(n);
      cpu().rope({x.data(), want.data(), s.positions.data(), s.cos.data(), s.sin.data(), heads, head_dim, rotary}, 0, s.rows);
      const Device device;
      const Buffer<float> dx(device, x), dy(device, size_t(n)), cos(device, s.cos), sin(device, s.sin);
      const Buffer<AssayPlace> places(device, s.device_places());
      const AssayRope a{dx.get(), in_place ? dx.get() : dy.get(), places.get(), cos.get(), sin.get(), s.rows, heads, head_dim,
                        rotary};
      device.ok(device.module().rope(device, &a));
      EXPECT_TRUE(same_rows((in_place ? dx : dy).download(), want, heads * head_dim))
          << head_dim << " " << rotary << " " << in_place;
    }
  }
}

TEST(CudaKvStore, HasTheBytesOfTheScalarAndReportsTheFirstOverflow) {
  Rng rng = seeded(104);
  for (KvType type : {KvType::f32, KvType::f16, KvType::bf16}) {
    for (int64_t head_dim : {1, 31, 64, 80, 128, 257}) {
      for (int trial = 0; trial < 3; trial++) {
        State s(rng, type, head_dim, uniform(rng, 1, 7), 0);
        const int64_t n = s.rows * s.kv_heads * head_dim;
        auto k = inputs(rng, n, kInputs[trial]), v = inputs(rng, n, kInputs[trial]);
        if (trial == 1) near_overflow(rng, v);
        if (trial == 2) near_overflow(rng, k), near_overflow(rng, v);
        const Device device;
        const Buffer<std::byte> cache_k(device, s.k), cache_v(device, s.v);
        int64_t overflow = kNoOverflow;
        cpu().kv_store({k.data(), v.data(), s.places.data(), s.layer(), s.rows, &overflow}, 0, s.rows);
        const Buffer<float> dk(device, k), dv(device, v);
        const Buffer<AssayPlace> places(device, s.device_places());
        const Buffer<int64_t> seen(device, std::vector<int64_t>{kNoOverflow});
        const AssayKvStore a{dk.get(), dv.get(), places.get(), s.cache(cache_k.get(), cache_v.get()), s.rows, seen.get()};
        device.ok(device.module().kv_store(device, &a));
        EXPECT_TRUE(same_cache(cache_k.download(), s.k, size_of(type))) << name_of(type) << " " << head_dim;
        EXPECT_TRUE(same_cache(cache_v.download(), s.v, size_of(type))) << name_of(type) << " " << head_dim;
        EXPECT_EQ(seen.download()[0], overflow) << name_of(type) << " " << head_dim;
      }
    }
  }
}

/// norm -> rope -> kv_store by the scalar kernels.
struct HeadsCase {
  KvType type;
  int64_t head_dim, rotary;
  bool q_norm, k_norm, in_place, overflow;
};
void check_heads(Rng& rng, const HeadsCase& c) {
  State s(rng, c.type, c.head_dim, uniform(rng, 1, 5), c.rotary);
  const int64_t heads = s.kv_heads * uniform(rng, 1, 4), q_columns = heads * c.head_dim, kv_columns = s.kv_heads * c.head_dim;
  const Inputs kind = kInputs[uniform(rng, 0, 2)];
  const auto q = inputs(rng, s.rows * q_columns, kind);
  auto k = inputs(rng, s.rows * kv_columns, kind), v = inputs(rng, s.rows * kv_columns, kind);
  const auto q_norm = inputs(rng, c.head_dim);
  auto k_norm = inputs(rng, c.head_dim);
  if (c.overflow) {
    near_overflow(rng, v);
    (c.k_norm ? k_norm : k)[0] = 1e6f;
  }
  const float eps = 1e-6f;
  const Device device;
  const Buffer<std::byte> cache_k(device, s.k), cache_v(device, s.v);

  auto normed_q = q, normed_k = k;
  if (c.q_norm) cpu().head_norm({q.data(), q_norm.data(), normed_q.data(), 0, heads, c.head_dim, eps}, 0, s.rows);
  if (c.k_norm) cpu().head_norm({k.data(), k_norm.data(), normed_k.data(), 0, s.kv_heads, c.head_dim, eps}, 0, s.rows);
  auto want_q = poisoned(int64_t(q.size())), turned_k = poisoned(int64_t(k.size()));
  const auto turn = [&](const std::vector<float>& from, std::vector<float>& to, int64_t of_heads) {
    const RopeArgs a{from.data(), to.data(), s.positions.data(), s.cos.data(), s.sin.data(), of_heads, c.head_dim, c.rotary};
    cpu().rope(a, 0, s.rows);
  };
  turn(normed_q, want_q, heads);
  turn(normed_k, turned_k, s.kv_heads);
  int64_t overflow = kNoOverflow;
  cpu().kv_store({turned_k.data(), v.data(), s.places.data(), s.layer(), s.rows, &overflow}, 0, s.rows);

  const Buffer<float> dq(device, q), dk(device, k), dv(device, v), dq_norm(device, q_norm), dk_norm(device, k_norm);
  const Buffer<float> out(device, q.size()), cos(device, s.cos), sin(device, s.sin);
  const Buffer<AssayPlace> places(device, s.device_places());
  const Buffer<int64_t> seen(device, std::vector<int64_t>{kNoOverflow});
  const AssayHeads a{dq.get(), dk.get(), dv.get(), c.q_norm ? dq_norm.get() : nullptr, c.k_norm ? dk_norm.get() : nullptr,
                     c.in_place ? dq.get() : out.get(), places.get(), cos.get(), sin.get(),
                     s.cache(cache_k.get(), cache_v.get()), s.rows, heads, c.rotary, eps, 0, seen.get()};
  const auto before = device.counters();
  device.ok(device.module().heads(device, &a));
  EXPECT_EQ(device.counters().launches, before.launches + 1);
  const std::string what = joined(name_of(c.type), " head_dim ", c.head_dim, " rotary ", c.rotary, " norms ", c.q_norm, c.k_norm);
  EXPECT_TRUE(same_rows((c.in_place ? dq : out).download(), want_q, q_columns)) << what;
  EXPECT_TRUE(same_cache(cache_k.download(), s.k, size_of(c.type))) << what;
  EXPECT_TRUE(same_cache(cache_v.download(), s.v, size_of(c.type))) << what;
  EXPECT_EQ(seen.download()[0], overflow) << what;
  if (c.overflow && c.type == KvType::f16 && !c.k_norm && c.rotary == 0) {
    EXPECT_NE(overflow, kNoOverflow);
  }
}

TEST(CudaHeads, HasTheBytesOfNormRopeAndStore) {
  Rng rng = seeded(105);
  for (KvType type : {KvType::f32, KvType::f16, KvType::bf16}) {
    for (auto [head_dim, rotary] : std::vector<std::pair<int64_t, int64_t>>{
             {128, 128}, {128, 64}, {64, 64}, {80, 80}, {96, 40}, {256, 256}, {33, 20}, {7, 0}, {300, 290}}) {
      for (bool overflow : {false, true}) {
        const bool norm = uniform(rng, 0, 1) == 1;
        check_heads(rng, {type, head_dim, rotary, norm, norm, uniform(rng, 0, 1) == 1, overflow});
      }
    }
  }
  check_heads(rng, {KvType::f16, 64, 64, true, false, false, false});
  check_heads(rng, {KvType::f16, 64, 64, false, true, true, true});
}

// ---- pointwise, gather, embed

TEST(CudaPointwise, HasTheBytesOfTheScalarInPlaceAndAtAnyAddress) {
  Rng rng = seeded(106);
  for (int64_t n : {1, 3, 4, 5, 31, 1023, 1024, 1025, 4099}) {
    for (Inputs kind : kInputs) {
      for (int64_t shift : {0, 1}) {  // elements that the operands begin behind an aligned address
        const int64_t rows = n % 3 == 0 ? 3 : 1, columns = n / rows;
        const auto p = inputs(rng, n + shift, kind), q = inputs(rng, n + shift, kind);
        for (bool silu : {false, true}) {
          for (int place = 0; place < 3; place++) {  // y: its own, a, b
            auto want = poisoned(n);
            (silu ? cpu().silu_mul : cpu().add)({p.data() + shift, q.data() + shift, want.data(), columns}, 0, rows);
            const Device device;
            const Buffer<float> a(device, p), b(device, q), own(device, p.size());
            const Buffer<float>& y = place == 0 ? own : place == 1 ? a : b;
            const AssayBinary args{a.get() + shift, b.get() + shift, y.get() + shift, rows, columns};
            device.ok((silu ? device.module().silu_mul : device.module().add)(device, &args));
            auto got = y.download();
            got.erase(got.begin(), got.begin() + shift);
            EXPECT_TRUE(same_rows(got, want, columns)) << n << " silu " << silu << " place " << place << " shift " << shift;
          }
        }
      }
    }
  }
}

TEST(CudaGather, CopiesRows) {
  Rng rng = seeded(107);
  for (int64_t columns : {1, 3, 4, 33, 576, 1024, 1028, 5000}) {
    const int64_t of = 9, rows = uniform(rng, 1, 20);
    const auto x = inputs(rng, of * columns, Inputs::special);
    std::vector<int32_t> index;
    std::vector<float> want;
    for (int64_t i = 0; i < rows; i++) {
      index.push_back(int32_t(uniform(rng, 0, of - 1)));
      want.insert(want.end(), x.begin() + index.back() * columns, x.begin() + (index.back() + 1) * columns);
    }
    const Device device;
    const Buffer<float> dx(device, x), y(device, want.size());
    const Buffer<int32_t> di(device, index);
    const AssayGather a{dx.get(), di.get(), y.get(), rows, columns};
    device.ok(device.module().gather(device, &a));
    EXPECT_TRUE(same_rows(y.download(), want, columns)) << columns;
  }
}

TEST(CudaEmbed, WidensEveryType) {
  Rng rng = seeded(108);
  for (WeightType type : kWeightTypes) {
    for (int64_t columns : {1, 7, 12, 32, 96, 256, 257, 768, 1280, 2304}) {
      if (columns % block_elements(type) != 0) continue;
      const int64_t rows = uniform(rng, 1, 12);
      const HostWeight table = random_weight(rng, type, 9, columns, Weights::odd);
      std::vector<int32_t> ids;
      for (int64_t i = 0; i < rows; i++) ids.push_back(int32_t(uniform(rng, 0, 8)));
      auto want = poisoned(rows * columns);
      cpu().embed({table.matrix, ids.data(), want.data()}, 0, rows);
      const Device device;
      const PackedWeight packed(device, table.matrix);
      const Buffer<int32_t> di(device, ids);
      const Buffer<float> y(device, want.size());
      const AssayEmbed a{packed.get(), di.get(), y.get(), rows};
      device.ok(device.module().embed(device, &a));
      EXPECT_TRUE(same_rows(y.download(), want, columns)) << name_of(type) << " " << columns;
    }
  }
}

// ---- argmax

int32_t reference_argmax(const float* x, int64_t columns) {
  int64_t best = 0;
  for (int64_t i = 0; i < columns; i++) {
    if (std::isnan(x[i])) return -1;
    if (x[i] > x[best]) best = i;
  }
  return int32_t(best);
}
/// One call over all rows; scratch or not.
void check_argmax(const std::vector<float>& x, int64_t columns, bool scratch, const char* what) {
  const int64_t rows = int64_t(x.size()) / columns;
  std::vector<int32_t> want;
  for (int64_t i = 0; i < rows; i++) want.push_back(reference_argmax(x.data() + i * columns, columns));
  const Device device;
  if (scratch) device.reserve({rows, 64, 2, 32, 64, 0, 0});
  const Buffer<float> dx(device, x);
  const Buffer<int32_t> ids(device, size_t(rows));
  const AssayArgmax a{dx.get(), ids.get(), rows, columns};
  device.ok(device.module().argmax(device, &a));
  EXPECT_EQ(ids.download(), want) << what << " " << rows << " x " << columns << " " << device.variant();
}

TEST(CudaArgmax, TakesTheLargestAndTheLowerOfTies) {
  Rng rng = seeded(109);
  for (int64_t columns : {1, 2, 31, 255, 1000, 1024, 4096, 20000, 40003}) {
    for (bool scratch : {false, true}) {
      const int64_t rows = uniform(rng, 1, 5), n = rows * columns;
      auto any = [&] { return size_t(uniform(rng, 0, n - 1)); };
      auto x = inputs(rng, n, Inputs::wide);
      check_argmax(x, columns, scratch, "numbers");
      for (float& v : x) v = float(uniform(rng, -1, 1));
      check_argmax(x, columns, scratch, "ties");
      for (float& v : x) v = uniform(rng, 0, 1) ? 0.0f : -0.0f;
      check_argmax(x, columns, scratch, "zeros of both signs");
      for (float& v : x) v = -kInf;
      check_argmax(x, columns, scratch, "-Inf alone");
      x[any()] = -3e38f;
      check_argmax(x, columns, scratch, "one above -Inf");
      x[any()] = kInf, x[any()] = kInf;
      check_argmax(x, columns, scratch, "Inf");
      x[any()] = kNan, x[any()] = -kNan;
      check_argmax(x, columns, scratch, "NaN");
    }
  }
}

TEST(CudaArgmax, TakesAWholeVocabulary) {
  Rng rng = seeded(110);
  auto x = inputs(rng, 151936);
  check_argmax(x, 151936, true, "vocabulary");
  std::fill(x.begin(), x.end(), 2.0f);
  x[151935] = 2.5f;
  check_argmax(x, 151936, true, "last");
  x[7] = 2.5f;
  check_argmax(x, 151936, true, "tie across parts");
  x[100000] = kNan;
  check_argmax(x, 151936, true, "NaN in another part");
}

// ---- what holds for all

TEST(CudaSimpleOps, NoRowsAreNoWork) {
  const Device device;
  const AssayModule& m = device.module();
  const AssayNorm norm{nullptr, nullptr, nullptr, 0, 64, 0, 0, 1e-6f, 0};
  const AssayRope rope{nullptr, nullptr, nullptr, nullptr, nullptr, 0, 2, 64, 64};
  const AssayBinary binary{nullptr, nullptr, nullptr, 0, 64};
  const AssayGather gather{nullptr, nullptr, nullptr, 0, 64};
  const AssayArgmax argmax{nullptr, nullptr, 0, 64};
  const AssayKvStore store{nullptr, nullptr, nullptr, {ASSAY_F16, 0, 1, 1, 8, 64, nullptr, nullptr}, 0, nullptr};
  const AssayEmbed embed{{ASSAY_F32, 0, 4, 64, nullptr}, nullptr, nullptr, 0};
  AssayHeads heads{};
  heads.cache = store.cache;
  heads.heads = 1;
  device.ok(m.norm(device, &norm));
  device.ok(m.rope(device, &rope));
  device.ok(m.silu_mul(device, &binary));
  device.ok(m.add(device, &binary));
  device.ok(m.gather(device, &gather));
  device.ok(m.argmax(device, &argmax));
  device.ok(m.kv_store(device, &store));
  device.ok(m.embed(device, &embed));
  device.ok(m.heads(device, &heads));
  EXPECT_EQ(device.counters().launches, 0u);
}

TEST(CudaSimpleOps, WhatTheyCannotDoIsRefused) {
  const Device device;
  const AssayModule& m = device.module();
  const AssayRope odd{nullptr, nullptr, nullptr, nullptr, nullptr, 1, 2, 64, 33};
  const AssayRope wide{nullptr, nullptr, nullptr, nullptr, nullptr, 1, 2, 64, 66};
  EXPECT_EQ(m.rope(device, &odd), ASSAY_REFUSED);
  EXPECT_EQ(m.rope(device, &wide), ASSAY_REFUSED);
  const AssayKvStore store{nullptr, nullptr, nullptr, {ASSAY_Q8_0, 0, 1, 1, 8, 64, nullptr, nullptr}, 1, nullptr};
  EXPECT_EQ(m.kv_store(device, &store), ASSAY_REFUSED);
  AssayHeads heads{};
  heads.rows = heads.heads = 1;
  heads.cache = {ASSAY_F16, 0, 1, 1, 8, 64, nullptr, nullptr};
  heads.rotary = 65;
  EXPECT_EQ(m.heads(device, &heads), ASSAY_REFUSED);
  heads.rotary = 64;
  heads.cache.head_dim = 1 << 20;
  EXPECT_EQ(m.heads(device, &heads), ASSAY_REFUSED);
  const AssayEmbed embed{{ASSAY_Q4_K, 0, 4, 64, nullptr}, nullptr, nullptr, 1};
  EXPECT_EQ(m.embed(device, &embed), ASSAY_REFUSED);
  const AssayArgmax none{nullptr, nullptr, 1, 0};
  EXPECT_EQ(m.argmax(device, &none), ASSAY_REFUSED);
  EXPECT_EQ(device.counters().launches, 0u);
}

/// A captured chain is replayed with other ids and places: nothing of them may have been kept.
TEST(CudaSimpleOps, ACapturedChainFollowsIdsAndPlaces) {
  Rng rng = seeded(111);
  State s(rng, KvType::f16, 64, 3, 64);
  const int64_t heads = s.kv_heads, columns = heads * 64, vocabulary = 11;
  const HostWeight table = random_weight(rng, WeightType::bf16, vocabulary, columns);
  const auto weight = inputs(rng, columns), head_weight = inputs(rng, 64);
  const Device device;
  const AssayModule& m = device.module();
  device.reserve({s.rows, columns, heads, 64, s.context, 0, 0});
  const PackedWeight packed(device, table.matrix);
  Buffer<int32_t> ids(device, std::vector<int32_t>(size_t(s.rows), 0));
  Buffer<AssayPlace> places(device, s.device_places());
  const Buffer<std::byte> cache_k(device, s.k), cache_v(device, s.v);
  const Buffer<float> embedded(device, size_t(s.rows * columns)), normed(device, size_t(s.rows * columns));
  const Buffer<float> out(device, size_t(s.rows * columns)), w(device, weight), hw(device, head_weight);
  const Buffer<float> cos(device, s.cos), sin(device, s.sin);
  const Buffer<int32_t> chosen(device, size_t(s.rows));
  const Buffer<int64_t> seen(device, std::vector<int64_t>{kNoOverflow});
  device.finish();

  const AssayEmbed embed{packed.get(), ids.get(), embedded.get(), s.rows};
  const AssayNorm norm{embedded.get(), w.get(), normed.get(), s.rows, columns, 0, 0, 1e-6f, 0};
  const AssayHeads turn{normed.get(), normed.get(), embedded.get(), hw.get(), hw.get(), out.get(), places.get(), cos.get(),
                        sin.get(), s.cache(cache_k.get(), cache_v.get()), s.rows, heads, 64, 1e-6f, 0, seen.get()};
  const AssayArgmax argmax{out.get(), chosen.get(), s.rows, columns};
  device.ok(m.capture_begin(device));
  device.ok(m.embed(device, &embed));
  device.ok(m.norm(device, &norm));
  device.ok(m.heads(device, &turn));
  device.ok(m.argmax(device, &argmax));
  void* graph = nullptr;
  device.ok(m.capture_end(device, &graph));

  for (int step = 0; step < 3; step++) {
    std::vector<int32_t> host_ids;
    for (int64_t i = 0; i < s.rows; i++) host_ids.push_back(int32_t(uniform(rng, 0, vocabulary - 1)));
    s.place_rows();
    ids.upload(host_ids);
    places.upload(s.device_places());
    device.ok(m.replay(device, graph));

    const int64_t n = s.rows * columns;
    std::vector<float> e(static_cast<size_t>(n)), r = e, h = e, want = e;
    cpu().embed({table.matrix, host_ids.data(), e.data()}, 0, s.rows);
    cpu().rms_norm({e.data(), weight.data(), r.data(), columns, 0, 0, 1e-6f}, 0, s.rows);
    cpu().head_norm({r.data(), head_weight.data(), h.data(), 0, heads, 64, 1e-6f}, 0, s.rows);
    cpu().rope({h.data(), want.data(), s.positions.data(), s.cos.data(), s.sin.data(), heads, 64, 64}, 0, s.rows);
    int64_t overflow = kNoOverflow;
    cpu().kv_store({want.data(), e.data(), s.places.data(), s.layer(), s.rows, &overflow}, 0, s.rows);
    EXPECT_TRUE(same_rows(out.download(), want, columns)) << "step " << step;
    EXPECT_TRUE(same_cache(cache_k.download(), s.k, 2)) << "step " << step;
    EXPECT_TRUE(same_cache(cache_v.download(), s.v, 2)) << "step " << step;
    std::vector<int32_t> best;
    for (int64_t i = 0; i < s.rows; i++) best.push_back(reference_argmax(want.data() + i * columns, columns));
    EXPECT_EQ(chosen.download(), best) << "step " << step;
  }
  m.release_graph(device, graph);
}

}  // namespace
}  // namespace assay::test
