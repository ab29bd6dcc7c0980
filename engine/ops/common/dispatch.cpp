// Which instruction sets this build and this CPU have, and the names and sizes of the element types.
#include <cstddef>

#include "dumps/error.h"
#include "engine/ops/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace assay {

namespace scalar {
extern const Kernels kKernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels kKernels;
}
#if !defined(ASSAY_WITHOUT_AVX512)  // a sanitized build
namespace avx512 {
extern const Kernels kKernels;
}
namespace avx512vnni {
void quant_linear(const QuantLinearArgs& a, int64_t begin, int64_t end);
}
#endif
#elif defined(__aarch64__)
namespace neon {
extern const Kernels kKernels;
}
#endif

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return "scalar";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
    case Isa::avx512vnni:
      return "avx512vnni";
    case Isa::neon:
      return "neon";
  }
  return "unknown";
}

bool isa_supported(Isa isa) {
  if (isa == Isa::scalar) return true;
#if defined(__x86_64__)
  __builtin_cpu_init();
  // The answers include the operating system's part (XCR0): it saves the registers.
  unsigned a, b, c = 0, d;
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);  // a name that clang 14's builtin does not know
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c;
  if (isa == Isa::avx2) return avx2;
#if !defined(ASSAY_WITHOUT_AVX512)
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (isa == Isa::avx512) return avx512;
  if (isa == Isa::avx512vnni) return avx512 && __builtin_cpu_supports("avx512vnni");
#endif
#elif defined(__aarch64__)
  if (isa == Isa::neon) return true;  // part of armv8-a
#endif
  return false;
}

Isa best_isa() {
  static const Isa best = [] {
    Isa last = Isa::scalar;
    for (Isa isa : kBuiltIsas)
      if (isa_supported(isa)) last = isa;
    return last;
  }();
  return best;
}

int code_bytes_for(Isa isa, WeightType type, Activations kind) {
  // AVX2's and AVX-512's product of bytes saturates; NEON's takes signed bytes, and codes of 8 bits are unsigned.
  const bool wants_words = isa == Isa::avx2 || isa == Isa::avx512 || isa == Isa::neon;
  return kind == Activations::s16 || (type == WeightType::q8_0 && wants_words) ? 2 : 1;
}

const Kernels& kernels(Isa isa) {
  if (!isa_supported(isa)) {
    throw Error(ErrorKind::internal, "kernels", "instruction set not supported here",
                "at most " + std::string(name_of(best_isa())), std::string(name_of(isa)));
  }
#if defined(__x86_64__)
  if (isa == Isa::avx2) return avx2::kKernels;
#if !defined(ASSAY_WITHOUT_AVX512)
  if (isa == Isa::avx512) return avx512::kKernels;
  if (isa == Isa::avx512vnni) {  // integer products of its own; everything else is that of avx512
    static const Kernels vnni = [] {
      Kernels k = avx512::kKernels;
      k.isa = Isa::avx512vnni;
      k.quant_linear = avx512vnni::quant_linear;
      return k;
    }();
    return vnni;
  }
#endif
#elif defined(__aarch64__)
  if (isa == Isa::neon) return neon::kKernels;
#endif
  return scalar::kKernels;
}

std::string_view name_of(WeightType t) {
  switch (t) {
    case WeightType::f32:
      return "F32";
    case WeightType::f16:
      return "F16";
    case WeightType::bf16:
      return "BF16";
    case WeightType::q8_0:
      return "Q8_0";
    case WeightType::q4_0:
      return "Q4_0";
    case WeightType::q4_1:
      return "Q4_1";
    case WeightType::q5_0:
      return "Q5_0";
    case WeightType::q5_1:
      return "Q5_1";
    case WeightType::q4_k:
      return "Q4_K";
    case WeightType::q5_k:
      return "Q5_K";
    case WeightType::q6_k:
      return "Q6_K";
  }
  return "unknown";
}

bool is_quantised(WeightType t) {
  return block_elements(t) > 1;
}

int64_t block_elements(WeightType t) {
  switch (t) {
    case WeightType::f32:
    case WeightType::f16:
    case WeightType::bf16:
      return 1;
    case WeightType::q8_0:
    case WeightType::q4_0:
    case WeightType::q4_1:
    case WeightType::q5_0:
    case WeightType::q5_1:
      return 32;
    case WeightType::q4_k:
    case WeightType::q5_k:
    case WeightType::q6_k:
      return 256;
  }
  return 1;
}

size_t block_bytes(WeightType t) {
  switch (t) {
    case WeightType::f32:
      return 4;
    case WeightType::f16:
    case WeightType::bf16:
      return 2;
    case WeightType::q8_0:
      return 34;
    case WeightType::q4_0:
      return 18;
    case WeightType::q4_1:
      return 20;
    case WeightType::q5_0:
      return 22;
    case WeightType::q5_1:
      return 24;
    case WeightType::q4_k:
      return 144;
    case WeightType::q5_k:
      return 176;
    case WeightType::q6_k:
      return 210;
  }
  return 0;
}

std::string_view name_of(Activations a) {
  return a == Activations::s16 ? "s16" : a == Activations::s8 ? "s8" : "f32";
}

std::string_view name_of(KvType t) {
  switch (t) {
    case KvType::f32:
      return "f32";
    case KvType::f16:
      return "f16";
    case KvType::bf16:
      return "bf16";
  }
  return "unknown";
}

size_t size_of(KvType t) {
  return t == KvType::f32 ? 4 : 2;
}

}  // namespace assay
