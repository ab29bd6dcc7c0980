#include "oracle/dense.h"

#include <fmt/format.h>

#include <algorithm>
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
      for (const char* half : {"k", "v"}) out.from.push_back("state:" + value_name(layer_, half));
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

}  // namespace

std::string value_name(int layer, std::string_view phase) {
  return layer < 0 ? std::string(phase) : fmt::format("layer.{}/{}", layer, phase);
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
  if (phase == "q_proj" || phase == "q_norm" || phase == "q_rope" || phase == "attn_context") return "head*head_dim";
  if (phase == "k_proj" || phase == "v_proj" || phase == "k_norm" || phase == "k_rope") return "kv_head*head_dim";
  return "hidden";
}

std::vector<std::string> phases_of(const Config& c) {
  std::vector<std::string> out = {"embed"};
  auto more = [&](std::initializer_list<const char*> phases) { out.insert(out.end(), phases.begin(), phases.end()); };
  if (!c.post_norm) more({"attn_norm"});
  more({"q_proj", "k_proj", "v_proj"});
  if (c.qk_norm) more({"q_norm", "k_norm"});
  more({"q_rope", "k_rope", "attn_context", "o_proj"});
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

Matrix64 forward(const Weights64& weights, const PassInput& pass, Cache64& cache, Tap& tap, int threads) {
  const Config& c = weights.config();
  cache.k.resize(size_t(c.layers));
  cache.v.resize(size_t(c.layers));
  if (cache.length() != pass.position)
    throw Error(ErrorKind::internal, "oracle", "a pass does not continue its cache", std::to_string(cache.length()),
                std::to_string(pass.position));
  Lines line(pass, tap, threads);

  Value x = line.embed("embed", weights.embed());
  for (int64_t l = 0; l < c.layers; l++) {
    const LayerWeights64 w = weights.layer(l);
    line.enter_layer(int(l));

    Value h = c.post_norm ? x : line.norm("attn_norm", x, w.attn_norm, c.rms_eps);
    Value q = line.linear("q_proj", h, w.q, w.q_bias);
    Value k = line.linear("k_proj", h, w.k, w.k_bias);
    const Value v = line.linear("v_proj", h, w.v, w.v_bias);
    if (c.qk_norm_whole) {
      q = line.norm("q_norm", q, w.q_norm, c.rms_eps);
      k = line.norm("k_norm", k, w.k_norm, c.rms_eps);
    } else if (c.qk_norm) {
      q = line.head_norm("q_norm", q, c.heads, w.q_norm, c.rms_eps);
      k = line.head_norm("k_norm", k, c.kv_heads, w.k_norm, c.rms_eps);
    }
    q = line.rope("q_rope", q, c.heads, c);
    k = line.rope("k_rope", k, c.kv_heads, c);
    const Value context = line.attention("attn_context", q, k, v, cache.k[size_t(l)], cache.v[size_t(l)], c);
    Value y = line.linear("o_proj", context, w.o, w.o_bias);
    if (c.post_norm) y = line.norm("attn_post_norm", y, w.attn_post_norm, c.rms_eps);
    x = line.add("attn_residual", x, y);

    h = c.post_norm ? x : line.norm("ffn_norm", x, w.ffn_norm, c.rms_eps);
    if (c.has_experts(l)) {
      y = mixture(line, c, w, h);
    } else {
      const Value gate = line.linear("gate_proj", h, w.gate);
      const Value up = line.linear("up_proj", h, w.up);
      const Value act = line.silu_mul("ffn_act", gate, up);
      y = line.linear("down_proj", act, w.down);
    }
    if (c.post_norm) y = line.norm("ffn_post_norm", y, w.ffn_post_norm, c.rms_eps);
    x = line.add("ffn_residual", x, y);
  }
  line.leave_layers();
  const Value h = line.norm("final_norm", x, weights.final_norm(), c.rms_eps);
  return line.linear("logits", line.rows(h, pass.logit_rows), weights.lm_head()).m;
}

}  // namespace assay::oracle
