// Writing a Hugging Face folder: model.safetensors, config.json, and the tokenizer's files where the source has them.
#pragma once
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "dumps/outfile.h"
#include "engine/model.h"

namespace assay {

/// Files of a folder's tokenizer and of how text is generated: copied as they are.
inline constexpr std::string_view kTokenizerFiles[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",     "vocab.json",
    "merges.txt",     "tokenizer.model",       "chat_template.jinja",     "generation_config.json"};

/// The folder appears under its name when it is whole: until finish() it is NAME.partial, which the destructor removes.
class HfFolderWriter {
 public:
  /// `replace`: a model folder of that name may be there and is replaced by finish(). It is a folder with a config.json
  /// and nothing that this class is not asked to write: a README or other shards would be lost with it.
  explicit HfFolderWriter(std::filesystem::path path, bool replace = false);
  ~HfFolderWriter();
  HfFolderWriter(const HfFolderWriter&) = delete;
  HfFolderWriter& operator=(const HfFolderWriter&) = delete;

  /// Declares a tensor of type F32, F16 or BF16, before begin(); returns its index.
  size_t tensor(const std::string& name, WeightType type, const std::vector<int64_t>& shape);
  /// Throws Error{usage} if something is there and may not be replaced, or if the path is "." or "..", Error{io}.
  void begin();
  /// Bytes of a tensor's data, from any thread. Throws Error{io}.
  void write(size_t tensor, uint64_t offset, const void* data, size_t bytes);
  void text_file(const std::string& name, const std::string& text);  // after begin()
  void copy_file(const std::filesystem::path& from);                 // after begin(), under its name
  /// Throws Error{internal} unless every byte of every tensor was written, Error{io}.
  void finish();
  uint64_t file_bytes() const { return total_; }

 private:
  struct Tensor {
    std::string name;
    WeightType type;
    std::vector<int64_t> shape;
    uint64_t offset = 0, bytes = 0;
  };
  std::filesystem::path path_, partial_;
  bool replace_, begun_ = false, finished_ = false;
  std::vector<Tensor> tensors_;
  OutFile out_;
  uint64_t data_start_ = 0, total_ = 0, expected_ = 0;
  std::atomic<uint64_t> written_{0};
};

/// config.json of a model, in the spelling of transformers 4 (rope_theta, rope_scaling), which 5 reads too. `dtype`:
/// "float32", "float16", "bfloat16". Throws Error{usage} for what no configuration class of the family can say.
std::string hf_config_text(const Config& config, bool o_bias, const std::string& dtype);

}  // namespace assay
