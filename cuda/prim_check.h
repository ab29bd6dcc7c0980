// One kernel per primitive of prim.cuh, run on chosen inputs: its output is the same bytes from the emulation and from a
// device, or one of them is wrong. Built twice, as libassay_prim_check_simt.so and libassay_prim_check_cuda.so, which
// conformance/kernel/primitives.cpp loads; not part of the module.
#pragma once
#include <cstdint>

extern "C" {
/// Words of input and of output of every check.
enum { ASSAY_PRIMITIVE_WORDS = 65536 };
/// Null past the last one.
const char* assay_primitive_name(int which);
/// Hash of the sources, as AssayModule::sources.
const char* assay_primitive_sources();
/// Runs check `which` on device `ordinal`. Both in host memory. 1, or a negative number and words (of at most 512 bytes).
int assay_check_primitive(int ordinal, int which, const uint32_t* in, uint32_t* out, char* words);
}
