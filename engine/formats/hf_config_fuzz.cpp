// libFuzzer: arbitrary bytes as each JSON file of a Hugging Face folder. Only Error may come out.
#include <cstdint>
#include <functional>
#include <string>

#include "dumps/error.h"
#include "engine/formats/hf_config.h"
#include "engine/formats/hf_tokenizer.h"
#include "engine/formats/json_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  auto survive = [](const std::function<void()>& read) {
    try {
      read();
    } catch (const assay::Error& e) {
      if (e.exit_code() != assay::kUsage) __builtin_trap();  // a bad file is never an internal error
    }
  };
  assay::Config config;
  config.vocab = 50;
  config.bos = 1;
  config.eos = {2};
  survive([&] { assay::parse_hf_config(text, "config.json"); });
  survive([&] { assay::parse_safetensors_index(assay::parse_json_tree(text, "index.json"), "index.json"); });
  survive([&] { assay::check_tokenizer({"", text, text, {}}, config); });
  survive([&] { assay::check_tokenizer({"", {}, {}, text}, config); });
  return 0;
}
