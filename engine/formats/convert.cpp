#include "engine/formats/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "dumps/error.h"
#include "dumps/json.h"
#include "dumps/safetensors.h"
#include "dumps/text.h"
#include "engine/numerics.h"
#include "engine/formats/artifact_keys.h"
#include "engine/formats/assemble.h"
#include "engine/formats/gguf_keys.h"
#include "engine/formats/gguf_writer.h"
#include "engine/formats/hf_tokenizer.h"
#include "engine/formats/hf_writer.h"
#include "engine/formats/json_text.h"
#include "engine/formats/loader.h"
#include "engine/formats/quantise.h"
#include "engine/formats/readers.h"
#include "engine/formats/rope_factors.h"
#include "engine/thread_pool.h"

namespace fs = std::filesystem;

namespace assay {
namespace {

/// A matrix or a vector of the model under its output name.
struct Item {
  std::string name;
  const Matrix* matrix = nullptr;
  const Vector* vector = nullptr;
  bool qk = false;  // rows are permuted in llama files of GGUF
  WeightType to = WeightType::f32;
  bool router = false;         // what experts are chosen by: never quantised, F32 in GGUF
  std::vector<int64_t> shape;  // where it is not [rows, columns]
  std::vector<int64_t> rows;     // the matrix's row that each row of the file is; empty: as they stand
  std::vector<int64_t> columns;  // the same of columns
  size_t index = 0;  // the writer's
};

/// A_log of which -exp is `rate`, as f32 or, if one gives it, as bf16; the nearest f32 where none does.
float log_of_rate(float rate) {
  const float near = log_f32(-rate);
  const auto steps = [&](float from, int32_t unit, int32_t most) -> std::optional<float> {
    for (int32_t i = 0; i <= 2 * most; i++) {
      const int32_t step = (i % 2 ? 1 : -1) * ((i + 1) / 2) * unit;
      const float x = float_of_ordered(ordered_of(from) + step);
      if (-exp_f32(x) == rate) return x;
    }
    return std::nullopt;
  };
  const float narrow = f32_of_bf16(bf16_of_f32(near));
  if (auto x = steps(narrow, 1 << 16, 2)) return *x;
  return steps(near, 1, 64).value_or(near);
}

/// What the items of a model point to beside its weights.
struct Made {
  std::deque<Matrix> parts;    // of single experts, which folders have as tensors of their own
  std::deque<Vector> vectors;  // as the file has them
};

std::vector<Item> items_of(const Model& m, const TensorNames& n, Made& made) {
  std::vector<Item> out;
  std::deque<Matrix>& parts = made.parts;
  const bool gguf = n.layer == kGgufNames.layer;
  const Config& c = m.config;
  auto matrix = [&](const std::string& name, const Matrix& w, bool qk = false) {
    if (w.empty()) return;
    out.emplace_back();
    out.back().name = name;
    out.back().matrix = &w;
    out.back().qk = qk;
    out.back().to = w.type;
  };
  auto vector = [&](const std::string& name, const Vector& v, bool qk = false) {
    if (v.empty()) return;
    out.emplace_back();
    out.back().name = name;
    out.back().vector = &v;
    out.back().qk = qk;
  };
  // Norms that folders of some families keep less 1.
  auto norm = [&](const std::string& name, const Vector& v) {
    if (v.empty() || gguf || !c.norm_plus_one) return vector(name, v);
    made.vectors.push_back(v);
    for (float& x : made.vectors.back()) x = sub_f32(x, 1.0f);
    vector(name, made.vectors.back());
  };
  // Of `before` rows and then value heads of `of_head` rows each: what stands where in the file; empty: as here.
  auto v_heads = [&](int64_t before, int64_t of_head) {
    std::vector<int64_t> rows;
    if (!gguf || c.gdn_k_heads == c.gdn_v_heads || c.family == "qwen3_next") return rows;
    rows.resize(size_t(before + c.gdn_v_heads * of_head));
    for (int64_t r = 0; r < before; r++) rows[size_t(r)] = r;
    for (int64_t h = 0; h < c.gdn_v_heads; h++)
      for (int64_t d = 0; d < of_head; d++) rows[size_t(before + gguf_v_head(c, h) * of_head + d)] = before + h * of_head + d;
    return rows;
  };
  auto reordered = [&](const std::string& name, const Matrix& w, std::vector<int64_t> rows) {
    matrix(name, w);
    if (!w.empty()) out.back().rows = std::move(rows);
  };
  auto delta_net = [&](const std::string& stem, const LayerWeights& l) {
    if (l.gdn_out.empty()) return;
    const int64_t keys = c.gdn_k_columns(), values = c.gdn_v_columns(), channels = c.gdn_channels(), heads = c.gdn_v_heads;
    if (!l.gdn_qkvz.empty() && gguf) {  // taken apart
      std::vector<int64_t> qkv, z;
      const int64_t group = values / c.gdn_k_heads, row = 2 * c.gdn_k_dim + 2 * group;
      const auto take = [&](std::vector<int64_t>& to, int64_t from, int64_t count) {
        for (int64_t h = 0; h < c.gdn_k_heads; h++)
          for (int64_t r = 0; r < count; r++) to.push_back(h * row + from + r);
      };
      take(qkv, 0, c.gdn_k_dim);
      take(qkv, c.gdn_k_dim, c.gdn_k_dim);
      take(qkv, 2 * c.gdn_k_dim, group);
      take(z, 2 * c.gdn_k_dim + group, group);
      reordered(stem + n.gdn_qkv + ".weight", l.gdn_qkvz, std::move(qkv));
      reordered(stem + n.gdn_z + ".weight", l.gdn_qkvz, std::move(z));
    } else {
      if (!gguf && c.family == "qwen3_next" && l.gdn_qkvz.empty())
        throw Error(ErrorKind::usage, m.provenance.path, "q, k, v and z have two types, and a folder has them in one tensor", "one type", "",
                    "--type BF16 in a GGUF file first makes them one.");
      matrix(stem + n.gdn_qkvz + ".weight", l.gdn_qkvz);
      reordered(stem + n.gdn_qkv + ".weight", l.gdn_qkv, v_heads(2 * keys, c.gdn_v_dim));
      reordered(stem + n.gdn_z + ".weight", l.gdn_z, v_heads(0, c.gdn_v_dim));
    }
    matrix(stem + n.gdn_ba + ".weight", l.gdn_ba);
    reordered(stem + n.gdn_b + ".weight", l.gdn_b, v_heads(0, 1));
    reordered(stem + n.gdn_a + ".weight", l.gdn_a, v_heads(0, 1));
    const std::vector<int64_t> channel = v_heads(2 * keys, c.gdn_v_dim), head = v_heads(0, 1);
    const auto at = [](const std::vector<int64_t>& order, int64_t i) { return order.empty() ? i : order[size_t(i)]; };
    Vector taps(l.gdn_conv.size()), rate(static_cast<size_t>(heads)), dt = rate;
    for (int64_t i = 0; i < channels; i++)
      for (int64_t t = 0; t < c.conv_width; t++)
        taps[size_t(i * c.conv_width + t)] = l.gdn_conv[size_t(t * channels + at(channel, i))];
    for (int64_t h = 0; h < heads; h++) {
      const float r = l.gdn_decay[size_t(at(head, h))];
      rate[size_t(h)] = gguf ? r : log_of_rate(r);
      dt[size_t(h)] = l.gdn_decay[size_t(heads + at(head, h))];
    }
    for (Vector* v : {&taps, &rate, &dt}) made.vectors.push_back(std::move(*v));
    vector(stem + n.gdn_conv + ".weight", made.vectors[made.vectors.size() - 3]);
    out.back().shape = gguf ? std::vector<int64_t>{channels, c.conv_width} : std::vector<int64_t>{channels, 1, c.conv_width};
    vector(stem + n.gdn_a_log, made.vectors[made.vectors.size() - 2]);
    vector(stem + n.gdn_dt, made.vectors.back());
    vector(stem + n.gdn_norm + ".weight", l.gdn_norm);
    matrix(stem + n.gdn_out + ".weight", l.gdn_out);
    if (gguf == l.gdn_out_tiled) return;
    for (int64_t h = 0; h < heads && (gguf ? !head.empty() : true); h++)   // a tiled one goes back into our order
      for (int64_t d = 0; d < c.gdn_v_dim; d++) out.back().columns.push_back((gguf ? head[size_t(h)] : gguf_v_head(c, h)) * c.gdn_v_dim + d);
  };
  auto router = [&](const std::string& name, const Matrix& w) {
    if (w.empty()) return;
    matrix(name, w);
    out.back().router = true;
    if (gguf && w.rows == 1) out.back().shape = {w.columns};
  };
  auto experts = [&](const std::string& stem, const char* name, const Matrix& w) {
    if (w.empty()) return;
    const int64_t count = m.config.experts;
    if (gguf) {
      matrix(stem + name + ".weight", w);
      out.back().shape = {count, w.rows / count, w.columns};
      return;
    }
    for (int64_t e = 0; e < count; e++) {
      parts.push_back({w.type, w.rows / count, w.columns, w.row(e * (w.rows / count))});
      matrix(fmt::format("{}{}{}.{}.weight", stem, kHfExperts, e, name), parts.back());
    }
  };
  matrix(n.embed, m.weights.embed);
  for (int64_t i = 0; i < c.state_layers(); i++) {
    const LayerWeights& l = m.weights.layer(size_t(i));
    const std::string stem = i < c.layers ? n.layer + std::to_string(i) + "." : mtp_layer_stem(n, c);
    norm(stem + n.attn_norm + ".weight", l.attn_norm);
    delta_net(stem, l);
    matrix(stem + n.q + ".weight", l.q, true);
    matrix(stem + n.k + ".weight", l.k, true);
    matrix(stem + n.v + ".weight", l.v);
    vector(stem + n.q + ".bias", l.q_bias, true);
    vector(stem + n.k + ".bias", l.k_bias, true);
    vector(stem + n.v + ".bias", l.v_bias);
    norm(stem + n.q_norm + ".weight", l.q_norm);
    norm(stem + n.k_norm + ".weight", l.k_norm);
    matrix(stem + n.o + ".weight", l.o);
    vector(stem + n.o + ".bias", l.o_bias);
    vector(stem + n.attn_post_norm + ".weight", l.attn_post_norm);
    norm(stem + (gguf && c.gated_attention ? n.attn_post_norm : n.ffn_norm) + ".weight", l.ffn_norm);
    matrix(stem + n.gate + ".weight", l.gate);
    matrix(stem + n.up + ".weight", l.up);
    matrix(stem + n.down + ".weight", l.down);
    router(stem + n.router + ".weight", l.router);
    experts(stem, n.expert_gate, l.expert_gate);
    experts(stem, n.expert_up, l.expert_up);
    experts(stem, n.expert_down, l.expert_down);
    matrix(stem + n.shared_gate + ".weight", l.shared_gate);
    matrix(stem + n.shared_up + ".weight", l.shared_up);
    matrix(stem + n.shared_down + ".weight", l.shared_down);
    router(stem + n.shared_expert_gate + ".weight", l.shared_expert_gate);
    vector(stem + n.ffn_post_norm + ".weight", l.ffn_post_norm);
  }
  norm(n.final_norm, m.weights.final_norm);
  if (c.mtp_layers > 0) {
    matrix(mtp_name(n, c, n.mtp_fc), m.weights.mtp.fc);
    norm(mtp_name(n, c, n.mtp_embed_norm), m.weights.mtp.embed_norm);
    norm(mtp_name(n, c, n.mtp_hidden_norm), m.weights.mtp.hidden_norm);
    norm(mtp_name(n, c, n.mtp_norm), m.weights.mtp.norm);
  }
  if (!m.config.tied) matrix(n.lm_head, m.weights.lm_head);
  return out;
}

bool has_o_bias(const Model& m) {
  return !m.weights.layers.empty() && !m.weights.layers[0].o_bias.empty();
}

class Converter {
 public:
  Converter(const fs::path& from, const fs::path& to, const ConvertOptions& o)
      : from_(from), to_(to), o_(o), model_(load_model(from)), pool_(o.threads) {}

