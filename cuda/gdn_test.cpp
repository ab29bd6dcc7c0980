// The ops of gated DeltaNet layers and of gated attention, byte for byte against the scalar kernels of engine/ops:
// outputs, and the states that conv and delta_rule leave.
#include <algorithm>

#include "cuda/test_support.h"

namespace assay::test {
namespace {

constexpr Inputs kInputs[] = {Inputs::plain, Inputs::wide, Inputs::special};
const Kernels& cpu() {
  return kernels(Isa::scalar);
}
std::vector<float> poisoned(int64_t n) {
  return std::vector<float>(size_t(n), std::numeric_limits<float>::quiet_NaN());
}

TEST(CudaGdn, NormsPerHeadHaveTheBytesOfTheScalar) {
  Rng rng = seeded(401);
  for (int64_t dim : {1, 16, 24, 31, 32, 33, 96, 128, 255, 256, 257, 300})
    for (Inputs kind : kInputs) {
      const int64_t rows = uniform(rng, 1, 4), heads = uniform(rng, 1, 9), wide = heads * dim + uniform(rng, 0, 7);
      const int64_t first = wide - heads * dim, stride = dim + uniform(rng, 0, 5), n = rows * heads * dim;
      const auto x = inputs(rng, rows * wide, kind), w = inputs(rng, dim), z = inputs(rng, n, kind),
                 core = inputs(rng, n, kind), apart = inputs(rng, rows * heads * stride, kind);
      const float scale = float(1.0 / std::sqrt(double(dim))), eps = 1e-6f;
      auto l2 = poisoned(n), gated = l2, rms = l2;
      cpu().l2_norm({x.data() + first, l2.data(), wide, heads, dim, scale}, 0, rows);
      cpu().gated_norm({core.data(), z.data(), w.data(), gated.data(), heads, dim, eps}, 0, rows);
      cpu().head_norm({apart.data(), w.data(), rms.data(), heads * dim, heads, dim, eps, heads * stride, stride}, 0,
                      rows);
      const Device d;
      const Buffer<float> dx(d, x), dw(d, w), dz(d, z), dcore(d, core), dapart(d, apart), y(d, size_t(n));
      const AssayL2Norm a{dx.get() + first, y.get(), rows, wide, heads, dim, scale, 0};
      d.ok(d.module().l2_norm(d, &a));
      EXPECT_TRUE(same_rows(y.download(), l2, heads * dim)) << "l2 " << dim;
      const AssayGatedNorm b{dcore.get(), dz.get(), dw.get(), y.get(), rows, heads, dim, eps, 0};
      d.ok(d.module().gated_norm(d, &b));
      EXPECT_TRUE(same_rows(y.download(), gated, heads * dim)) << "gated " << dim;
      const AssayNorm c{dapart.get(), dw.get(), y.get(), rows, heads * dim, heads, dim, eps, int32_t(stride)};
      d.ok(d.module().norm(d, &c));
      EXPECT_TRUE(same_rows(y.download(), rms, heads * dim)) << "apart " << dim;
    }
}

TEST(CudaGdn, GatesAndDecayHaveTheBytesOfTheScalar) {
  Rng rng = seeded(402);
  for (int64_t columns : {1, 3, 16, 33, 256, 1000})
    for (Inputs kind : kInputs) {
      const int64_t rows = uniform(rng, 1, 5), n = rows * columns, skip = uniform(rng, 0, 3);
      auto a = inputs(rng, n + skip, kind), b = inputs(rng, n + skip, kind);
      for (float& v : b) v *= 20;  // through both tails
      const auto w = inputs(rng, 2 * columns, kind);
      auto product = poisoned(n), gate = product, decays = product;
      cpu().sigmoid_mul({a.data() + skip, b.data() + skip, product.data(), columns}, 0, rows);
      cpu().sigmoid({b.data() + skip, gate.data(), columns}, 0, rows);
      cpu().decay({b.data() + skip, w.data(), decays.data(), columns}, 0, rows);
      const Device d;
      const Buffer<float> da(d, a), db(d, b), dw(d, w), y(d, size_t(n));
      const AssayBinary mul{da.get() + skip, db.get() + skip, y.get(), rows, columns};
      d.ok(d.module().sigmoid_mul(d, &mul));
      EXPECT_TRUE(same_rows(y.download(), product, columns));
      const AssayUnary sigmoid{db.get() + skip, y.get(), rows, columns};
      d.ok(d.module().sigmoid(d, &sigmoid));
      EXPECT_TRUE(same_rows(y.download(), gate, columns));
      const AssayDecay decay{db.get() + skip, dw.get(), y.get(), rows, columns};
      d.ok(d.module().decay(d, &decay));
      EXPECT_TRUE(same_rows(y.download(), decays, columns));
    }
}

TEST(CudaGdn, ColumnsGoWhereTheirRunsSay) {
  Rng rng = seeded(403);
  const int64_t rows = 5, heads = 3, width = 7;
  const auto a = inputs(rng, rows * heads * 2 * width, Inputs::special), b = inputs(rng, rows * 11);
  std::vector<float> want;
  for (int64_t t = 0; t < rows; t++) {
    for (int64_t h = 0; h < heads; h++)
      for (int64_t i = 0; i < width; i++) want.push_back(a[size_t(t * heads * 2 * width + width + h * 2 * width + i)]);
    for (int64_t i = 0; i < 11; i++) want.push_back(b[size_t(t * 11 + i)]);
  }
  const Device d;
  const Buffer<float> da(d, a), db(d, b), y(d, want.size());
  AssayColumns c{};
  c.count = 2;
  c.runs[0] = {da.get(), heads * 2 * width, width, 2 * width, 0, heads, width};
  c.runs[1] = {db.get(), 11, 0, 0, heads * width, 1, 11};
  c.y = y.get(), c.rows = rows, c.columns = heads * width + 11;
  d.ok(d.module().columns(d, &c));
  EXPECT_TRUE(same_rows(y.download(), want, c.columns));
  c.count = 5;
  EXPECT_EQ(d.module().columns(d, &c), ASSAY_REFUSED);
}

/// Sequences of some rows each, in slots of their own, and where their states go: entries of a device, slots of the
/// host.
struct Sequences {
  std::vector<RowSpan> spans;
  std::vector<AssaySpan> on_device;
  std::vector<int32_t> after;  // every row's where all are kept
  int64_t rows = 0, entries = 0;
  Sequences(Rng& rng, std::initializer_list<int64_t> lengths, bool all_kept) {
    int32_t slots = 0;
    for (int64_t n : lengths) {
      spans.push_back({slots, rows, n});
      on_device.push_back({slots++, 0, rows, n});
      rows += n;
    }
    std::shuffle(spans.begin(), spans.end(),
                 rng);  // in which slot a sequence is has nothing to do with its place in the pass
    for (size_t i = 0; i < spans.size(); i++) on_device[i] = {spans[i].slot, 0, spans[i].first, spans[i].rows};
    entries = slots;
    after.assign(size_t(rows), -1);
    for (const RowSpan& s : spans)
      for (int64_t r = 0; r < s.rows; r++) {
        const bool last = r + 1 == s.rows;
        if (all_kept) after[size_t(s.first + r)] = int32_t(entries++);
        if (!all_kept && last) after[size_t(s.first + r)] = s.slot;
      }
  }
};

struct StateShape {
  int64_t width, channels, k_heads, v_heads, d_k, d_v;
};

/// A pass over `q` by the scalar kernels, row after row, and by the device: outputs and the state behind every row that
/// is kept.
void check_conv(Rng& rng, const StateShape& s, const Sequences& q, Inputs kind) {
  const int64_t n = q.rows * s.channels, floats = s.width * s.channels, stride = floats + 64;
  const auto x = inputs(rng, n, kind), w = inputs(rng, floats);
  auto states = inputs(rng, q.entries * stride);
  if (kind == Inputs::special) states[0] = std::numeric_limits<float>::quiet_NaN();
  auto want = poisoned(n), want_states = states;
  for (const RowSpan& span : q.spans) {
    std::vector<float> state(&states[size_t(span.slot * stride)], &states[size_t(span.slot * stride)] + floats);
    for (int64_t r = 0; r < span.rows; r++) {
      const RowSpan one{0, span.first + r, 1};
      cpu().conv({x.data(), w.data(), want.data(), state.data(), &one, s.channels, s.width}, 0,
                 conv_blocks(s.channels));
      if (const int32_t entry = q.after[size_t(span.first + r)]; entry >= 0)
        std::copy(state.begin(), state.end(), &want_states[size_t(entry * stride)]);
    }
  }
  const Device d;
  const Buffer<float> dx(d, x), dw(d, w), dy(d, size_t(n)), ds(d, states);
  const Buffer<AssaySpan> spans(d, q.on_device);
  const Buffer<int32_t> after(d, q.after);
  const AssayStates on{q.entries, s.width,  s.channels, 0,           0,           0,
                       stride,    ds.get(), nullptr,    spans.get(), after.get(), int64_t(q.spans.size())};
  const AssayConv a{dx.get(), dw.get(), dy.get(), q.rows, on};
  d.ok(d.module().conv(d, &a));
  EXPECT_TRUE(same_rows(dy.download(), want, s.channels)) << "width " << s.width << ", channels " << s.channels;
  const auto got = ds.download();
  EXPECT_EQ(std::memcmp(got.data(), want_states.data(), got.size() * sizeof(float)), 0)
      << "states, width " << s.width << ", channels " << s.channels;
}

TEST(CudaGdn, ConvHasTheBytesOfTheScalarAndLeavesItsState) {
  Rng rng = seeded(404);
  for (int64_t width : {1, 2, 3, 4, 5, 6, 7, 8})
    for (bool all_kept : {false, true})
      for (int64_t channels : {1, 40, 130})
        check_conv(rng, {width, channels, 0, 0, 0, 0}, {rng, {1, 5, 2}, all_kept}, kInputs[uniform(rng, 0, 2)]);
  for (int64_t rows : {31, 32, 33, 64, 70})
    check_conv(rng, {4, 33, 0, 0, 0, 0}, {rng, {rows, 3, 35}, rows % 2 == 0}, kInputs[rows % 3]);
}

void check_delta_rule(Rng& rng, const StateShape& s, const Sequences& q, Inputs kind) {
  const int64_t keys = s.k_heads * s.d_k, values = s.v_heads * s.d_v, floats = s.v_heads * s.d_k * s.d_v,
                stride = floats + 64;
  const auto query = inputs(rng, q.rows * keys, kind), key = inputs(rng, q.rows * keys, kind),
             v = inputs(rng, q.rows * values, kind), beta = inputs(rng, q.rows * s.v_heads);
  auto decay = inputs(rng, q.rows * s.v_heads, kind);
  for (float& g : decay) g = kind == Inputs::plain ? -std::fabs(g) : g;
  auto states = inputs(rng, q.entries * stride);
  auto want = poisoned(q.rows * values), want_states = states;
  for (const RowSpan& span : q.spans) {
    std::vector<float> state(&states[size_t(span.slot * stride)], &states[size_t(span.slot * stride)] + floats);
    for (int64_t r = 0; r < span.rows; r++) {
      const RowSpan one{0, span.first + r, 1};
      cpu().delta_rule({query.data(), key.data(), v.data(), beta.data(), decay.data(), want.data(), state.data(), &one,
                        s.k_heads, s.v_heads, s.d_k, s.d_v},
                       0, s.v_heads * delta_blocks(s.d_v));
      if (const int32_t entry = q.after[size_t(span.first + r)]; entry >= 0)
        std::copy(state.begin(), state.end(), &want_states[size_t(entry * stride)]);
    }
  }
  const Device d;
  const Buffer<float> dq(d, query), dk(d, key), dv(d, v), dbeta(d, beta), ddecay(d, decay), dy(d, want.size()),
      ds(d, states);
  const Buffer<AssaySpan> spans(d, q.on_device);
  const Buffer<int32_t> after(d, q.after);
  const AssayStates on{q.entries, 0,       0,        s.v_heads,   s.d_k,       s.d_v,
                       stride,    nullptr, ds.get(), spans.get(), after.get(), int64_t(q.spans.size())};
  const AssayDeltaRule a{dq.get(), dk.get(), dv.get(), dbeta.get(), ddecay.get(), dy.get(), q.rows, s.k_heads,
                         on,       nullptr,  nullptr,  nullptr,     nullptr,      0,        0};
  d.ok(d.module().delta_rule(d, &a));
  EXPECT_TRUE(same_rows(dy.download(), want, values))
      << s.d_k << " x " << s.d_v << ", heads " << s.k_heads << "/" << s.v_heads;
  const auto got = ds.download();
  EXPECT_EQ(std::memcmp(got.data(), want_states.data(), got.size() * sizeof(float)), 0)
      << "states, " << s.d_k << " x " << s.d_v << ", heads " << s.k_heads << "/" << s.v_heads;
}

TEST(CudaGdn, DeltaRuleHasTheBytesOfTheScalarAndLeavesItsState) {
  Rng rng = seeded(405);
  for (int64_t d_k : {1, 16, 31, 32, 33, 64, 96, 100, 128, 129, 160, 192, 200, 224, 256})
    for (Inputs kind : kInputs) {
      const int64_t k_heads = uniform(rng, 1, 2), group = uniform(rng, 1, 3);
      check_delta_rule(rng, {0, 0, k_heads, k_heads * group, d_k, uniform(rng, 1, 40)},
                       {rng, {1, 3}, kind == Inputs::wide}, kind);
    }
  for (int64_t rows : {4, 5, 8, 9, 13})
    check_delta_rule(rng, {0, 0, 1, 2, 32, 33}, {rng, {rows, 2, 7}, rows % 2 == 0}, kInputs[rows % 3]);
}

TEST(CudaGdn, WhatItCantDoIsRefused) {
  const Device d;
  const auto launches = d.counters().launches;
  AssayConv c{};
  c.rows = 1;
  c.states.channels = 8, c.states.span_count = 1;
  for (int64_t width : {0, 9}) {
    c.states.width = width;
    EXPECT_EQ(d.module().conv(d, &c), ASSAY_REFUSED);
  }
  c.states.width = 4, c.rows = 0;
  EXPECT_EQ(d.module().conv(d, &c), ASSAY_DONE);
  c.states.channels = 0;
  EXPECT_EQ(d.module().conv(d, &c), ASSAY_REFUSED);
  AssayDeltaRule r{};
  r.rows = 1, r.k_heads = 2;
  r.states.k_dim = 16, r.states.v_dim = 16, r.states.v_heads = 4, r.states.span_count = 1;
  const auto refused = [&](auto change) {
    AssayDeltaRule other = r;
    change(other);
    EXPECT_EQ(d.module().delta_rule(d, &other), ASSAY_REFUSED);
  };
  refused([](auto& a) { a.states.k_dim = 257; });
  refused([](auto& a) { a.states.v_dim = 0; });
  refused([](auto& a) { a.k_heads = 3; });
  refused([](auto& a) { a.k_heads = 0; });
  refused([](auto& a) { a.conv = a.q + 1; });  // of no channels
  refused([](auto& a) { a.states.span_count = int64_t(1) << 40; });
  r.rows = 0;
  EXPECT_EQ(d.module().delta_rule(d, &r), ASSAY_DONE);
  EXPECT_EQ(d.counters().launches, launches);
}

}  // namespace
}  // namespace assay::test
