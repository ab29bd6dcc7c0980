#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "dumps/error.h"
#include "engine/large_memory.h"
#include "engine/backend.h"
#include "engine/numerics.h"
#include "engine/ops/common/rope_table.h"
#include "engine/ops/panel.h"
#include "engine/thread_pool.h"

namespace assay {

CpuBackend::CpuBackend(Isa isa, int threads) {
  if (!isa_supported(isa))
    throw Error(ErrorKind::usage, "--isa", "this CPU or build lacks it", "at most " + std::string(name_of(best_isa())),
                std::string(name_of(isa)));
  kernels_ = &kernels(isa);
  start(threads);
}
CpuBackend::CpuBackend(const Kernels& table, int threads) : kernels_(&table) { start(threads); }

void CpuBackend::start(int threads) {
  if (threads < 0 || threads > 1024)
    throw Error(ErrorKind::usage, "--threads", "out of range", "0 (all cores) to 1024", std::to_string(threads));
  pool_ = std::make_unique<ThreadPool>(threads);
  scratch_.resize(pool_->threads());
}
CpuBackend::~CpuBackend() = default;

void CpuBackend::prepare(const Program& program, Activations activations, bool now) {
  activations_ = activations;
  if (activations == Activations::f32 || isa() == Isa::scalar || !now) return;
  std::vector<Matrix> matrices;
  const auto add = [&](const Matrix& m) {
    if (panels_.emplace(m.data, nullptr).second) matrices.push_back(m);
  };
  for (const Node& n : program.nodes) {
    if (!n.weight || !is_quantised(n.weight->type)) continue;
    if (n.op == OpKind::linear) add(*n.weight);
    if (n.op == OpKind::expert_linear)  // each expert's panels begin with its own row
      for (int64_t e = 0; e < n.experts; e++) add(expert_of(*n.weight, n.experts, e));
  }
  repack_all(matrices);
}

Matrix expert_of(const Matrix& all, int64_t experts, int64_t e) {
  const int64_t rows = all.rows / experts;
  return {all.type, rows, all.columns, all.row(e * rows)};
}

void CpuBackend::repack_all(const std::vector<Matrix>& matrices) {
  size_t bytes = 0;
  for (const Matrix& m : matrices) bytes += assay::panel_bytes(m);
  if (bytes == 0) return;
  panel_storage_.push_back(allocate_large(bytes));
  std::byte* at = panel_storage_.back().get();
  if (!at)
    throw Error(ErrorKind::memory, "weights", "their repacked copy does not fit", std::to_string(bytes) + " bytes", "",
                "--isa scalar and --activations f32 read the file's blocks as they lie.");
  panel_bytes_ += bytes;
  for (const Matrix& m : matrices) {
    panels_[m.data] = at;
    pool_->parallel_for(panels_of(m), 16, [&](int64_t b, int64_t e, int) { repack(m, at, b, e); });
    at += assay::panel_bytes(m);
  }
}

const std::byte* CpuBackend::panels(const Matrix& m) const {
  const auto found = panels_.find(m.data);
  return found == panels_.end() ? nullptr : found->second;
}

std::string CpuBackend::variant(const Node& node) const {
  std::string name(name_of(isa()));
  if ((node.op == OpKind::linear || node.op == OpKind::expert_linear) && is_quantised(node.weight->type) &&
      activations_ != Activations::f32)
    name.append("+").append(name_of(activations_));
  return name;
}
int CpuBackend::threads() const { return pool_->threads(); }

size_t CpuBackend::quantised_bytes() const {
  return quantised_codes_.capacity() + quantised_scales_.capacity() * sizeof(float) +
         quantised_sums_.capacity() * sizeof(int32_t);  // a pass of fewer rows gives nothing back
}

size_t CpuBackend::scratch_bytes() const {
  size_t floats = 0;
  for (const auto& s : scratch_) floats += s.size();
  return floats * sizeof(float);
}

namespace {

/// Work items per task: a task should be worth a few microseconds, whatever one item costs.
int64_t grain_for(int64_t items, int64_t operations_per_item) {
  constexpr int64_t kWorthwhile = 1 << 14;
  return std::clamp<int64_t>(kWorthwhile / std::max<int64_t>(operations_per_item, 1), 1, std::max<int64_t>(items, 1));
}

[[noreturn]] void throw_overflow(const NodeContext& c, int64_t at) {
  const int64_t columns = c.node.heads * c.node.head_dim, half = c.rows * columns;
  const bool is_v = at >= half;
  const int64_t row = (at - (is_v ? half : 0)) / columns, column = (at - (is_v ? half : 0)) % columns;
  const float value = c.inputs[is_v][row * columns + column];
  throw Error(ErrorKind::numeric, "layer." + std::to_string(c.node.layer) + (is_v ? "/v_proj" : "/k_rope"),
              "position " + std::to_string(c.positions[row]) + ", column " + std::to_string(column) +
                  ": the value does not fit the f16 cache",
              "at most 65504 in magnitude", std::to_string(value), "--kv f32 or --kv bf16 hold it.");
}

}  // namespace

/// The first input as integers, [rows, columns]: of a value that the last product read they are there already.
const QuantisedRows& CpuBackend::quantised_input(const NodeContext& c, int64_t rows, int64_t columns, int code_bytes) {
  // Requested rows are gathered into a buffer of their own: what it holds is not the value that the id names.
  const ValueId value = c.node.requested_rows_only ? kNoValue : c.node.inputs[0];
  if (value != kNoValue && value == quantised_value_ && quantised_.code_bytes == code_bytes) return quantised_;
  const int64_t all = rows * (columns / 32);
  quantised_codes_.resize(size_t(rows * columns * code_bytes));
  quantised_scales_.resize(size_t(all));
  quantised_sums_.resize(size_t(2 * all));
  quantised_ = {activations_, code_bytes, rows, columns, quantised_codes_.data(), quantised_scales_.data(), quantised_sums_.data()};
  const QuantiseArgs q{c.inputs[0], quantised_};
  pool_->parallel_for(all, grain_for(all, 64), [&](int64_t b, int64_t e, int) { kernels_->quantise(q, b, e); });
  quantised_value_ = value;
  return quantised_;
}

void CpuBackend::quant_linear(NodeContext& c) {
  const Node& n = c.node;
  const Matrix& w = *n.weight;
  const QuantisedRows& x = quantised_input(c, c.rows, w.columns, code_bytes_for(isa(), w.type, activations_));
  if (isa() != Isa::scalar && !panels(w)) repack_all({w});
  const QuantLinearArgs a{w, panels(w), x, n.vector ? n.vector->data() : nullptr, c.output};
  // A thread should read on through memory for a while, and threads should end together: some eight pieces each.
  const int64_t panels = panels_of(w), piece = panels / (8 * pool_->threads());
  const int64_t grain = std::max(grain_for(panels, kPanelRows * w.columns * c.rows), std::clamp<int64_t>(piece, 1, 16));
  pool_->parallel_for(panels, grain, [&](int64_t b, int64_t e, int) { kernels_->quant_linear(a, b, e); });
}

void force_experts(NodeContext& c) {
  int64_t row = 0;
  for (size_t s = 0; s < c.batch.experts.size(); s++) {
    const Segment& segment = c.batch.segments[s];
    for (int64_t r = 0; r < segment.rows && c.batch.experts[s]; r++)
      if (const int32_t* ids = c.batch.experts[s]->at(c.node.layer, segment.position + r))
        std::copy_n(ids, c.node.chosen, c.output + (row + r) * c.node.chosen);
    row += segment.rows;
  }
}

void CpuBackend::topk(NodeContext& c) {
  const Node& n = c.node;
  const TopkArgs a{c.inputs[0], c.output, n.experts, n.chosen};
  pool_->parallel_for(c.rows, grain_for(c.rows, n.experts * n.chosen), [&](int64_t b, int64_t e, int) { kernels_->topk(a, b, e); });
  force_experts(c);
}

/// n elements and, where it has to grow, room for no more: what it takes is what plan.cpp says.
template <typename T>
static void sized(std::vector<T>& v, int64_t n) {
  v.reserve(size_t(n));
  v.resize(size_t(n));
}

/// Each row with its own experts only: rows are sorted by expert, an expert's rows gathered, multiplied as linear does it,
/// and the products put where they belong. A product's bits depend on its row and its expert alone (ops/kernels.h), so that
/// nothing hangs on who shares an expert.
void CpuBackend::expert_linear(NodeContext& c) {
  const Node& n = c.node;
  const Matrix& all = *n.weight;
  const float* ids = c.inputs[1];
  const int64_t k = n.chosen, columns = all.columns, outputs = all.rows / n.experts, pairs = c.rows * k;
  // Of one x per row, or one per rank.
  const int64_t per_row = c.program.values[size_t(n.inputs[0])].columns / columns;
  ExpertRows& rows = expert_rows_;
  rows.first.assign(size_t(n.experts) + 1, 0);
  for (int64_t i = 0; i < pairs; i++)
    if (ids[i] >= 0) rows.first[size_t(ids[i]) + 1]++;
  rows.used.clear();
  rows.used.reserve(size_t(n.experts));
  for (int64_t e = 0; e < n.experts; e++) {
    if (rows.first[size_t(e) + 1] > 0) rows.used.push_back(e);
    rows.first[size_t(e) + 1] += rows.first[size_t(e)];
  }
  sized(rows.row, rows.first.back());
  {
    std::vector<int64_t> next(rows.first.begin(), rows.first.end() - 1);
    for (int64_t i = 0; i < pairs; i++)
      if (ids[i] >= 0) rows.row[size_t(next[size_t(ids[i])]++)] = i;
  }
  // A row whose router chose nothing (topk) has no product.
  for (int64_t i = 0; i < pairs; i++)
    if (!(ids[i] >= 0)) std::fill_n(c.output + i * outputs, outputs, canonical_nan());
  if (rows.used.empty()) return;

  const auto source = [&](int64_t i) { return per_row == 1 ? i / k : i; };   // the row of x that pair i multiplies
  const auto count = [&](int64_t e) { return rows.first[size_t(e) + 1] - rows.first[size_t(e)]; };
  const bool integers = is_quantised(all.type) && activations_ != Activations::f32;
  // One row alone is read and written where it lies; several are gathered.
  const int64_t gathered = int64_t(rows.row.size());
  sized(rows.y, gathered * outputs);
  std::vector<Matrix> experts;
  for (int64_t e : rows.used) experts.push_back(expert_of(all, n.experts, e));
  QuantisedRows packed{};
  const QuantisedRows* x = nullptr;
  if (integers) {
    if (isa() != Isa::scalar) {
      std::vector<Matrix> missing;
      for (const Matrix& m : experts)
        if (!panels(m)) missing.push_back(m);
      repack_all(missing);
    }
    const int code_bytes = code_bytes_for(isa(), all.type, activations_);
    x = &quantised_input(c, c.rows * per_row, columns, code_bytes);
    const size_t row_codes = size_t(columns * code_bytes), groups = size_t(columns / 32);
    sized(rows.codes, gathered * int64_t(row_codes));
    sized(rows.scales, gathered * int64_t(groups));
    sized(rows.sums, gathered * 2 * int64_t(groups));
    packed = {activations_, code_bytes, gathered, columns, rows.codes.data(), rows.scales.data(), rows.sums.data()};
    pool_->parallel_for(gathered, grain_for(gathered, columns), [&](int64_t b, int64_t e, int) {
      for (int64_t i = b; i < e; i++) {
        const size_t from = size_t(source(rows.row[size_t(i)])), to = size_t(i);
        std::memcpy(packed.codes + to * row_codes, x->codes + from * row_codes, row_codes);
        std::memcpy(packed.scales + to * groups, x->scales + from * groups, groups * sizeof(float));
        std::memcpy(packed.sums + to * 2 * groups, x->sums + from * 2 * groups, 2 * groups * sizeof(int32_t));
      }
    });
  } else {
    sized(rows.x, gathered * columns);
    pool_->parallel_for(gathered, grain_for(gathered, columns), [&](int64_t b, int64_t e, int) {
      for (int64_t i = b; i < e; i++)
        std::memcpy(&rows.x[size_t(i * columns)], c.inputs[0] + source(rows.row[size_t(i)]) * columns, size_t(columns) * sizeof(float));
    });
  }

  // Work of all experts in one list: panels of 16 outputs, so that threads end together whatever the router chose.
  const int64_t pieces = (outputs + kPanelRows - 1) / kPanelRows, items = pieces * int64_t(experts.size());
  const int64_t average = (gathered + int64_t(experts.size()) - 1) / int64_t(experts.size());
  const auto product = [&](int64_t used, int64_t begin, int64_t end) {
    const int64_t e = rows.used[size_t(used)], first = rows.first[size_t(e)], tokens = count(e);
    float* y = &rows.y[size_t(first * outputs)];
    if (integers) {
      const size_t groups = size_t(columns / 32);
      const QuantisedRows mine{activations_, packed.code_bytes, tokens, columns,
                               packed.codes + size_t(first * columns * packed.code_bytes),
                               packed.scales + size_t(first) * groups, packed.sums + size_t(first) * 2 * groups};
      kernels_->quant_linear({experts[size_t(used)], panels(experts[size_t(used)]), mine, nullptr, y}, begin, end);
    } else {
      kernels_->linear({experts[size_t(used)], nullptr, &rows.x[size_t(first * columns)], y, tokens}, begin * kPanelRows,
                       std::min(end * kPanelRows, outputs));
    }
  };
  pool_->parallel_for(items, grain_for(items, kPanelRows * columns * average), [&](int64_t b, int64_t e, int) {
    while (b < e) {
      const int64_t used = b / pieces, last = std::min(e, (used + 1) * pieces);
      product(used, b - used * pieces, last - used * pieces);
      b = last;
    }
  });
  pool_->parallel_for(gathered, grain_for(gathered, outputs), [&](int64_t b, int64_t e, int) {
    for (int64_t i = b; i < e; i++)
      std::memcpy(c.output + rows.row[size_t(i)] * outputs, &rows.y[size_t(i * outputs)], size_t(outputs) * sizeof(float));
  });
}

void CpuBackend::run(NodeContext& c) {
  const Node& n = c.node;
  ThreadPool& pool = *pool_;
  switch (n.op) {
    case OpKind::embed: {
      const EmbedArgs a{*n.weight, c.ids.data(), c.output};
      pool.parallel_for(c.rows, grain_for(c.rows, c.columns), [&](int64_t b, int64_t e, int) { kernels_->embed(a, b, e); });
      return;
    }
    case OpKind::rms_norm:
    case OpKind::head_norm: {
      const NormArgs a{c.inputs[0], n.vector->data(), c.output, c.columns, n.heads, n.head_dim, float(n.eps), n.heads * n.input_stride,
                       n.input_stride};
      auto kernel = n.op == OpKind::rms_norm ? kernels_->rms_norm : kernels_->head_norm;
      pool.parallel_for(c.rows, grain_for(c.rows, c.columns), [&](int64_t b, int64_t e, int) { kernel(a, b, e); });
      return;
    }
    case OpKind::linear: {
      if (is_quantised(n.weight->type) && activations_ != Activations::f32) return quant_linear(c);
      const LinearArgs a{*n.weight, n.vector ? n.vector->data() : nullptr, c.inputs[0], c.output, c.rows};
      // Whole tiles of rows per task, so that a cut does not spoil the kernel's blocking.
      const int64_t grain = (grain_for(n.weight->rows, n.weight->columns * c.rows) + 15) / 16 * 16;
      pool.parallel_for(n.weight->rows, grain, [&](int64_t b, int64_t e, int) { kernels_->linear(a, b, e); });
      return;
    }
    case OpKind::rope: {
      const RopeArgs a{c.inputs[0], c.output, c.positions.data(), c.rope->cos.data(), c.rope->sin.data(),
                       n.heads, n.head_dim, c.config.rope.rotary};
      pool.parallel_for(c.rows, grain_for(c.rows, c.columns), [&](int64_t b, int64_t e, int) { kernels_->rope(a, b, e); });
      return;
    }
    case OpKind::kv_store: {
      int64_t overflow = std::numeric_limits<int64_t>::max();
      const KvStoreArgs a{c.inputs[0], c.inputs[1], c.places.data(), *c.cache, c.rows, &overflow};
      pool.parallel_for(c.rows, grain_for(c.rows, 2 * n.heads * n.head_dim),
                        [&](int64_t b, int64_t e, int) { kernels_->kv_store(a, b, e); });
      if (overflow != std::numeric_limits<int64_t>::max()) throw_overflow(c, overflow);
      return;
    }
    case OpKind::attention: {
      int64_t longest = 0;
      for (int64_t p : c.positions) longest = std::max(longest, p + 1);
      const size_t need = size_t(attention_scratch_floats(longest, n.head_dim));
      for (auto& s : scratch_)
        if (s.size() < need) s.resize(need);
      const AttentionArgs a{c.inputs[0], c.output, c.places.data(), *c.cache, n.heads,
                            float(1.0 / std::sqrt(double(n.head_dim)))};
      pool.parallel_for(c.rows * n.heads, grain_for(c.rows * n.heads, 2 * longest * n.head_dim),
                        [&](int64_t b, int64_t e, int worker) { kernels_->attention(a, b, e, scratch_[worker].data()); });
      return;
    }
    case OpKind::expert_linear: return expert_linear(c);
    case OpKind::topk: return topk(c);
    case OpKind::topk_weights: {
      const TopkWeightsArgs a{c.inputs[0], c.inputs[1], c.output, n.experts, n.chosen, n.normalised};
      pool.parallel_for(c.rows, grain_for(c.rows, 20 * n.experts), [&](int64_t b, int64_t e, int) { kernels_->topk_weights(a, b, e); });
      return;
    }
    case OpKind::expert_sum: {
      const ExpertSumArgs a{c.inputs[1], c.inputs[0], c.output, n.chosen, c.columns};
      pool.parallel_for(c.rows, grain_for(c.rows, n.chosen * c.columns), [&](int64_t b, int64_t e, int) { kernels_->expert_sum(a, b, e); });
      return;
    }
    case OpKind::gated_add: {
      const GatedAddArgs a{c.inputs[0], c.inputs[1], c.inputs[2], c.output, c.columns};
      pool.parallel_for(c.rows, grain_for(c.rows, c.columns), [&](int64_t b, int64_t e, int) { kernels_->gated_add(a, b, e); });
      return;
    }
    case OpKind::silu_mul:
    case OpKind::sigmoid_mul:
    case OpKind::add: {
      const BinaryArgs a{c.inputs[0], c.inputs[1], c.output, c.columns};
      auto kernel = n.op == OpKind::add ? kernels_->add : n.op == OpKind::silu_mul ? kernels_->silu_mul : kernels_->sigmoid_mul;
      pool.parallel_for(c.rows, grain_for(c.rows, c.columns), [&](int64_t b, int64_t e, int) { kernel(a, b, e); });
      return;
    }
    case OpKind::sigmoid: {
      const SigmoidArgs a{c.inputs[0], c.output, c.columns};
      pool.parallel_for(c.rows, grain_for(c.rows, 8 * c.columns), [&](int64_t b, int64_t e, int) { kernels_->sigmoid(a, b, e); });
      return;
    }
    case OpKind::decay: {
      const DecayArgs a{c.inputs[0], n.vector->data(), c.output, c.columns};
      pool.parallel_for(c.rows, grain_for(c.rows, 50 * c.columns), [&](int64_t b, int64_t e, int) { kernels_->decay(a, b, e); });
      return;
    }
    case OpKind::l2_norm: {
      const float scale = n.scaled ? float(1.0 / std::sqrt(double(n.head_dim))) : 1.0f;
      const L2NormArgs a{c.inputs[0] + n.input_offset, c.output, c.program.values[n.inputs[0]].columns, n.heads, n.head_dim, scale};
      pool.parallel_for(c.rows, grain_for(c.rows, c.columns), [&](int64_t b, int64_t e, int) { kernels_->l2_norm(a, b, e); });
      return;
    }
    case OpKind::gated_norm: {
      const GatedNormArgs a{c.inputs[0], c.inputs[1], n.vector->data(), c.output, n.heads, n.head_dim, float(n.eps)};
      pool.parallel_for(c.rows, grain_for(c.rows, 4 * c.columns), [&](int64_t b, int64_t e, int) { kernels_->gated_norm(a, b, e); });
      return;
    }
    case OpKind::conv: {
      const ConvArgs a{c.inputs[0], n.vector->data(), c.output, c.gdn->conv, c.spans.data(), c.columns, c.gdn->width};
      const int64_t items = int64_t(c.spans.size()) * conv_blocks(c.columns), rows = c.rows / int64_t(c.spans.size());
      pool.parallel_for(items, grain_for(items, rows * kConvBlock * (c.gdn->width + 8)), [&](int64_t b, int64_t e, int) { kernels_->conv(a, b, e); });
      return;
    }
    case OpKind::delta_rule: {
      const DeltaRuleArgs a{c.inputs[0], c.inputs[1], c.inputs[2], c.inputs[3], c.inputs[4], c.output, c.gdn->state, c.spans.data(),
                            n.k_heads,   n.heads,     n.k_dim,     n.head_dim};
      const int64_t items = int64_t(c.spans.size()) * n.heads * delta_blocks(n.head_dim), rows = c.rows / int64_t(c.spans.size());
      pool.parallel_for(items, grain_for(items, rows * n.k_dim * kDeltaBlock), [&](int64_t b, int64_t e, int) { kernels_->delta_rule(a, b, e); });
      return;
    }
    case OpKind::columns: {
      pool.parallel_for(c.rows, grain_for(c.rows, c.columns), [&](int64_t b, int64_t e, int) {
        for (int64_t t = b; t < e; t++)
          for (const ColumnRun& r : n.runs) {
            const float* in = c.inputs[r.input] + t * c.program.values[n.inputs[r.input]].columns + r.from;
            for (int64_t i = 0; i < r.count; i++)
              std::memcpy(c.output + t * c.columns + r.to + i * r.width, in + i * r.stride, size_t(r.width) * sizeof(float));
          }
      });
      return;
    }
    case OpKind::hidden:
      std::memcpy(c.output, c.batch.hidden, size_t(c.rows * c.columns) * sizeof(float));
      return;
  }
  throw Error(ErrorKind::internal, n.name(), "the CPU backend knows no such op");
}

}  // namespace assay