  ConvertReport run() {
    if (to_.extension() == ".gguf")
      to_gguf();
    else
      to_folder();
    return std::move(report_);
  }

 private:
  // ---- GGUF

  void to_gguf() {
    refuse_dense_layers();
    refuse_irregular_layers();
    items_ = items_of(model_, kGgufNames, made_);
    choose_types();
    for (Item& i : items_) {
      if (i.router) i.to = WeightType::f32;
    }
    check_numbers();
    GgufWriter w(to_, o_.replace);
    const bool permuted = model_.config.family == "llama";
    put_config_keys(w, model_.config, fs::path(from_).stem().string(), most_common_type());
    put_tokenizer(w);
    put_artifact_keys(w, model_.config.family, model_.provenance.hash);
    const Vector divisors = model_.config.rope.llama3 ? llama3_divisors(model_.config.rope) : Vector();
    const size_t freqs = divisors.empty() ? 0 : w.tensor(kRopeFreqs, WeightType::f32, {int64_t(divisors.size())});
    for (Item& i : items_) i.index = w.tensor(i.name, i.to, shape_of(i));
    w.begin();
    if (!divisors.empty()) w.write(freqs, 0, divisors.data(), divisors.size() * sizeof(float));
    write_all(w, permuted);
    w.finish();
    report_.bytes = w.file_bytes();
  }

