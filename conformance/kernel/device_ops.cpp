// Kernel scope on a device: the ops and fused forms of engine/abi.h that no table of CPU kernels has. Each must have the bytes of
// the chain of scalar ops that it stands for, whose own cases hold them against float64.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "conformance/kernel/device_call.h"
#include "conformance/kernel/kernel_check.h"
#include "conformance/kernel/matrices.h"
#include "engine/ops/panel.h"
#include "engine/session.h"

namespace assay {
namespace {

using OnDevice = DeviceKernels::State;
constexpr float kEps = 1e-6f;

// ---- products of several matrices, with a norm in front, a residual or a gate behind

struct Product {
  std::vector<WeightType> types;  // of the matrices that share x
  std::vector<int64_t> outputs;
  Activations kind;
  int64_t columns, rows;
  bool normed, residual, gated;
  Values values;
};

/// The chain: rms_norm, the products, silu_mul or add.
std::vector<std::vector<float>> chain(const Kernels& cpu, const Product& p, const std::vector<StoredMatrix>& w,
                                      const std::vector<std::vector<float>>& bias, std::vector<float> x, const std::vector<float>& norm,
                                      const std::vector<float>& residual) {
  if (p.normed) {
    std::vector<float> y = unwritten(x.size());
    cpu.rms_norm({x.data(), norm.data(), y.data(), p.columns, 0, 0, kEps}, 0, p.rows);
    x = y;
  }
  std::vector<std::vector<float>> out;
  for (size_t i = 0; i < w.size(); i++) {
    const Matrix& m = w[i].matrix;
    const Activations kind = is_quantised(m.type) ? p.kind : Activations::f32;
    out.push_back(quantised_product(cpu, m, x, p.rows, kind, bias[i].empty() ? nullptr : bias[i].data(), panels_of(m)));
  }
  const BinaryArgs last{p.gated ? out[0].data() : residual.data(), p.gated ? out[1].data() : out[0].data(), nullptr, p.outputs[0]};
  if (!p.gated && !p.residual) return out;
  std::vector<float> y = unwritten(out[0].size());
  BinaryArgs a = last;
  a.y = y.data();
  (p.gated ? cpu.silu_mul : cpu.add)(a, 0, p.rows);
  return {y};
}

void run_product(KernelBench& b, OnDevice* device, const Product& p) {
  std::vector<StoredMatrix> w;
  std::vector<std::vector<float>> bias;
  for (size_t i = 0; i < p.types.size(); i++) {
    w.push_back(stored_matrix(b.rng(), p.types[i], p.outputs[i], p.columns, Values::normal));
    bias.push_back(b.rng()() % 2 ? kernel_values(b.rng(), size_t(p.outputs[i]), Values::normal) : std::vector<float>());
  }
  const std::vector<float> x = kernel_values(b.rng(), size_t(p.rows * p.columns), p.values),
                           norm = kernel_values(b.rng(), size_t(p.columns), Values::normal),
                           residual = kernel_values(b.rng(), size_t(p.rows * p.outputs[0]), Values::normal);
  const std::vector<std::vector<float>> want = chain(b.scalar, p, w, bias, x, norm, residual);
  std::vector<std::vector<float>> got = want;
  if (device) {
    DeviceCall c(*device, "linear");
    if (!c.offered(c.table().linear)) return;
    c.reserve(p.rows, p.columns);
    AssayLinear a{};
    a.activations = int32_t(p.kind);
    a.count = int32_t(w.size());
    a.rows = p.rows;
    for (size_t i = 0; i < w.size(); i++) {
      a.w[i] = c.weight(w[i].matrix);
      a.bias[i] = bias[i].empty() ? nullptr : c.up(bias[i]);
      a.y[i] = p.gated && i == 1 ? nullptr : c.room<float>(size_t(p.rows * p.outputs[i]));
    }
    a.x = c.up(x);
    a.norm = p.normed ? c.up(norm) : nullptr;
    a.eps = kEps;
    a.gated = p.gated;
    if (p.residual) a.residual = c.up(residual);
    if (!c.ran(c.table().linear(c.handle(), &a))) return;
    for (size_t i = 0; i < got.size(); i++) got[i] = c.down(a.y[i], got[i].size());
  }
  for (size_t i = 0; i < want.size(); i++) b.same(fmt::format("matrix {}, element", i).c_str(), want[i], got[i], p.outputs[i]);
}

void fused_linear_cases(KernelBench& b, OnDevice* device) {
  constexpr WeightType kQuantised[] = {WeightType::q8_0, WeightType::q4_0, WeightType::q4_1, WeightType::q5_0,
                                       WeightType::q5_1, WeightType::q4_k, WeightType::q5_k, WeightType::q6_k};
  constexpr WeightType kFloat[] = {WeightType::f32, WeightType::f16, WeightType::bf16};
  int turn = 0;
  const auto one = [&](const Product& p) {
    std::string types;
    for (size_t i = 0; i < p.types.size(); i++) types += fmt::format("{}{} n {}", i ? " + " : "", name_of(p.types[i]), p.outputs[i]);
    if (b.next(fmt::format("{} {} k {}, {} rows{}{}{}, {}", types, name_of(p.kind), p.columns, p.rows, p.normed ? ", normed" : "",
                           p.residual ? ", residual" : "", p.gated ? ", gated" : "", name_of(p.values))))
      run_product(b, device, p);
    turn++;
  };
  const auto values = [&] { return kAllValues[turn % int(std::size(kAllValues))]; };
  for (WeightType type : kQuantised)
    for (Activations kind : {Activations::s16, Activations::s8}) {
      const int64_t columns = std::max<int64_t>(block_elements(type), 32) * (1 + turn % 5);
      for (int64_t rows : {1, 3, 33}) {
        const bool normed = (turn + rows) % 2;
        one({{type, type, type}, {33, 8, 5}, kind, columns, rows, normed, false, false, values()});
        one({{type}, {19}, kind, columns, rows, !normed, true, false, values()});
      }
      // More outputs than a large device has warps for.
      one({{type, type, type}, {4400, 24, 9}, kind, 768, 1, turn % 2 == 1, false, false, values()});
      one({{type}, {4300}, kind, 1280, 1, turn % 2 == 1, true, false, values()});
      one({{type}, {5}, kind, 14080, 1, turn % 2 == 1, true, false, values()});
      one({{type, type}, {13, 13}, kind, columns, 1, true, false, true, values()});
      one({{type, type}, {40, 40}, kind, 1280 / block_elements(type) * block_elements(type), 1, false, false, true, values()});
    }
  // Normed rows of any width leave little and much room for weights that are on their way.
  for (WeightType type : {WeightType::q8_0, WeightType::q4_0, WeightType::q4_k, WeightType::q6_k})
    for (int64_t columns : {2048, 3072, 5120, 8192})
      one({{type}, {5}, turn % 2 ? Activations::s16 : Activations::s8, columns, 1, true, turn % 4 < 2, false, values()});
  for (int64_t columns : {24576, 27648}) one({{WeightType::q8_0}, {140}, Activations::s16, columns, 1, true, false, false, Values::normal});
  for (Activations kind : {Activations::s16, Activations::s8})
    one({{WeightType::q4_0}, {125}, kind, 256, 1, true, false, false, Values::normal});
  // Types of one product may differ where no row is alone.
  for (int64_t rows : {2, 40}) one({{WeightType::q4_k, WeightType::q6_k}, {9, 17}, Activations::s16, 512, rows, true, false, false, values()});
  for (WeightType type : kFloat)
    for (int64_t rows : {1, 5, 40}) {
      one({{type, kFloat[turn % 3], type}, {33, 8, 5}, Activations::s16, 257, rows, false, false, false, values()});
      one({{type}, {19}, Activations::s16, 300, rows, false, true, false, values()});
    }
  for (int64_t rows : {1, 5, 40}) {
    one({{WeightType::q4_0, WeightType::q6_k}, {9, 17}, Activations::f32, 512, rows, false, false, false, values()});
    one({{WeightType::q5_1}, {33}, Activations::f32, 96, rows, false, true, false, values()});
  }
}

// ---- heads, and attention that makes them first

struct HeadsCase {
  KvType type;
  int64_t dim, rotary, group;
  std::vector<RowPlace> places;  // of the rows, all different; for attention those of a slot go on from what is stored
  bool q_normed, k_normed, attends, in_place;
  Values values;
};

void run_heads(KernelBench& b, OnDevice* device, const HeadsCase& h) {
  const int64_t dim = h.dim, kv_heads = 2, heads = kv_heads * h.group, slots = 2, rows = int64_t(h.places.size());
  const int64_t q_columns = heads * dim, kv_columns = kv_heads * dim;
  int64_t longest = 1;
  std::vector<int64_t> positions;
  std::vector<AssayPlace> places;
  for (const RowPlace& p : h.places) {
    positions.push_back(p.position);
    places.push_back({p.slot, 0, p.position});
    longest = std::max(longest, p.position + 1);
  }
  const int64_t context = longest + 3;
  const std::vector<float> q = kernel_values(b.rng(), size_t(rows * q_columns), h.values);
  std::vector<float> k = kernel_values(b.rng(), size_t(rows * kv_columns), h.values), v = kernel_values(b.rng(), k.size(), h.values);
  const std::vector<float> q_norm = kernel_values(b.rng(), size_t(dim), Values::normal),
                           k_norm = kernel_values(b.rng(), size_t(dim), Values::normal),
                           cos = kernel_values(b.rng(), size_t(context * std::max<int64_t>(h.rotary / 2, 1)), Values::normal),
                           sin = kernel_values(b.rng(), cos.size(), Values::normal);
  if (!h.attends)
    for (float& x : v)
      if (b.rng()() % 50 == 0) x = 65504.0f * (b.rng()() % 2 ? 1.0f : 1.5f);  // the largest binary16 and beyond
  std::vector<std::byte> cache_k(size_t(slots * kv_heads * context * dim) * size_of(h.type), std::byte(0xff)), cache_v = cache_k;
  const KvLayer layer{h.type, slots, kv_heads, context, dim, cache_k.data(), cache_v.data()};
  int64_t overflow = std::numeric_limits<int64_t>::max();
  if (h.attends)  // all that lies before the rows
    for (int32_t slot = 0; slot < slots; slot++) {
      std::vector<RowPlace> before;
      for (int64_t p = 0; p < longest; p++) before.push_back({slot, p});
      const std::vector<float> x = kernel_values(b.rng(), size_t(longest * kv_columns), Values::normal);
      b.scalar.kv_store({x.data(), x.data(), before.data(), layer, longest, &overflow}, 0, longest);
    }
  const std::vector<std::byte> before_k = cache_k, before_v = cache_v;

  std::vector<float> normed_q = q, normed_k = k, want_q = unwritten(q.size()), turned_k = unwritten(k.size()), want_y = unwritten(q.size());
  if (h.q_normed) b.scalar.head_norm({q.data(), q_norm.data(), normed_q.data(), 0, heads, dim, kEps}, 0, rows);
  if (h.k_normed) b.scalar.head_norm({k.data(), k_norm.data(), normed_k.data(), 0, kv_heads, dim, kEps}, 0, rows);
  b.scalar.rope({normed_q.data(), want_q.data(), positions.data(), cos.data(), sin.data(), heads, dim, h.rotary}, 0, rows);
  b.scalar.rope({normed_k.data(), turned_k.data(), positions.data(), cos.data(), sin.data(), kv_heads, dim, h.rotary}, 0, rows);
  b.scalar.kv_store({turned_k.data(), v.data(), h.places.data(), layer, rows, &overflow}, 0, rows);
  const float scale = float(1.0 / std::sqrt(double(dim)));
  if (h.attends) {
    std::vector<float> scratch(size_t(attention_scratch_floats(longest, dim)));
    b.scalar.attention({want_q.data(), want_y.data(), h.places.data(), layer, heads, scale}, 0, rows * heads, scratch.data());
  }

  std::vector<float> got_q = want_q, got_y = want_y;
  std::vector<std::byte> got_k = cache_k, got_v = cache_v;
  int64_t seen = overflow;
  if (device) {
    DeviceCall c(*device, h.attends ? "attention" : "heads");
    if (h.attends ? !c.offered(c.table().attention) : !c.offered(c.table().heads)) return;
    if (h.attends) c.reserve(rows, 1, heads, dim, context);
    const int64_t none = std::numeric_limits<int64_t>::max();
    float* const q_in = c.up(q);
    AssayHeads a{};
    a.q = q_in, a.k = c.up(k), a.v = c.up(v);
    a.q_norm = h.q_normed ? c.up(q_norm) : nullptr;
    a.k_norm = h.k_normed ? c.up(k_norm) : nullptr;
    a.q_out = h.in_place ? q_in : c.room<float>(q.size());
    a.places = c.up(places), a.cos = c.up(cos), a.sin = c.up(sin);
    a.cache = {int32_t(h.type), 0, slots, kv_heads, context, dim, c.up(before_k), c.up(before_v)};
    a.rows = rows, a.heads = heads, a.rotary = h.rotary, a.eps = kEps;
    a.overflow = c.up(&none, 1);
    if (h.attends) {
      const AssayAttention fused{a.q_out, c.room<float>(q.size()), a.places, a.cache, rows, heads, longest, scale, 0, &a};
      if (!c.ran(c.table().attention(c.handle(), &fused))) return;
      got_y = c.down(fused.y, got_y.size());
    } else if (!c.ran(c.table().heads(c.handle(), &a))) {
      return;
    }
    got_q = c.down(a.q_out, got_q.size());
    got_k = c.down(static_cast<const std::byte*>(a.cache.k), got_k.size());
    got_v = c.down(static_cast<const std::byte*>(a.cache.v), got_v.size());
    seen = c.down(a.overflow, 1)[0];
  }
  b.same("q", want_q, got_q, dim);
  b.bytes("k", cache_k, got_k);
  b.bytes("v", cache_v, got_v);
  if (h.attends) b.same("y", want_y, got_y, dim);
  if (seen != overflow) b.fail(fmt::format("overflow seen at {}, scalar {}", seen, overflow));
}

void one_of_heads(KernelBench& b, OnDevice* device, const HeadsCase& h) {
  if (b.next(fmt::format("kv {} head_dim {} rotary {} heads {}/2 rows {} to {}{}{}, {}", name_of(h.type), h.dim, h.rotary, 2 * h.group,
                         h.places.size(), h.places.back().position, h.q_normed ? ", q normed" : "", h.k_normed ? ", k normed" : "",
                         name_of(h.values))))
    run_heads(b, device, h);
}

void heads_cases(KernelBench& b, OnDevice* device) {
  int turn = 0;
  for (KvType type : {KvType::f32, KvType::f16, KvType::bf16})
    for (int64_t dim : {1, 16, 33, 64, 96, 128, 256, 300})
      for (int64_t rotary : {dim / 2 * 2, dim / 8 * 2}) {
        std::vector<RowPlace> places;
        for (int64_t r = 0; r <= turn % 4; r++) places.push_back({int32_t(r % 2), 6 - r});
        one_of_heads(b, device, {type, dim, rotary, 3, places, turn % 2 == 1, turn / 2 % 2 == 1, false, turn % 3 == 0,
                                 kAllValues[turn % int(std::size(kAllValues))]});
        turn++;
      }
}

void fused_attention_cases(KernelBench& b, OnDevice* device) {
  int turn = 0;
  for (KvType type : {KvType::f32, KvType::f16, KvType::bf16})
    for (int64_t dim : {32, 40, 64, 128, 256, 288})
      for (int64_t position : {0, 1, 31, 100, 255, 300}) {
        if (dim != 64 && dim != 128 && position % 3 == 1) continue;  // time
        std::vector<RowPlace> places = {{1, position}};
        if (turn % 5 == 4) places = {{0, position + 1}, {1, position}};  // not alone
        constexpr Values kKinds[] = {Values::normal, Values::mixed, Values::normal, Values::huge};
        one_of_heads(b, device, {type, dim, dim / (1 + turn % 2) / 2 * 2, 1 + turn % 3, places, turn % 2 == 1, turn / 2 % 2 == 1, true,
                                 turn % 3 == 0, kKinds[turn % 4]});
        turn++;
      }
  for (KvType type : {KvType::f32, KvType::f16, KvType::bf16}) {  // a run that goes on in another slot
    std::vector<RowPlace> places;
    for (int32_t r = 0; r < 16; r++) places.push_back({r / 8, 5 + r});
    one_of_heads(b, device, {type, 64, 64, 2, places, true, true, true, false, Values::normal});
  }
}

// ---- gather, argmax

void gather_cases(KernelBench& b, OnDevice* device) {
  for (int64_t columns : {1, 3, 4, 31, 33, 256, 1023, 1024, 1025, 1028, 4100})
    for (int64_t rows : {1, 9}) {
      if (!b.next(fmt::format("columns {} rows {}", columns, rows))) continue;
      const int64_t of = 5;
      const std::vector<float> x = kernel_values(b.rng(), size_t(of * columns), Values::non_finite);
      std::vector<int32_t> index;
      std::vector<float> want;
      for (int64_t r = 0; r < rows; r++) {
        index.push_back(r == 0 ? int32_t(of) - 1 : int32_t(b.rng()() % uint64_t(of)));
        want.insert(want.end(), &x[size_t(index.back() * columns)], &x[size_t(index.back() * columns)] + columns);
      }
      std::vector<float> got = want;
      if (device) {
        DeviceCall c(*device, "gather");
        if (!c.offered(c.table().gather)) return;
        const AssayGather a{c.up(x.data(), x.size(), rows == 9), c.up(index), c.room<float>(want.size()), rows, columns};
        if (!c.ran(c.table().gather(c.handle(), &a))) return;
        got = c.down(a.y, got.size());
      }
      b.same("element", want, got, columns);
    }
}

/// Few values, so that they tie, zeros of both signs among them; a NaN or an Inf where the kind says so.
std::vector<float> tied(std::mt19937_64& rng, int64_t n, Values kind) {
  if (kind == Values::normal || kind == Values::huge || kind == Values::non_finite) return kernel_values(rng, size_t(n), kind);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = kind == Values::zeros ? (rng() % 2 ? 0.0f : -0.0f) : kind == Values::equal ? -INFINITY : float(rng() % 3) - 1.0f;
  return x;
}

void argmax_cases(KernelBench& b, OnDevice* device) {
  for (int64_t columns : {1, 2, 31, 33, 255, 257, 4095, 4096, 4097, 8200, 40003})
    for (int64_t rows : {1, 3})
      for (Values kind : {Values::normal, Values::mixed, Values::zeros, Values::equal, Values::non_finite}) {
        if (columns > 5000 && kind == Values::zeros) continue;  // time
        if (!b.next(fmt::format("columns {} rows {}, {}", columns, rows, name_of(kind)))) continue;
        const std::vector<float> x = tied(b.rng(), rows * columns, kind);
        std::vector<float> want;
        for (int64_t r = 0; r < rows; r++)
          want.push_back(float(argmax(std::span(x).subspan(size_t(r * columns), size_t(columns))).value_or(-1)));
        std::vector<float> got = want;
        if (device) {
          DeviceCall c(*device, "argmax");
          if (!c.offered(c.table().argmax)) return;
          if (rows == 3) c.reserve(rows, 64, 2, 32, 64);  // keys of parts go through scratch; without any a row is one block's
          const AssayArgmax a{c.up(x.data(), x.size(), kind == Values::mixed), c.room<int32_t>(size_t(rows)), rows, columns};
          if (!c.ran(c.table().argmax(c.handle(), &a))) return;
          const std::vector<int32_t> ids = c.down(a.ids, size_t(rows));
          got.assign(ids.begin(), ids.end());
        }
        b.same("id", want, got, 1);
      }
}

// ---- weights

void pack_cases(KernelBench& b, OnDevice* device) {
  constexpr WeightType kTypes[] = {WeightType::f32,  WeightType::f16,  WeightType::bf16, WeightType::q8_0, WeightType::q4_0, WeightType::q4_1,
                                   WeightType::q5_0, WeightType::q5_1, WeightType::q4_k, WeightType::q5_k, WeightType::q6_k};
  const auto one = [&](WeightType type, int64_t rows, int64_t columns) {
    if (!b.next(fmt::format("{} k {} n {}", name_of(type), columns, rows))) return;
    const StoredMatrix w = stored_matrix(b.rng(), type, rows, columns, Values::mixed);
    std::vector<std::byte> got = w.bytes;
    if (device) {
      DeviceCall c(*device, "unpack_weight");
      if (!c.offered(c.table().unpack_weight)) return;
      const AssayWeight packed = c.weight(w.matrix);
      std::byte* const raw = c.room<std::byte>(got.size());
      if (!c.ran(packed.data ? c.table().unpack_weight(c.handle(), packed.type, rows, columns, packed.data, raw) : int(ASSAY_REFUSED))) return;
      got = c.down(raw, got.size());
    }
    b.bytes("weights", w.bytes, got);
    for (size_t i = 0; i < got.size(); i++) b.bound(double(got[i]), double(w.bytes[i]), 0, int64_t(i));
  };
  for (WeightType type : kTypes)
    for (int64_t times : {1, 3, 4, 5, 9})
      for (int64_t rows : {1, 5}) one(type, rows, times * std::max<int64_t>(block_elements(type), is_quantised(type) ? 32 : 31));
  one(WeightType::q8_0, 32769, 32);  // more rows than a grid has in one direction
}

struct DeviceOp {
  const char* op;
  int64_t expected;
  const char* chain;
  void (*cases)(KernelBench&, OnDevice*);   // null: no device, the chain alone
};
constexpr DeviceOp kDeviceOps[] = {
    {"fused_linear", 373, "rms_norm, linear or quant_linear, add or silu_mul", fused_linear_cases},
    {"heads", 144, "head_norm, rope, kv_store", heads_cases},
    {"fused_attention", 300, "head_norm, rope, kv_store, attention", fused_attention_cases},
    {"gather", 22, "copies of rows", gather_cases},
    {"argmax", 100, "the session's argmax", argmax_cases},
    {"pack", 111, "the file's bytes, packed and unpacked", pack_cases},
    {"expert_linear", 150, "linear or quant_linear of each row alone, with its expert's rows", expert_linear_on_device},
    {"fused_mixture", 60, "topk and topk_weights; expert_linear and silu_mul; expert_sum or gated_add and add", fused_mixture_on_device},
    {"kept_states", 60, "conv and delta_rule, row after row", kept_states_on_device},
    {"fused_recurrence", 140, "l2_norm of q and k, columns, sigmoid, decay, delta_rule", fused_recurrence_on_device},
    {"columns", 20, "copies of columns", columns_on_device},
};

}  // namespace

void add_device_op_checks(std::vector<Check>& out) {
  for (const char* device : {"simt", "cuda"})
    for (const DeviceOp& e : kDeviceOps) {
      Check k = device_kernel_check(e.op, device, fmt::format("scalar bytes of {}", e.chain), e.expected);
      k.run = [&e, device](const CheckContext& c) {
        return run_on_device(c, device, [&](DeviceKernels& kernels, const KernelRun& run) {
          KernelBench b(kernels.table(), run, e.op);
          e.cases(b, &kernels.state());
          return b.take();
        });
      };
      k.cpu_digests = [&e](const CheckContext& c, const std::string& only) {
        KernelBench b(kernels(Isa::scalar), c.kernel, e.op);
        e.cases(b, nullptr);
        return digests_named(b.take().digests, only);
      };
      out.push_back(std::move(k));
    }
}

}  // namespace assay
