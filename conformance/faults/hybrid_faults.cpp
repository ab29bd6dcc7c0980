// Faults of gated DeltaNet layers, of their state, and of the head of multi-token prediction.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>

#include "conformance/faults/plants.h"
#include "engine/numerics.h"
#include "engine/ops/common/rope_table.h"

namespace assay {
namespace {

int64_t state_of(const NodeContext& c) {
  return c.gdn->state_floats();
}

/// A20: a sequence begins with what the one before it left.
void state_not_reset(Engine& e) {
  auto left = std::make_shared<std::map<std::pair<int, int32_t>, std::vector<float>>>();
  replace(e, OpKind::delta_rule, "state-not-reset", [left](NodeContext& c, CpuBackend& b) {
    for (const Segment& s : c.batch.segments)
      if (const auto it = left->find({c.node.layer, s.slot}); s.position == 0 && it != left->end())
        std::copy(it->second.begin(), it->second.end(), c.gdn->state_of(s.slot));
    b.run(c);
    for (const Segment& s : c.batch.segments)
      (*left)[{c.node.layer, s.slot}].assign(c.gdn->state_of(s.slot), c.gdn->state_of(s.slot) + state_of(c));
  });
}

/// Runs the scalar delta rule row by row with other operands.
template <class Change>
void by_row(const DeltaRuleArgs& a, int64_t begin, int64_t end, Change change) {
  const int64_t blocks = delta_blocks(a.d_v);
  for (int64_t item = begin; item < end; item++) {
    const RowSpan span = a.spans[item / blocks / a.v_heads];
    for (int64_t r = span.first; r < span.first + span.rows; r++) {
      const RowSpan one{span.slot, r, 1};
      DeltaRuleArgs b = a;
      b.spans = &one;
      change(b, r, item % (blocks * a.v_heads));
    }
  }
}

/// A20: the state decays behind the update, what the row brings included.
void decay_after_update(const DeltaRuleArgs& a, int64_t begin, int64_t end) {
  by_row(a, begin, end, [](DeltaRuleArgs b, int64_t row, int64_t item) {
    const std::vector<float> none(size_t((row + 1) * b.v_heads), 0.0f);
    const float* decay = b.decay;
    b.decay = none.data();
    kernels(Isa::scalar).delta_rule(b, item, item + 1);
    const int64_t blocks = delta_blocks(b.d_v), head = item / blocks, first = item % blocks * kDeltaBlock;
    const float kept = exp_f32(decay[row * b.v_heads + head]);
    float* s = b.state + (b.spans[0].slot * b.v_heads + head) * b.d_k * b.d_v;
    for (int64_t i = 0; i < b.d_k; i++)
      for (int64_t j = first; j < std::min(b.d_v, first + kDeltaBlock); j++)
        s[i * b.d_v + j] = mul_f32(s[i * b.d_v + j], kept);
  });
}

/// A20: what is written is not weighed by beta.
void beta_missing(const DeltaRuleArgs& a, int64_t begin, int64_t end) {
  by_row(a, begin, end, [](DeltaRuleArgs b, int64_t row, int64_t item) {
    const std::vector<float> one(size_t((row + 1) * b.v_heads), 1.0f);
    b.beta = one.data();
    kernels(Isa::scalar).delta_rule(b, item, item + 1);
  });
}

/// A20: all sequences of a pass write one slot's state.
void state_shared(const DeltaRuleArgs& a, int64_t begin, int64_t end) {
  by_row(a, begin, end, [](DeltaRuleArgs b, int64_t row, int64_t item) {
    const RowSpan first{0, row, 1};
    b.spans = &first;
    kernels(Isa::scalar).delta_rule(b, item, item + 1);
  });
}

/// A20: q keeps its length.
void q_scale_missing(const L2NormArgs& a, int64_t begin, int64_t end) {
  L2NormArgs b = a;
  b.scale = 1;
  kernels(Isa::scalar).l2_norm(b, begin, end);
}

/// A20: the history of the convolution is one input too old: taps move by one.
void conv_history(const ConvArgs& a, int64_t begin, int64_t end) {
  std::vector<float> w(size_t(a.width * a.channels), 0.0f);
  std::copy_n(a.w + a.channels, (a.width - 1) * a.channels, w.data());
  ConvArgs b = a;
  b.w = w.data();
  kernels(Isa::scalar).conv(b, begin, end);
}

/// A22-23: a fused kernel takes `a` before the softplus.
void decay_before_softplus(const DecayArgs& a, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; t++)
    for (int64_t h = 0; h < a.heads; h++)
      a.y[t * a.heads + h] = mul_f32(a.w[h], add_f32(a.x[t * a.heads + h], a.w[a.heads + h]));
}

/// A21: the last gated DeltaNet layer's kernel reads the state with the wrong stride.
void last_gdn_stride(Engine& e) {
  Node* last = nullptr;
  for (Node& n : e.plantable_program().nodes)
    if (n.op == OpKind::delta_rule) last = &n;
  if (!last) throw NoPlace("last-gdn-stride");
  CpuBackend* backend = &e.plantable_backend();
  last->variant = "last-gdn-stride";
  last->replacement = [backend](NodeContext& c) {
    backend->run(c);
    for (int64_t r = 0; r < c.rows; r++)  // rows of a head as columns: only the last one stays where it is
      for (int64_t i = 1; i + 1 < c.columns; i += 2)
        std::swap(c.output[r * c.columns + i], c.output[r * c.columns + i - 1]);
  };
}

/// A28: two offsets of a merged projection are exchanged: q reads k's columns and k reads q's.
void offsets_swapped(Engine& e) {
  int places = 0;
  Program& p = e.plantable_program();
  for (Node& n : p.nodes)
    if (n.op == OpKind::l2_norm) {
      n.input_offset = n.input_offset == 0 ? n.heads * n.head_dim : 0;
      places++;
    }
  if (places == 0) throw NoPlace("offsets-swapped");
}

/// D1: a chunk is padded to whole eights, and the padding rows reach the state.
void padding_rows(Engine& e) {
  replace(e, OpKind::delta_rule, "padding-rows", [](NodeContext& c, CpuBackend& b) {
    b.run(c);
    if (c.batch.pass != Pass::prefill || c.rows % 8 == 0) return;
    std::vector<float> output(c.output, c.output + c.rows * c.columns);
    std::vector<RowSpan> last;
    for (const RowSpan& s : c.spans) last.push_back({s.slot, s.first + s.rows - 1, 1});
    const std::span<const RowSpan> own = c.spans;
    c.spans = last;
    for (int64_t pad = c.rows; pad % 8 != 0; pad++) b.run(c);
    c.spans = own;
    std::copy(output.begin(), output.end(), c.output);
  });
}

/// D2: the state is taken where a chunk of 32 ended, whatever rows came behind it.
void state_of_whole_chunks(Engine& e) {
  replace(e, OpKind::delta_rule, "state-of-whole-chunks", [](NodeContext& c, CpuBackend& b) {
    b.run(c);
    if (c.batch.pass != Pass::prefill || c.batch.segments.size() != 1 || c.rows <= 32 || c.rows % 32 == 0) return;
    const Segment& s = c.batch.segments[0];
    std::vector<float> output(c.output, c.output + c.rows * c.columns);
    if (s.position != 0) return;
    std::fill_n(c.gdn->state_of(s.slot), state_of(c), 0.0f);
    const std::vector<RowSpan> whole = {{s.slot, 0, c.rows / 32 * 32}};
    const std::span<const RowSpan> own = c.spans;
    c.spans = whole;
    b.run(c);
    c.spans = own;
    std::copy(output.begin(), output.end(), c.output);
  });
}

/// D3: a chunk at a position above 0 starts from nothing.
void reset_at_chunks(Engine& e) {
  replace(e, OpKind::delta_rule, "reset-at-chunks", [](NodeContext& c, CpuBackend& b) {
    for (const Segment& s : c.batch.segments)
      if (c.batch.pass == Pass::prefill && s.position > 0) std::fill_n(c.gdn->state_of(s.slot), state_of(c), 0.0f);
    b.run(c);
  });
}

/// D4: norm weights are transformed otherwise than w' = 1 + w in f32.
void norm_weights(Engine& e, const char* fault, float (*change)(float), bool mtp_only, const char* phase = nullptr) {
  static std::vector<std::shared_ptr<Vector>> kept;  // as long as any engine
  int places = 0;
  for (Node& n : e.plantable_program().nodes) {
    if ((n.op != OpKind::rms_norm && n.op != OpKind::head_norm) || !e.model().config.norm_plus_one) continue;
    if ((mtp_only && !n.mtp) || (phase && n.phase != phase)) continue;
    kept.push_back(std::make_shared<Vector>(*n.vector));
    for (float& w : *kept.back()) w = change(w);
    n.vector = kept.back().get();
    n.variant = fault;
    CpuBackend* backend = &e.plantable_backend();
    n.replacement = [backend](NodeContext& c) { backend->run(c); };
    places++;
  }
  if (places == 0) throw NoPlace(fault);
}

/// D5: b and a of the fused projection are its first and second half, not halves of each key head's part.
void split_at_midpoint(Engine& e) {
  int places = 0;
  for (Node& n : e.plantable_program().nodes) {
    if (n.op != OpKind::columns || (n.phase != "gdn_b" && n.phase != "gdn_a")) continue;
    ColumnRun& r = n.runs.at(0);
    r.from = n.phase == "gdn_b" ? 0 : r.count * r.width;
    r.stride = r.width;
    places++;
  }
  if (places == 0) throw NoPlace("split-at-midpoint");
}

/// D21: value heads stay in the order of a GGUF file, by rank and not by key head.
void v_heads_tiled(Engine& e) {
  const Config& m = e.model().config;
  const int64_t group = m.gdn_k_heads ? m.gdn_v_heads / m.gdn_k_heads : 1;
  int places = 0;
  for (Node& n : e.plantable_program().nodes) {
    if (n.op != OpKind::columns || n.phase != "gdn_v" || group == 1 || m.gdn_k_heads == 1) continue;
    const int64_t first = n.runs.at(0).from;
    n.runs.clear();
    for (int64_t rank = 0; rank < group; rank++)
      n.runs.push_back({0, first + rank * m.gdn_v_dim, group * m.gdn_v_dim, rank * m.gdn_k_heads * m.gdn_v_dim,
                        m.gdn_k_heads, m.gdn_v_dim});
    places++;
  }
  if (places == 0) throw NoPlace("v-heads-tiled");
}

Node& mtp_node(Engine& e, const char* phase, const char* fault) {
  for (Node& n : e.plantable_program().nodes)
    if (n.mtp && n.phase == phase) return n;
  throw NoPlace(fault);
}

/// A34: [hidden, embedding] where the head wants [embedding, hidden].
void concat_swapped(Engine& e) {
  Node& n = mtp_node(e, "mtp_concat", "concat-swapped");
  std::swap(n.inputs.at(0), n.inputs.at(1));
}

/// A34: one of the two norms in front of fc is left out.
void norm_skipped(Engine& e, const char* phase, const char* fault) {
  Node& n = mtp_node(e, phase, fault);
  n.variant = fault;
  n.replacement = [](NodeContext& c) {
    std::memcpy(c.output, c.inputs[0], size_t(c.rows * c.columns) * sizeof(float));
  };
}

/// A34: the hidden state is taken before the final norm.
void hidden_before_norm(Engine& e) {
  Program& p = e.plantable_program();
  if (p.hidden == kNoValue) throw NoPlace("hidden-before-norm");
  p.hidden = p.find(-1, "final_norm")->inputs.at(0);
}

/// A34: the head's rows sit one position further than their pair.
void position_off(Engine& e) {
  const int head = int(e.model().config.layers);
  CpuBackend* backend = &e.plantable_backend();
  int places = 0;
  for (Node& n : e.plantable_program().nodes) {
    if (n.op != OpKind::rope || n.layer != head) continue;
    n.variant = "position-off";
    n.replacement = [backend](NodeContext& c) {
      std::vector<int64_t> positions(c.positions.begin(), c.positions.end());
      for (int64_t& p : positions) p = std::min(p + 1, c.rope->context - 1);
      c.positions = positions;
      backend->run(c);
    };
    places++;
  }
  if (places == 0) throw NoPlace("position-off");
}

}  // namespace