  /// Architectures of experts in GGUF have them in every layer.
  void refuse_dense_layers() const {
    const Config& c = model_.config;
    for (int64_t l = 0; l < c.layers && c.experts > 0; l++) {
      if (c.has_experts(l)) continue;
      throw Error(ErrorKind::usage, from_.string(), fmt::format("layer {} is dense: a GGUF file can't say that", l),
                  "experts in every layer (decoder_sparse_step 1, no mlp_only_layers)",
                  fmt::format("decoder_sparse_step {}, {} dense layers named", c.sparse_step, c.dense_layers.size()));
    }
  }

  /// A GGUF file says which layers attend by an interval.
  void refuse_irregular_layers() const {
    const Config& c = model_.config;
    if (c.gdn_layers.empty() || attention_interval(c)) return;
    std::string kinds;
    for (bool gdn : c.gdn_layers) kinds += gdn ? 'L' : 'A';
    throw Error(ErrorKind::usage, from_.string(), "the order of its layer types can't be said in a GGUF file",
                "attention in every n-th layer", kinds + " (A attention, L gated DeltaNet)");
  }

  /// What a GGUF key of type f32 must give back (gguf_model.cpp reads the shortest decimal).
  void check_numbers() const {
    const double theta = model_.config.rope.theta;
    if (shortest_decimal(float(theta)) == theta) return;
    throw Error(ErrorKind::usage, from_.string(), "rope theta can't be said in GGUF's f32", "at most about six digits",
                fmt::format("{}", theta));
  }

