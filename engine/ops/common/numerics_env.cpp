#include "engine/numerics_env.h"

#include <string>

#include "dumps/error.h"

#if defined(__x86_64__) || defined(__i386__)
#include <xmmintrin.h>
#endif

namespace assay {

void require_clean_float_environment(const char* where) {
#if defined(__x86_64__) || defined(__i386__)
  unsigned csr = _mm_getcsr();
  std::string found;
  if (csr & 0x8000u) found += "flush-to-zero ";
  if (csr & 0x0040u) found += "denormals-are-zero ";
  if (csr & 0x6000u) found += "rounding other than to nearest ";
  if (!found.empty()) {
    found.pop_back();
    throw Error(ErrorKind::internal, where, "the floating-point environment was changed",
                "round to nearest, denormals on (MXCSR)", found,
                "A library built with fast-math sets this when it is loaded; remove it from the process");
  }
#elif defined(__aarch64__)
  unsigned long fpcr;
  asm volatile("mrs %0, fpcr" : "=r"(fpcr));
  if (fpcr & 0x01c00000ul) {
    throw Error(ErrorKind::internal, where, "the floating-point environment was changed",
                "round to nearest, denormals on (FPCR)", "flush-to-zero or another rounding mode");
  }
#else
  (void)where;
#endif
}

}  // namespace assay
