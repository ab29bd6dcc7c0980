#include "engine/numerics_env.h"

#include <cstdint>
#include <string>

#include "dumps/error.h"

#if defined(__x86_64__) || defined(__i386__)
#include <xmmintrin.h>
#endif

namespace assay {

void require_clean_float_environment(const char* where) {
  std::string found;
#if defined(__x86_64__) || defined(__i386__)
  constexpr const char* kWanted = "round to nearest, denormals on (MXCSR)";
  const unsigned csr = _mm_getcsr();
  if (csr & 0x8000u) found += "flush-to-zero ";
  if (csr & 0x0040u) found += "denormals-are-zero ";
  if (csr & 0x6000u) found += "rounding other than to nearest ";
#elif defined(__aarch64__)
  constexpr const char* kWanted = "round to nearest, denormals on, IEEE half precision (FPCR)";
  uint64_t fpcr;
  asm volatile("mrs %0, fpcr" : "=r"(fpcr));
  if (fpcr & 0x01000003u) found += "flush-to-zero ";  // FZ; FIZ and AH of armv8.7
  if (fpcr & 0x04000000u) found += "alternative half precision ";
  if (fpcr & 0x00c00000u) found += "rounding other than to nearest ";
#else
  constexpr const char* kWanted = "";
#endif
  if (found.empty()) return;
  found.pop_back();
  throw Error(ErrorKind::internal, where, "the floating-point environment was changed", kWanted, found,
              "A library built with fast-math sets this when it is loaded; remove it from the process");
}

}  // namespace assay