  void put_tokenizer(GgufWriter& w) {
    if (fs::is_directory(from_)) {
      if (o_.put_tokenizer && is_there(from_ / "tokenizer.json")) {
        o_.put_tokenizer(w, from_, model_.config);
        const Config& c = model_.config;  // may name ids that the tokenizer's files don't
        if (c.bos >= 0 && !w.has("tokenizer.ggml.bos_token_id")) w.u32("tokenizer.ggml.bos_token_id", uint32_t(c.bos));
        if (!c.eos.empty() && !w.has("tokenizer.ggml.eos_token_id")) {
          w.u32("tokenizer.ggml.eos_token_id", uint32_t(c.eos[0]));
        }
        if (!w.has("tokenizer.chat_template")) put_chat_template(w);
        return;
      }
    } else if (model_.provenance.format == "gguf") {
      const GgufFile source = GgufFile::open(from_);
      for (const auto& [key, value] : source.metadata()) {
        if (key.rfind("tokenizer.", 0) == 0) w.raw(key, value);
      }
      if (w.has("tokenizer.ggml.tokens")) return;
    }
    put_placeholder_tokenizer(w, model_.config);
    report_.notes.push_back(
        "the source has no tokenizer: the file gets placeholder tokens, so that other programs load it");
  }

  void put_chat_template(GgufWriter& w) const {
    if (is_there(from_ / "chat_template.jinja")) {
      w.string("tokenizer.chat_template", read_text_file(from_ / "chat_template.jinja"));
    } else if (is_there(from_ / "tokenizer_config.json")) {
      const std::string name = (from_ / "tokenizer_config.json").string();
      const Json json = parse_json_tree(read_text_file(name), name);
      const JsonReader r(json, name);
      if (const Json* t = r.find("chat_template"); t && t->is_string()) {
        w.string("tokenizer.chat_template", t->get<std::string>());
      }
    }
  }

