// libFuzzer: arbitrary bytes as a GGUF file, parsed and loaded as a model. Only Error may come out; a model that loads
// has every byte of its weights in reach.
#include <cstdint>

#include "dumps/error.h"
#include "engine/formats/gguf.h"
#include "engine/formats/readers.h"

namespace {

uint8_t touch(const assay::Matrix& m) {
  return m.empty() ? 0 : uint8_t(m.data[0]) ^ uint8_t(m.data[m.bytes() - 1]);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  volatile uint8_t sink = 0;
  try {
    const auto file = assay::GgufFile::parse(reinterpret_cast<const std::byte*>(data), size, "fuzz.gguf");
    for (const auto& [key, value] : file.metadata()) {
      sink = value.bytes.empty() ? 0 : uint8_t(value.bytes.front()) ^ uint8_t(value.bytes.back());
    }
    for (const auto& t : file.tensors()) sink = uint8_t(t.data[0]) ^ uint8_t(t.data[t.bytes - 1]);
    const assay::Model model = assay::load_gguf(file, "fuzz.gguf");
    sink = touch(model.weights.embed) ^ touch(model.weights.lm_head);
    for (const auto& l : model.weights.layers) {
      for (const auto* m : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down}) sink = touch(*m);
    }
  } catch (const assay::Error& e) {
    if (e.exit_code() != assay::kUsage) __builtin_trap();  // a bad file is never an internal error
  }
  (void)sink;
  return 0;
}
