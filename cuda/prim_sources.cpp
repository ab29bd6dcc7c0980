// What a library of prim_check.h was built from, in a file of its own: the hash changes with every source.
#include "cuda/prim_check.h"
#include "cuda/sources.h"

extern "C" __attribute__((visibility("default"))) const char* assay_primitive_sources() {
  return ASSAY_CUDA_SOURCES;
}