  // ---- folder

  void to_folder() {
    items_ = items_of(model_, kHfNames, made_);
    choose_types();
    for (Item& i : items_) {
      if (is_quantised(i.to)) {
        throw Error(ErrorKind::usage, o_.type ? "--type" : from_.string(), "a Hugging Face folder can't hold this type",
                    "F32, F16 or BF16", std::string(name_of(i.to)), "Name a .gguf file as the output");
      }
      if (i.vector && holds(*i.vector, matrix_type())) i.to = matrix_type();
      if (model_.config.family == "qwen3_vl" && i.name.rfind("model.", 0) == 0) i.name.insert(6, "language_model.");
    }
    const WeightType type = matrix_type();
    const std::string dtype = type == WeightType::f16 ? "float16" : type == WeightType::bf16 ? "bfloat16" : "float32";
    const std::string config = config_text(dtype);
    HfFolderWriter w(to_, o_.replace);
    for (Item& i : items_) i.index = w.tensor(i.name, i.to, shape_of(i));
    w.begin();
    w.text_file("config.json", config);
    copy_tokenizer(w);
    write_all(w, false);
    w.finish();
    report_.bytes = w.file_bytes();
  }

  /// Of a folder its own config with another dtype, so that nothing that others read of it is lost.
  std::string config_text(const std::string& dtype) {
    if (model_.provenance.format != "hf") return hf_config_text(model_.config, has_o_bias(model_), dtype);
    nlohmann::ordered_json config = read_json(from_ / "config.json");
    for (nlohmann::ordered_json* o : {&config, config.contains("text_config") ? &config["text_config"] : &config}) {
      for (const char* key : {"dtype", "torch_dtype"}) {
        if (o->contains(key)) (*o)[key] = dtype;
      }
    }
    if (config.contains("vision_config")) report_.notes.push_back("the vision tower's tensors are not copied");
    return config.dump(2) + "\n";
  }

  void copy_tokenizer(HfFolderWriter& w) {
    if (model_.provenance.format != "hf") {
      if (!model_.provenance.tokenizer_hash.empty()) {
        report_.notes.push_back(
            "a GGUF file's tokenizer is not written as tokenizer.json: copy the model's own beside it");
      }
      return;
    }
    for (const std::string_view name : kTokenizerFiles) {
      if (is_there(from_ / name)) w.copy_file(from_ / name);
    }
  }

