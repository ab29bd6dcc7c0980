// libFuzzer: arbitrary bytes as a template, parsed and rendered over a small conversation. Only Error may come out, and
// never an internal one; what is rendered keeps its bounds.
#include <cstdint>
#include <nlohmann/json.hpp>

#include "dumps/error.h"
#include "engine/text/jinja.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const nlohmann::ordered_json variables = nlohmann::ordered_json::parse(
      R"({"messages": [{"role": "system", "content": " s\u00e9 "}, {"role": "user", "content": "hi <think>x</think>"},
          {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, 2.5, true]}}}]}],
          "tools": [{"type": "function"}], "add_generation_prompt": true, "bos_token": "<s>", "n": 3, "l": [3, 1, 2]})");
  const assay::jinja::Limits limits{.output = 1 << 16, .steps = 100'000, .bytes = 16 << 20};
  try {
    const auto t = assay::jinja::Template::parse(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
    if (t.render(variables, {}, limits).size() > limits.output) __builtin_trap();
  } catch (const assay::Error& e) {
    if (e.exit_code() != assay::kUsage) __builtin_trap();
  }
  return 0;
}
