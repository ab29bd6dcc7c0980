// Tiny model files for tests: a GGUF writer, a safetensors writer and synthetic Hugging Face folders. Test code only;
// the writers check nothing, so that tests can write what readers must refuse.
#pragma once
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "dumps/error.h"
#include "engine/model.h"

namespace assay::testing_files {

/// A folder that disappears with the object.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "assay-formats-XXXXXX").string();
    if (!mkdtemp(pattern.data())) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), std::streamsize(bytes.size()));
  if (!out) throw std::runtime_error("can't write " + path.string());
}

template <typename T>
std::string raw(T v) {
  return std::string(reinterpret_cast<const char*>(&v), sizeof v);
}
template <typename T>
std::string raw(const std::vector<T>& v) {
  return std::string(reinterpret_cast<const char*>(v.data()), v.size() * sizeof(T));
}
inline std::string gguf_string(const std::string& s) {
  return raw(uint64_t(s.size())) + s;
}

/// Numbers of ggml tensor types and GGUF value types, as in the file.
enum : uint32_t { kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ4_1 = 3, kQ8_0 = 8, kQ6_K = 14, kBF16 = 30 };
enum : uint32_t { kVU8, kVI8, kVU16, kVI16, kVU32, kVI32, kVF32, kVBool, kVString, kVArray, kVU64, kVI64, kVF64 };

/// Every field of the file may be overridden; by default the file is right.
struct GgufBuilder {
  struct Value {
    std::string key;
    uint32_t type;
    std::string bytes;
  };
  struct Tensor {
    std::string name;
    std::vector<uint64_t> ne;  // columns first, as GGUF has it
    uint32_t type = kF32;
    std::string data;
    std::optional<uint64_t> offset;  // default: after the tensor before, aligned
  };
  std::string magic = "GGUF";
  uint32_t version = 3;
  std::optional<uint64_t> tensor_count, metadata_count;
  uint64_t alignment = 32;
  std::vector<Value> values;
  std::vector<Tensor> tensors;

  GgufBuilder& add(const std::string& key, uint32_t type, std::string bytes) {
    values.push_back({key, type, std::move(bytes)});
    return *this;
  }
  GgufBuilder& u32(const std::string& key, uint32_t v) { return add(key, kVU32, raw(v)); }
  GgufBuilder& f32(const std::string& key, float v) { return add(key, kVF32, raw(v)); }
  GgufBuilder& str(const std::string& key, const std::string& v) { return add(key, kVString, gguf_string(v)); }
  GgufBuilder& array(const std::string& key, uint32_t element, uint64_t count, const std::string& bytes) {
    return add(key, kVArray, raw(element) + raw(count) + bytes);
  }
  GgufBuilder& strings(const std::string& key, const std::vector<std::string>& v) {
    std::string bytes;
    for (const auto& s : v) bytes += gguf_string(s);
    return array(key, kVString, v.size(), bytes);
  }
  GgufBuilder& tensor(const std::string& name, std::vector<uint64_t> ne, uint32_t type, std::string data) {
    tensors.push_back({name, std::move(ne), type, std::move(data), {}});
    return *this;
  }
  Tensor& find(const std::string& name) {
    for (Tensor& t : tensors)
      if (t.name == name) return t;
    throw std::runtime_error("no tensor " + name);
  }
  Value& value(const std::string& key) {
    for (Value& v : values)
      if (v.key == key) return v;
    throw std::runtime_error("no key " + key);
  }
  void erase(const std::string& key) {
    std::erase_if(values, [&](const Value& v) { return v.key == key; });
    std::erase_if(tensors, [&](const Tensor& t) { return t.name == key; });
  }

  std::string build() const {
    std::string s =
        magic + raw(version) + raw(tensor_count.value_or(tensors.size())) + raw(metadata_count.value_or(values.size()));
    for (const Value& v : values) s += gguf_string(v.key) + raw(v.type) + v.bytes;
    uint64_t next = 0;
    std::string data;
    for (const Tensor& t : tensors) {
      s += gguf_string(t.name) + raw(uint32_t(t.ne.size()));
      for (uint64_t d : t.ne) s += raw(d);
      s += raw(t.type) + raw(t.offset.value_or(next));
      data += t.data;
      data.resize((data.size() + alignment - 1) / alignment * alignment, '\0');
      next = data.size();
    }
    s.resize((s.size() + alignment - 1) / alignment * alignment, '\0');
    return s + data;
  }
};

