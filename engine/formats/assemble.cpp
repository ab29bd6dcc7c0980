#include "engine/formats/assemble.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "dumps/error.h"
#include "dumps/text.h"
#include "engine/numerics.h"
#include "engine/formats/quant.h"
#include "engine/formats/widen.h"

namespace assay {
namespace {

/// What the matrices of an outline point to, aligned for every type. Nobody reads it.
std::byte& outline_data() {
  alignas(64) static std::byte nothing{};
  return nothing;
}

class Assembler {
 public:
  Assembler(const Config& c, TensorSet& tensors, const AssembleOptions& o)
      : c_(c), tensors_(tensors), o_(o), n_(*o.names) {}

  Weights run() {
    w_.embed = matrix(n_.embed, c_.vocab, c_.hidden, "[vocabulary, hidden]");
    for (int64_t i = 0; i < c_.layers; i++) w_.layers.push_back(layer(i));
    w_.final_norm = norm(n_.final_norm, c_.hidden, "[hidden]");
    w_.lm_head = lm_head();
    if (c_.mtp_layers > 0) mtp();
    refuse_unused();
    return std::move(w_);
  }

 private:
  LayerWeights layer(int64_t i) { return layer(i, n_.layer + std::to_string(i) + "."); }

  LayerWeights layer(int64_t i, const std::string& stem) {
    auto weight = [&](const char* name) { return stem + name + ".weight"; };
    LayerWeights l;
    if (!c_.post_norm) l.attn_norm = norm(weight(n_.attn_norm), c_.hidden, "[hidden]");
    if (c_.is_gdn(i))
      delta_net(l, stem);
    else
      attention(l, stem);
    if (c_.post_norm) {
      l.attn_post_norm = vector(weight(n_.attn_post_norm), c_.hidden, "[hidden]");
      l.ffn_post_norm = vector(weight(n_.ffn_post_norm), c_.hidden, "[hidden]");
    } else {
      // llama.cpp's hybrids call it what olmo2 calls another norm.
      l.ffn_norm = norm(weight(is_gguf() && c_.gated_attention ? n_.attn_post_norm : n_.ffn_norm), c_.hidden, "[hidden]");
    }
    if (c_.has_experts(i)) {
      experts(l, stem);
      return l;
    }
    l.gate = matrix(weight(n_.gate), c_.ffn, c_.hidden, "[ffn, hidden]");
    l.up = matrix(weight(n_.up), c_.ffn, c_.hidden, "[ffn, hidden]");
    l.down = matrix(weight(n_.down), c_.hidden, c_.ffn, "[hidden, ffn]");
    return l;
  }

  bool is_gguf() const { return n_.layer == kGgufNames.layer; }

  void attention(LayerWeights& l, const std::string& stem) {
    auto weight = [&](const char* name) { return stem + name + ".weight"; };
    auto bias = [&](const char* name) { return stem + name + ".bias"; };
    const int64_t q_rows = c_.q_rows(), kv_rows = c_.kv_heads * c_.head_dim;
    const char* q_meaning = c_.gated_attention ? "[heads * 2 * head_dim, hidden], queries and gates" : "[heads * head_dim, hidden]";
    l.q = unpermuted(matrix(weight(n_.q), q_rows, c_.hidden, q_meaning));
    l.k = unpermuted(matrix(weight(n_.k), kv_rows, c_.hidden, "[kv_heads * head_dim, hidden]"));
    l.v = matrix(weight(n_.v), kv_rows, c_.hidden, "[kv_heads * head_dim, hidden]");
    l.o = matrix(weight(n_.o), c_.hidden, c_.heads * c_.head_dim, "[hidden, heads * head_dim]");
    if (o_.qkv_bias) {
      l.q_bias = unpermuted(vector(bias(n_.q), q_rows, "[heads * head_dim]"));
      l.k_bias = unpermuted(vector(bias(n_.k), kv_rows, "[kv_heads * head_dim]"));
      l.v_bias = vector(bias(n_.v), kv_rows, "[kv_heads * head_dim]");
    }
    if (o_.o_bias) l.o_bias = vector(bias(n_.o), c_.hidden, "[hidden]");
    if (!c_.qk_norm) return;
    l.q_norm = norm(weight(n_.q_norm), c_.qk_norm_columns(c_.heads), c_.qk_norm_whole ? "[heads * head_dim]" : "[head_dim]");
    l.k_norm = norm(weight(n_.k_norm), c_.qk_norm_columns(c_.kv_heads), c_.qk_norm_whole ? "[kv_heads * head_dim]" : "[head_dim]");
  }

