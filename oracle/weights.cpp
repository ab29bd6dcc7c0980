#include "oracle/weights.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <set>

#include "dumps/error.h"
#include "dumps/safetensors.h"
#include "dumps/text.h"
#include "engine/formats/assemble.h"
#include "engine/formats/gguf.h"
#include "engine/formats/hf_tokenizer.h"
#include "engine/formats/json_text.h"
#include "engine/formats/loader.h"
#include "engine/formats/provenance.h"
#include "engine/formats/synth.h"

namespace fs = std::filesystem;

namespace assay::oracle {

/// Raw tensors by the roles of a decoder ("q.weight" of layer 3), whatever file they are in.
struct Weights64::Source {
  Config config;
  Provenance provenance;
  virtual ~Source() = default;

  struct Stored {
    WeightType type = WeightType::f32;
    int64_t rows = 0, columns = 0;  // a vector: [1, n]
    const std::byte* data = nullptr;
    /// The stored row that holds row r of the head order that the families are written in; empty: r itself.
    std::function<int64_t(int64_t)> stored_row;
  };
  /// layer -1: a tensor outside layers; config.layers: the MTP head's layer or, by the roles mtp_*, what the head has beside it.
  /// kind "": the role names the tensor as a whole. data is null where the file has none of that name.
  virtual Stored find(int64_t layer, const char* TensorNames::*role, const char* kind) const = 0;

  WeightRows matrix(int64_t layer, const char* TensorNames::*role, int64_t rows, int64_t columns) const {
    const Stored s = find(layer, role, "weight");
    if (!s.data || s.rows != rows || s.columns != columns)
      throw Error(
          ErrorKind::internal, provenance.path, fmt::format("the oracle does not find a weight of layer {}", layer),
          fmt::format("[{}, {}]", rows, columns), s.data ? fmt::format("[{}, {}]", s.rows, s.columns) : "nothing");
    return {rows, columns, [s](int64_t first, int64_t n, double* out) {
              const size_t bytes = row_bytes(s.type, s.columns);
              for (int64_t r = first; r < first + n; r++, out += s.columns)
                widen(s.type, s.data + size_t(s.stored_row ? s.stored_row(r) : r) * bytes, s.columns, out);
            }};
  }

  /// Whether norm weights are kept less 1, and decays as A_log: transformers'.
  virtual bool as_published() const { return false; }
  /// Where the file has value head h: the converter of qwen35 orders them by their rank within the key head.
  virtual int64_t v_place(int64_t h) const { return h; }

  std::vector<double> norm(int64_t layer, const char* TensorNames::*role, int64_t n) const {
    std::vector<double> w = vector(layer, role, n);
    if (config.norm_plus_one && as_published())
      for (double& x : w) x += 1.0;
    return w;
  }

  /// Rows of which those from `before` on belong to value heads, `of_head` each.
  WeightRows by_v_head(int64_t layer, const char* TensorNames::*role, int64_t rows, int64_t before, int64_t of_head) const {
    const WeightRows stored = matrix(layer, role, rows, config.hidden);
    return {rows, config.hidden, [stored, before, of_head, this](int64_t first, int64_t n, double* out) {
              for (int64_t r = first; r < first + n; r++, out += stored.columns) {
                const int64_t from = r < before ? r : before + v_place((r - before) / of_head) * of_head + (r - before) % of_head;
                stored.read(from, 1, out);
              }
            }};
  }

