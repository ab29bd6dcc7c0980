#include "conformance/bench/op_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <random>

#include "conformance/bench/bench.h"
#include "dumps/error.h"
#include "engine/cost.h"
#include "engine/device_plan.h"
#include "engine/formats/synth_blocks.h"
#include "engine/large_memory.h"

namespace assay {
namespace {

constexpr OpKind kOps[] = {OpKind::embed,    OpKind::rms_norm,  OpKind::head_norm, OpKind::linear, OpKind::rope,
                           OpKind::kv_store, OpKind::attention, OpKind::silu_mul,  OpKind::add};

/// Numbers of a shape with what stands between them, as in `form`: "HEADS/KV_HEADSxDIM".
std::vector<int64_t> numbers(const std::string& text, const std::string& form, const std::string& op) {
  std::vector<int64_t> out;
  const char *at = text.data(), *end = text.data() + text.size();
  bool right = true;
  const auto number = [&] {
    int64_t v = 0;
    const auto [stop, failed] = std::from_chars(at, end, v);
    right = right && failed == std::errc() && v > 0 && v <= (int64_t(1) << 24);
    at = stop;
    out.push_back(v);
  };
  number();
  for (char between : form)
    if (between == '/' || between == 'x') {
      right = right && at != end && *at == between;
      if (right) at++;
      number();
    }
  if (!right || at != end)
    throw Error(ErrorKind::usage, "--shape of " + op, "is malformed", form + ", each 1 to 2^24", "\"" + text + "\"");
  return out;
}

bool is_cache_op(OpKind op) {
  return op == OpKind::attention || op == OpKind::kv_store;
}
/// Ops of experts are measured within a model only: what they cost hangs on what the router chooses.
bool has_bench(OpKind op) {
  return std::find(std::begin(kOps), std::end(kOps), op) != std::end(kOps);
}
bool has_matrix(OpKind op) {
  return op == OpKind::linear || op == OpKind::embed;
}

/// Columns of all that is written.
int64_t output_columns(const OpShape& s) {
  if (s.op != OpKind::linear) return s.op == OpKind::kv_store ? 0 : s.columns;
  int64_t out = s.rows;
  for (int64_t r : s.more) out += s.gated ? 0 : r;
  return out;
}

/// The same kernel on the same sizes.
bool same(const OpShape& a, const OpShape& b) {
  return a.op == b.op && a.type == b.type && a.rows == b.rows && a.columns == b.columns && a.heads == b.heads &&
         a.kv_heads == b.kv_heads && a.head_dim == b.head_dim && a.requested_rows == b.requested_rows &&
         (a.count == 0) == (b.count == 0) && a.more == b.more && a.norm == b.norm && a.gated == b.gated &&
         a.residual == b.residual;
}

}  // namespace

std::string OpShape::text() const {
  std::string outputs = std::to_string(rows);
  for (int64_t r : more) outputs += "+" + std::to_string(r);
  switch (op) {
    case OpKind::embed:
    case OpKind::linear:
      return fmt::format("{}x{}", outputs, columns);
    case OpKind::head_norm:
    case OpKind::rope:
      return fmt::format("{}x{}", heads, head_dim);
    case OpKind::kv_store:
      return fmt::format("{}x{}", kv_heads, head_dim);
    case OpKind::attention:
      return fmt::format("{}/{}x{}", heads, kv_heads, head_dim);
    default:
      return std::to_string(columns);
  }
}

OpShape parse_op(const std::string& op, const std::string& shape, WeightType type) {
  OpShape s;
  const auto it = std::find_if(std::begin(kOps), std::end(kOps), [&](OpKind k) { return name_of(k) == op; });
  if (it == std::end(kOps)) {
    std::string known;
    for (OpKind k : kOps) known += (known.empty() ? "" : ", ") + std::string(name_of(k));
    throw Error(ErrorKind::usage, "--op", "unknown op", known, "\"" + op + "\"",
                "Phases (q_proj) need a model: --model.");
  }
  s.op = *it;
  s.name = op;
  s.type = type;
  switch (s.op) {
    case OpKind::linear:
    case OpKind::embed: {
      const auto n = numbers(shape, s.op == OpKind::linear ? "OUTPUTSxINPUTS" : "VOCABxHIDDEN", op);
      s.rows = n[0], s.columns = n[1];
      if (s.columns % block_elements(type) != 0)
        throw Error(ErrorKind::usage, "--shape of " + op,
                    "columns do not divide into blocks of " + std::string(name_of(type)),
                    fmt::format("a multiple of {}", block_elements(type)), std::to_string(s.columns));
      break;
    }
    case OpKind::head_norm:
    case OpKind::rope: {
      const auto n = numbers(shape, "HEADSxDIM", op);
      s.heads = n[0], s.head_dim = s.rotary = n[1];
      s.columns = s.heads * s.head_dim;
      break;
    }
    case OpKind::kv_store: {
      const auto n = numbers(shape, "KV_HEADSxDIM", op);
      s.heads = s.kv_heads = n[0], s.head_dim = n[1];
      s.columns = s.heads * s.head_dim;
      break;
    }
    case OpKind::attention: {
      const auto n = numbers(shape, "HEADS/KV_HEADSxDIM", op);
      s.heads = n[0], s.kv_heads = n[1], s.head_dim = n[2];
      s.columns = s.heads * s.head_dim;
      if (s.heads % s.kv_heads != 0)
        throw Error(ErrorKind::usage, "--shape of attention", "heads do not divide into kv heads",
                    "a multiple of " + std::to_string(s.kv_heads), std::to_string(s.heads));
      break;
    }
    default:
      s.columns = numbers(shape, "COLUMNS", op)[0];
  }
  if (s.op == OpKind::rope && s.head_dim % 2 != 0)
    throw Error(ErrorKind::usage, "--shape of rope", "an odd head can't turn in pairs", "an even DIM",
                std::to_string(s.head_dim));
  return s;
}

namespace {

OpShape shape_of(const Node& n, const Program& p, const Config& c) {
  OpShape s;
  s.op = n.op;
  s.name = n.phase;
  s.count = n.layer < 0 ? 0 : 1;
  s.requested_rows = n.requested_rows_only;
  s.type = n.weight ? n.weight->type : WeightType::f32;
  s.heads = n.heads, s.head_dim = n.head_dim;
  if (n.op == OpKind::kv_store) s.kv_heads = n.heads;
  if (n.op == OpKind::attention) s.kv_heads = c.kv_heads;
  if (n.op == OpKind::rope) s.rotary = c.rope.rotary;
  if (n.weight) {
    s.rows = n.weight->rows, s.columns = n.weight->columns;
  } else {
    s.columns = p.values[size_t(n.inputs[0])].columns;
  }
  return s;
}

/// The steps of a program: products in groups, everything else a node at a time.
std::vector<std::vector<int>> steps_of(const Program& p, bool fused, bool gated) {
  StepOptions o;
  o.fused = fused;
  o.gated = gated;
  o.supported = [](const DeviceStep& s) { return !s.linears.empty(); };
  std::vector<std::vector<int>> out;
  for (const DeviceStep& s : plan_steps(p, o)) out.push_back(s.nodes);
  return out;
}

}  // namespace

std::vector<OpShape> ops_of(const Model& model, const std::vector<std::string>& names, bool fused, bool gated) {
  const Program p = build_program(model);
  std::vector<bool> found(names.size(), false);
  std::vector<OpShape> out;
  for (const std::vector<int>& step : steps_of(p, fused, gated)) {
    const Node& first = p.nodes[size_t(step[0])];
    if (first.layer > 0 || !has_bench(first.op)) continue;
    bool wanted = false;
    for (int i : step)
      for (size_t k = 0; k < names.size(); k++)
        if (names[k] == "all" || names[k] == p.nodes[size_t(i)].phase || names[k] == name_of(p.nodes[size_t(i)].op))
          wanted = found[k] = true;
    if (!wanted) continue;
    OpShape s;
    std::string name;
    bool has_product = false;
    for (int i : step) {
      const Node& n = p.nodes[size_t(i)];
      name += (name.empty() ? "" : ",") + n.phase;
      if (step.size() == 1 || (n.op == OpKind::linear && !has_product)) {
        const bool norm = s.norm;
        s = shape_of(n, p, model.config);
        s.norm = norm;
        has_product = true;
      } else if (n.op == OpKind::linear) {
        s.more.push_back(n.weight->rows);
      } else {
        (n.op == OpKind::rms_norm ? s.norm : n.op == OpKind::silu_mul ? s.gated : s.residual) = true;
      }
    }
    s.name = name;
    const auto it = std::find_if(out.begin(), out.end(), [&](const OpShape& o) { return same(o, s); });
    if (it == out.end()) {
      out.push_back(s);
    } else {
      it->name += "+" + s.name;
      it->count += s.count;
    }
  }
  for (size_t i = 0; i < names.size(); i++)
    if (!found[i])
      throw Error(ErrorKind::usage, "--op", "the model has no such op or phase",
                  "all, an op (linear) or a phase (q_proj)", "\"" + names[i] + "\"");
  return out;
}

std::vector<RowPlace> OpCase::places(int64_t rows, int64_t depth, bool prefill) const {
  std::vector<RowPlace> out;
  for (int64_t r = 0; r < rows; r++) out.push_back(prefill ? RowPlace{0, depth + r} : RowPlace{int32_t(r), depth});
  return out;
}

std::unique_ptr<OpCase> make_case(const OpShape& s, const OpBenchSpec& spec) {
  auto made = std::make_unique<OpCase>();
  OpCase& c = *made;
  c.shape = s;
  const int64_t most = *std::max_element(spec.rows.begin(), spec.rows.end());
  c.most_rows = s.requested_rows && spec.prefill ? 1 : most;
  c.context = spec.depth + (spec.prefill ? most : 1);
  c.slots = spec.prefill ? 1 : most;
  const WeightType kv = spec.engine.kv == KvType::f32   ? WeightType::f32
                        : spec.engine.kv == KvType::f16 ? WeightType::f16
                                                        : WeightType::bf16;
  const int64_t cache_rows = c.slots * s.kv_heads * c.context;
  const uint64_t half = is_cache_op(s.op) ? uint64_t(cache_rows) * row_bytes(kv, s.head_dim) : 0;  // K, or V
  uint64_t one = 2 * half;                                                                         // of a copy
  if (has_matrix(s.op))
    for (int64_t m = 0; m < s.matrices(); m++) one += uint64_t(s.rows_of(m)) * row_bytes(s.type, s.columns);
  // What has neither weight nor cache finds its values in caches, as it does in a pass. A device wants more of them, so
  // that the start of a graph does not count; its copies are made on it.
  const bool on_device = !spec.engine.device.module.empty();
  c.copies = one == 0 ? (on_device ? 64 : 8)
                      : int(std::clamp<uint64_t>((spec.cold_bytes + one - 1) / one, on_device ? 8 : 2, 512));
  const int host_copies = on_device ? 1 : c.copies;
  c.config.layers = c.copies;
  c.config.heads = s.heads, c.config.kv_heads = s.kv_heads, c.config.head_dim = s.head_dim;
  c.config.hidden = s.columns;
  c.config.vocab = s.rows;
  c.config.rope.rotary = s.rotary;
  c.config.rope.theta = 10000;

  if (has_matrix(s.op)) {
    const size_t stride = (size_t(one) + 4095) / 4096 * 4096;
    const auto block = allocate_large(stride * size_t(host_copies));
    if (!block)
      throw Error(ErrorKind::memory, s.name, "copies of its weight do not fit",
                  std::to_string(stride * size_t(host_copies)) + " bytes", "", "--cold 64M takes less.");
    const RandomMatrix random(spec.seed, s.name, s.type, s.columns, 1.0 / std::sqrt(double(s.columns)));
    random.write(0, int64_t(one / row_bytes(s.type, s.columns)), block.get());
    for (int i = 0; i < c.copies; i++) {
      std::byte* at = block.get() + size_t(i % host_copies) * stride;
      if (i > 0 && i < host_copies) std::memcpy(at, block.get(), size_t(one));
      for (int64_t m = 0; m < s.matrices(); m++) {
        c.weights.push_back({s.type, s.rows_of(m), s.columns, at});
        at += c.weights.back().bytes();
      }
    }
    c.storage.push_back(block);
  }
  if (is_cache_op(s.op)) {
    const size_t stride = (size_t(half) + 63) / 64 * 64;
    const auto block = allocate_large(2 * stride * size_t(host_copies));
    if (!block)
      throw Error(ErrorKind::memory, s.name, "copies of its cache do not fit",
                  std::to_string(2 * stride * size_t(host_copies)) + " bytes", "",
                  "Fewer --rows, a smaller --depth or --cold 64M take less.");
    const RandomMatrix random(spec.seed, "cache", kv, s.head_dim, 1.0);
    for (int i = 0; i < c.copies; i++) {
      std::byte *k = block.get() + size_t(2 * (i % host_copies)) * stride, *v = k + stride;
      if (i == 0) {
        random.write(0, cache_rows, k);
        random.write(cache_rows, 2 * cache_rows, v);
      } else if (i < host_copies) {
        std::memcpy(k, block.get(), size_t(half));
        std::memcpy(v, block.get() + stride, size_t(half));
      }
      c.caches.push_back({spec.engine.kv, c.slots, s.kv_heads, c.context, s.head_dim, k, v});
    }
    c.storage.push_back(block);
  }
  const bool two = s.op == OpKind::add || s.op == OpKind::silu_mul || s.op == OpKind::kv_store;
  for (int i = 0; i < (s.op == OpKind::embed ? 0 : two ? 2 : 1); i++)
    c.inputs.push_back(random_vector(spec.seed, fmt::format("input {}", i), c.most_rows * s.columns, 0, 1));
  if (s.residual) c.inputs.push_back(random_vector(spec.seed, "residual", c.most_rows * s.rows, 0, 1));
  if (s.op == OpKind::rms_norm || s.norm) c.vector = random_vector(spec.seed, "norm", s.columns, 1, 0.5);
  if (s.op == OpKind::head_norm) c.vector = random_vector(spec.seed, "norm", s.head_dim, 1, 0.5);

  for (size_t i = 0; i < c.inputs.size(); i++)
    c.program.values.push_back({fmt::format("input{}", i), -1, s.residual && i == 1 ? s.rows : s.columns, ""});
  const ValueId output = s.op == OpKind::kv_store ? kNoValue : ValueId(c.program.values.size());
  if (output != kNoValue) c.program.values.push_back({s.name, -1, output_columns(s), ""});
  for (int i = 0; i <= c.copies; i++) {
    Node n;
    n.op = i < c.copies ? s.op : OpKind::kv_store;
    n.layer = is_cache_op(s.op) ? std::min(i, c.copies - 1) : -1;
    n.phase = i < c.copies ? s.name : "kv_store";
    n.heads = i < c.copies ? s.heads : s.kv_heads;
    n.head_dim = s.head_dim;
    n.eps = 1e-6;
    if (i < c.copies) {
      for (size_t v = 0; v < c.inputs.size(); v++) n.inputs.push_back(ValueId(v));
      n.output = output;
      if (!c.weights.empty()) n.weight = &c.weights[size_t(i * s.matrices())];
    }
    if (i < c.copies && !c.vector.empty()) n.vector = &c.vector;
    c.program.nodes.push_back(std::move(n));
  }
  if (s.op == OpKind::embed) {
    std::mt19937_64 rng(spec.seed);
    for (int64_t r = 0; r < c.most_rows; r++) c.ids.push_back(int32_t(rng() % uint64_t(s.rows)));
  }
  return made;
}

/// Of one copy; what is fused is neither written nor read in between.
static NodeCost cost_of(const OpCase& c, const PassLoad& load) {
  // cost_of finds the kv heads in the layer's own store, the last layer's here.
  NodeCost cost = cost_of(c.program.nodes[size_t(c.copies - 1)], c.program, load);
  const OpShape& s = c.shape;
  for (int64_t m = 1; m < s.matrices(); m++) {
    cost.weight_bytes += int64_t(c.weights[size_t(m)].bytes());
    cost.operations += 2 * load.rows * s.rows_of(m) * s.columns;
  }
  // The norm's vector is counted as a bias's would be, its operations are rms_norm's (engine/cost.cpp).
  if (s.norm) cost.operations += load.rows * (4 * s.columns + 4 - output_columns(s));
  if (s.gated) cost.operations += load.rows * 5 * s.rows;
  if (s.residual) cost.operations += load.rows * s.rows;
  return cost;
}

OpReport bench_ops(const OpBenchSpec& spec) {
  OpReport report;
  std::shared_ptr<Device> device;
  if (!spec.engine.device.module.empty()) {
    device = std::make_shared<Device>(DeviceModule::load(spec.engine.device.module), spec.engine.device.ordinal);
    report.device = device->info().name;
  }
  for (size_t i = 0; i < spec.shapes.size(); i++) {
    const OpShape& s = spec.shapes[i];
    if (s.fused() && !device)
      throw Error(ErrorKind::usage, "--fuse", "is of a device", "--backend cuda beside it", "--backend cpu");
    const auto made = make_case(s, spec);
    const OpCase& c = *made;
    const auto rig = device ? device_rig(c, spec, *device) : cpu_rig(c, spec);
    for (int64_t rows : spec.rows) {
      OpResult r;
      r.shape = i;
      r.rows = rows;
      r.op_rows = s.requested_rows && spec.prefill ? 1 : rows;
      r.copies = c.copies;
      PassLoad load = PassLoad::of_sequence(spec.depth, r.op_rows, spec.engine.kv);
      if (!spec.prefill) load.positions = load.cached = r.op_rows * (spec.depth + 1);
      const NodeCost cost = cost_of(c, load);
      r.bytes = double(cost.moved() + cost.value_bytes);
      r.operations = double(cost.operations);
      rig->measure(r, spec.repetitions);
      std::vector<double> sorted = r.all_seconds;
      std::sort(sorted.begin(), sorted.end());
      if (!sorted.empty()) r.seconds = sorted[sorted.size() / 2];
      report.results.push_back(std::move(r));
    }
    if (i == spec.shapes.size() / 2)
      report.reference_gbps = device ? device_copy_gbps(*device) : plain_read_gbps(spec.engine.threads);
  }
  // By rows as asked, then by shape.
  const auto place = [&](const OpResult& r) {
    return std::find(spec.rows.begin(), spec.rows.end(), r.rows) - spec.rows.begin();
  };
  std::stable_sort(report.results.begin(), report.results.end(), [&](auto& a, auto& b) { return place(a) < place(b); });
  return report;
}

}  // namespace assay
