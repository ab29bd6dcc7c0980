#include "oracle/dump.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "dumps/error.h"
#include "dumps/text.h"
#include "engine/version.h"

namespace assay::oracle {
namespace {

/// Writes values as they come.
class Recorder final : public Tap {
 public:
  Recorder(DumpWriter& writer, const DumpOptions& options) : writer_(writer), o_(options) {}

  void value(const PassInput& pass, int layer, std::string_view phase, Value& v) override {
    if (o_.alter) o_.alter(pass, layer, phase, v.m);
    order_ = phase == "embed" || phase == "mtp_embed" ? 0 : order_ + 1;
    const bool is_logits = phase == "logits";
    // Rows of a prefill whose logits were not asked for are in no tensor named "logits".
    if (o_.capture.wants(layer, phase) && !(is_logits && (v.m.rows < int64_t(pass.ids.size()) || pass.pass == Pass::mtp_prefill))) {
      TensorDecl d = declare(pass, layer, phase, v);
      d.shape = {v.m.rows, v.m.columns};
      if (is_ids(phase)) {
        const std::vector<int64_t> ids(v.m.v.begin(), v.m.v.end());
        d.dtype = DType::i64;
        writer_.write(d, ids.data());
      } else {
        writer_.write(d, v.m.v.data());
      }
    }
    if (is_logits && (pass.pass == Pass::prefill || pass.pass == Pass::mtp_prefill) && o_.capture.wants(-1, "logits_last")) {
      TensorDecl d = declare(pass, layer, "logits_last", v);
      d.shape = {1, v.m.columns};
      d.order = order_ + 1;
      writer_.write(d, v.m.row(v.m.rows - 1));
    }
    v.from = {value_name(layer, phase, pass.pass)};
  }

 private:
  TensorDecl declare(const PassInput& pass, int layer, std::string_view phase, const Value& v) const {
    TensorDecl d;
    d.name = tensor_name(pass.prompt, pass.pass, pass.step, layer, phase);
    d.dtype = DType::f64;
    d.order = order_;
    d.inputs = v.from;
    d.role = "phase";
    d.axes = {"token", axes_of(phase)};
    return d;
  }

