#include "engine/replay.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "dumps/error.h"
#include "engine/ops/common/rope_table.h"
#include "engine/replay_device.h"

namespace assay {
namespace {

/// What a node of a phase reads in its layer, and what it is called.
struct LayerMatrix {
  const char *phase, *name;
  Matrix LayerWeights::*member;
};
constexpr LayerMatrix kLayerMatrices[] = {
    {"q_proj", "w.q", &LayerWeights::q},
    {"k_proj", "w.k", &LayerWeights::k},
    {"v_proj", "w.v", &LayerWeights::v},
    {"o_proj", "w.o", &LayerWeights::o},
    {"gate_proj", "w.gate", &LayerWeights::gate},
    {"up_proj", "w.up", &LayerWeights::up},
    {"down_proj", "w.down", &LayerWeights::down},
    {"router_logits", "w.router", &LayerWeights::router},
    {"expert_gate_proj", "w.expert_gate", &LayerWeights::expert_gate},
    {"expert_up_proj", "w.expert_up", &LayerWeights::expert_up},
    {"expert_down_proj", "w.expert_down", &LayerWeights::expert_down},
    {"shared_gate_proj", "w.shared_gate", &LayerWeights::shared_gate},
    {"shared_up_proj", "w.shared_up", &LayerWeights::shared_up},
    {"shared_expert_out", "w.shared_down", &LayerWeights::shared_down},
    {"shared_expert_gate", "w.shared_expert_gate", &LayerWeights::shared_expert_gate},
    {"gdn_qkv", "w.gdn_qkv", &LayerWeights::gdn_qkv},
    {"gdn_z", "w.gdn_z", &LayerWeights::gdn_z},
    {"gdn_b", "w.gdn_b", &LayerWeights::gdn_b},
    {"gdn_a", "w.gdn_a", &LayerWeights::gdn_a},
    {"gdn_qkvz", "w.gdn_qkvz", &LayerWeights::gdn_qkvz},
    {"gdn_ba", "w.gdn_ba", &LayerWeights::gdn_ba},
    {"gdn_out", "w.gdn_out", &LayerWeights::gdn_out}};
struct LayerVector {
  const char *phase, *name;
  Vector LayerWeights::*member;
};
constexpr LayerVector kLayerVectors[] = {{"attn_norm", "w.attn_norm", &LayerWeights::attn_norm},
                                         {"q_proj", "w.q_bias", &LayerWeights::q_bias},
                                         {"k_proj", "w.k_bias", &LayerWeights::k_bias},
                                         {"v_proj", "w.v_bias", &LayerWeights::v_bias},
                                         {"q_norm", "w.q_norm", &LayerWeights::q_norm},
                                         {"k_norm", "w.k_norm", &LayerWeights::k_norm},
                                         {"o_proj", "w.o_bias", &LayerWeights::o_bias},
                                         {"ffn_norm", "w.ffn_norm", &LayerWeights::ffn_norm},
                                         {"attn_post_norm", "w.attn_post_norm", &LayerWeights::attn_post_norm},
                                         {"ffn_post_norm", "w.ffn_post_norm", &LayerWeights::ffn_post_norm},
                                         {"gdn_conv", "w.gdn_conv", &LayerWeights::gdn_conv},
                                         {"gdn_decay", "w.gdn_decay", &LayerWeights::gdn_decay},
                                         {"gdn_norm", "w.gdn_norm", &LayerWeights::gdn_norm}};

/// The member of `weights` that a family's node of this phase reads; null where it reads none.
Matrix* matrix_of(Weights& w, const Node& n) {
  if (n.op == OpKind::embed) return &w.embed;
  if (n.layer < 0) return n.op != OpKind::linear ? nullptr : n.phase == "mtp_fc" ? &w.mtp.fc : &w.lm_head;
  for (const LayerMatrix& m : kLayerMatrices)
    if (n.phase == m.phase) return &(w.layer(size_t(n.layer)).*m.member);
  return nullptr;
}

Vector* vector_of(Weights& w, const Node& n) {
  if (n.layer < 0) {
    if (n.phase == "mtp_embed_norm") return &w.mtp.embed_norm;
    if (n.phase == "mtp_hidden_norm") return &w.mtp.hidden_norm;
    if (n.phase == "mtp_norm") return &w.mtp.norm;
    return n.op == OpKind::rms_norm ? &w.final_norm : nullptr;
  }
  for (const LayerVector& v : kLayerVectors)
    if (n.phase == v.phase) return &(w.layer(size_t(n.layer)).*v.member);
  return nullptr;
}

}  // namespace

WeightPlace weight_place(const Weights& w, const Node& node) {
  WeightPlace out;
  if (node.weight == &w.embed) out.matrix_name = "embed";
  if (node.weight == &w.lm_head) out.matrix_name = "lm_head";
  if (node.vector == &w.final_norm) out.vector_name = "final_norm";
  if (node.weight == &w.mtp.fc) out.matrix_name = "mtp.fc";
  if (node.vector == &w.mtp.embed_norm) out.vector_name = "mtp.embed_norm";
  if (node.vector == &w.mtp.hidden_norm) out.vector_name = "mtp.hidden_norm";
  if (node.vector == &w.mtp.norm) out.vector_name = "mtp.norm";
  for (size_t l = 0; l <= w.layers.size(); l++) {
    const std::string stem = layer_stem(int(l), l == w.layers.size());
    for (const LayerMatrix& m : kLayerMatrices)
      if (node.weight == &(w.layer(l).*m.member)) out.matrix_name = stem + m.name;
    for (const LayerVector& v : kLayerVectors)
      if (node.vector == &(w.layer(l).*v.member)) out.vector_name = stem + v.name;
  }
  return out;
}

NodeRun run_case(const NodeCase& c, const Rewrite& plant) {
  if (!c.options.device.module.empty()) return run_case_on_device(c);
  // The model has room for every layer and weights for this node alone, where a plant may look for them.
  auto model = std::make_shared<Model>();
  model->config = c.config;
  model->weights.layers.resize(size_t(c.config.layers));
  model->weights.storage = c.storage;
  Node node = c.node;
  node.inputs.clear();
  node.replacement = nullptr;
  node.weight = nullptr;
  node.vector = nullptr;
  auto placed = [&](auto* place, const auto& value) {
    if (!place)
      throw Error(ErrorKind::malformed, node.name(), "has a weight, but no family has one there", "a phase of engine/families/",
                  "\"" + node.phase + "\"");
    *place = value;
    return place;
  };
  if (!c.weight.empty()) node.weight = placed(matrix_of(model->weights, node), c.weight);
  if (!c.vector.empty()) node.vector = placed(vector_of(model->weights, node), c.vector);
  Program program;
  for (size_t i = 0; i < c.inputs.size(); i++) {
    node.inputs.push_back(ValueId(i));
    program.values.push_back({"input" + std::to_string(i), node.layer, int64_t(c.inputs[i].size()) / c.rows, ""});
  }
  node.output = ValueId(program.values.size());
  program.values.push_back({node.phase, node.layer, c.columns, ""});
  program.nodes = {node};

  EngineOptions options = c.options;
  options.slots = 1;
  options.context = c.positions();
  Engine engine(model, std::move(program), options);
  if (plant) plant(engine);

  Batch batch;
  batch.pass = c.pass;
  batch.ids = c.ids;
  batch.ids.resize(size_t(c.rows));
  batch.segments = {{0, c.first_position, c.rows, 0, c.step}};
  std::vector<RowPlace> places;
  std::vector<int64_t> positions;
  for (int64_t r = 0; r < c.rows; r++) {
    places.push_back({0, c.first_position + r});
    positions.push_back(c.first_position + r);
    batch.logit_rows.push_back(r);
  }
  RopeTable rope;  // rows of the case's positions; a kernel that reads others finds zeros
  if (!c.cos.empty()) {
    rope.context = c.positions();
    rope.pairs = int64_t(c.cos.size()) / c.rows;
    rope.cos.assign(size_t(rope.context * rope.pairs), 0.0f);
    rope.sin = rope.cos;
    std::copy(c.cos.begin(), c.cos.end(), rope.cos.begin() + c.first_position * rope.pairs);
    std::copy(c.sin.begin(), c.sin.end(), rope.sin.begin() + c.first_position * rope.pairs);
  }
  const KvLayer* cache = node.layer < 0 ? nullptr : &engine.kv(node.layer);
  if (cache && !c.k.empty()) {
    std::memcpy(cache->k, c.k.data(), c.k.size());
    std::memcpy(cache->v, c.v.data(), c.v.size());
  }
  const GdnLayer* gdn = node.layer < 0 ? nullptr : &engine.gdn(node.layer);
  if (gdn && !c.conv_state.empty()) std::copy(c.conv_state.begin(), c.conv_state.end(), gdn->conv);
  if (gdn && !c.recurrent_state.empty()) std::copy(c.recurrent_state.begin(), c.recurrent_state.end(), gdn->state);
  const std::vector<RowSpan> spans = {{0, 0, c.rows}};
  NodeRun out;
  out.value.assign(size_t(c.rows * c.columns), std::numeric_limits<float>::quiet_NaN());
  Node& planted = engine.plantable_program().nodes.at(0);
  NodeContext ctx{planted, engine.program(), model->config, batch, c.rows, {},   out.value.data(), c.columns, batch.ids,
                  places,  positions,        cache,         &rope, gdn,    spans};
  for (const auto& x : c.inputs) ctx.inputs.push_back(x.data());
  CpuBackend& backend = engine.plantable_backend();
  backend.begin_pass();
  if (planted.replacement)
    planted.replacement(ctx);
  else
    backend.run(ctx);
  out.variant = planted.replacement ? planted.variant : backend.variant(planted);
  return out;
}

void store_rows(const Config& config, KvType type, int64_t rows, const float* k, const float* v,
                std::vector<std::byte>& k_out, std::vector<std::byte>& v_out) {
  const size_t bytes = size_t(config.kv_heads * rows * config.head_dim) * size_of(type);
  k_out.assign(bytes, std::byte(0));
  v_out.assign(bytes, std::byte(0));
  std::vector<RowPlace> places;
  for (int64_t r = 0; r < rows; r++) places.push_back({0, r});
  int64_t overflow = std::numeric_limits<int64_t>::max();
  const KvStoreArgs a{
      k,    v,        places.data(), {type, 1, config.kv_heads, rows, config.head_dim, k_out.data(), v_out.data()},
      rows, &overflow};
  kernels(Isa::scalar).kv_store(a, 0, rows);
  if (overflow != std::numeric_limits<int64_t>::max())
    throw Error(ErrorKind::numeric, "cache of the baseline's rows", "a value does not fit the cache type",
                std::string(name_of(type)));
}

void wrap_node(Engine& engine, Node& node,
               std::function<void(NodeContext&, const std::function<void(NodeContext&)>&)> body) {
  std::function<void(NodeContext&)> inner = node.replacement;
  if (!inner) {
    CpuBackend* backend = &engine.plantable_backend();
    inner = [backend](NodeContext& c) { backend->run(c); };
    node.variant = engine.backend().variant(node);
  }
  node.replacement = [inner = std::move(inner), body = std::move(body)](NodeContext& c) { body(c, inner); };
}

}  // namespace assay