  virtual void delta_net(int64_t layer, LayerWeights64& l) const {
    using N = TensorNames;
    const Config& c = config;
    const int64_t keys = c.gdn_k_heads * c.gdn_k_dim, values = c.gdn_v_heads * c.gdn_v_dim, channels = 2 * keys + values;
    if (c.family == "qwen3_next") {
      l.gdn_ba = matrix(layer, &N::gdn_ba, 2 * c.gdn_v_heads, c.hidden);
      l.gdn_qkvz = grouped(layer, keys, values);
    } else {
      l.gdn_qkv = by_v_head(layer, &N::gdn_qkv, channels, 2 * keys, c.gdn_v_dim);
      l.gdn_z = by_v_head(layer, &N::gdn_z, values, 0, c.gdn_v_dim);
      l.gdn_b = by_v_head(layer, &N::gdn_b, c.gdn_v_heads, 0, 1);
      l.gdn_a = by_v_head(layer, &N::gdn_a, c.gdn_v_heads, 0, 1);
    }
    const std::vector<double> taps = vector(layer, &N::gdn_conv, channels * c.conv_width);
    l.gdn_conv = Matrix64(channels, c.conv_width);
    for (int64_t r = 0; r < channels; r++) {
      const int64_t v = r - 2 * keys, from = v < 0 ? r : 2 * keys + v_place(v / c.gdn_v_dim) * c.gdn_v_dim + v % c.gdn_v_dim;
      for (int64_t t = 0; t < c.conv_width; t++) l.gdn_conv.at(r, t) = taps[size_t(from * c.conv_width + t)];
    }
    const std::vector<double> a = vector(layer, &N::gdn_a_log, c.gdn_v_heads, ""), dt = vector(layer, &N::gdn_dt, c.gdn_v_heads, "");
    for (int64_t h = 0; h < c.gdn_v_heads; h++) {
      const double x = a[size_t(v_place(h))];
      l.gdn_rate.push_back(as_published() ? -std::exp(x) : x);
      l.gdn_dt.push_back(dt[size_t(v_place(h))]);
    }
    l.gdn_norm = vector(layer, &N::gdn_norm, c.gdn_v_dim);
    const WeightRows out = matrix(layer, &N::gdn_out, c.hidden, values);
    l.gdn_out = {c.hidden, values, [out, this](int64_t first, int64_t n, double* to) {
                   const int64_t d = config.gdn_v_dim;
                   std::vector<double> row(static_cast<size_t>(out.columns));
                   for (int64_t r = first; r < first + n; r++, to += out.columns) {
                     out.read(r, 1, row.data());
                     for (int64_t i = 0; i < out.columns; i++) to[i] = row[size_t(v_place(i / d) * d + i % d)];
                   }
                 }};
  }

  /// qwen3_next's one projection by key head, which GGUF has as two by kind.
  WeightRows grouped(int64_t layer, int64_t keys, int64_t values) const {
    using N = TensorNames;
    const Config& c = config;
    if (find(layer, &N::gdn_qkvz, "weight").data) return matrix(layer, &N::gdn_qkvz, 2 * keys + 2 * values, c.hidden);
    const WeightRows qkv = matrix(layer, &N::gdn_qkv, 2 * keys + values, c.hidden), z = matrix(layer, &N::gdn_z, values, c.hidden);
    const int64_t d = c.gdn_k_dim, group = values / c.gdn_k_heads, part = 2 * d + 2 * group;
    return {2 * keys + 2 * values, c.hidden, [=](int64_t first, int64_t n, double* out) {
              for (int64_t r = first; r < first + n; r++, out += qkv.columns) {
                const int64_t h = r / part, i = r % part;
                if (i < d)
                  qkv.read(h * d + i, 1, out);
                else if (i < 2 * d)
                  qkv.read(keys + h * d + i - d, 1, out);
                else if (i < 2 * d + group)
                  qkv.read(2 * keys + h * group + i - 2 * d, 1, out);
                else
                  z.read(h * group + i - 2 * d - group, 1, out);
              }
            }};
  }

  /// All experts behind each other, [experts*rows, columns]. A file has them so, or one tensor each, or (folders) gate
  /// and up of an expert in one tensor, gate first.
  virtual WeightRows experts(int64_t layer, const char* TensorNames::*role, int64_t rows, int64_t columns) const {
    return matrix(layer, role, config.experts * rows, columns);
  }

