// A tiny model folder that reads and writes text: an official case's weights (random) with a tokenizer of bytes, for
// tests.
#pragma once
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/text/test_tokenizers.h"

namespace assay {

/// goldens/official/qwen2-bias (401 ids, 1024 positions) in a folder of its own, with tokenizer.json (an id per
/// byte) and chat_template.jinja. Removed with the object.
class TextModelFolder {
 public:
  TextModelFolder() {
    static int count = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("assay-text-" + std::to_string(getpid()) + "-" + std::to_string(count++));
    std::filesystem::create_directories(path_);
    const std::filesystem::path from = std::filesystem::path(ASSAY_SOURCE_DIR) / "goldens/official/qwen2-bias/model";
    std::filesystem::copy_file(from / "model.safetensors", path_ / "model.safetensors");
    nlohmann::ordered_json config = nlohmann::ordered_json::parse(std::ifstream(from / "config.json"));
    config["eos_token_id"] = 257;  // </s>; 3 is a byte here
    write("config.json", config.dump());
    write("tokenizer.json", testing_text::tiny_json().dump());
    write(
        "chat_template.jinja",
        "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}a:{% endif "
        "%}"
        "{% if loud is defined %}!{% endif %}{% if messages|length > 9 %}{{ raise_exception('too long') }}{% endif %}");
  }
  ~TextModelFolder() { std::filesystem::remove_all(path_); }
  TextModelFolder(const TextModelFolder&) = delete;
  void write(const std::string& file, const std::string& text) const {
    std::ofstream(path_ / file, std::ios::binary) << text;
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace assay
