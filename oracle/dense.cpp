#include "oracle/dense.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "dumps/error.h"

namespace assay::oracle {
namespace {

/// What a value was made from: the names behind each operand, each once.
std::vector<std::string> made_from(std::initializer_list<const Value*> operands) {
  std::vector<std::string> out;
  for (const Value* v : operands)
    for (const std::string& name : v->from)
      if (std::find(out.begin(), out.end(), name) == out.end()) out.push_back(name);
  return out;
}

/// The lines of one pass: each op of ops.h on Values, then the tap.
class Lines {
 public:
  Lines(const PassInput& pass, Tap& tap, int threads) : pass_(pass), tap_(tap), threads_(threads) {
    positions_.resize(pass.ids.size());
    std::iota(positions_.begin(), positions_.end(), pass.position);
  }
  void enter_layer(int layer) { layer_ = layer; }
  void leave_layers() { layer_ = -1; }

  Value embed(const char* phase, const WeightRows& table) {
    return tapped(phase, {oracle::embed(table, pass_.ids), {}});
  }
  Value norm(const char* phase, const Value& x, std::span<const double> w, double eps) {
    return tapped(phase, {rms_norm(x.m, w, eps), made_from({&x})});
  }
  Value head_norm(const char* phase, const Value& x, int64_t heads, std::span<const double> w, double eps) {
    return tapped(phase, {oracle::head_norm(x.m, heads, int64_t(w.size()), w, eps), made_from({&x})});
  }
  Value linear(const char* phase, const Value& x, const WeightRows& w, std::span<const double> bias = {}) {
    return tapped(phase, {oracle::linear(x.m, w, bias, threads_), made_from({&x})});
  }
  Value rope(const char* phase, const Value& x, int64_t heads, const Config& c) {
    return tapped(phase, {oracle::rope(x.m, heads, c.head_dim, positions_, c.rope), made_from({&x})});
  }
  Value attention(const char* phase, const Value& q, const Value& k, const Value& v, Matrix64& k_rows, Matrix64& v_rows,
                  const Config& c) {
    Matrix64 new_k = k.m, new_v = v.m;
    tap_.store(pass_, layer_, new_k, new_v);
    append(k_rows, new_k);
    append(v_rows, new_v);
    Value out{oracle::attention(q.m, k_rows, v_rows, positions_, c.heads, c.kv_heads, c.head_dim, threads_),
              made_from({&q, &k, &v})};
    if (pass_.position > 0)
      for (const char* half : {"k", "v"}) out.from.push_back("state:" + value_name(layer_, half, pass_.pass));
    return tapped(phase, std::move(out));
  }
  /// A value made elsewhere; `state`: what of an earlier pass it was made from, too.
  Value made(const char* phase, Matrix64 m, std::initializer_list<const Value*> from, const char* state = nullptr) {
    Value out{std::move(m), made_from(from)};
    if (state && pass_.position > 0) out.from.push_back("state:" + value_name(layer_, state, pass_.pass));
    return tapped(phase, std::move(out));
  }
  Value silu_mul(const char* phase, const Value& gate, const Value& up) {
    return tapped(phase, {oracle::silu_mul(gate.m, up.m), made_from({&gate, &up})});
  }
  Value add(const char* phase, const Value& a, const Value& b) {
    return tapped(phase, {oracle::add(a.m, b.m), made_from({&a, &b})});
  }
  Value topk(const char* phase, const Value& logits, int64_t chosen) {
    Value ids{oracle::topk(logits.m, chosen), made_from({&logits})};
    for (int64_t r = 0; r < ids.m.rows && pass_.experts; r++)
      if (const int32_t* forced = pass_.experts->at(layer_, pass_.position + r)) std::copy_n(forced, chosen, ids.m.row(r));
    return tapped(phase, std::move(ids));
  }
  Value topk_weights(const char* phase, const Value& logits, const Value& ids, bool normalised) {
    return tapped(phase, {oracle::topk_weights(logits.m, ids.m, normalised), made_from({&logits, &ids})});
  }
  Value expert_linear(const char* phase, const Value& x, const Value& ids, const WeightRows& w, int64_t experts) {
    return tapped(phase, {oracle::expert_linear(x.m, ids.m, w, experts, threads_), made_from({&x, &ids})});
  }
  Value expert_sum(const char* phase, const Value& x, const Value& weights) {
    return tapped(phase, {oracle::expert_sum(x.m, weights.m), made_from({&x, &weights})});
  }
  Value gated_add(const char* phase, const Value& gate, const Value& shared, const Value& x) {
    return tapped(phase, {oracle::gated_add(gate.m, shared.m, x.m), made_from({&gate, &shared, &x})});
  }
  /// The same value under another name.
  Value again(const char* phase, const Value& x) { return tapped(phase, {x.m, made_from({&x})}); }
  /// The asked rows of x alone.
  Value rows(const Value& x, std::span<const int64_t> rows) {
    Value out{Matrix64(int64_t(rows.size()), x.m.columns), x.from};
    for (size_t r = 0; r < rows.size(); r++) std::copy_n(x.m.row(rows[r]), x.m.columns, out.m.row(int64_t(r)));
    return out;
  }