  std::vector<double> vector(int64_t layer, const char* TensorNames::*role, int64_t n,
                             const char* kind = "weight") const {
    const Stored s = find(layer, role, kind);
    if (!s.data) return {};
    if (s.rows * s.columns != n)
      throw Error(ErrorKind::internal, provenance.path, fmt::format("a vector of layer {} has another length", layer),
                  std::to_string(n), std::to_string(s.rows * s.columns));
    std::vector<double> stored(static_cast<size_t>(n));
    widen(s.type, s.data, n, stored.data());
    if (!s.stored_row) return stored;
    std::vector<double> out(static_cast<size_t>(n));
    for (int64_t r = 0; r < n; r++) out[size_t(r)] = stored[size_t(s.stored_row(r))];
    return out;
  }
};

namespace {

std::string tensor_name(const Config& c, const TensorNames& names, int64_t layer, const char* TensorNames::*role, const char* kind) {
  using N = TensorNames;
  if (layer < 0) return names.*role;
  const std::string suffix = *kind ? std::string(".") + kind : "";
  const bool published = names.layer == kHfNames.layer, beside = role == &N::mtp_fc || role == &N::mtp_norm || role == &N::mtp_embed_norm || role == &N::mtp_hidden_norm;
  if (layer == c.layers && published) return (beside ? "" : "mtp.layers.0.") + std::string(names.*role) + suffix;
  // llama.cpp's hybrids call the FFN's norm as olmo2 calls another one.
  if (!published && c.gated_attention && role == &N::ffn_norm) role = &N::attn_post_norm;
  return names.layer + std::to_string(layer) + "." + names.*role + suffix;
}

/// [n] as one row, [rows, columns] as it is.
std::pair<int64_t, int64_t> matrix_shape(const std::vector<int64_t>& shape) {
  if (shape.size() == 1) return {1, shape[0]};
  if (shape.size() == 3) return {shape[0] * shape[1], shape[2]};  // of experts
  return shape.size() == 2 ? std::pair(shape[0], shape[1]) : std::pair<int64_t, int64_t>(0, 0);
}

}  // namespace

/// Folders: names as transformers writes them; vision-language models put their decoder under a prefix.
struct HfSource final : Weights64::Source {
  std::vector<Safetensors> files;

  explicit HfSource(const fs::path& dir) {
    std::set<std::string> names = {"model.safetensors"};
    if (!is_there(dir / "model.safetensors")) {
      names.clear();
      const fs::path index = dir / "model.safetensors.index.json";
      for (const auto& [tensor, file] :
           parse_safetensors_index(parse_json_tree(read_text_file(index), index.string()), index.string()))
        names.insert(file);
    }
    for (const std::string& name : names) files.push_back(Safetensors::open(dir / name));
  }

  bool as_published() const override { return true; }
  Stored find(int64_t layer, const char* TensorNames::*role, const char* kind) const override {
    return named(tensor_name(config, kHfNames, layer, role, kind));
  }

  WeightRows experts(int64_t layer, const char* TensorNames::*role, int64_t rows, int64_t columns) const override {
    const std::string stem = layer == config.layers ? "mtp.layers.0.mlp.experts." : fmt::format("{}{}.mlp.experts.", kHfNames.layer, layer);
    const bool gate = role == &TensorNames::expert_gate, down = role == &TensorNames::expert_down;
    std::vector<Stored> each;
    int64_t stride = rows, offset = 0;  // of an expert's rows in its tensor
    if (const Stored fused = named(stem + (down ? "down_proj" : "gate_up_proj")); fused.data) {
      stride = down ? rows : 2 * rows;
      offset = down || gate ? 0 : rows;
      for (int64_t e = 0; e < config.experts; e++) {
        Stored s = fused;
        s.data += size_t(e * stride + offset) * row_bytes(s.type, columns);
        each.push_back(s);
      }
    } else {
      const char* projection = down ? "down_proj" : gate ? "gate_proj" : "up_proj";
      for (int64_t e = 0; e < config.experts; e++) each.push_back(named(fmt::format("{}{}.{}.weight", stem, e, projection)));
    }
    for (const Stored& s : each)
      if (!s.data || s.columns != columns)
        throw Error(ErrorKind::internal, provenance.path, fmt::format("the oracle does not find experts of layer {}", layer));
    return {config.experts * rows, columns, [each, rows, columns](int64_t first, int64_t n, double* out) {
              for (int64_t r = first; r < first + n; r++, out += columns) {
                const Stored& s = each[size_t(r / rows)];
                widen(s.type, s.data + size_t(r % rows) * row_bytes(s.type, columns), columns, out);
              }
            }};
  }

