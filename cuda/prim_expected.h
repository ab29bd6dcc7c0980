// What every check of prim_check.h has to give, written down plainly from the PTX manual and numerics.h: it shares
// nothing with the emulation, nor with a device, both of which are held against it.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace assay {

using PrimitiveWords = std::vector<uint32_t>;  // ASSAY_PRIMITIVE_WORDS, of all threads in their order

struct ExpectedPrimitive {
  const char* name;  // assay_primitive_name()
  PrimitiveWords (*output)(const PrimitiveWords& in);
};
/// In the order of assay_primitive_name().
std::span<const ExpectedPrimitive> expected_primitives();

}  // namespace assay
