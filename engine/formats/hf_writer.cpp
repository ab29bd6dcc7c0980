#include "engine/formats/hf_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "dumps/error.h"
#include "dumps/safetensors.h"
#include "dumps/text.h"
#include "engine/formats/readers.h"

namespace fs = std::filesystem;

namespace assay {
namespace {

/// The first thing in a folder that is no part of a written model; empty: none. A folder that is removed holds no more.
std::string foreign_entry(const fs::path& folder) {
  std::string first;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const bool ours =
        name == "config.json" || name == "model.safetensors" ||
        std::find(std::begin(kTokenizerFiles), std::end(kTokenizerFiles), name) != std::end(kTokenizerFiles);
    if ((!ours || it->is_directory()) && (first.empty() || name < first)) first = name;
  }
  if (error) throw Error(ErrorKind::io, folder.string(), "can't be listed", {}, error.message());
  return first;
}

void refuse_foreign(const fs::path& folder) {
  const std::string entry = foreign_entry(folder);
  if (!entry.empty()) {
    throw Error(ErrorKind::usage, folder.string(), "holds more than a written model, and would be removed",
                "config.json, model.safetensors and a tokenizer's files alone", entry, "Choose another name");
  }
}

}  // namespace

HfFolderWriter::HfFolderWriter(fs::path path, bool replace) : path_(std::move(path)), replace_(replace) {
  if (!path_.has_filename()) path_ = path_.parent_path();  // "folder/"
  partial_ = path_;
  partial_ += ".partial";
}

HfFolderWriter::~HfFolderWriter() {
  if (!begun_ || finished_) return;
  std::error_code ignored;
  fs::remove_all(partial_, ignored);
}

size_t HfFolderWriter::tensor(const std::string& name, WeightType type, const std::vector<int64_t>& shape) {
  if (begun_ || is_quantised(type)) {
    throw Error(ErrorKind::internal, "tensor " + in_quotes(name), "can't be declared",
                "F32, F16 or BF16, before the data", std::string(name_of(type)));
  }
  uint64_t elements = 1;
  for (int64_t n : shape) elements *= uint64_t(n);
  tensors_.push_back({name, type, shape, 0, elements * block_bytes(type)});
  expected_ += tensors_.back().bytes;
  return tensors_.size() - 1;
}