  /// The place in the file of every row (or column) of what has `before` of them, and then value heads of `of_head` each; empty:
  /// as they stand here.
  std::vector<int64_t> v_head_places(int64_t before, int64_t of_head) const {
    std::vector<int64_t> places;
    if (!o_.reordered_v_heads || c_.gdn_k_heads == c_.gdn_v_heads || c_.family == "qwen3_next") return places;
    for (int64_t r = 0; r < before; r++) places.push_back(r);
    for (int64_t h = 0; h < c_.gdn_v_heads; h++)
      for (int64_t d = 0; d < of_head; d++) places.push_back(before + gguf_v_head(c_, h) * of_head + d);
    return places;
  }

  void delta_net(LayerWeights& l, const std::string& stem) {
    auto weight = [&](const char* name) { return stem + name + ".weight"; };
    const int64_t channels = c_.gdn_channels(), keys = c_.gdn_k_columns(), values = c_.gdn_v_columns(), heads = c_.gdn_v_heads;
    if (c_.family == "qwen3_next") {
      grouped_projections(l, stem);
    } else {
      l.gdn_qkv = with_rows(matrix(weight(n_.gdn_qkv), channels, c_.hidden, "[q, k and v of all heads, hidden]"),
                            v_head_places(2 * keys, c_.gdn_v_dim));
      l.gdn_z = with_rows(matrix(weight(n_.gdn_z), values, c_.hidden, "[value heads * value dim, hidden]"),
                          v_head_places(0, c_.gdn_v_dim));
      l.gdn_b = with_rows(matrix(weight(n_.gdn_b), heads, c_.hidden, "[value heads, hidden]"), v_head_places(0, 1));
      l.gdn_a = with_rows(matrix(weight(n_.gdn_a), heads, c_.hidden, "[value heads, hidden]"), v_head_places(0, 1));
    }
    // [channels, 1, width] in folders, [channels, width] in GGUF; here tap by tap.
    const std::string conv = weight(n_.gdn_conv);
    if (SourceTensor* t = tensors_.find(conv); t && t->shape == std::vector<int64_t>{channels, 1, c_.conv_width}) t->shape = {channels, c_.conv_width};
    const Vector taps = vector(conv, std::vector<int64_t>{channels, c_.conv_width}, "[channels, convolution width]");
    const std::vector<int64_t> channel = v_head_places(2 * keys, c_.gdn_v_dim);
    l.gdn_conv.resize(taps.size());
    for (int64_t c = 0; c < channels; c++)
      for (int64_t t = 0; t < c_.conv_width; t++)
        l.gdn_conv[size_t(t * channels + c)] = taps[size_t((channel.empty() ? c : channel[size_t(c)]) * c_.conv_width + t)];
    const Vector decay = vector(stem + n_.gdn_a_log, heads, "[value heads]"), dt = vector(stem + n_.gdn_dt, heads, "[value heads]");
    const std::vector<int64_t> head = v_head_places(0, 1);
    for (const Vector* v : {&decay, &dt})
      for (int64_t h = 0; h < heads; h++) {
        const float x = (*v)[size_t(head.empty() ? h : head[size_t(h)])];
        l.gdn_decay.push_back(v == &decay && !is_gguf() ? -exp_f32(x) : x);
      }
    l.gdn_norm = vector(weight(n_.gdn_norm), c_.gdn_v_dim, "[value dim]");
    l.gdn_out = matrix(weight(n_.gdn_out), c_.hidden, values, "[hidden, value heads * value dim]");
    const bool moves = c_.gdn_v_dim % block_elements(l.gdn_out.type) == 0;
    if (const auto columns = v_head_places(0, c_.gdn_v_dim); !columns.empty() && moves) l.gdn_out = with_columns(l.gdn_out, columns);
    // Of random weights too, so that they are what the file of the same ones gives.
    l.gdn_out_tiled = is_gguf() && !moves && c_.gdn_k_heads != c_.gdn_v_heads && c_.family != "qwen3_next";
  }

