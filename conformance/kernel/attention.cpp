// Kernel scope: kv_store and attention. What lies beyond each slot's length, and the other slots, is NaN: it must stay
// untouched and have no influence.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "conformance/kernel/bounds.h"
#include "conformance/kernel/kernel_check.h"
#include "conformance/kernel/matrices.h"

namespace assay {
namespace {

constexpr KvType kKvTypes[] = {KvType::f32, KvType::f16, KvType::bf16};
constexpr int64_t kSlots = 2, kSlot = 1, kKvHeads = 2;

struct Cache {
  KvLayer layer;
  std::vector<std::byte> k, v;
  Cache(KvType type, int64_t kv_heads, int64_t context, int64_t head_dim)
      : k(size_t(kSlots * kv_heads * context * head_dim) * size_of(type), std::byte(0xff)), v(k) {
    layer = {type, kSlots, kv_heads, context, head_dim, k.data(), v.data()};
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
  Cache want(type, kKvHeads, context, head_dim), got(type, kKvHeads, context, head_dim);
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

struct AttentionCase {
  KvType type;
  int64_t head_dim, kv_heads, group;  // query heads of a kv head
  std::vector<int64_t> positions;     // of the rows that ask
  Values values;
};

void run_attention(KernelBench& b, const AttentionCase& a) {
  const int64_t head_dim = a.head_dim, kv_heads = a.kv_heads, heads = kv_heads * a.group, rows = int64_t(a.positions.size());
  const int64_t length = *std::max_element(a.positions.begin(), a.positions.end()) + 1;
  const int64_t columns = kv_heads * head_dim, context = length + 3;
  const Values kind = a.values;
  // Values of a cache are what it can hold; huge ones are huge as scores.
  const Values cached = kind == Values::huge || kind == Values::mixed ? Values::normal : kind;
  std::vector<float> k = kernel_values(b.rng(), size_t(length * columns), cached),
                     v = kernel_values(b.rng(), size_t(length * columns), cached),
                     q = kernel_values(b.rng(), size_t(rows * heads * head_dim),
                                       kind == Values::non_finite ? Values::normal : kind);
  if (kind == Values::huge)
    for (float& x : q) x *= 0x1p-50f;  // scores of some thousands: all but one p vanish
  Cache want(a.type, kv_heads, context, head_dim), got(a.type, kv_heads, context, head_dim);
  store(b.scalar, k, v, want, length, 0);
  store(b.scalar, k, v, got, length, 0);
  std::vector<RowPlace> asked;
  for (int64_t position : a.positions) asked.push_back({int32_t(kSlot), position});
  const auto run = [&](const Kernels& kernels, const Cache& cache, int64_t cut) {
    std::vector<float> y = unwritten(q.size()), scratch = unwritten(size_t(attention_scratch_floats(length, head_dim)));
    const AttentionArgs args{q.data(), y.data(), asked.data(), cache.layer, heads, float(1.0 / std::sqrt(double(head_dim)))};
    kernels.attention(args, 0, cut, scratch.data());
    kernels.attention(args, cut, rows * heads, scratch.data());
    return y;
  };
  // Few rows are cut anywhere; many stay together, that kernels for many have them.
  const int64_t cut = rows > 2 ? 0 : int64_t(b.rng()() % uint64_t(rows * heads + 1));
  const std::vector<float> scalar = run(b.scalar, want, 0), y = run(b.target, got, cut);
  b.bytes("element", scalar, y);
  b.sums(length + head_dim);

  const oracle::Matrix64 k64 = stored(got.layer, got.layer.k, length), v64 = stored(got.layer, got.layer.v, length);
  const oracle::Matrix64 q64 = widened(q, rows);
  const oracle::Matrix64 exact = oracle::attention(q64, k64, v64, a.positions, heads, kv_heads, head_dim, 1);
  const oracle::AttentionMagnitude m =
      oracle::attention_magnitude(q64, k64, v64, a.positions, heads, kv_heads, head_dim, 1);
  b.bounds(
      y, rows, heads * head_dim, [&](int64_t r, int64_t c) { return exact.at(r, c); },
      [&](int64_t r, int64_t c) {
        const int64_t h = c / head_dim;
        return bounds::attention(a.positions[size_t(r)] + 1, head_dim, m.qk.at(r, h) / std::sqrt(double(head_dim)),
                                 m.score.at(r, h), m.spread.at(r, h), m.mixed.at(r, c));
      });
}

/// One position after the other.
void add_run(std::vector<int64_t>& positions, int64_t first, int64_t rows) {
  for (int64_t r = 0; r < rows; r++) positions.push_back(first + r);
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
  const auto one = [&](const char* rows, AttentionCase a) {
    a.values = kAllValues[turn++ % int(std::size(kAllValues))];
    if (b.next(fmt::format("kv {} head_dim {} heads {}/{} {} {}, {}", name_of(a.type), a.head_dim, a.kv_heads * a.group,
                           a.kv_heads, rows, *std::max_element(a.positions.begin(), a.positions.end()) + 1, name_of(a.values))))
      run_attention(b, a);
  };
  for (KvType type : kKvTypes)
    for (int64_t d : {1, 16, 33, 40, 96, 128, 256})
      for (int64_t length : {1, 2, 31, 33, 255, 256, 257, 600})
        one("length", {type, d, kKvHeads, 3, {length - 1, length / 2}, {}});
  for (KvType type : kKvTypes) {  // kernels of a device have so many query heads at a time: 2, 4 or 8
    for (const auto& [d, group] : {std::pair{33, 1}, {256, 1}, {64, 2}, {64, 4}, {16, 5}, {33, 8}, {256, 8}, {128, 9}})
      one("length", {type, d, 1, group, {71, 299}, {}});
    for (int64_t group : {1, 3, 8}) {
      one("length", {type, 16, 1, group, {4199}, {}});  // scores of a class of positions beyond shared memory
      one("length", {type, 288, 1, group, {70, 599}, {}});  // heads that are too long for a cluster
      one("length", {type, 297, 1, group, {70, 33}, {}});
    }
  }
  for (KvType type : kKvTypes) {  // many rows, one after the other
    for (int64_t d : {16, 33, 64, 96, 128, 256})
      for (int64_t rows : {9, 70}) {
        std::vector<int64_t> positions;
        add_run(positions, rows == 9 ? 300 : 150 * (turn % 2), rows);
        const int64_t group = rows == 70 ? 1 : d == 64 ? 8 : 1 + d / 16 % 4;
        one(rows == 9 ? "run of 9 to" : "run of 70 to", {type, d, 1, group, positions, {}});
      }
    for (int64_t d : {16, 72}) {  // rows that all see many positions
      std::vector<int64_t> positions;
      add_run(positions, 1300, 10);
      one("run of 10 to", {type, d, 1, 1, positions, {}});
    }
    for (const auto& [d, group] : {std::pair{33, 1}, {96, 3}, {120, 5}}) {  // a window of single rows, then two runs
      std::vector<int64_t> positions;
      for (int64_t r = 0; r < 64; r++) positions.push_back(r * 37 % 101);
      add_run(positions, 50, 15);
      add_run(positions, 140, 15);
      one("rows and runs up to", {type, d, 1, group, positions, {}});
    }
    for (int64_t group : {1, 3, 8}) one("single rows up to", {type, 16, 1, group, {6499, 5, 64, 300, 17, 1000, 2, 33, 31}, {}});
  }
}

void attention_long_cases(KernelBench& b) {
  const auto one = [&](KvType type, int64_t group, int64_t first, int64_t rows) {
    if (!b.next(fmt::format("kv {} heads {}/1, {} rows to {}", name_of(type), group, rows, first + rows))) return;
    std::vector<int64_t> positions;
    add_run(positions, first, rows);
    run_attention(b, {type, 128, 1, group, positions, Values::normal});
  };
  constexpr int64_t kLong = 32768;
  for (KvType type : kKvTypes) one(type, 2, kLong - 64, 64);
  one(KvType::f16, 1, 0, 2048);
  for (KvType type : {KvType::f16, KvType::f32}) one(type, 8, kLong - 1, 1);
}

}  // namespace assay