void HfFolderWriter::begin() {
  if (is_there(path_) && !(replace_ && is_there(path_ / "config.json"))) {
    throw Error(ErrorKind::usage, path_.string(), replace_ ? "is there and is no model folder" : "is there already", {},
                {}, replace_ ? "Choose another name" : "Choose another name, or --force");
  }
  if (path_.filename() == "." || path_.filename() == "..") {
    throw Error(ErrorKind::usage, path_.string(), "is no name of a folder", "a name", in_quotes(path_.string()));
  }
  if (is_there(path_)) refuse_foreign(path_);
  if (is_there(partial_)) refuse_foreign(partial_);
  std::error_code error;
  fs::remove_all(partial_, error);
  begun_ = fs::create_directories(partial_, error);
  if (!begun_) throw Error(ErrorKind::io, partial_.string(), "can't be created", {}, error.message());

  // Data lies without gaps, so wide elements come first to keep all of them aligned.
  std::vector<size_t> order(tensors_.size());
  for (size_t i = 0; i < order.size(); i++) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return block_bytes(tensors_[a].type) > block_bytes(tensors_[b].type); });
  nlohmann::ordered_json header;
  header["__metadata__"]["format"] = "pt";  // transformers asks for it
  uint64_t at = 0;
  for (size_t i : order) {
    Tensor& t = tensors_[i];
    t.offset = at;
    at += t.bytes;
    header[t.name] = {{"dtype", name_of(t.type)},
                      {"shape", t.shape},
                      {"data_offsets", nlohmann::ordered_json::array({t.offset, at})}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  data_start_ = 8 + length;
  total_ = data_start_ + at;
  out_ = OutFile(partial_ / "model.safetensors");
  out_.reserve(total_);
  out_.write_at(0, &length, 8);
  out_.write_at(8, text.data(), text.size());
}

void HfFolderWriter::write(size_t tensor, uint64_t offset, const void* data, size_t bytes) {
  const Tensor& t = tensors_.at(tensor);
  if (!out_.is_open() || offset > t.bytes || bytes > t.bytes - offset) {
    throw Error(ErrorKind::internal, "tensor " + in_quotes(t.name), "is written outside its bytes",
                fmt::format("at most {}", t.bytes), fmt::format("{} at {}", bytes, offset));
  }
  out_.write_at(data_start_ + t.offset + offset, data, bytes);
  written_ += bytes;
}

void HfFolderWriter::text_file(const std::string& name, const std::string& text) {
  OutFile file(partial_ / name);
  file.write_at(0, text.data(), text.size());
  file.close(true);
}

void HfFolderWriter::copy_file(const fs::path& from) {
  std::error_code error;
  fs::copy_file(from, partial_ / from.filename(), error);
  if (error) throw Error(ErrorKind::io, from.string(), "can't be copied", {}, error.message());
}

void HfFolderWriter::finish() {
  if (!out_.is_open() || written_ != expected_) {
    throw Error(ErrorKind::internal, path_.string(), "is finished before all tensors are written",
                fmt::format("{} bytes", expected_), fmt::format("{}", written_.load()));
  }
  out_.truncate(total_);
  out_.close(true);
  sync_folder(partial_);
  std::error_code error;
  const bool replaces = replace_ && is_there(path_);
  fs::path old = path_;
  old += ".old";
  if (replaces) {
    // Moved aside first: whenever the program ends, one whole folder is there.
    refuse_foreign(path_);  // what came while the model was written
    if (is_there(old)) throw Error(ErrorKind::io, old.string(), "is in the way of what is replaced");
    fs::rename(path_, old, error);
    if (error) throw Error(ErrorKind::io, path_.string(), "can't be moved aside", {}, error.message());
  }
  fs::rename(partial_, path_, error);
  if (error) {
    std::error_code ignored;
    if (replaces) fs::rename(old, path_, ignored);
    throw Error(ErrorKind::io, path_.string(), "can't be renamed into place", {}, error.message());
  }
  finished_ = true;
  if (replaces) fs::remove_all(old, error);
  sync_folder(path_.parent_path().empty() ? "." : path_.parent_path());
}

/// The class of transformers that reads a written folder.
static std::string architecture_of(const std::string& family) {
  for (auto [name, architecture] : {std::pair{"llama", "LlamaForCausalLM"},
                                    {"olmo2", "Olmo2ForCausalLM"},
                                    {"qwen2", "Qwen2ForCausalLM"},
                                    {"qwen3", "Qwen3ForCausalLM"},
                                    {"qwen3_5", "Qwen3_5ForCausalLM"},
                                    {"qwen3_5_moe", "Qwen3_5MoeForCausalLM"},
                                    {"qwen3_moe", "Qwen3MoeForCausalLM"},
                                    {"qwen3_next", "Qwen3NextForCausalLM"},
                                    {"qwen3_vl", "Qwen3VLForConditionalGeneration"}})
    if (family == name) return architecture;
  throw Error(ErrorKind::internal, "config.json", "no architecture of transformers is known for a family", {},
              in_quotes(family));
}

std::string hf_config_text(const Config& c, bool o_bias, const std::string& dtype) {
  const bool qwen3 = c.family == "qwen3" || c.family == "qwen3_vl";
  if (c.family != "qwen2" && c.qkv_bias != o_bias) {
    throw Error(ErrorKind::usage, "config.json", "can't say that only some projections of attention have biases",
                "biases of q, k, v and o, or none", c.qkv_bias ? "q, k and v" : "o");
  }
  const std::string architecture = architecture_of(c.family);
  nlohmann::ordered_json text = {{"hidden_size", c.hidden},
                                 {"num_hidden_layers", c.layers},
                                 {"num_attention_heads", c.heads},
                                 {"num_key_value_heads", c.kv_heads},
                                 {"head_dim", c.head_dim},
                                 {"intermediate_size", c.ffn},
                                 {"vocab_size", c.vocab},
                                 {"max_position_embeddings", c.context},
                                 {"rms_norm_eps", shortest_decimal(float(c.rms_eps))},
                                 {"hidden_act", "silu"},
                                 {"rope_theta", c.rope.theta}};
  if (c.family != "qwen2") text["attention_bias"] = c.qkv_bias;
  if (c.family == "llama") text["mlp_bias"] = false;
  if (c.family == "qwen2" || c.family == "qwen3" || c.family == "qwen3_moe") text["use_sliding_window"] = false;
  if (c.experts > 0) {
    text["num_experts"] = c.experts;
    text["num_experts_per_tok"] = c.experts_per_token;
    text["moe_intermediate_size"] = c.expert_ffn;
    text["norm_topk_prob"] = c.norm_topk_prob;
    text["decoder_sparse_step"] = c.sparse_step;
    text["mlp_only_layers"] = c.dense_layers;
  }
  if (!c.gdn_layers.empty()) {
    auto types = nlohmann::ordered_json::array();
    for (bool gdn : c.gdn_layers) types.push_back(gdn ? "linear_attention" : "full_attention");
    text["layer_types"] = types;
    text["linear_num_key_heads"] = c.gdn_k_heads;
    text["linear_num_value_heads"] = c.gdn_v_heads;
    text["linear_key_head_dim"] = c.gdn_k_dim;
    text["linear_value_head_dim"] = c.gdn_v_dim;
    text["linear_conv_kernel_dim"] = c.conv_width;
    text["mtp_num_hidden_layers"] = c.mtp_layers;
    if (c.experts > 0) text["shared_expert_intermediate_size"] = c.shared_expert_ffn;
  }
  if (c.rope.rotary != c.head_dim) text["partial_rotary_factor"] = double(c.rope.rotary) / double(c.head_dim);
  if (c.rope.llama3) {
    text["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", c.rope.factor},
                            {"low_freq_factor", c.rope.low_freq_factor},
                            {"high_freq_factor", c.rope.high_freq_factor},
                            {"original_max_position_embeddings", int64_t(c.rope.original_context)}};
  } else if (!c.rope.mrope_section.empty()) {
    text["rope_scaling"] = {{"rope_type", "default"}, {"mrope_section", c.rope.mrope_section}};
    if (qwen3 || !c.gdn_layers.empty()) text["rope_scaling"]["mrope_interleaved"] = true;
  }
  if (c.bos >= 0) text["bos_token_id"] = c.bos;
  if (c.eos.size() == 1) text["eos_token_id"] = c.eos[0];
  if (c.eos.size() > 1) text["eos_token_id"] = c.eos;
  // The classes of transformers 5 read rotary settings in one place.
  if (c.family == "qwen3_5" || c.family == "qwen3_5_moe") {
    nlohmann::ordered_json rope = text.contains("rope_scaling") ? text["rope_scaling"] : nlohmann::ordered_json{{"rope_type", "default"}};
    rope["rope_theta"] = text["rope_theta"];
    rope["partial_rotary_factor"] = double(c.rope.rotary) / double(c.head_dim);
    for (const char* key : {"rope_scaling", "rope_theta"}) text.erase(key);
    text["rope_parameters"] = rope;
  }
  nlohmann::ordered_json outer = {{"architectures", nlohmann::ordered_json::array({architecture})},
                                  {"model_type", c.family.starts_with("qwen3_5") ? c.family + "_text" : c.family}};
  if (c.family == "qwen3_vl") {
    text["model_type"] = "qwen3_vl_text";
    outer["text_config"] = text;
  } else {
    outer.update(text);
  }
  outer["tie_word_embeddings"] = c.tied;
  outer["torch_dtype"] = dtype;
  return outer.dump(2) + "\n";
}

}  // namespace assay
