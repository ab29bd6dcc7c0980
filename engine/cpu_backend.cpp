#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "dumps/error.h"
#include "engine/large_memory.h"
#include "engine/backend.h"
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
  std::vector<const Matrix*> matrices;
  for (const Node& n : program.nodes)
    if (n.op == OpKind::linear && is_quantised(n.weight->type) && panels_.emplace(n.weight->data, nullptr).second)
      matrices.push_back(n.weight);
  repack_all(matrices);
}

void CpuBackend::repack_all(const std::vector<const Matrix*>& matrices) {
  size_t bytes = 0;
  for (const Matrix* m : matrices) bytes += assay::panel_bytes(*m);
  if (bytes == 0) return;
  panel_storage_.push_back(allocate_large(bytes));
  std::byte* at = panel_storage_.back().get();
  if (!at)
    throw Error(ErrorKind::memory, "weights", "their repacked copy does not fit", std::to_string(bytes) + " bytes", "",
                "--isa scalar and --activations f32 read the file's blocks as they lie.");
  panel_bytes_ += bytes;
  for (const Matrix* m : matrices) {
    panels_[m->data] = at;
    pool_->parallel_for(panels_of(*m), 16, [&](int64_t b, int64_t e, int) { repack(*m, at, b, e); });
    at += assay::panel_bytes(*m);
  }
}

const std::byte* CpuBackend::panels(const Matrix& m) const {
  const auto found = panels_.find(m.data);
  return found == panels_.end() ? nullptr : found->second;
}

std::string CpuBackend::variant(const Node& node) const {
  std::string name(name_of(isa()));
  if (node.op == OpKind::linear && is_quantised(node.weight->type) && activations_ != Activations::f32)
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

void CpuBackend::quant_linear(NodeContext& c) {
  const Node& n = c.node;
  const Matrix& w = *n.weight;
  const int64_t groups = w.columns / 32, all = c.rows * groups;
  // Requested rows are gathered into a buffer of their own: what it holds is not the value that the id names.
  const ValueId value = n.requested_rows_only ? kNoValue : n.inputs[0];
  const int code_bytes = code_bytes_for(isa(), w.type, activations_);
  if (value == kNoValue || value != quantised_value_ || quantised_.code_bytes != code_bytes) {
    quantised_codes_.resize(size_t(c.rows * w.columns * code_bytes));
    quantised_scales_.resize(size_t(all));
    quantised_sums_.resize(size_t(2 * all));
    quantised_ = {activations_, code_bytes, c.rows, w.columns, quantised_codes_.data(), quantised_scales_.data(), quantised_sums_.data()};
    const QuantiseArgs q{c.inputs[0], quantised_};
    pool_->parallel_for(all, grain_for(all, 64), [&](int64_t b, int64_t e, int) { kernels_->quantise(q, b, e); });
    quantised_value_ = value;
  }
  if (isa() != Isa::scalar && !panels(w)) repack_all({&w});
  const QuantLinearArgs a{w, panels(w), quantised_, n.vector ? n.vector->data() : nullptr, c.output};
  // A thread should read on through memory for a while, and threads should end together: some eight pieces each.
  const int64_t panels = panels_of(w), piece = panels / (8 * pool_->threads());
  const int64_t grain = std::max(grain_for(panels, kPanelRows * w.columns * c.rows), std::clamp<int64_t>(piece, 1, 16));
  pool_->parallel_for(panels, grain, [&](int64_t b, int64_t e, int) { kernels_->quant_linear(a, b, e); });
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
