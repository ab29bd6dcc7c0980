// Kernel scope: kv_store and attention. What lies beyond each slot's length, and the other slots, is NaN: it must stay
// untouched and have no influence.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "conformance/kernel/bounds.h"
#include "conformance/kernel/kernel_check.h"
#include "conformance/kernel/matrices.h"

namespace assay {
namespace {

constexpr KvType kKvTypes[] = {KvType::f32, KvType::f16, KvType::bf16};
constexpr int64_t kSlots = 2, kSlot = 1, kKvHeads = 2, kHeads = 6;

struct Cache {
  KvLayer layer;
  std::vector<std::byte> k, v;
  Cache(KvType type, int64_t context, int64_t head_dim)
      : k(size_t(kSlots * kKvHeads * context * head_dim) * size_of(type), std::byte(0xff)), v(k) {
    layer = {type, kSlots, kKvHeads, context, head_dim, k.data(), v.data()};
  }
};

/// The rows of the slot as their bits say: [rows, kv_heads*head_dim].
oracle::Matrix64 stored(const KvLayer& c, const std::byte* half, int64_t rows) {
  const WeightType type = c.type == KvType::f32   ? WeightType::f32
                          : c.type == KvType::f16 ? WeightType::f16
                                                  : WeightType::bf16;
  oracle::Matrix64 m(rows, c.kv_heads * c.head_dim);
  for (int64_t p = 0; p < rows; p++)
    for (int64_t h = 0; h < c.kv_heads; h++)
      oracle::widen(type, half + size_t(c.offset(kSlot, h, p)) * size_of(c.type), c.head_dim,
                    m.row(p) + h * c.head_dim);
  return m;
}

/// Stores rows of one slot at positions from 0 on; returns what kv_store said of overflow.
int64_t store(const Kernels& kernels, const std::vector<float>& k, const std::vector<float>& v, Cache& cache,
              int64_t rows, int64_t cut) {
  std::vector<RowPlace> places;
  for (int64_t p = 0; p < rows; p++) places.push_back({int32_t(kSlot), p});
  int64_t overflow = std::numeric_limits<int64_t>::max();
  const KvStoreArgs a{k.data(), v.data(), places.data(), cache.layer, rows, &overflow};
  kernels.kv_store(a, 0, cut);
  kernels.kv_store(a, cut, rows);
  return overflow;
}

void run_store(KernelBench& b, KvType type, int64_t head_dim, int64_t rows, Values kind) {
  const int64_t columns = kKvHeads * head_dim, context = rows + 3;
  std::vector<float> k = kernel_values(b.rng(), size_t(rows * columns), kind),
                     v = kernel_values(b.rng(), size_t(rows * columns), kind);
  if (kind == Values::equal)  // ties of both rounded types, and the edges of binary16, an Inf beside one that overflows
    for (size_t i = 0; i < k.size(); i++) {
      constexpr float kEdges[] = {0x1.002p0f, 0x1.006p0f, 0x1.01p0f, 0x1.03p0f, 65504.0f,
                                  65519.0f,   -65504.0f,  0x1p-24f,  0x1p-25f,  0x1.8p-25f,
                                  65520.0f,   std::numeric_limits<float>::infinity()};
      k[i] = kEdges[i % std::size(kEdges)];
    }
  Cache want(type, context, head_dim), got(type, context, head_dim);
  const int64_t scalar = store(b.scalar, k, v, want, rows, 0),
                target = store(b.target, k, v, got, rows, int64_t(b.rng()() % uint64_t(rows + 1)));
  b.bytes("k", want.k, got.k);  // with the poison around the rows
  b.bytes("v", want.v, got.v);
  if (b.refused()) return;
  if (scalar != target) b.fail(fmt::format("overflow seen at {}, scalar {}", target, scalar));
  const oracle::Matrix64 held[2] = {stored(got.layer, got.layer.k, rows), stored(got.layer, got.layer.v, rows)};
  int64_t first = std::numeric_limits<int64_t>::max();
  for (int half = 0; half < 2; half++)
    for (int64_t i = 0; i < rows * columns; i++) {
      const float x = half ? v[size_t(i)] : k[size_t(i)];
      const double rounded = oracle::round_to(type, x);
      if (std::isfinite(x) && std::isinf(rounded)) first = std::min(first, half * rows * columns + i);
      b.bound(held[half].v[size_t(i)], rounded, 0, i / columns, i % columns);
    }
  if (type == KvType::f16 && target != first)
    b.fail(fmt::format("overflow seen at {}, first value beyond binary16 at {}", target, first));
}

void run_attention(KernelBench& b, KvType type, int64_t head_dim, int64_t length, Values kind) {
  const int64_t columns = kKvHeads * head_dim, context = length + 3;
  // Values of a cache are what it can hold; huge ones are huge as scores.
  const Values cached = kind == Values::huge || kind == Values::mixed ? Values::normal : kind;
  std::vector<float> k = kernel_values(b.rng(), size_t(length * columns), cached),
                     v = kernel_values(b.rng(), size_t(length * columns), cached),
                     q = kernel_values(b.rng(), size_t(2 * kHeads * head_dim),
                                       kind == Values::non_finite ? Values::normal : kind);
  if (kind == Values::huge)
    for (float& x : q) x *= 0x1p-50f;  // scores of some thousands: all but one p vanish
  Cache want(type, context, head_dim), got(type, context, head_dim);
  store(b.scalar, k, v, want, length, 0);
  store(b.scalar, k, v, got, length, 0);
  const RowPlace asked[2] = {{int32_t(kSlot), length - 1}, {int32_t(kSlot), length / 2}};
  const auto run = [&](const Kernels& kernels, const Cache& cache, int64_t cut) {
    std::vector<float> y = unwritten(q.size()), scratch = unwritten(size_t(attention_scratch_floats(length, head_dim)));
    const AttentionArgs a{q.data(), y.data(), asked, cache.layer, kHeads, float(1.0 / std::sqrt(double(head_dim)))};
    kernels.attention(a, 0, cut, scratch.data());
    kernels.attention(a, cut, 2 * kHeads, scratch.data());
    return y;
  };
  const std::vector<float> scalar = run(b.scalar, want, 0),
                           y = run(b.target, got, int64_t(b.rng()() % uint64_t(2 * kHeads + 1)));
  b.bytes("element", scalar, y);
  b.sums(length + head_dim);

  const oracle::Matrix64 k64 = stored(got.layer, got.layer.k, length), v64 = stored(got.layer, got.layer.v, length);
  const int64_t positions[2] = {asked[0].position, asked[1].position};
  const oracle::Matrix64 q64 = widened(q, 2);
  const oracle::Matrix64 exact = oracle::attention(q64, k64, v64, positions, kHeads, kKvHeads, head_dim, 1);
  const oracle::AttentionMagnitude m =
      oracle::attention_magnitude(q64, k64, v64, positions, kHeads, kKvHeads, head_dim, 1);
  b.bounds(
      y, 2, kHeads * head_dim, [&](int64_t r, int64_t c) { return exact.at(r, c); },
      [&](int64_t r, int64_t c) {
        const int64_t h = c / head_dim;
        return bounds::attention(positions[r] + 1, head_dim, m.qk.at(r, h) / std::sqrt(double(head_dim)),
                                 m.score.at(r, h), m.spread.at(r, h), m.mixed.at(r, c));
      });
}

}  // namespace

void kv_store_cases(KernelBench& b) {
  for (KvType type : kKvTypes)
    for (int64_t d : {1, 16, 33, 40, 96, 128, 256})
      for (int64_t rows : {1, 9})
        for (Values kind : kAllValues)
          if (b.next(fmt::format("kv {} head_dim {} rows {}, {}", name_of(type), d, rows, name_of(kind))))
            run_store(b, type, d, rows, kind);
}

void attention_cases(KernelBench& b) {
  int turn = 0;
  for (KvType type : kKvTypes)
    for (int64_t d : {1, 16, 33, 40, 96, 128, 256})
      for (int64_t length : {1, 2, 31, 33, 255, 256, 257, 600}) {
        const Values kind = kAllValues[turn++ % int(std::size(kAllValues))];
        if (b.next(fmt::format("kv {} head_dim {} length {}, {}", name_of(type), d, length, name_of(kind))))
          run_attention(b, type, d, length, kind);
      }
}

}  // namespace assay