  Stored named(const std::string& plain) const {
    std::vector<std::string> spellings = {plain, "language_model." + plain};
    if (plain.starts_with("model."))
      for (const char* prefix : {"model.language_model.", "language_model.model.", "model.text_model."})
        spellings.push_back(prefix + plain.substr(6));
    for (const Safetensors& file : files)
      for (const std::string& name : spellings)
        if (const TensorView* t = file.find(name)) {
          const auto [rows, columns] = matrix_shape(t->shape);
          const WeightType type = t->dtype == DType::f32   ? WeightType::f32
                                  : t->dtype == DType::f16 ? WeightType::f16
                                                           : WeightType::bf16;
          return {type, rows, columns, t->data, {}};
        }
    return {};
  }
};

/// GGUF: llama.cpp's names. The converter of llama models stores the rows of a head of q and k in the order (0, D/2, 1,
/// D/2 + 1, ...) where transformers has (0, 1, ..., D - 1): rows (half, j) of a head went to (j, half).
struct GgufSource final : Weights64::Source {
  GgufFile file;

  explicit GgufSource(const fs::path& path) : file(GgufFile::open(path)) {}

  int64_t v_place(int64_t h) const override {
    if (config.family == "qwen3_next") return h;
    const int64_t group = config.gdn_v_heads / config.gdn_k_heads, key_head = h / group, rank = h % group;
    return rank * config.gdn_k_heads + key_head;
  }

  Stored find(int64_t layer, const char* TensorNames::*role, const char* kind) const override {
    const GgufTensor* t = file.find_tensor(tensor_name(config, kGgufNames, layer, role, kind));
    if (!t) return {};
    const auto [rows, columns] = matrix_shape(t->shape);
    Stored s{t->type, rows, columns, t->data, {}};
    if (config.family == "llama" && (role == &TensorNames::q || role == &TensorNames::k))
      s.stored_row = [d = config.head_dim](int64_t r) {
        const int64_t head = r / d, half = r % d / (d / 2), j = r % (d / 2);
        return head * d + 2 * j + half;
      };
    return s;
  }
};

/// Weights that an engine's reader holds.
struct ModelSource final : Weights64::Source {
  std::shared_ptr<const Model> model;

