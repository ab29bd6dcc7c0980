// libFuzzer: any bytes are either a well-formed file, whose every value can be read, or an Error{malformed}.
#include <cstdint>
#include <cstdlib>

#include "dumps/error.h"
#include "dumps/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const assay::Safetensors s = assay::Safetensors::parse(reinterpret_cast<const std::byte*>(data), size, "fuzz");
    uint64_t sum = 0;
    size_t total = 0;
    for (const assay::TensorView& t : s.tensors()) {
      if (t.bytes != size_t(t.elements()) * assay::size_of(t.dtype) || s.find(t.name) != &t) std::abort();
      for (size_t i = 0; i < t.bytes; ++i) sum += std::to_integer<uint64_t>(t.data[i]);
      total += t.bytes;
    }
    if (total > size) std::abort();
    volatile uint64_t sink = sum;
    (void)sink;
  } catch (const assay::Error& e) {
    if (e.kind() != assay::ErrorKind::malformed) std::abort();
  }
  return 0;
}