  /// qwen3_next. A folder has rows grouped by key head, [q, k, v of its value heads, z of its value heads]; the converter of
  /// GGUF takes them apart into attn_qkv and attn_gate, which are put together again where they have one type.
  void grouped_projections(LayerWeights& l, const std::string& stem) {
    const int64_t keys = c_.gdn_k_columns(), values = c_.gdn_v_columns(), group = values / c_.gdn_k_heads;
    l.gdn_ba = matrix(stem + n_.gdn_ba + ".weight", 2 * c_.gdn_v_heads, c_.hidden, "[b and a by key head, hidden]");
    if (!is_gguf()) {
      l.gdn_qkvz = matrix(stem + n_.gdn_qkvz + ".weight", 2 * keys + 2 * values, c_.hidden, "[q, k, v and z by key head, hidden]");
      return;
    }
    const Matrix qkv = matrix(stem + n_.gdn_qkv + ".weight", 2 * keys + values, c_.hidden, "[q, k and v of all heads, hidden]");
    const Matrix z = matrix(stem + n_.gdn_z + ".weight", values, c_.hidden, "[value heads * value dim, hidden]");
    if (qkv.type != z.type) {
      l.gdn_qkv = qkv;
      l.gdn_z = z;
      return;
    }
    Matrix both{qkv.type, qkv.rows + z.rows, c_.hidden, nullptr};
    std::byte* copy = own(both.bytes());
    const auto take = [&](const Matrix& from, int64_t row, int64_t rows) {
      if (o_.outline) return;
      std::memcpy(copy, from.row(row), size_t(rows) * row_bytes(from.type, from.columns));
      copy += size_t(rows) * row_bytes(from.type, from.columns);
    };
    both.data = copy;
    for (int64_t h = 0; h < c_.gdn_k_heads; h++) {
      take(qkv, h * c_.gdn_k_dim, c_.gdn_k_dim);
      take(qkv, keys + h * c_.gdn_k_dim, c_.gdn_k_dim);
      take(qkv, 2 * keys + h * group, group);
      take(z, h * group, group);
    }
    l.gdn_qkvz = both;
  }

  void mtp() {
    const auto name = [&](const char* n) { return mtp_name(n_, c_, n); };
    MtpWeights& w = w_.mtp;
    w.fc = matrix(name(n_.mtp_fc), c_.hidden, 2 * c_.hidden, "[hidden, 2 * hidden]");
    w.embed_norm = norm(name(n_.mtp_embed_norm), c_.hidden, "[hidden]");
    w.hidden_norm = norm(name(n_.mtp_hidden_norm), c_.hidden, "[hidden]");
    w.layer = layer(c_.layers, mtp_layer_stem(n_, c_));
    w.norm = norm(name(n_.mtp_norm), c_.hidden, "[hidden]");
  }

  void experts(LayerWeights& l, const std::string& stem) {
    auto weight = [&](const char* name) { return stem + name + ".weight"; };
    l.router = float_matrix(weight(n_.router), c_.experts, c_.hidden, "[experts, hidden]");
    const std::string folder = stem + kHfExperts;
    if (n_.layer == kGgufNames.layer) {
      l.expert_gate = stacked(weight(n_.expert_gate), c_.expert_ffn, c_.hidden, "[experts, expert_ffn, hidden]");
      l.expert_up = stacked(weight(n_.expert_up), c_.expert_ffn, c_.hidden, "[experts, expert_ffn, hidden]");
      l.expert_down = stacked(weight(n_.expert_down), c_.hidden, c_.expert_ffn, "[experts, hidden, expert_ffn]");
    } else if (tensors_.find(folder + "gate_up_proj")) {
      const Matrix both = stacked(folder + "gate_up_proj", 2 * c_.expert_ffn, c_.hidden, "[experts, 2 * expert_ffn, hidden]");
      std::vector<const std::byte*> gate, up;
      for (int64_t e = 0; e < c_.experts; e++) {
        gate.push_back(o_.outline ? both.data : both.row(2 * e * c_.expert_ffn));
        up.push_back(o_.outline ? both.data : both.row((2 * e + 1) * c_.expert_ffn));
      }
      l.expert_gate = joined(both.type, c_.expert_ffn, c_.hidden, gate);
      l.expert_up = joined(both.type, c_.expert_ffn, c_.hidden, up);
      l.expert_down = stacked(folder + "down_proj", c_.hidden, c_.expert_ffn, "[experts, hidden, expert_ffn]");
    } else {
      l.expert_gate = one_by_one(folder, n_.expert_gate, c_.expert_ffn, c_.hidden, "[expert_ffn, hidden]");
      l.expert_up = one_by_one(folder, n_.expert_up, c_.expert_ffn, c_.hidden, "[expert_ffn, hidden]");
      l.expert_down = one_by_one(folder, n_.expert_down, c_.hidden, c_.expert_ffn, "[hidden, expert_ffn]");
    }
    if (c_.shared_expert_ffn == 0) return;
    l.shared_gate = matrix(weight(n_.shared_gate), c_.shared_expert_ffn, c_.hidden, "[shared_expert_ffn, hidden]");
    l.shared_up = matrix(weight(n_.shared_up), c_.shared_expert_ffn, c_.hidden, "[shared_expert_ffn, hidden]");
    l.shared_down = matrix(weight(n_.shared_down), c_.hidden, c_.shared_expert_ffn, "[hidden, shared_expert_ffn]");
    l.shared_expert_gate = float_matrix(weight(n_.shared_expert_gate), 1, c_.hidden, "[1, hidden]");
  }