  // ---- both

  static std::vector<int64_t> shape_of(const Item& i) {
    if (!i.shape.empty()) return i.shape;
    if (i.vector) return {int64_t(i.vector->size())};
    return {i.rows.empty() ? i.matrix->rows : int64_t(i.rows.size()), i.matrix->columns};
  }

  void choose_types() {
    int64_t fallbacks = 0;
    std::string example;
    for (Item& i : items_) {
      if (!i.matrix || !o_.type || (i.router && is_quantised(*o_.type))) continue;
      i.to = fitting_type(*o_.type, i.matrix->columns);
      if (i.to == *o_.type) continue;
      if (fallbacks++ == 0) {
        example = fmt::format("{} ({} columns, no multiple of {}) becomes {}", i.name, i.matrix->columns,
                              block_elements(*o_.type), name_of(i.to));
      }
    }
    if (fallbacks > 0) {
      report_.notes.push_back(fmt::format("{} of {} matrices can't be {}: {}{}", fallbacks, matrices(),
                                          name_of(*o_.type), example,
                                          fallbacks > 1 ? ", and others (--report lists all)" : ""));
    }
    if (o_.type && model_.quantised() && is_quantised(*o_.type)) {
      report_.notes.push_back(fmt::format("the source is quantised ({}): its losses stay, and these come on top",
                                          model_.provenance.quantisation));
    }
  }

  int64_t matrices() const {
    return std::count_if(items_.begin(), items_.end(), [](const Item& i) { return i.matrix != nullptr; });
  }

  /// The wanted type, or where matrices keep theirs the embedding's.
  WeightType matrix_type() const { return o_.type ? *o_.type : items_.front().to; }

  WeightType most_common_type() const {
    size_t bytes[int(WeightType::q6_k) + 1] = {};
    for (const Item& i : items_) {
      if (i.matrix) bytes[int(i.to)] += i.matrix->bytes();
    }
    return WeightType(std::max_element(std::begin(bytes), std::end(bytes)) - std::begin(bytes));
  }

  static bool holds(const Vector& v, WeightType type) {
    std::vector<std::byte> bytes(row_bytes(type, int64_t(v.size())));
    Vector back(v.size());
    if (encode_row(type, v.data(), int64_t(v.size()), bytes.data()).what) return false;
    decode_row(type, bytes.data(), int64_t(v.size()), back.data());
    return back == v;
  }

  [[noreturn]] void refuse(const Item& i, int64_t row, const EncodeFault& f) const {
    const bool finite = std::isfinite(f.value);
    throw Error(finite ? ErrorKind::numeric : ErrorKind::malformed,
                fmt::format("{}: tensor {}", from_.string(), in_quotes(i.name)),
                fmt::format("row {}, column {} {}", row, f.column, f.what),
                finite ? fmt::format("values that {} can hold", name_of(i.to)) : "a finite number",
                fmt::format("{}", f.value), finite ? "Choose BF16 or F32" : "");
  }

  template <typename Writer>
  void write_all(Writer& w, bool permuted) {
    for (const Item& i : items_) {
      if (i.vector)
        write_vector(w, i, permuted);
      else
        write_matrix(w, i, permuted);
    }
  }

  template <typename Writer>
  void write_vector(Writer& w, const Item& i, bool permuted) {
    Vector v = *i.vector;
    if (permuted && i.qk) {
      for (size_t r = 0; r < v.size(); r++) v[r] = (*i.vector)[size_t(hf_row_of(int64_t(r), model_.config.head_dim))];
    }
    std::vector<std::byte> bytes(row_bytes(i.to, int64_t(v.size())));
    const EncodeFault fault = encode_row(i.to, v.data(), int64_t(v.size()), bytes.data());
    if (fault.what) refuse(i, 0, fault);
    w.write(i.index, 0, bytes.data(), bytes.size());
  }