void add_hybrid_faults(std::vector<Fault>& out) {
  const auto engine = [&](const char* id, const char* what, How how, std::function<void(Engine&)> plant) {
    out.push_back({id, what, how, "", std::move(plant)});
  };
  const auto kernel = [&](const char* id, const char* what, std::function<void(Kernels&)> plant) {
    Fault f{id, what, How::kernel};
    f.kernels = std::move(plant);
    out.push_back(f);
  };
  engine("A20/state-not-reset", "a sequence begins with the recurrent state that the one before it left", How::state,
         state_not_reset);
  kernel("A20/decay-after-update", "the state decays behind the update",
         [](Kernels& k) { k.delta_rule = decay_after_update; });
  kernel("A20/beta-missing", "what is written into the state is not weighed by beta",
         [](Kernels& k) { k.delta_rule = beta_missing; });
  kernel("A20/q-scale-missing", "queries of the recurrence are not scaled",
         [](Kernels& k) { k.l2_norm = q_scale_missing; });
  kernel("A20/conv-history", "the convolution's history is off by one", [](Kernels& k) { k.conv = conv_history; });
  kernel("A20/state-shared", "all slots share one recurrent state", [](Kernels& k) { k.delta_rule = state_shared; });
  engine("A21/last-gdn-stride", "the last gated DeltaNet layer reads with a wrong stride", How::kernel,
         last_gdn_stride);
  kernel("A22-23/decay-before-softplus", "a fused decay uses `a` before the softplus",
         [](Kernels& k) { k.decay = decay_before_softplus; });
  engine("A28/offsets-swapped", "two offsets of the merged projection are exchanged", How::program, offsets_swapped);
  engine("A34/concat-swapped", "the MTP head joins hidden state and embedding in the other order", How::program,
         concat_swapped);
  engine("A34/embed-norm-skipped", "the MTP head's norm of the embedding is left out", How::program,
         [](Engine& e) { norm_skipped(e, "mtp_embed_norm", "embed-norm-skipped"); });
  engine("A34/hidden-norm-skipped", "the MTP head's norm of the hidden state is left out", How::program,
         [](Engine& e) { norm_skipped(e, "mtp_hidden_norm", "hidden-norm-skipped"); });
  engine("A34/w-for-1-plus-w", "norms of the MTP head take w for 1 + w", How::program, [](Engine& e) {
    norm_weights(
        e, "w-for-1-plus-w", [](float w) { return sub_f32(w, 1.0f); }, true);
  });
  engine("A34/hidden-before-norm", "the MTP head gets the hidden state before the final norm", How::program,
         hidden_before_norm);
  Fault position{"A34/position-off", "the MTP head's rows sit one position further", How::program,
                 "RoPE is relative: neither text nor acceptance can show it", position_off};
  out.push_back(position);
  engine("D1/padding-rows", "padding of a chunk updates the recurrent state", How::state, padding_rows);
  engine("D2/state-of-whole-chunks", "the final state is right at whole chunks only", How::state,
         state_of_whole_chunks);
  engine("D3/reset-at-chunks", "a chunk at a position above 0 starts from a zero state", How::state, reset_at_chunks);
  engine("D4/one-added-twice", "norm weights are 2 + w", How::value, [](Engine& e) {
    norm_weights(
        e, "one-added-twice", [](float w) { return add_f32(w, 1.0f); }, false);
  });
  engine("D4/one-not-added", "norm weights are w", How::value, [](Engine& e) {
    norm_weights(
        e, "one-not-added", [](float w) { return sub_f32(w, 1.0f); }, false);
  });
  engine("D4/through-bf16", "norm weights are 1 + w rounded to bf16", How::value, [](Engine& e) {
    norm_weights(
        e, "through-bf16", [](float w) { return f32_of_bf16(bf16_of_f32(w)); }, false);
  });
  engine("D5/split-at-midpoint", "b and a are halves of the whole projection", How::program, split_at_midpoint);
  engine("D6/rejected-rows-stay", "rejected drafts stay in the recurrent state", How::state, [](Engine& e) {
    if (e.model().config.gdn_layers.empty()) throw NoPlace("rejected-rows-stay");
    e.plantable_keeps_rejected();
  });
  engine("D21/v-heads-tiled", "value heads stay in the order of a GGUF file", How::program, v_heads_tiled);
}

}  // namespace assay