  static Stored of(const Matrix& m) { return {m.type, m.rows, m.columns, m.data, {}}; }
  static Stored of(const Vector& v) {
    if (v.empty()) return {};
    return {WeightType::f32, 1, int64_t(v.size()), reinterpret_cast<const std::byte*>(v.data()), {}};
  }
  Stored find(int64_t layer, const char* TensorNames::*role, const char* kind) const override {
    using N = TensorNames;
    const Weights& w = model->weights;
    if (role == &N::embed) return of(w.embed);
    if (role == &N::lm_head) return of(w.lm_head);
    if (role == &N::final_norm) return of(w.final_norm);
    if (role == &N::mtp_fc) return of(w.mtp.fc);
    if (role == &N::mtp_embed_norm) return of(w.mtp.embed_norm);
    if (role == &N::mtp_hidden_norm) return of(w.mtp.hidden_norm);
    if (role == &N::mtp_norm) return of(w.mtp.norm);
    const LayerWeights& l = w.layer(size_t(layer));
    const bool bias = std::string_view(kind) == "bias";
    if (role == &N::q) return bias ? of(l.q_bias) : of(l.q);
    if (role == &N::k) return bias ? of(l.k_bias) : of(l.k);
    if (role == &N::v) return bias ? of(l.v_bias) : of(l.v);
    if (role == &N::o) return bias ? of(l.o_bias) : of(l.o);
    if (role == &N::attn_norm) return of(l.attn_norm);
    if (role == &N::ffn_norm) return of(l.ffn_norm);
    if (role == &N::attn_post_norm) return of(l.attn_post_norm);
    if (role == &N::ffn_post_norm) return of(l.ffn_post_norm);
    if (role == &N::q_norm) return of(l.q_norm);
    if (role == &N::k_norm) return of(l.k_norm);
    if (role == &N::gate) return of(l.gate);
    if (role == &N::up) return of(l.up);
    if (role == &N::down) return of(l.down);
    if (role == &N::router) return of(l.router);
    if (role == &N::expert_gate) return of(l.expert_gate);
    if (role == &N::expert_up) return of(l.expert_up);
    if (role == &N::expert_down) return of(l.expert_down);
    if (role == &N::shared_gate) return of(l.shared_gate);
    if (role == &N::shared_up) return of(l.shared_up);
    if (role == &N::shared_down) return of(l.shared_down);
    if (role == &N::shared_expert_gate) return of(l.shared_expert_gate);
    if (role == &N::gdn_qkv) return of(l.gdn_qkv);
    if (role == &N::gdn_z) return of(l.gdn_z);
    if (role == &N::gdn_b) return of(l.gdn_b);
    if (role == &N::gdn_a) return of(l.gdn_a);
    if (role == &N::gdn_qkvz) return of(l.gdn_qkvz);
    if (role == &N::gdn_ba) return of(l.gdn_ba);
    if (role == &N::gdn_norm) return of(l.gdn_norm);
    if (role == &N::gdn_out) return of(l.gdn_out);
    throw Error(ErrorKind::internal, provenance.path, "the oracle asks for a tensor that it does not know of a model");
  }
  /// Its reader keeps taps by tap, and both vectors of the decay behind each other.
  void delta_net(int64_t layer, LayerWeights64& out) const override {
    using N = TensorNames;
    const Config& c = config;
    const LayerWeights& l = model->weights.layer(size_t(layer));
    const int64_t values = c.gdn_v_heads * c.gdn_v_dim, channels = 2 * c.gdn_k_heads * c.gdn_k_dim + values;
    if (!l.gdn_qkvz.empty()) out.gdn_qkvz = matrix(layer, &N::gdn_qkvz, channels + values, c.hidden);
    if (!l.gdn_ba.empty()) out.gdn_ba = matrix(layer, &N::gdn_ba, 2 * c.gdn_v_heads, c.hidden);
    if (!l.gdn_qkv.empty()) out.gdn_qkv = matrix(layer, &N::gdn_qkv, channels, c.hidden);
    if (!l.gdn_z.empty()) out.gdn_z = matrix(layer, &N::gdn_z, values, c.hidden);
    if (!l.gdn_b.empty()) out.gdn_b = matrix(layer, &N::gdn_b, c.gdn_v_heads, c.hidden);
    if (!l.gdn_a.empty()) out.gdn_a = matrix(layer, &N::gdn_a, c.gdn_v_heads, c.hidden);
    out.gdn_conv = Matrix64(channels, c.conv_width);
    for (int64_t r = 0; r < channels; r++)
      for (int64_t t = 0; t < c.conv_width; t++) out.gdn_conv.at(r, t) = double(l.gdn_conv[size_t(t * channels + r)]);
    out.gdn_rate.assign(l.gdn_decay.begin(), l.gdn_decay.begin() + c.gdn_v_heads);
    out.gdn_dt.assign(l.gdn_decay.begin() + c.gdn_v_heads, l.gdn_decay.end());
    out.gdn_norm = vector(layer, &N::gdn_norm, c.gdn_v_dim);
    out.gdn_out = matrix(layer, &N::gdn_out, c.hidden, values);
    if (!l.gdn_out_tiled) return;
    const WeightRows stored = out.gdn_out;
    out.gdn_out.read = [stored, c](int64_t first, int64_t n, double* to) {
      const int64_t d = c.gdn_v_dim, group = c.gdn_v_heads / c.gdn_k_heads;
      std::vector<double> row(static_cast<size_t>(stored.columns));
      for (int64_t r = first; r < first + n; r++, to += stored.columns) {
        stored.read(r, 1, row.data());
        for (int64_t i = 0; i < stored.columns; i++) {
          const int64_t h = i / d;
          to[i] = row[size_t((h % group * c.gdn_k_heads + h / group) * d + i % d)];
        }
      }
    };
  }
};

Weights64 Weights64::of(std::shared_ptr<const Model> model) {
  auto s = std::make_shared<ModelSource>();
  s->config = model->config;
  s->provenance = model->provenance;
  s->model = std::move(model);
  Weights64 w;
  w.source_ = std::move(s);
  return w;
}

Weights64 Weights64::open(const fs::path& path) {
  if (is_synth_spec(path.native()))
    return of(std::make_shared<Model>(make_synthetic_model(parse_synth_spec(path.native()))));
  const ModelOutline outline = outline_model(path);  // refuses what the families do not have, names and shapes included
  std::shared_ptr<Source> source;
  std::vector<std::pair<const void*, size_t>> pieces;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    auto hf = std::make_shared<HfSource>(path);
    for (const Safetensors& f : hf->files) pieces.emplace_back(f.file()->data(), f.file()->size());
    source = hf;
  } else {
    auto gguf = std::make_shared<GgufSource>(path);
    pieces.emplace_back(gguf->file.data(), gguf->file.size());
    source = gguf;
  }
  source->config = outline.model.config;
  source->provenance = outline.model.provenance;
  source->provenance.hash = hash_pieces(pieces);
  Weights64 w;
  w.source_ = std::move(source);
  return w;
}

