// What no kernel does is refused before anything is queued, so that the caller's CPU does it: each op is asked for something that
// it would do, with one thing about it changed.
#include <functional>

#include "cuda/test_support.h"

namespace assay::test {
namespace {

constexpr int64_t kHuge = int64_t(1) << 40;

class Refusals : public testing::Test {
 protected:
  const Device d;
  const AssayModule& m = Device::module();
  const Buffer<float> memory{d, 4096};  // aligned to 256; no kernel gets as far as to read it
  const Buffer<AssayPlace> places{d, std::vector<AssayPlace>(4, AssayPlace{0, 0, 3})};

  template <class Args>
  void refused(int (*op)(AssayDevice*, const Args*), const Args& base, const std::vector<std::function<void(Args&)>>& changes) {
    const auto before = d.counters().launches;
    for (size_t i = 0; i < changes.size(); i++) {
      Args a = base;
      changes[i](a);
      EXPECT_EQ(op(d, &a), ASSAY_REFUSED) << "change " << i;
    }
    EXPECT_EQ(d.counters().launches, before);
  }
  float* at(int64_t element = 0) const { return memory.get() + element; }
  AssayWeight weight(int32_t type, int64_t rows = 8, int64_t columns = 256) const { return {type, 0, rows, columns, at()}; }
  AssayCache cache() const { return {ASSAY_F16, 0, 1, 2, 16, 32, at(), at()}; }
  AssayLinear linear(int32_t type, int64_t rows, int count) const {
    AssayLinear a{};
    a.activations = ASSAY_ACTIVATIONS_S16;
    a.count = count;
    for (int i = 0; i < count; i++) a.w[i] = weight(type), a.y[i] = at();
    a.x = at();
    a.rows = rows;
    return a;
  }
  AssayHeads heads(int64_t rows) const {
    return {at(), at(), at(), nullptr, nullptr, at(), places.get(), at(), at(), cache(), rows, 2, 16, 1e-6f, 0, nullptr};
  }
};

TEST_F(Refusals, OfOpsWithoutSums) {
  using E = AssayEmbed;
  refused<E>(m.embed, {weight(ASSAY_Q4_K), nullptr, at(), 1},
             {[](E& a) { a.table.type = -1; }, [](E& a) { a.table.type = ASSAY_TYPES; }, [](E& a) { a.table.rows = 0; },
              [](E& a) { a.table.columns = 0; }, [](E& a) { a.table.columns = 64; }, [](E& a) { a.rows = kHuge; }});
  using R = AssayRope;
  refused<R>(m.rope, {at(), at(), places.get(), at(), at(), 1, 2, 32, 32},
             {[](R& a) { a.rotary = -2; }, [](R& a) { a.rotary = 31; }, [](R& a) { a.rotary = 34; }, [](R& a) { a.heads = 0; },
              [](R& a) { a.rows = kHuge; }});
  using K = AssayKvStore;
  refused<K>(m.kv_store, {at(), at(), places.get(), cache(), 1, nullptr},
             {[](K& a) { a.cache.type = ASSAY_Q8_0; }, [](K& a) { a.cache.kv_heads = 0; }, [](K& a) { a.rows = kHuge; }});
  using H = AssayHeads;
  refused<H>(m.heads, heads(1),
             {[](H& a) { a.cache.type = ASSAY_Q8_0; }, [](H& a) { a.cache.head_dim = 0; }, [](H& a) { a.cache.head_dim = 1 << 20; },
              [](H& a) { a.heads = 0; }, [](H& a) { a.cache.kv_heads = 0; }, [](H& a) { a.rotary = -2; }, [](H& a) { a.rotary = 15; },
              [](H& a) { a.rotary = 34; }, [](H& a) { a.rows = kHuge; }});
  using B = AssayBinary;
  for (auto* op : {m.add, m.silu_mul}) refused<B>(op, {at(), at(), at(), 1, 64}, {[](B& a) { a.rows = kHuge; }});
  using G = AssayGather;
  refused<G>(m.gather, {at(), nullptr, at(), 1, 64}, {[](G& a) { a.rows = kHuge; }});
  const G none{at(), nullptr, at(), 1, 0};
  EXPECT_EQ(m.gather(d, &none), ASSAY_DONE);
  using A = AssayArgmax;
  refused<A>(m.argmax, {at(), nullptr, 1, 64},
             {[](A& a) { a.columns = 0; }, [](A& a) { a.columns = kHuge; }, [](A& a) { a.rows = kHuge; }});
}

TEST_F(Refusals, OfNormsAndAttention) {
  using N = AssayNorm;
  refused<N>(m.norm, {at(), at(), at(), 1, 64, 0, 0, 1e-6f, 0}, {[](N& a) { a.rows = kHuge; }, [](N& a) { a.columns = 0; }});
  refused<N>(m.norm, {at(), at(), at(), 1, 64, 2, 32, 1e-6f, 0}, {[](N& a) { a.rows = kHuge; }, [](N& a) { a.head_dim = 0; }});
  using A = AssayAttention;
  AssayHeads odd = heads(1);
  odd.rotary = 15;
  refused<A>(m.attention, {at(), at(), places.get(), cache(), 1, 4, 4, 0.1f, 0, nullptr},
             {[](A& a) { a.cache.type = ASSAY_Q8_0; }, [](A& a) { a.cache.kv_heads = 0; }, [](A& a) { a.heads = 3; },
              [](A& a) { a.rows = -1; }, [](A& a) { a.longest = 0; }, [](A& a) { a.longest = 17; }, [](A& a) { a.rows = 1 << 30; },
              [](A& a) { a.cache.head_dim = 20000; }, [&](A& a) { a.heads_of = &odd; }});
}

TEST_F(Refusals, OfProducts) {
  using L = AssayLinear;
  const std::vector<std::function<void(L&)>> any = {
      [](L& a) { a.count = 0; }, [](L& a) { a.count = 4; }, [](L& a) { a.rows = -1; }, [](L& a) { a.w[0].type = -1; },
      [](L& a) { a.w[1].type = ASSAY_TYPES; }, [](L& a) { a.w[0].columns = 0; }, [](L& a) { a.w[1].columns = 512; },
      [](L& a) { a.w[0].rows = 0; }, [](L& a) { a.residual = a.x; }};
  refused<L>(m.linear, linear(ASSAY_F16, 3, 2), any);
  refused<L>(m.linear, linear(ASSAY_F16, 3, 1),
             {[](L& a) { a.norm = a.x; }, [](L& a) { a.gated = 1; }, [](L& a) { a.w[0].columns = kHuge; }, [](L& a) { a.rows = kHuge; },
              [](L& a) { a.w[0].rows = kHuge; }, [](L& a) { a.w[0].rows = a.rows = 1 << 24; },
              [](L& a) { a.w[0].type = ASSAY_Q4_K, a.w[0].columns = 288, a.activations = ASSAY_ACTIVATIONS_F32; }});
  for (const int64_t rows : {1, 3, 40}) {
    refused<L>(m.linear, linear(ASSAY_Q4_K, rows, 2), any);
    refused<L>(m.linear, linear(ASSAY_Q4_K, rows, 2),
               {[](L& a) { a.w[1].type = ASSAY_F16; }, [](L& a) { a.activations = 7; }, [](L& a) { a.w[0].columns = a.w[1].columns = kHuge; }, [](L& a) { a.w[0].rows = kHuge; }, [](L& a) { a.x++; },
                [](L& a) { a.norm = a.x + 1; }, [](L& a) { a.w[1].data = a.x + 4; }});
  }
  refused<L>(m.linear, linear(ASSAY_Q4_K, 3, 2),
             {[](L& a) { a.gated = 1; }, [](L& a) { a.rows = kHuge; }, [](L& a) { a.w[0].columns = a.w[1].columns = 288; }});
  refused<L>(m.linear, linear(ASSAY_Q4_K, 1, 2), {[](L& a) { a.gated = 1, a.w[1].rows = 16; }, [](L& a) { a.gated = 1, a.residual = a.x; }});
}

/// An op allocates nothing: without reserve() it fails with words.
TEST_F(Refusals, WhatNeedsScratchSaysSo) {
  const AssayAttention attention{at(), at(), places.get(), cache(), 1, 4, 4, 0.1f, 0, nullptr};
  EXPECT_EQ(m.attention(d, &attention), ASSAY_ERROR);
  EXPECT_NE(d.error().find("scratch reserved"), std::string::npos) << d.error();
  const AssayLinear product = linear(ASSAY_Q4_K, 3, 2);
  EXPECT_EQ(m.linear(d, &product), ASSAY_ERROR);
  EXPECT_NE(d.error().find("bytes of scratch"), std::string::npos) << d.error();
}

/// With no rows a product is asked whether it would be done.
TEST_F(Refusals, AProductThatIsOnlyAskedForIsAnswered) {
  for (const int gated : {0, 1}) {
    AssayLinear a = linear(ASSAY_Q4_K, 0, 2);
    a.gated = gated;
    EXPECT_EQ(m.linear(d, &a), ASSAY_DONE) << gated;
    a.w[1].columns = 512;
    EXPECT_EQ(m.linear(d, &a), ASSAY_REFUSED) << gated;
  }
  const AssayLinear floats = linear(ASSAY_BF16, 0, 2);
  EXPECT_EQ(m.linear(d, &floats), ASSAY_DONE);
}

}  // namespace
}  // namespace assay::test