  template <typename Writer>
  void write_matrix(Writer& w, const Item& i, bool permuted) {
    const Matrix& m = *i.matrix;
    const int64_t columns = m.columns;
    const size_t out_row = row_bytes(i.to, columns);
    const int64_t rows = i.rows.empty() ? m.rows : int64_t(i.rows.size()), block = block_elements(m.type);
    const bool blocks_move = model_.config.gdn_v_dim % block == 0;  // else what is reordered is encoded anew
    std::vector<RowError> errors(static_cast<size_t>(rows));
    const int64_t grain = std::max<int64_t>(1, kTaskElements / columns);
    pool_.parallel_for(rows, grain, [&](int64_t begin, int64_t end, int) {
      std::vector<float> x(static_cast<size_t>(columns)), y(static_cast<size_t>(columns));
      std::vector<std::byte> out(size_t(end - begin) * out_row);
      for (int64_t r = begin; r < end; r++) {
        const int64_t source = !i.rows.empty() ? i.rows[size_t(r)] : permuted && i.qk ? hf_row_of(r, model_.config.head_dim) : r;
        std::byte* to = out.data() + size_t(r - begin) * out_row;
        decode_row(m.type, m.row(source), columns, x.data());
        if (!i.columns.empty()) {
          y = x;
          for (int64_t k = 0; k < columns; k++) x[size_t(k)] = y[size_t(i.columns[size_t(k)])];
        }
        if (i.to == m.type && !i.columns.empty() && blocks_move) {
          for (int64_t k = 0; k < columns; k += block)
            std::copy_n(m.row(source) + size_t(i.columns[size_t(k)] / block) * block_bytes(m.type), block_bytes(m.type), to + size_t(k / block) * block_bytes(m.type));
        } else if (i.to == m.type && i.columns.empty()) {
          for (int64_t k = 0; k < columns; k++) {
            if (!std::isfinite(x[size_t(k)])) refuse(i, source, {"is not finite", k, x[size_t(k)]});
          }
          std::copy_n(m.row(source), out_row, to);
        } else {
          const EncodeFault fault = encode_row(i.to, x.data(), columns, to);
          if (fault.what) refuse(i, source, fault);
        }
        decode_row(i.to, to, columns, y.data());
        errors[size_t(i.rows.empty() ? source : r)] = row_error(x.data(), y.data(), columns);
      }
      w.write(i.index, uint64_t(begin) * out_row, out.data(), out.size());
    });
    report_.tensors.push_back(summary(i, errors));
  }

  ConvertedTensor summary(const Item& i, const std::vector<RowError>& errors) const {
    const Matrix& m = *i.matrix;
    ConvertedTensor t{i.name, {m.rows, m.columns}, m.type, i.to};
    t.router = i.router;
    t.fallback = o_.type && !i.router && i.to != *o_.type;
    RowError all;
    t.worst_row_sqnr_db = std::numeric_limits<double>::infinity();
    for (size_t r = 0; r < errors.size(); r++) {
      all.signal += errors[r].signal;
      all.noise += errors[r].noise;
      const double db = sqnr_db(errors[r].signal, errors[r].noise);
      if (db < t.worst_row_sqnr_db) {
        t.worst_row_sqnr_db = db;
        t.worst_row = int64_t(r);
      }
    }
    t.sqnr_db = sqnr_db(all.signal, all.noise);
    return t;
  }

  static constexpr int64_t kTaskElements = 1 << 16;

  const fs::path from_, to_;
  const ConvertOptions& o_;
  const Model model_;
  ThreadPool pool_;
  std::vector<Item> items_;
  Made made_;
  ConvertReport report_;
};

}  // namespace

ConvertReport convert_model(const fs::path& from, const fs::path& to, const ConvertOptions& options) {
  return Converter(from, to, options).run();
}

}  // namespace assay