/// One tensor for a safetensors file.
struct StTensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::string data;
};
inline std::string safetensors_bytes(const std::vector<StTensor>& tensors, size_t header_padding = 0) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  size_t at = 0;
  std::string data;
  for (const StTensor& t : tensors) {
    header[t.name] = {{"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {at, at + t.data.size()}}};
    at += t.data.size();
    data += t.data;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8 + header_padding, ' ');
  return raw(uint64_t(text.size())) + text + data;
}

/// A tiny random model as a Hugging Face folder would hold it; tests change it before they write it.
struct TinyModel {
  nlohmann::ordered_json config;
  std::vector<StTensor> tensors;

  StTensor& find(const std::string& name) {
    for (StTensor& t : tensors)
      if (t.name == name) return t;
    throw std::runtime_error("no tensor " + name);
  }
  void erase(const std::string& name) {
    std::erase_if(tensors, [&](const StTensor& t) { return t.name == name; });
  }
  void write(const std::filesystem::path& dir) const {
    std::filesystem::create_directories(dir);
    write_file(dir / "config.json", config.dump(1));
    write_file(dir / "model.safetensors", safetensors_bytes(tensors));
  }
};

/// `family`: llama, qwen2, qwen3, qwen3_moe (6 experts of 32, 2 per token). 4 query heads of 16, 2 kv heads, hidden 32, ffn 64,
/// vocab 50, F32, 2 layers, untied.
inline TinyModel tiny_model(const std::string& family, uint32_t seed = 1) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, 0.1f);
  TinyModel m;
  m.config = {{"model_type", family},         {"num_hidden_layers", 2},   {"hidden_size", 32},
              {"num_attention_heads", 4},     {"num_key_value_heads", 2}, {"head_dim", 16},
              {"intermediate_size", 64},      {"vocab_size", 50},         {"max_position_embeddings", 128},
              {"rms_norm_eps", 1e-5},         {"rope_theta", 10000.0},    {"hidden_act", "silu"},
              {"tie_word_embeddings", false}, {"bos_token_id", 1},        {"eos_token_id", 2}};
  if (family == "qwen3_moe") {
    m.config["num_experts"] = 6;
    m.config["num_experts_per_tok"] = 2;
    m.config["moe_intermediate_size"] = 32;
    m.config["norm_topk_prob"] = true;
  }
  auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    std::vector<float> values(static_cast<size_t>(n));
    for (float& v : values) v = normal(rng);
    m.tensors.push_back({name, "F32", shape, raw(values)});
  };
  add("model.embed_tokens.weight", {50, 32});
  for (int i = 0; i < 2; i++) {
    const std::string l = "model.layers." + std::to_string(i) + ".";
    add(l + "input_layernorm.weight", {32});
    add(l + "post_attention_layernorm.weight", {32});
    add(l + "self_attn.q_proj.weight", {64, 32});
    add(l + "self_attn.k_proj.weight", {32, 32});
    add(l + "self_attn.v_proj.weight", {32, 32});
    add(l + "self_attn.o_proj.weight", {32, 64});
    if (family == "qwen2") {
      add(l + "self_attn.q_proj.bias", {64});
      add(l + "self_attn.k_proj.bias", {32});
      add(l + "self_attn.v_proj.bias", {32});
    }
    if (family == "qwen3" || family == "qwen3_moe") {
      add(l + "self_attn.q_norm.weight", {16});
      add(l + "self_attn.k_norm.weight", {16});
    }
    if (family == "qwen3_moe") {
      add(l + "mlp.gate.weight", {6, 32});
      for (int e = 0; e < 6; e++) {
        const std::string x = l + "mlp.experts." + std::to_string(e) + ".";
        add(x + "gate_proj.weight", {32, 32});
        add(x + "up_proj.weight", {32, 32});
        add(x + "down_proj.weight", {32, 32});
      }
      continue;
    }
    add(l + "mlp.gate_proj.weight", {64, 32});
    add(l + "mlp.up_proj.weight", {64, 32});
    add(l + "mlp.down_proj.weight", {32, 64});
  }
  add("model.norm.weight", {32});
  add("lm_head.weight", {50, 32});
  return m;
}

/// What a loaded float model is as a GGUF file, with the transforms of llama.cpp's converter: q and k rows of llama
/// files interleaved, llama3 scaling as rope_freqs.weight. Tensors keep their element type; vectors become F32.
GgufBuilder gguf_of(const Model& model);

/// The message of the Error that `action` throws; "" if it throws none.
inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.exit_code() == kUsage ? e.what() : std::string("exit ") + std::to_string(e.exit_code()) + ": " + e.what();
  }
  return "";
}

}  // namespace assay::testing_files