 private:
  Value tapped(const char* phase, Value v) {
    tap_.value(pass_, layer_, phase, v);
    return v;
  }
  static void append(Matrix64& rows, const Matrix64& more) {
    rows.columns = more.columns;
    rows.v.insert(rows.v.end(), more.v.begin(), more.v.end());
    rows.rows += more.rows;
  }

  const PassInput& pass_;
  Tap& tap_;
  const int threads_;
  int layer_ = -1;
  std::vector<int64_t> positions_;
};

/// The FFN of a layer of experts, h already normed.
Value mixture(Lines& line, const Config& c, const LayerWeights64& w, const Value& h) {
  const Value logits = line.linear("router_logits", h, w.router);
  const Value ids = line.topk("router_topk_ids", logits, c.experts_per_token);
  const Value weights = line.topk_weights("router_topk_weights", logits, ids, c.norm_topk_prob);
  const Value gate = line.expert_linear("expert_gate_proj", h, ids, w.expert_gate, c.experts);
  const Value up = line.expert_linear("expert_up_proj", h, ids, w.expert_up, c.experts);
  const Value act = line.silu_mul("expert_act", gate, up);
  const Value down = line.expert_linear("expert_down_proj", act, ids, w.expert_down, c.experts);
  const Value routed = line.expert_sum("moe_out", down, weights);
  if (c.shared_expert_ffn == 0) return line.again("ffn_out", routed);
  const Value opening = line.linear("shared_expert_gate", h, w.shared_expert_gate);
  const Value shared_gate = line.linear("shared_gate_proj", h, w.shared_gate);
  const Value shared_up = line.linear("shared_up_proj", h, w.shared_up);
  const Value shared_act = line.silu_mul("shared_act", shared_gate, shared_up);
  const Value shared = line.linear("shared_expert_out", shared_act, w.shared_down);
  return line.gated_add("ffn_out", opening, shared, routed);
}

/// Attention, h already normed, up to the output projection.
Value attention(Lines& line, const Config& c, const LayerWeights64& w, const Value& h, Matrix64& k_rows, Matrix64& v_rows) {
  Value q = line.linear("q_proj", h, w.q, w.q_bias);
  Value k = line.linear("k_proj", h, w.k, w.k_bias);
  const Value v = line.linear("v_proj", h, w.v, w.v_bias);
  Value gate;
  if (c.gated_attention) {   // a query and its gate by head
    gate = line.made("attn_gate", part_of_groups(q.m, c.heads, c.head_dim, c.head_dim), {&q});
    q.m = part_of_groups(q.m, c.heads, 0, c.head_dim);
  }
  if (c.qk_norm_whole) {
    q = line.norm("q_norm", q, w.q_norm, c.rms_eps);
    k = line.norm("k_norm", k, w.k_norm, c.rms_eps);
  } else if (c.qk_norm) {
    q = line.head_norm("q_norm", q, c.heads, w.q_norm, c.rms_eps);
    k = line.head_norm("k_norm", k, c.kv_heads, w.k_norm, c.rms_eps);
  }
  q = line.rope("q_rope", q, c.heads, c);
  k = line.rope("k_rope", k, c.kv_heads, c);
  Value context = line.attention("attn_context", q, k, v, k_rows, v_rows, c);
  if (c.gated_attention) context = line.made("attn_gated", sigmoid_mul(context.m, gate.m), {&context, &gate});
  return line.linear("o_proj", context, w.o, w.o_bias);
}

/// A gated DeltaNet, h already normed, up to its output projection.
Value delta_net(Lines& line, const Config& c, const LayerWeights64& w, const Value& h, Matrix64& taps, Matrix64& state) {
  const int64_t dim = c.gdn_k_dim, key_heads = c.gdn_k_heads, keys = key_heads * dim, values = c.gdn_v_heads * c.gdn_v_dim;
  Value qkv, z, b, a;
  if (w.gdn_qkvz.rows > 0) {
    const Value all = line.linear("gdn_qkvz", h, w.gdn_qkvz);
    const int64_t group = values / key_heads;
    Matrix64 mixed(all.m.rows, 2 * keys + values);
    const Matrix64 q = part_of_groups(all.m, key_heads, 0, dim), k = part_of_groups(all.m, key_heads, dim, dim),
                   v = part_of_groups(all.m, key_heads, 2 * dim, group);
    for (int64_t r = 0; r < mixed.rows; r++) {
      std::copy_n(q.row(r), keys, mixed.row(r));
      std::copy_n(k.row(r), keys, mixed.row(r) + keys);
      std::copy_n(v.row(r), values, mixed.row(r) + 2 * keys);
    }
    const Value ba = line.linear("gdn_ba", h, w.gdn_ba);
    qkv = line.made("gdn_qkv", std::move(mixed), {&all});
    z = line.made("gdn_z", part_of_groups(all.m, key_heads, 2 * dim + group, group), {&all});
    const int64_t per = c.gdn_v_heads / key_heads;
    b = line.made("gdn_b", part_of_groups(ba.m, key_heads, 0, per), {&ba});
    a = line.made("gdn_a", part_of_groups(ba.m, key_heads, per, per), {&ba});
  } else {
    qkv = line.linear("gdn_qkv", h, w.gdn_qkv);
    z = line.linear("gdn_z", h, w.gdn_z);
    b = line.linear("gdn_b", h, w.gdn_b);
    a = line.linear("gdn_a", h, w.gdn_a);
  }
  if (taps.rows == 0) {   // before the sequence there is nothing
    taps = Matrix64(c.conv_width, 2 * keys + values);
    state = Matrix64(c.gdn_v_heads * dim, c.gdn_v_dim);
  }
  const Value mixed = line.made("gdn_conv", conv(qkv.m, w.gdn_conv, taps), {&qkv}, "conv_state");
  const Value q = line.made("gdn_q", l2_norm(columns(mixed.m, 0, keys), key_heads, 1 / std::sqrt(double(dim))), {&mixed});
  const Value k = line.made("gdn_k", l2_norm(columns(mixed.m, keys, keys), key_heads, 1), {&mixed});
  const Value v = line.made("gdn_v", columns(mixed.m, 2 * keys, values), {&mixed});
  const Value beta = line.made("gdn_beta", sigmoid(b.m), {&b});
  const Value kept = line.made("gdn_decay", decay(a.m, w.gdn_rate, w.gdn_dt), {&a});
  const Value core = line.made("gdn_core", delta_rule(q.m, k.m, v.m, beta.m, kept.m, key_heads, state), {&q, &k, &v, &beta, &kept}, "recurrent_state");
  const Value normed = line.made("gdn_norm", gated_norm(core.m, z.m, c.gdn_v_heads, w.gdn_norm, c.rms_eps), {&core, &z});
  return line.linear("gdn_out", normed, w.gdn_out);
}

/// The second half of a layer.
Value feed_forward(Lines& line, const Config& c, const LayerWeights64& w, const Value& x) {
  const Value h = c.post_norm ? x : line.norm("ffn_norm", x, w.ffn_norm, c.rms_eps);
  Value y;
  if (w.router.rows > 0) {
    y = mixture(line, c, w, h);
  } else {
    const Value gate = line.linear("gate_proj", h, w.gate);
    const Value up = line.linear("up_proj", h, w.up);
    const Value act = line.silu_mul("ffn_act", gate, up);
    y = line.linear("down_proj", act, w.down);
  }
  if (c.post_norm) y = line.norm("ffn_post_norm", y, w.ffn_post_norm, c.rms_eps);
  return line.add("ffn_residual", x, y);
}

}  // namespace

std::string value_name(int layer, std::string_view phase, Pass pass) {
  return layer < 0 ? std::string(phase) : fmt::format("{}.{}/{}", pass >= Pass::mtp_prefill ? "mtp" : "layer", layer, phase);
}

bool is_ids(std::string_view phase) {
  return phase == "router_topk_ids";
}

std::string axes_of(std::string_view phase) {
  if (phase == "logits" || phase == "logits_last") return "vocab";
  if (phase == "router_logits") return "expert";
  if (phase == "router_topk_ids" || phase == "router_topk_weights") return "expert_rank";
  if (phase == "expert_gate_proj" || phase == "expert_up_proj" || phase == "expert_act") return "expert_rank*expert_ffn";
  if (phase == "expert_down_proj") return "expert_rank*hidden";
  if (phase == "shared_expert_gate") return "1";
  if (phase == "shared_gate_proj" || phase == "shared_up_proj" || phase == "shared_act") return "ffn";
  if (phase == "gate_proj" || phase == "up_proj" || phase == "ffn_act") return "ffn";
  if (phase == "attn_gate" || phase == "attn_gated") return "head*head_dim";
  if (phase == "gdn_q" || phase == "gdn_k") return "k_head*k_dim";
  if (phase == "gdn_qkv" || phase == "gdn_conv") return "channel";
  if (phase == "gdn_b" || phase == "gdn_a" || phase == "gdn_beta" || phase == "gdn_decay") return "v_head";
  if (phase.starts_with("gdn_") && phase != "gdn_out") return "v_head*v_dim";
  if (phase == "q_proj" || phase == "q_norm" || phase == "q_rope" || phase == "attn_context") return "head*head_dim";
  if (phase == "k_proj" || phase == "v_proj" || phase == "k_norm" || phase == "k_rope") return "kv_head*head_dim";
  return "hidden";
}

std::vector<std::string> phases_of(const Config& c) {
  std::vector<std::string> out = {"embed"};
  auto more = [&](std::initializer_list<const char*> phases) { out.insert(out.end(), phases.begin(), phases.end()); };
  if (!c.post_norm) more({"attn_norm"});
  more({"q_proj", "k_proj", "v_proj"});
  if (c.gated_attention) more({"attn_gate"});
  if (c.qk_norm) more({"q_norm", "k_norm"});
  more({"q_rope", "k_rope", "attn_context"});
  if (c.gated_attention) more({"attn_gated"});
  more({"o_proj"});
  if (c.family == "qwen3_next") more({"gdn_qkvz", "gdn_ba"});
  if (!c.gdn_layers.empty())
    more({"gdn_qkv", "gdn_z", "gdn_b", "gdn_a", "gdn_conv", "gdn_q", "gdn_k", "gdn_v", "gdn_beta", "gdn_decay", "gdn_core", "gdn_norm", "gdn_out"});
  if (c.mtp_layers > 0) more({"mtp_embed", "mtp_hidden", "mtp_embed_norm", "mtp_hidden_norm", "mtp_concat", "mtp_fc", "mtp_norm"});
  more({c.post_norm ? "attn_post_norm" : "attn_residual", c.post_norm ? "attn_residual" : "ffn_norm"});
  bool dense = false;
  for (int64_t l = 0; l < c.layers; l++) dense = dense || !c.has_experts(l);
  if (dense) more({"gate_proj", "up_proj", "ffn_act", "down_proj"});
  if (c.experts > 0) {
    more({"router_logits", "router_topk_ids", "router_topk_weights", "expert_gate_proj", "expert_up_proj", "expert_act",
          "expert_down_proj", "moe_out"});
    if (c.shared_expert_ffn > 0)
      more({"shared_expert_gate", "shared_gate_proj", "shared_up_proj", "shared_act", "shared_expert_out"});
    more({"ffn_out"});
  }
  if (c.post_norm) more({"ffn_post_norm"});
  more({"ffn_residual", "final_norm", "logits"});
  return out;
}

Matrix64 forward(const Weights64& weights, const PassInput& pass, Cache64& cache, Tap& tap, int threads, Matrix64* hidden) {
  const Config& c = weights.config();
  for (auto* per_layer : {&cache.k, &cache.v, &cache.conv, &cache.recurrent}) per_layer->resize(size_t(c.layers));
  if (cache.length() != pass.position)
    throw Error(ErrorKind::internal, "oracle", "a pass does not continue its cache", std::to_string(cache.length()),
                std::to_string(pass.position));
  Lines line(pass, tap, threads);

  Value x = line.embed("embed", weights.embed());
  for (int64_t l = 0; l < c.layers; l++) {
    const LayerWeights64 w = weights.layer(l);
    const size_t i = size_t(l);
    line.enter_layer(int(l));
    const Value h = c.post_norm ? x : line.norm("attn_norm", x, w.attn_norm, c.rms_eps);
    Value y = w.gdn_out.rows > 0 ? delta_net(line, c, w, h, cache.conv[i], cache.recurrent[i])
                                 : attention(line, c, w, h, cache.k[i], cache.v[i]);
    if (c.post_norm) y = line.norm("attn_post_norm", y, w.attn_post_norm, c.rms_eps);
    x = feed_forward(line, c, w, line.add("attn_residual", x, y));
  }
  line.leave_layers();
  cache.positions += int64_t(pass.ids.size());
  const Value h = line.norm("final_norm", x, weights.final_norm(), c.rms_eps);
  if (hidden) *hidden = h.m;
  return line.linear("logits", line.rows(h, pass.logit_rows), weights.lm_head()).m;
}

Matrix64 forward_mtp(const Weights64& weights, const PassInput& pass, Cache64& cache, Tap& tap, int threads, Matrix64* hidden) {
  const Config& c = weights.config();
  const MtpWeights64 w = weights.mtp();
  Lines line(pass, tap, threads);
  const Value token = line.embed("mtp_embed", weights.embed());
  const Value state = line.made("mtp_hidden", pass.hidden, {});
  const Value e = line.norm("mtp_embed_norm", token, w.embed_norm, c.rms_eps);
  const Value s = line.norm("mtp_hidden_norm", state, w.hidden_norm, c.rms_eps);
  Matrix64 side_by_side(e.m.rows, 2 * c.hidden);
  for (int64_t r = 0; r < e.m.rows; r++) {
    std::copy_n(e.m.row(r), c.hidden, side_by_side.row(r));
    std::copy_n(s.m.row(r), c.hidden, side_by_side.row(r) + c.hidden);
  }
  const Value both = line.made("mtp_concat", std::move(side_by_side), {&e, &s});
  Value x = line.linear("mtp_fc", both, w.fc);
  line.enter_layer(0);
  const Value h = line.norm("attn_norm", x, w.layer.attn_norm, c.rms_eps);
  x = line.add("attn_residual", x, attention(line, c, w.layer, h, cache.mtp_k, cache.mtp_v));
  x = feed_forward(line, c, w.layer, x);
  line.leave_layers();
  const Value y = line.norm("mtp_norm", x, w.norm, c.rms_eps);
  if (hidden) *hidden = y.m;
  return line.linear("logits", line.rows(y, pass.logit_rows), weights.lm_head()).m;
}

}  // namespace assay::oracle
