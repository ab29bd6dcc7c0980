#include "oracle/weights.h"

#include <fmt/format.h>

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
  /// layer -1: a tensor outside layers. data is null where the file has none of that name.
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

std::string tensor_name(const TensorNames& names, int64_t layer, const char* TensorNames::*role, const char* kind) {
  return layer < 0 ? names.*role : names.layer + std::to_string(layer) + "." + names.*role + "." + kind;
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

  Stored find(int64_t layer, const char* TensorNames::*role, const char* kind) const override {
    return named(tensor_name(kHfNames, layer, role, kind));
  }

  WeightRows experts(int64_t layer, const char* TensorNames::*role, int64_t rows, int64_t columns) const override {
    const std::string stem = fmt::format("{}{}.mlp.experts.", kHfNames.layer, layer);
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

  Stored find(int64_t layer, const char* TensorNames::*role, const char* kind) const override {
    const GgufTensor* t = file.find_tensor(tensor_name(kGgufNames, layer, role, kind));
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
    const LayerWeights& l = w.layers.at(size_t(layer));
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
    throw Error(ErrorKind::internal, provenance.path, "the oracle asks for a tensor that it does not know of a model");
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
  return source_->vector(-1, &TensorNames::final_norm, config().hidden);
}

LayerWeights64 Weights64::layer(int64_t i) const {
  using N = TensorNames;
  const Config& c = config();
  const Source& s = *source_;
  const int64_t q_rows = c.heads * c.head_dim, kv_rows = c.kv_heads * c.head_dim;
  LayerWeights64 l;
  if (c.post_norm) {
    l.attn_post_norm = s.vector(i, &N::attn_post_norm, c.hidden);
    l.ffn_post_norm = s.vector(i, &N::ffn_post_norm, c.hidden);
  } else {
    l.attn_norm = s.vector(i, &N::attn_norm, c.hidden);
    l.ffn_norm = s.vector(i, &N::ffn_norm, c.hidden);
  }
  if (c.qk_norm) {
    l.q_norm = s.vector(i, &N::q_norm, c.qk_norm_columns(c.heads));
    l.k_norm = s.vector(i, &N::k_norm, c.qk_norm_columns(c.kv_heads));
  }
  l.q_bias = s.vector(i, &N::q, q_rows, "bias");
  l.k_bias = s.vector(i, &N::k, kv_rows, "bias");
  l.v_bias = s.vector(i, &N::v, kv_rows, "bias");
  l.o_bias = s.vector(i, &N::o, c.hidden, "bias");
  l.q = s.matrix(i, &N::q, q_rows, c.hidden);
  l.k = s.matrix(i, &N::k, kv_rows, c.hidden);
  l.v = s.matrix(i, &N::v, kv_rows, c.hidden);
  l.o = s.matrix(i, &N::o, c.hidden, q_rows);
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
