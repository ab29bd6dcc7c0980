// Reading a Hugging Face folder: config.json, one or several safetensors files, and the tokenizer's files for the
// canaries.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "dumps/error.h"
#include "dumps/safetensors.h"
#include "dumps/text.h"
#include "engine/formats/assemble.h"
#include "engine/formats/hf_config.h"
#include "engine/formats/hf_tokenizer.h"
#include "engine/formats/json_text.h"
#include "engine/formats/provenance.h"
#include "engine/formats/readers.h"

namespace fs = std::filesystem;

namespace assay {
namespace {

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";

bool starts_with(const std::string& s, const char* prefix) {
  return s.rfind(prefix, 0) == 0;
}

/// "model.language_model.layers.0..." -> "model.layers.0...": vision-language models nest their decoder, in three
/// spellings.
std::string canonical(const std::string& name) {
  for (const char* prefix : {"model.language_model.", "language_model.model.", "model.text_model."})
    if (starts_with(name, prefix)) return "model." + name.substr(std::string(prefix).size());
  if (starts_with(name, "language_model.lm_head.")) return name.substr(std::string("language_model.").size());
  return name;
}

/// Not part of a text decoder: vision towers and their projectors, and rotary frequencies that old checkpoints stored.
bool is_stray(const std::string& name) {
  for (const char* prefix : {"model.visual.", "visual.", "model.vision_tower.", "vision_tower.",
                             "model.multi_modal_projector.", "multi_modal_projector."})
    if (starts_with(name, prefix)) return true;
  return name.find(".rotary_emb.inv_freq") != std::string::npos;
}

WeightType weight_type(const TensorView& t, const std::string& file) {
  switch (t.dtype) {
    case DType::f32:
      return WeightType::f32;
    case DType::f16:
      return WeightType::f16;
    case DType::bf16:
      return WeightType::bf16;
    default:
      throw Error(ErrorKind::malformed, fmt::format("{}: tensor {}", file, in_quotes(t.name)),
                  "the element type is not supported for weights", "F32, F16 or BF16", std::string(name_of(t.dtype)));
  }
}

/// tensor name -> file name, from the index of a sharded checkpoint.
std::map<std::string, std::string> read_index(const fs::path& dir) {
  const fs::path path = dir / kIndexName;
  const std::string name = path.string();
  const Json json = parse_json_tree(read_text_file(path), name);
  return parse_safetensors_index(json, name);
}

}  // namespace

std::string read_text_file(const fs::path& path) {
  constexpr size_t kMaxBytes = size_t{256} << 20;   // the largest tokenizer.json known has 33 MB
  auto file = MappedFile::open(path);
  if (file->size() > kMaxBytes)
    throw Error(ErrorKind::malformed, path.string(), "absurd size of a JSON file", bytes_text(kMaxBytes) + " at most", bytes_text(file->size()));
  return std::string(reinterpret_cast<const char*>(file->data()), file->size());
}

std::map<std::string, std::string> parse_safetensors_index(const Json& json, const std::string& name) {
  const JsonReader index(json, name);
  auto map = index.object("weight_map");
  if (!map)
    throw Error(ErrorKind::malformed, index.where("weight_map"), "is missing", "an object tensor -> file",
                "no such key");
  std::map<std::string, std::string> out;
  for (const auto& [tensor, file] : map->json().items()) {
    const std::string value = file.is_string() ? file.get<std::string>() : "";
    // A plain file name beside the index: nothing may lead out of the folder.
    const bool plain =
        !value.empty() && value.find_first_of(std::string("/\\\0", 3)) == std::string::npos && value[0] != '.';
    if (!plain || !value.ends_with(".safetensors")) {
      throw Error(ErrorKind::malformed, index.where("weight_map"),
                  "tensor " + in_quotes(tensor) + " has no usable file",
                  "the name of a .safetensors file in this folder", file.is_string() ? in_quotes(value) : "no string");
    }
    out.emplace(tensor, value);
  }
  if (out.empty()) throw Error(ErrorKind::malformed, index.where("weight_map"), "is empty", "tensors", "none");
  return out;
}

static ModelOutline load(const fs::path& dir, bool outline) {
  const fs::path config_path = dir / "config.json";
  if (!is_there(config_path)) {
    throw Error(ErrorKind::malformed, dir.string(), "is not a model folder", "config.json and *.safetensors",
                "no config.json");
  }
  HfConfig hf = parse_hf_config(read_text_file(config_path), config_path.string());

  // transformers takes the single file where both exist.
  std::map<std::string, std::string> index;
  std::set<std::string> files;
  if (is_there(dir / kSingleName)) {
    files.insert(kSingleName);
  } else if (is_there(dir / kIndexName)) {
    index = read_index(dir);
    for (const auto& [tensor, file] : index) files.insert(file);
  } else {
    throw Error(ErrorKind::malformed, dir.string(), "has no weights", fmt::format("{} or {}", kSingleName, kIndexName),
                "neither",
                "Checkpoints of other formats (pytorch_model.bin) have to be converted to safetensors first");
  }

  const bool sharded = !index.empty();
  for (const std::string& file : files) {
    if (!is_there(dir / file)) {
      throw Error(ErrorKind::malformed, (dir / kIndexName).string(), "names a file that is not there", in_quotes(file),
                  "no such file");
    }
  }

  ModelOutline out;
  Model& model = out.model;
  TensorSet tensors;
  std::vector<std::shared_ptr<const void>> maps;
  std::vector<std::pair<const void*, size_t>> pieces;
  for (const std::string& file : files) {  // in name order
    const fs::path path = dir / file;
    Safetensors st = Safetensors::open(path);
    maps.push_back(st.file());
    pieces.emplace_back(st.file()->data(), st.file()->size());
    for (const TensorView& t : st.tensors()) {
      if (sharded) {  // listed entries are struck off, so that what remains is listed but absent
        auto listed = index.find(t.name);
        if (listed == index.end() || listed->second != file) {
          throw Error(ErrorKind::malformed, fmt::format("{}: tensor {}", path.string(), in_quotes(t.name)),
                      fmt::format("contradicts {}", kIndexName),
                      listed == index.end() ? "an entry there" : in_quotes(listed->second),
                      listed == index.end() ? "not listed" : "it in " + in_quotes(file));
        }
        index.erase(listed);
      }
      if (is_stray(t.name)) continue;
      tensors.add({t.name, path.string(), canonical(t.name), weight_type(t, path.string()), t.shape, t.data, t.bytes});
    }
  }
  if (!index.empty()) {
    throw Error(ErrorKind::malformed, (dir / kIndexName).string(),
                fmt::format("lists {} tensor(s) that no file has", index.size()),
                in_quotes(index.begin()->first) + " in " + in_quotes(index.begin()->second), "no such tensor there");
  }

  if (!tensors.find(mtp_name(kHfNames, hf.config, kHfNames.mtp_fc))) hf.config.mtp_layers = 0;
  const std::string tokenizer = check_tokenizer(dir, hf.config);
  AssembleOptions options{&kHfNames, config_path.string(), hf.qkv_bias, hf.o_bias, false, false, outline, &out.copied_bytes};
  model.weights = assemble(hf.config, tensors, options);
  model.weights.storage.insert(model.weights.storage.end(), maps.begin(), maps.end());
  for (auto [data, size] : pieces) out.mapped_bytes += size;
  model.config = std::move(hf.config);
  model.provenance = {dir.string(), "hf", outline ? "" : hash_pieces(pieces), quantisation_summary(tensors.all()), tokenizer};
  return out;
}

Model load_hf_folder(const fs::path& dir) { return load(dir, false).model; }
ModelOutline outline_hf_folder(const fs::path& dir) { return load(dir, true); }

}  // namespace assay