  /// A matrix that is never quantised: routers choose by the float rule, and files keep them so.
  Matrix float_matrix(const std::string& key, int64_t rows, int64_t columns, const char* meaning) {
    SourceTensor* t = tensors_.find(key);
    if (t && rows == 1 && t->shape == std::vector<int64_t>{columns}) t->shape = {1, columns};  // a vector in some files
    if (t && is_quantised(t->type)) {
      throw Error(ErrorKind::malformed, fmt::format("{}: tensor {}", t->file, in_quotes(t->name)),
                  "a router has an unusable type", "F32, F16 or BF16", std::string(name_of(t->type)),
                  "Experts are chosen by it, and a rounded one chooses others");
    }
    return matrix(key, rows, columns, meaning);
  }

  /// One tensor [experts, rows, columns].
  Matrix stacked(const std::string& key, int64_t rows, int64_t columns, const char* meaning) {
    return matrix(key, std::vector<int64_t>{c_.experts, rows, columns}, meaning);
  }

  /// Experts of one tensor each, copied behind each other.
  Matrix one_by_one(const std::string& folder, const char* name, int64_t rows, int64_t columns, const char* meaning) {
    std::vector<const std::byte*> parts;
    Matrix first;
    for (int64_t e = 0; e < c_.experts; e++) {
      const std::string key = fmt::format("{}{}.{}.weight", folder, e, name);
      const Matrix m = matrix(key, rows, columns, meaning);
      if (e == 0) first = m;
      if (m.type != first.type) {
        throw Error(ErrorKind::malformed, fmt::format("{}: tensor {}", tensors_.find(key)->file, in_quotes(key)),
                    "experts of one layer have different types", std::string(name_of(first.type)) + ", as expert 0's",
                    std::string(name_of(m.type)));
      }
      parts.push_back(m.data);
    }
    return joined(first.type, rows, columns, parts);
  }

  Matrix joined(WeightType type, int64_t rows, int64_t columns, const std::vector<const std::byte*>& parts) {
    Matrix m{type, rows * int64_t(parts.size()), columns, nullptr};
    std::byte* copy = own(m.bytes());
    const size_t bytes = size_t(rows) * row_bytes(type, columns);
    for (size_t i = 0; i < parts.size() && !o_.outline; i++) std::memcpy(copy + i * bytes, parts[i], bytes);
    m.data = copy;
    return m;
  }

  /// Tied: embed itself. A head that is in the file all the same must be the same bytes, else one side is wrong.
  Matrix lm_head() {
    if (!c_.tied) return matrix(n_.lm_head, c_.vocab, c_.hidden, "[vocabulary, hidden]");
    if (tensors_.find(n_.lm_head)) {
      const Matrix own = matrix(n_.lm_head, c_.vocab, c_.hidden, "[vocabulary, hidden]");
      if (own.type != w_.embed.type || (!o_.outline && std::memcmp(own.data, w_.embed.data, own.bytes()) != 0)) {
        throw Error(ErrorKind::malformed, o_.config_name, "says that the output head is tied to the embedding",
                    fmt::format("no {}, or one equal to {}", n_.lm_head, n_.embed), "a head with other values",
                    "Set tie_word_embeddings to false if the head is right");
      }
    }
    return w_.embed;
  }