  DumpWriter& writer_;
  const DumpOptions& o_;
  int64_t order_ = 0;
};

void write_state(DumpWriter& writer, const DumpOptions& o, const Config& c, int32_t prompt, const char* when,
                 const Cache64& cache) {
  const auto write = [&](int64_t l, const std::string& layer, const char* what, std::vector<int64_t> shape, std::vector<std::string> axes,
                         std::vector<std::string> from, const double* data) {
    TensorDecl d;
    d.name = state_name(prompt, when, layer, what);
    d.dtype = DType::f64;
    d.shape = std::move(shape);
    d.order = l * 2 + (std::string_view(what) == "v" || std::string_view(what) == "recurrent_state");
    d.inputs = std::move(from);
    d.role = "state";
    d.axes = std::move(axes);
    writer.write(d, data);
  };
  const auto attention = [&](int64_t l, const std::string& layer, const Matrix64& k, const Matrix64& v) {
    for (const char* half : {"k", "v"}) {
      const Matrix64& rows = *half == 'k' ? k : v;
      if (rows.rows == 0 || !o.capture.wants(int(l), half)) continue;
      std::vector<double> by_head(rows.v.size());
      for (int64_t h = 0; h < c.kv_heads; h++)
        for (int64_t p = 0; p < rows.rows; p++)
          std::copy_n(rows.row(p) + h * c.head_dim, c.head_dim, &by_head[size_t((h * rows.rows + p) * c.head_dim)]);
      write(l, layer, half, {c.kv_heads, rows.rows, c.head_dim}, {"kv_head", "position", "head_dim"},
            {layer + (*half == 'k' ? "/k_rope" : "/v_proj")}, by_head.data());
    }
  };
  for (int64_t l = 0; l < c.layers; l++) {
    const std::string layer = fmt::format("layer.{}", l);
    attention(l, layer, cache.k[size_t(l)], cache.v[size_t(l)]);
    const Matrix64 &taps = cache.conv[size_t(l)], &state = cache.recurrent[size_t(l)];
    if (taps.rows == 0) continue;
    if (o.capture.wants(int(l), "conv_state")) {
      Matrix64 by_channel(taps.columns, taps.rows);
      for (int64_t t = 0; t < taps.rows; t++)
        for (int64_t i = 0; i < taps.columns; i++) by_channel.at(i, t) = taps.at(t, i);
      write(l, layer, "conv_state", {taps.columns, taps.rows}, {"channel", "oldest first"}, {layer + "/gdn_qkv"}, by_channel.v.data());
    }
    if (o.capture.wants(int(l), "recurrent_state"))
      write(l, layer, "recurrent_state", {c.gdn_v_heads, c.gdn_k_dim, c.gdn_v_dim}, {"v_head", "d_k", "d_v"},
            {layer + "/gdn_k", layer + "/gdn_v", layer + "/gdn_beta", layer + "/gdn_decay"}, state.v.data());
  }
  if (std::string_view(when) == "after_decode") attention(c.layers, "mtp.0", cache.mtp_k, cache.mtp_v);
}

void write_ids(DumpWriter& writer, int32_t prompt, const char* name, const std::vector<int32_t>& ids) {
  const std::vector<int64_t> wide(ids.begin(), ids.end());
  TensorDecl d;
  d.name = fmt::format("prompt{}/{}", prompt, name);
  d.dtype = DType::i64;
  d.shape = {int64_t(wide.size())};
  d.role = "ids";
  d.axes = {"token"};
  writer.write(d, wide.data());
}

void describe(nlohmann::ordered_json& manifest, const Weights64& weights, const std::vector<Request>& requests,
              const std::vector<Generated64>& generated) {
  const Config& c = weights.config();
  const Provenance& p = weights.provenance();
  manifest["engine"] = {{"name", "assay-oracle"}, {"version", kVersion}};
  manifest["device"] = {{"backend", "oracle"}};
  manifest["model"] = {{"path", p.path},
                       {"format", p.format},
                       {"hash", p.hash},
                       {"family", c.family},
                       {"quantisation", p.quantisation},
                       {"tokenizer_hash", p.tokenizer_hash}};
  nlohmann::ordered_json rope = {
      {"theta", c.rope.theta}, {"rotary", c.rope.rotary}, {"type", c.rope.llama3 ? "llama3" : "default"}};
  if (c.rope.llama3) {
    rope["factor"] = c.rope.factor;
    rope["low_freq_factor"] = c.rope.low_freq_factor;
    rope["high_freq_factor"] = c.rope.high_freq_factor;
    rope["original_context"] = c.rope.original_context;
  }
  manifest["options"] = {{"arithmetic", "f64"},
                         {"rms_eps", c.rms_eps},
                         {"attention_scale_head_dim", c.head_dim},
                         {"rope", rope},
                         {"tied", c.tied}};
  nlohmann::ordered_json prompts = nlohmann::ordered_json::array();
  for (size_t i = 0; i < requests.size(); i++)
    prompts.push_back({{"name", fmt::format("prompt{}", i)},
                       {"length", requests[i].ids.size()},
                       {"ids", requests[i].ids},
                       {"decode", requests[i].decode},
                       {"forced", requests[i].forced.size()},
                       {"forced_experts", requests[i].experts != nullptr},
                       {"fed_ids", generated[i].fed},
                       {"greedy_ids", generated[i].greedy}});
  manifest["prompts"] = prompts;
}

/// What generate() would refuse, before a finished dump is replaced.
void check(const Weights64& weights, const std::vector<Request>& requests, const DumpOptions& o) {
  const Config& c = weights.config();
  for (size_t i = 0; i < requests.size(); i++) {
    const Request& r = requests[i];
    const std::string where = fmt::format("prompt{}", i);
    if (r.ids.empty()) throw Error(ErrorKind::usage, where, "has no token ids");
    for (const auto* list : {&r.ids, &r.forced})
      for (int32_t id : *list)
        if (id < 0 || id >= c.vocab)
          throw Error(ErrorKind::usage, where, "a token id outside the vocabulary", fmt::format("0 to {}", c.vocab - 1),
                      std::to_string(id));
    if (int64_t(r.forced.size()) > r.decode)
      throw Error(ErrorKind::usage, where, "more forced ids than decode passes", std::to_string(r.decode),
                  std::to_string(r.forced.size()));
    const int64_t positions = int64_t(r.ids.size()) + r.decode;
    if (c.context > 0 && positions > c.context)
      throw Error(ErrorKind::usage, weights.provenance().path, "context overflow",
                  fmt::format("at most {} positions (max_position_embeddings)", c.context), std::to_string(positions),
                  "A shorter prompt or fewer decode steps fit.");
  }
  std::vector<std::string> phases = phases_of(c);
  phases.push_back("logits_last");
  if (o.capture.state) phases.insert(phases.end(), {"k", "v", "conv_state", "recurrent_state"});
  for (const std::string& glob : o.capture.phases)
    if (std::none_of(phases.begin(), phases.end(), [&](const std::string& p) { return glob_match(glob, p); })) {
      std::string known;
      for (const std::string& p : phases) known += (known.empty() ? "" : ", ") + p;
      throw Error(ErrorKind::usage, "--filter", "no phase matches", known, in_quotes(glob));
    }
}

}  // namespace

Generated64 generate(const Weights64& weights, int32_t prompt, const Request& request, bool all_logits, Tap& tap,
                     const AfterPass& after, int threads) {
  Generated64 out;
  Cache64 cache;
  PassInput pass;
  pass.prompt = prompt;
  pass.ids = request.ids;
  pass.experts = request.experts;
  for (int64_t r = all_logits ? 0 : int64_t(pass.ids.size()) - 1; r < int64_t(pass.ids.size()); r++)
    pass.logit_rows.push_back(r);
  const bool mtp = weights.config().mtp_layers > 0;
  const auto last = [](const Matrix64& logits) { return argmax({logits.row(logits.rows - 1), size_t(logits.columns)}); };
  for (int64_t step = 0;; step++) {
    Matrix64 hidden;
    const Matrix64 logits = forward(weights, pass, cache, tap, threads, &hidden);
    const int64_t chosen = last(logits);
    const int64_t next = step < int64_t(request.forced.size()) ? request.forced[size_t(step)] : chosen;
    if (mtp && next >= 0) {
      PassInput head;
      head.pass = step == 0 ? Pass::mtp_prefill : Pass::mtp_decode;
      head.prompt = prompt;
      head.step = step == 0 ? 0 : pass.step;
      head.position = pass.position;
      head.ids.assign(pass.ids.begin() + 1, pass.ids.end());
      head.ids.push_back(int32_t(next));
      head.hidden = hidden;
      head.logit_rows = {int64_t(head.ids.size()) - 1};
      Matrix64 own;
      int64_t draft = last(forward_mtp(weights, head, cache, tap, threads, &own));
      if (step == 0) {   // drafts go on from the head's own state, on a copy of its cache
        Cache64 copy = cache;
        const int64_t context = weights.config().context;
        for (int64_t n = 1; n <= 2 && draft >= 0; n++) {
          PassInput on = head;
          on.pass = Pass::mtp_draft;
          on.step = n;
          on.position = pass.position + int64_t(pass.ids.size()) + n - 1;
          if (context > 0 && on.position >= context) break;
          on.ids = {int32_t(draft)};
          on.hidden = Matrix64(1, own.columns);
          std::copy_n(own.row(own.rows - 1), own.columns, on.hidden.row(0));
          on.logit_rows = {0};
          draft = last(forward_mtp(weights, on, copy, tap, threads, &own));
        }
      }
    }
    if (after) after(pass, cache);
    out.greedy.push_back(int32_t(chosen));
    if (step == request.decode) return out;
    const bool forced = step < int64_t(request.forced.size());
    if (chosen < 0 && !forced)
      throw Error(ErrorKind::numeric, fmt::format("prompt{}/{}/{}/logits", prompt, name_of(pass.pass), pass.step),
                  "hold a NaN, and no id can be chosen", "finite weights, or forced ids");
    pass.pass = Pass::decode;
    pass.step = step;
    pass.position = cache.length();
    pass.ids = {forced ? request.forced[size_t(step)] : int32_t(chosen)};
    pass.logit_rows = {0};
    out.fed.push_back(pass.ids[0]);
  }
}

std::vector<Generated64> write_dump(const Weights64& weights, const std::vector<Request>& requests,
                                    const DumpOptions& o) {
  check(weights, requests, o);
  DumpWriter writer(o.writer_options());
  Recorder recorder(writer, o);
  std::vector<Generated64> out;
  for (size_t i = 0; i < requests.size(); i++) {
    const Request& r = requests[i];
    const int32_t prompt = int32_t(i);
    out.push_back(generate(
        weights, prompt, r, o.capture.wants(-1, "logits"), recorder,
        [&](const PassInput& pass, const Cache64& cache) {
          if (!o.capture.state) return;
          if (pass.pass == Pass::prefill) write_state(writer, o, weights.config(), prompt, "after_prefill", cache);
          if (pass.pass == Pass::decode && pass.step + 1 == r.decode)
            write_state(writer, o, weights.config(), prompt, "after_decode", cache);
        },
        o.threads));
    write_ids(writer, prompt, "ids", r.ids);
    write_ids(writer, prompt, "greedy_ids", out.back().greedy);
  }
  describe(writer.manifest(), weights, requests, out);
  writer.finish();
  return out;
}

}  // namespace assay::oracle
