// libFuzzer: arbitrary bytes as a tokenizer.json. Only Error{malformed} may come out; what loads must encode and
// decode.
#include <cstdlib>

#include "dumps/error.h"
#include "engine/text/tokenizer.h"
#include "engine/text/unicode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const assay::Tokenizer t = assay::Tokenizer::from_json(text, "tokenizer.json");
    for (const std::string sample : {"the <s>  e\u0301\u4E2D'll 12\n", "\U0001F600<s><think> x"}) {
      const auto ids = t.encode(sample);
      assay::StreamDecoder stream(t);
      std::string streamed;
      for (int32_t id : ids) streamed += stream.push(id);
      streamed += stream.finish();
      if (streamed != t.decode(ids) || assay::first_invalid_utf8(streamed)) std::abort();
    }
  } catch (const assay::Error& e) {
    if (e.kind() != assay::ErrorKind::malformed) std::abort();
  }
  return 0;
}