  SourceTensor& required(const std::string& key, const std::vector<int64_t>& shape, const char* meaning) {
    SourceTensor* t = tensors_.find(key);
    if (!t) {
      throw Error(ErrorKind::malformed, o_.config_name,
                  fmt::format("asks for tensor {} ({})", in_quotes(key), c_.family),
                  fmt::format("shape {} = {}", shape_text(shape), meaning), "no such tensor in the weight files");
    }
    if (t->shape != shape) {
      throw Error(ErrorKind::malformed, fmt::format("{}: tensor {}", t->file, in_quotes(t->name)),
                  "the shape contradicts " + o_.config_name, fmt::format("{} = {}", shape_text(shape), meaning),
                  shape_text(t->shape));
    }
    t->used = true;
    return *t;
  }

  Matrix matrix(const std::string& key, int64_t rows, int64_t columns, const char* meaning) {
    return matrix(key, std::vector<int64_t>{rows, columns}, meaning);
  }

  /// All axes but the last are rows.
  Matrix matrix(const std::string& key, const std::vector<int64_t>& shape, const char* meaning) {
    SourceTensor& t = required(key, shape, meaning);
    const int64_t columns = shape.back(), rows = shape.size() == 3 ? shape[0] * shape[1] : shape[0];
    if (columns % block_elements(t.type) != 0) {
      throw Error(ErrorKind::malformed, fmt::format("{}: tensor {}", t.file, in_quotes(t.name)),
                  fmt::format("rows do not divide into {} blocks", name_of(t.type)),
                  fmt::format("a multiple of {} columns", block_elements(t.type)), std::to_string(columns));
    }
    Matrix m{t.type, rows, columns, t.data};
    if (t.bytes != m.bytes()) {
      throw Error(ErrorKind::malformed, fmt::format("{}: tensor {}", t.file, in_quotes(t.name)),
                  "the byte count contradicts the shape", std::to_string(m.bytes()), std::to_string(t.bytes));
    }
    if (!o_.outline) check_scales(m, t.file, t.name);
    // Kernels read elements of 4 and 2 bytes. A safetensors header may have any length, so data may lie at an odd
    // address.
    const size_t alignment = t.type == WeightType::f32 ? 4 : 2;
    if (reinterpret_cast<uintptr_t>(t.data) % alignment != 0) {
      std::byte* copy = own(m.bytes());
      if (!o_.outline) std::memcpy(copy, t.data, m.bytes());
      m.data = copy;
    }
    return m;
  }

  /// The weight of an RMS norm that folders of some families keep less 1.
  Vector norm(const std::string& key, int64_t n, const char* meaning) {
    Vector w = vector(key, n, meaning);
    if (c_.norm_plus_one && !is_gguf())
      for (float& x : w) x = add_f32(1.0f, x);
    return w;
  }

  Vector vector(const std::string& key, int64_t n, const char* meaning) { return vector(key, std::vector<int64_t>{n}, meaning); }

  Vector vector(const std::string& key, const std::vector<int64_t>& shape, const char* meaning) {
    SourceTensor& t = required(key, shape, meaning);
    int64_t n = 1;
    for (int64_t s : shape) n *= s;
    if (is_quantised(t.type) || t.bytes != row_bytes(t.type, n)) {
      throw Error(ErrorKind::malformed, fmt::format("{}: tensor {}", t.file, in_quotes(t.name)),
                  "a norm or bias has an unusable type", "F32, F16 or BF16", std::string(name_of(t.type)));
    }
    return widen(t.type, t.data, n);
  }

  /// Row r is the file's row places[r]; empty: the matrix as it is.
  Matrix with_rows(Matrix m, const std::vector<int64_t>& places) {
    if (places.empty()) return m;
    const size_t row = row_bytes(m.type, m.columns);
    std::byte* copy = own(m.bytes());
    for (int64_t r = 0; r < m.rows && !o_.outline; r++) std::memcpy(copy + size_t(r) * row, m.row(places[size_t(r)]), row);
    m.data = copy;
    return m;
  }