const Config& Weights64::config() const {
  return source_->config;
}
const Provenance& Weights64::provenance() const {
  return source_->provenance;
}

WeightRows Weights64::embed() const {
  return source_->matrix(-1, &TensorNames::embed, config().vocab, config().hidden);
}
WeightRows Weights64::lm_head() const {
  return config().tied ? embed() : source_->matrix(-1, &TensorNames::lm_head, config().vocab, config().hidden);
}
std::vector<double> Weights64::final_norm() const {
  return source_->norm(-1, &TensorNames::final_norm, config().hidden);
}

MtpWeights64 Weights64::mtp() const {
  using N = TensorNames;
  const Config& c = config();
  MtpWeights64 w;
  w.fc = source_->matrix(c.layers, &N::mtp_fc, c.hidden, 2 * c.hidden);
  w.embed_norm = source_->norm(c.layers, &N::mtp_embed_norm, c.hidden);
  w.hidden_norm = source_->norm(c.layers, &N::mtp_hidden_norm, c.hidden);
  w.norm = source_->norm(c.layers, &N::mtp_norm, c.hidden);
  w.layer = layer(c.layers);
  return w;
}

LayerWeights64 Weights64::layer(int64_t i) const {
  using N = TensorNames;
  const Config& c = config();
  const Source& s = *source_;
  const int64_t q_rows = c.heads * c.head_dim * (c.gated_attention ? 2 : 1), kv_rows = c.kv_heads * c.head_dim;
  LayerWeights64 l;
  if (c.post_norm) {
    l.attn_post_norm = s.vector(i, &N::attn_post_norm, c.hidden);
    l.ffn_post_norm = s.vector(i, &N::ffn_post_norm, c.hidden);
  } else {
    l.attn_norm = s.norm(i, &N::attn_norm, c.hidden);
    l.ffn_norm = s.norm(i, &N::ffn_norm, c.hidden);
  }
  if (i < int64_t(c.gdn_layers.size()) && c.gdn_layers[size_t(i)]) {
    s.delta_net(i, l);
  } else {
    if (c.qk_norm) {
      l.q_norm = s.norm(i, &N::q_norm, c.qk_norm_columns(c.heads));
      l.k_norm = s.norm(i, &N::k_norm, c.qk_norm_columns(c.kv_heads));
    }
    l.q_bias = s.vector(i, &N::q, q_rows, "bias");
    l.k_bias = s.vector(i, &N::k, kv_rows, "bias");
    l.v_bias = s.vector(i, &N::v, kv_rows, "bias");
    l.o_bias = s.vector(i, &N::o, c.hidden, "bias");
    l.q = s.matrix(i, &N::q, q_rows, c.hidden);
    l.k = s.matrix(i, &N::k, kv_rows, c.hidden);
    l.v = s.matrix(i, &N::v, kv_rows, c.hidden);
    l.o = s.matrix(i, &N::o, c.hidden, c.heads * c.head_dim);
  }
  if (!c.has_experts(i)) {
    l.gate = s.matrix(i, &N::gate, c.ffn, c.hidden);
    l.up = s.matrix(i, &N::up, c.ffn, c.hidden);
    l.down = s.matrix(i, &N::down, c.hidden, c.ffn);
    return l;
  }
  l.router = s.matrix(i, &N::router, c.experts, c.hidden);
  l.expert_gate = s.experts(i, &N::expert_gate, c.expert_ffn, c.hidden);
  l.expert_up = s.experts(i, &N::expert_up, c.expert_ffn, c.hidden);
  l.expert_down = s.experts(i, &N::expert_down, c.hidden, c.expert_ffn);
  if (c.shared_expert_ffn > 0) {
    l.shared_gate = s.matrix(i, &N::shared_gate, c.shared_expert_ffn, c.hidden);
    l.shared_up = s.matrix(i, &N::shared_up, c.shared_expert_ffn, c.hidden);
    l.shared_down = s.matrix(i, &N::shared_down, c.hidden, c.shared_expert_ffn);
    l.shared_expert_gate = s.matrix(i, &N::shared_expert_gate, 1, c.hidden);
  }
  return l;
}

}  // namespace assay::oracle
