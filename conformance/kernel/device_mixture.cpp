// Kernel scope on a device: products by expert and the fused forms of a mixture, states that are kept behind every row,
// columns. As in device_ops.cpp, each against the bytes of the scalar ops that it stands for.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "conformance/kernel/device_call.h"
#include "conformance/kernel/kernel_check.h"
#include "conformance/kernel/matrices.h"
#include "engine/backend.h"
#include "engine/ops/panel.h"

namespace assay {
namespace {

using OnDevice = DeviceKernels::State;

struct Experts {
  WeightType type;
  Activations kind;
  int64_t experts, chosen, outputs, columns, rows;
  int count;
  bool by_rank, gated;
  int crowd;  // 0: any experts; 1: every row the same ones; 2: as 0, and every third row chose nothing
  Values values;
};

/// Each pair alone by the scalar kernels: what others choose must not show.
std::vector<float> alone(KernelBench& b, const Experts& s, const Matrix& w, const std::vector<float>& x,
                         const std::vector<float>& ids) {
  const int64_t outputs = w.rows / s.experts;
  std::vector<float> out = unwritten(ids.size() * size_t(outputs));
  for (size_t i = 0; i < ids.size(); i++) {
    if (ids[i] < 0) continue;
    const Matrix own = expert_of(w, s.experts, int64_t(ids[i]));
    const float* from = x.data() + (s.by_rank ? int64_t(i) : int64_t(i) / s.chosen) * s.columns;
    const std::vector<float> row(from, from + s.columns);
    const std::vector<float> y =
        quantised_product(b.scalar, own, row, 1, is_quantised(s.type) ? s.kind : Activations::f32, nullptr, 0);
    std::copy(y.begin(), y.end(), out.begin() + int64_t(i) * outputs);
  }
  return out;
}

void run_experts(KernelBench& b, OnDevice* device, const Experts& s) {
  std::vector<StoredMatrix> w;
  for (int i = 0; i < s.count; i++)
    w.push_back(
        stored_matrix(b.rng(), s.type, s.experts * (s.outputs + (s.gated ? 0 : 5 * i)), s.columns, Values::normal));
  const std::vector<float> x =
      kernel_values(b.rng(), size_t(s.rows * (s.by_rank ? s.chosen : 1) * s.columns), s.values);
  std::vector<float> order(static_cast<size_t>(s.experts)), ids;
  std::iota(order.begin(), order.end(), 0.0f);
  for (int64_t t = 0; t < s.rows; t++) {
    if (s.crowd != 1 || t == 0) std::shuffle(order.begin(), order.end(), b.rng());
    for (int64_t r = 0; r < s.chosen; r++) ids.push_back(s.crowd == 2 && t % 3 == 2 ? -1.0f : order[size_t(r)]);
  }
  std::vector<std::vector<float>> want;
  for (const StoredMatrix& m : w) want.push_back(alone(b, s, m.matrix, x, ids));
  if (s.gated) {
    std::vector<float> y = unwritten(want[0].size());
    b.scalar.silu_mul({want[0].data(), want[1].data(), y.data(), s.outputs}, 0, s.rows * s.chosen);
    want = {y};
  }
  std::vector<std::vector<float>> got = want;
  if (device) {
    DeviceCall c(*device, "expert_linear");
    if (!c.offered(c.table().expert_linear)) return;
    c.reserve(s.rows, s.columns, 0, 0, 0, s.experts, s.chosen);
    AssayExpertLinear a{};
    a.activations = int32_t(is_quantised(s.type) ? s.kind : Activations::f32);
    a.count = s.count;
    for (int i = 0; i < s.count; i++) {
      a.w[i] = c.weight(w[size_t(i)].matrix);
      a.y[i] = size_t(i) < want.size() ? c.room<float>(want[size_t(i)].size()) : nullptr;
    }
    a.x = c.up(x);
    a.ids = c.up(ids);
    a.rows = s.rows, a.experts = s.experts, a.chosen = s.chosen;
    a.by_rank = s.by_rank, a.gated = s.gated;
    if (!c.ran(c.table().expert_linear(c.handle(), &a))) return;
    for (size_t i = 0; i < got.size(); i++) got[i] = c.down(a.y[i], got[i].size());
  }
  for (size_t i = 0; i < want.size(); i++)
    b.same(fmt::format("matrix {}, element", i).c_str(), want[i], got[i],
           int64_t(want[i].size()) / (s.rows * s.chosen));
}

void one_of_experts(KernelBench& b, OnDevice* device, const Experts& s) {
  if (b.next(fmt::format("{} {}, {} of {} experts [{}, {}], {} rows{}{}, matrices {}, crowd {}, x {}", name_of(s.type),
                         name_of(s.kind), s.chosen, s.experts, s.outputs, s.columns, s.rows,
                         s.by_rank ? " by rank" : "", s.gated ? ", gated" : "", s.count, s.crowd, name_of(s.values))))
    run_experts(b, device, s);
}

constexpr WeightType kTypes[] = {WeightType::f32,  WeightType::f16,  WeightType::bf16, WeightType::q8_0,
                                 WeightType::q4_0, WeightType::q4_1, WeightType::q5_0, WeightType::q5_1,
                                 WeightType::q4_k, WeightType::q5_k, WeightType::q6_k};

}  // namespace

void expert_linear_on_device(KernelBench& b, OnDevice* device) {
  int turn = 0;
  for (WeightType type : kTypes)
    for (Activations kind : {Activations::s16, Activations::s8, Activations::f32}) {
      if (!is_quantised(type) && kind != Activations::f32) continue;
      const int64_t block = is_quantised(type) ? std::max<int64_t>(block_elements(type), 32) : 31;
      for (int64_t rows : {1, 3, 5, 33}) {
        const int64_t experts = std::array{1, 2, 4, 16, 40}[size_t(turn % 5)],
                      chosen = std::min<int64_t>(experts, 1 + turn % 3);
        one_of_experts(
            b, device,
            {type, kind, experts, chosen, std::array{1, 7, 16, 24, 40}[size_t(turn / 2 % 5)], block * (1 + turn % 3),
             rows, 1 + turn % 2, turn % 4 > 1, false, turn % 3, kAllValues[turn % int(std::size(kAllValues))]});
        turn++;
      }
    }
  // Rows of several quads of blocks; more experts than one choice of a row, many pairs of one expert.
  for (int64_t rows : {1, 9}) {
    one_of_experts(b, device,
                   {WeightType::q4_0, Activations::s16, 3, 2, 33, 2304, rows, 1, true, false, 0, Values::mixed});
    one_of_experts(b, device,
                   {WeightType::q6_k, Activations::s8, 3, 2, 9, 1280, rows, 2, false, false, 0, Values::normal});
    one_of_experts(b, device,
                   {WeightType::q4_k, Activations::s16, 128, 8, 5, 256, rows, 2, false, false, 0, Values::normal});
  }
  one_of_experts(b, device,
                 {WeightType::q4_0, Activations::s16, 8, 2, 32, 64, 150, 2, false, false, 2, Values::normal});
}

void fused_mixture_on_device(KernelBench& b, OnDevice* device) {
  int turn = 0;
  for (WeightType type : kTypes) {
    if (!is_quantised(type)) continue;
    for (Activations kind : {Activations::s16, Activations::s8}) {
      const int64_t columns = std::max<int64_t>(block_elements(type), 32) * (1 + turn % 5);
      one_of_experts(b, device,
                     {type, kind, 6, 3, 1 + 13 * (turn % 4), columns, 1, 2, false, true, turn % 3,
                      kAllValues[turn % int(std::size(kAllValues))]});
      turn++;
    }
  }
  for (int64_t experts : {1, 31, 33, 128, 300})
    for (Values kind : kAllValues) {
      const int64_t rows = 5, chosen = std::min<int64_t>(experts, 8);
      if (!b.next(fmt::format("router, {} of {} experts, {}", chosen, experts, name_of(kind)))) continue;
      const std::vector<float> x = kernel_values(b.rng(), size_t(rows * experts), kind);
      const bool normalised = b.rng()() % 2;
      std::vector<float> ids = unwritten(size_t(rows * chosen)), weights = ids;
      b.scalar.topk({x.data(), ids.data(), experts, chosen}, 0, rows);
      b.scalar.topk_weights({x.data(), ids.data(), weights.data(), experts, chosen, normalised}, 0, rows);
      std::vector<float> got_ids = ids, got = weights;
      if (device) {
        DeviceCall c(*device, "topk");
        if (!c.offered(c.table().topk)) return;
        const AssayRouter a{
            c.up(x), c.room<float>(ids.size()), c.room<float>(ids.size()), rows, experts, chosen, normalised, 0};
        if (!c.ran(c.table().topk(c.handle(), &a))) return;
        got_ids = c.down(a.ids, ids.size());
        got = c.down(a.weights, ids.size());
      }
      b.same("id", ids, got_ids, chosen);
      b.same("weight", weights, got, chosen);
    }
  for (int64_t columns : {1, 33, 256, 1025})
    for (bool gated : {false, true}) {
      const int64_t rows = 3, chosen = 4, n = rows * columns;
      if (!b.next(fmt::format("{} and add, columns {}", gated ? "gated_add" : "expert_sum", columns))) continue;
      const std::vector<float> x = kernel_values(b.rng(), size_t(n * (gated ? 1 : chosen)), Values::mixed),
                               w = kernel_values(b.rng(), size_t(rows * chosen), Values::normal),
                               shared = kernel_values(b.rng(), size_t(n), Values::normal),
                               residual = kernel_values(b.rng(), size_t(n), Values::normal);
      std::vector<float> sum = unwritten(size_t(n)), want = sum;
      if (gated)
        b.scalar.gated_add({w.data(), shared.data(), x.data(), sum.data(), columns}, 0, rows);
      else
        b.scalar.expert_sum({w.data(), x.data(), sum.data(), chosen, columns}, 0, rows);
      b.scalar.add({residual.data(), sum.data(), want.data(), columns}, 0, rows);
      std::vector<float> got = want;
      if (device) {
        DeviceCall c(*device, gated ? "gated_add" : "expert_sum");
        const auto& t = c.table();
        if (gated ? !c.offered(t.gated_add) : !c.offered(t.expert_sum)) return;
        float* const y = c.room<float>(size_t(n));
        const AssayGatedAdd g{c.up(w), c.up(shared), c.up(x), y, rows, columns, c.up(residual)};
        const AssayExpertSum s{c.up(w), c.up(x), y, rows, chosen, columns, c.up(residual)};
        if (!c.ran(gated ? t.gated_add(c.handle(), &g) : t.expert_sum(c.handle(), &s))) return;
        got = c.down(y, size_t(n));
      }
      b.same("element", want, got, columns);
    }
}

/// A verify pass: the state behind every row goes to an entry of its own, and that before the rows stays as it is.
void kept_states_on_device(KernelBench& b, OnDevice* device) {
  const auto each = [&](const RowSpan* spans, size_t count, int64_t rows, auto&& f) {
    int32_t entry = 3;  // slots come first
    std::vector<AssaySpan> out;
    std::vector<int32_t> after(size_t(rows), -1);
    for (size_t i = 0; i < count; i++) {
      out.push_back({spans[i].slot, 0, spans[i].first, spans[i].rows});
      for (int64_t r = 0; r < spans[i].rows; r++) {
        after[size_t(spans[i].first + r)] = entry;
        f(spans[i], r, entry++);
      }
    }
    return std::pair(out, after);
  };
  const RowSpan spans[] = {{2, 0, 3}, {0, 3, 1}, {1, 4, 4}};
  constexpr int64_t kRows = 8, kEntries = 3 + kRows;
  for (int64_t channels : {1, 33, 256, 300})
    for (int64_t width : {2, 4, 8})
      for (Values kind : {Values::normal, Values::non_finite}) {
        if (!b.next(fmt::format("conv, channels {} width {}, {}", channels, width, name_of(kind)))) continue;
        const int64_t floats = width * channels, stride = floats + 32;
        const std::vector<float> x = kernel_values(b.rng(), size_t(kRows * channels), kind),
                                 w = kernel_values(b.rng(), size_t(floats), Values::normal),
                                 before = kernel_values(b.rng(), size_t(kEntries * stride), Values::normal);
        std::vector<float> want = unwritten(x.size()), states = before;
        const auto [on, after] = each(spans, 3, kRows, [&](const RowSpan& s, int64_t r, int32_t entry) {
          const int64_t from = r == 0 ? s.slot : entry - 1;
          std::copy_n(&states[size_t(from * stride)], floats, &states[size_t(entry * stride)]);
          const RowSpan one{0, s.first + r, 1};
          b.scalar.conv({x.data(), w.data(), want.data(), &states[size_t(entry * stride)], &one, channels, width}, 0,
                        conv_blocks(channels));
        });
        std::vector<float> got = want, got_states = states;
        if (device) {
          DeviceCall c(*device, "conv");
          if (!c.offered(c.table().conv)) return;
          float* const memory = c.room<float>(before.size());
          const AssayConv a{c.up(x),
                            c.up(w),
                            c.room<float>(x.size()),
                            kRows,
                            {kEntries, width, channels, 0, 0, 0, stride, c.filled(memory, before.data(), before.size()),
                             nullptr, c.up(on), c.up(after), 3}};
          if (!c.ran(c.table().conv(c.handle(), &a))) return;
          got = c.down(a.y, got.size());
          got_states = c.down(memory, got_states.size());
        }
        b.same("element", want, got, channels);
        b.same("state", states, got_states, stride);
      }
  for (int64_t d_k : {1, 32, 40, 128, 256})
    for (int64_t d_v : {16, 33})
      for (Values kind : {Values::normal, Values::mixed, Values::non_finite}) {
        const int64_t k_heads = 1 + d_k % 2, v_heads = 2 * k_heads, floats = v_heads * d_k * d_v, stride = floats + 32;
        if (!b.next(fmt::format("delta_rule, {} by {}, {} of {} heads, {}", d_k, d_v, k_heads, v_heads, name_of(kind))))
          continue;
        const std::vector<float> q = kernel_values(b.rng(), size_t(kRows * k_heads * d_k), Values::normal),
                                 k = kernel_values(b.rng(), q.size(), kind),
                                 v = kernel_values(b.rng(), size_t(kRows * v_heads * d_v), Values::normal),
                                 beta = kernel_values(b.rng(), size_t(kRows * v_heads), Values::normal),
                                 before = kernel_values(b.rng(), size_t(kEntries * stride), Values::normal);
        std::vector<float> decay = kernel_values(b.rng(), beta.size(), Values::normal), want = unwritten(v.size()),
                           states = before;
        for (float& g : decay) g = g > 1 ? 100 : -std::fabs(g);  // one that the padding of d_k must not meet
        const auto [on, after] = each(spans, 3, kRows, [&](const RowSpan& s, int64_t r, int32_t entry) {
          const int64_t from = r == 0 ? s.slot : entry - 1;
          std::copy_n(&states[size_t(from * stride)], floats, &states[size_t(entry * stride)]);
          const RowSpan one{0, s.first + r, 1};
          b.scalar.delta_rule({q.data(), k.data(), v.data(), beta.data(), decay.data(), want.data(),
                               &states[size_t(entry * stride)], &one, k_heads, v_heads, d_k, d_v},
                              0, v_heads * delta_blocks(d_v));
        });
        std::vector<float> got = want, got_states = states;
        if (device) {
          DeviceCall c(*device, "delta_rule");
          if (!c.offered(c.table().delta_rule)) return;
          float* const memory = c.room<float>(before.size());
          const AssayDeltaRule a{c.up(q),
                                 c.up(k),
                                 c.up(v),
                                 c.up(beta),
                                 c.up(decay),
                                 c.room<float>(v.size()),
                                 kRows,
                                 k_heads,
                                 {kEntries, 0, 0, v_heads, d_k, d_v, stride, nullptr,
                                  c.filled(memory, before.data(), before.size()), c.up(on), c.up(after), 3},
                                 nullptr,
                                 nullptr,
                                 nullptr,
                                 nullptr,
                                 0,
                                 0};
          if (!c.ran(c.table().delta_rule(c.handle(), &a))) return;
          got = c.down(a.y, got.size());
          got_states = c.down(memory, got_states.size());
        }
        b.same("element", want, got, v_heads * d_v);
        b.same("state", states, got_states, stride);
      }
}

/// The recurrence with what makes its operands: l2 norms, columns, sigmoid, decay, then delta_rule.
void fused_recurrence_on_device(KernelBench& b, OnDevice* device) {
  for (int64_t d_k : {1, 16, 24, 32, 33, 64, 96, 128, 160, 192, 224, 256})
    for (int64_t d_v : {5, 64})
      for (Values kind : {Values::normal, Values::mixed, Values::non_finite}) {
        const int64_t rows = 1 + (d_k + d_v + int64_t(kind)) % 14, k_heads = 1 + d_k % 3, v_heads = 2 * k_heads,
                      keys = k_heads * d_k, values = v_heads * d_v, channels = 2 * keys + values,
                      floats = v_heads * d_k * d_v;
        if (!b.next(
                fmt::format("{} by {}, {} of {} heads, {} rows, {}", d_k, d_v, k_heads, v_heads, rows, name_of(kind))))
          continue;
        const std::vector<float> x = kernel_values(b.rng(), size_t(rows * channels), kind),
                                 beta = kernel_values(b.rng(), size_t(rows * v_heads), kind),
                                 decay = kernel_values(b.rng(), beta.size(), kind),
                                 w = kernel_values(b.rng(), size_t(2 * v_heads), Values::normal),
                                 before = kernel_values(b.rng(), size_t(2 * floats), Values::normal);
        // Two sequences where there are rows for them, the later one's state in front.
        const int64_t first = rows > 2 ? rows / 3 : rows;
        std::vector<RowSpan> spans = {{1, 0, first}};
        if (first < rows) spans.push_back({0, first, rows - first});
        const float scale = float(1.0 / std::sqrt(double(d_k)));
        std::vector<float> q = unwritten(size_t(rows * keys)), k = q, v, open = unwritten(beta.size()), kept = open,
                           want = unwritten(size_t(rows * values)), states = before;
        b.scalar.l2_norm({x.data(), q.data(), channels, k_heads, d_k, scale}, 0, rows);
        b.scalar.l2_norm({x.data() + keys, k.data(), channels, k_heads, d_k, 1.0f}, 0, rows);
        for (int64_t r = 0; r < rows; r++)
          v.insert(v.end(), x.begin() + r * channels + 2 * keys, x.begin() + (r + 1) * channels);
        b.scalar.sigmoid({beta.data(), open.data(), v_heads}, 0, rows);
        b.scalar.decay({decay.data(), w.data(), kept.data(), v_heads}, 0, rows);
        b.scalar.delta_rule({q.data(), k.data(), v.data(), open.data(), kept.data(), want.data(), states.data(),
                             spans.data(), k_heads, v_heads, d_k, d_v},
                            0, int64_t(spans.size()) * v_heads * delta_blocks(d_v));
        std::vector<float> got = want, got_states = states;
        if (device) {
          DeviceCall c(*device, "delta_rule");
          if (!c.offered(c.table().delta_rule)) return;
          std::vector<AssaySpan> on;
          std::vector<int32_t> after(size_t(rows), -1);
          for (const RowSpan& s : spans) {
            on.push_back({s.slot, 0, s.first, s.rows});
            after[size_t(s.first + s.rows - 1)] = s.slot;
          }
          float* const memory = c.room<float>(before.size());
          AssayDeltaRule a{};
          a.y = c.room<float>(want.size());
          a.rows = rows, a.k_heads = k_heads;
          a.states = {2,        4,           channels,
                      v_heads,  d_k,         d_v,
                      floats,   nullptr,     c.filled(memory, before.data(), before.size()),
                      c.up(on), c.up(after), int64_t(on.size())};
          a.conv = c.up(x), a.b = c.up(beta), a.a = c.up(decay), a.decay_w = c.up(w);
          a.scale = scale;
          if (!c.ran(c.table().delta_rule(c.handle(), &a))) return;
          got = c.down(a.y, got.size());
          got_states = c.down(memory, got_states.size());
        }
        b.same("element", want, got, values);
        b.same("state", states, got_states, floats);
      }
}

void columns_on_device(KernelBench& b, OnDevice* device) {
  for (int64_t width : {1, 3, 16, 33, 128})
    for (int64_t count : {1, 2, 5})
      for (int runs : {1, 2, 4}) {
        const int64_t rows = 3, stride = width + (width + count) % 4;
        if (!b.next(fmt::format("{} runs, {} of width {}", runs, count, width))) continue;
        std::vector<std::vector<float>> x;
        std::vector<AssayColumnRun> all;
        int64_t columns = 0;
        for (int i = 0; i < runs; i++) {
          const int64_t from = int64_t(b.rng()() % 5), wide = from + count * stride + 1;
          x.push_back(kernel_values(b.rng(), size_t(rows * wide), Values::non_finite));
          all.push_back({nullptr, wide, from, stride, columns, count, width});
          columns += count * width;
        }
        std::vector<float> want = unwritten(size_t(rows * columns));
        for (int64_t t = 0; t < rows; t++)
          for (size_t i = 0; i < all.size(); i++)
            for (int64_t n = 0; n < count; n++)
              std::copy_n(&x[i][size_t(t * all[i].x_columns + all[i].from + n * stride)], width,
                          &want[size_t(t * columns + all[i].to + n * width)]);
        std::vector<float> got = want;
        if (device) {
          DeviceCall c(*device, "columns");
          if (!c.offered(c.table().columns)) return;
          AssayColumns a{};
          for (size_t i = 0; i < all.size(); i++) {
            all[i].x = c.up(x[i]);
            a.runs[a.count++] = all[i];
          }
          a.y = c.room<float>(want.size()), a.rows = rows, a.columns = columns;
          if (!c.ran(c.table().columns(c.handle(), &a))) return;
          got = c.down(a.y, got.size());
        }
        b.same("element", want, got, columns);
      }
}

}  // namespace assay