  /// The same of columns; whole blocks stay together.
  Matrix with_columns(Matrix m, const std::vector<int64_t>& places) {
    const int64_t block = block_elements(m.type);
    const size_t bytes = block_bytes(m.type);
    std::byte* copy = own(m.bytes());
    for (int64_t r = 0; r < m.rows && !o_.outline; r++)
      for (int64_t c = 0; c < m.columns; c += block)
        std::memcpy(copy + size_t(r) * row_bytes(m.type, m.columns) + size_t(c / block) * bytes, m.row(r) + size_t(places[size_t(c)] / block) * bytes, bytes);
    m.data = copy;
    return m;
  }

  Matrix unpermuted(Matrix m) {
    if (!o_.permuted_qk) return m;
    const size_t row = row_bytes(m.type, m.columns);
    std::byte* copy = own(m.bytes());
    for (int64_t r = 0; r < m.rows && !o_.outline; r++) std::memcpy(copy + size_t(hf_row_of(r, c_.head_dim)) * row, m.row(r), row);
    m.data = copy;
    return m;
  }

  Vector unpermuted(Vector v) {
    if (!o_.permuted_qk) return v;
    Vector out(v.size());
    for (size_t r = 0; r < v.size(); r++) out[size_t(hf_row_of(int64_t(r), c_.head_dim))] = v[r];
    return out;
  }

  std::byte* own(size_t bytes) {
    if (o_.copied_bytes) *o_.copied_bytes += bytes;
    if (o_.outline) return &outline_data();
    auto storage = std::make_shared<std::vector<std::byte>>(bytes);
    w_.storage.push_back(storage);
    return storage->data();
  }

  void refuse_unused() {
    std::string names;
    int64_t count = 0;
    for (const SourceTensor& t : tensors_.all()) {
      if (t.used) continue;
      if (count++ < 3) names += (names.empty() ? "" : ", ") + in_quotes(t.name);
    }
    if (count == 0) return;
    throw Error(ErrorKind::malformed, o_.config_name,
                fmt::format("{} tensor(s) of the weight files have no place in this {} model", count, c_.family),
                fmt::format("only tensors of {} layers that the config describes", c_.layers),
                names + (count > 3 ? ", ..." : ""));
  }

  const Config& c_;
  TensorSet& tensors_;
  const AssembleOptions& o_;
  const TensorNames& n_;
  Weights w_;
};

}  // namespace

std::string mtp_layer_stem(const TensorNames& n, const Config& c) {
  return n.layer == kGgufNames.layer ? n.layer + std::to_string(c.layers) + "." : "mtp.layers.0.";
}
std::string mtp_name(const TensorNames& n, const Config& c, const char* name) {
  return (n.layer == kGgufNames.layer ? mtp_layer_stem(n, c) : "") + std::string(name) + ".weight";
}

void TensorSet::add(SourceTensor tensor) {
  auto [it, fresh] = index_.emplace(tensor.key, tensors_.size());
  if (!fresh) {
    const SourceTensor& other = tensors_[it->second];
    throw Error(ErrorKind::malformed, fmt::format("{}: tensor {}", tensor.file, in_quotes(tensor.name)), "stands twice",
                "one tensor of this name", fmt::format("{} in {} too", in_quotes(other.name), other.file));
  }
  tensors_.push_back(std::move(tensor));
}

SourceTensor* TensorSet::find(const std::string& key) {
  auto it = index_.find(key);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

Weights assemble(const Config& config, TensorSet& tensors, const AssembleOptions& options) {
  return Assembler(config, tensors, options).run();
}

std::string quantisation_summary(const std::vector<SourceTensor>& tensors) {
  struct Share {
    size_t bytes = 0;
    int64_t count = 0;
  };
  std::map<WeightType, Share> shares;
  for (const SourceTensor& t : tensors) {
    if (!t.used) continue;
    shares[t.type].bytes += t.bytes;
    shares[t.type].count++;
  }
  std::vector<std::pair<WeightType, Share>> order(shares.begin(), shares.end());
  std::stable_sort(order.begin(), order.end(), [](auto& a, auto& b) { return a.second.bytes > b.second.bytes; });
  std::string text;
  for (size_t i = 0; i < order.size(); i++) {
    const std::string name(name_of(order[i].first));
    if (i == 0)
      text = name;
    else
      text += fmt::format("{}{} {}", i == 1 ? " (" : ", ", name, order[i].second.count);
  }
  return order.size() > 1 ? text + ")" : text;
}

}  // namespace assay
