// y[t][n] = sum over k of w[n][k] * x[t][k] by the float rule, + bias[n], + residual: engine/ops/linear.cpp. Weights of float
// types, and quantised ones widened (activations f32).
//
// Accumulator k mod 256, acc = fma(w, x, acc), increasing k, start +0; fold 128 .. 1; add +0. Where a row ends, lanes go on
// with zeros on both sides (0 * Inf is NaN): fma(0, 0, acc) changes at most the sign of a zero, which the last + 0 levels.
// Kernels: float_gemv.cuh one token row, float_few.cuh 2 to 16 (float types), float_tile.cuh more. Where shared memory is too
// small for one, another that fits.
// Refused: x normed first and the gated form, which would have to be repeated by every block.
#include "cuda/device.h"
#include "cuda/float_few.cuh"
#include "cuda/float_gemv.cuh"
#include "cuda/float_tile.cuh"

namespace assay {
namespace {

constexpr int64_t kFewMost = 16;  // tokens
constexpr const char* kTypeNames[ASSAY_TYPES] = {"f32",  "f16",  "bf16", "q8_0", "q4_0", "q4_1",
                                                 "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"};

enum class Kernel : uint8_t { none, gemv, few, tile };
/// The kernel for weights of a type: the first of the right size that fits shared memory.
template <int32_t kType>
Kernel kernel_for(const AssayDevice& d, int64_t columns, int64_t tokens) {
  const bool tile_fits = kTileShared <= d.shared_limit, few_fit = kType != kAnyQuantised && few_fits(d, kType);
  if (tokens == 1 && gemv_fits(d, kType, (int)columns)) return Kernel::gemv;
  if (few_fit && (tokens <= kFewMost || !tile_fits)) return Kernel::few;
  return tile_fits ? Kernel::tile : Kernel::none;
}

template <int32_t kType>
int run(AssayDevice& d, int32_t type, const FloatMatrices& m, const AssayLinear& a) {
  const bool aligned = m.columns % 4 == 0 && (reinterpret_cast<uintptr_t>(a.x) & 15) == 0;
  const int tokens = (int)a.rows;
  const std::string name = kTypeNames[type];
  switch (kernel_for<kType>(d, m.columns, tokens)) {
    case Kernel::gemv:
      return float_gemv<kType>(d, ("float_gemv_" + name).c_str(), m, a.x, aligned);
    case Kernel::few:
      if constexpr (kType != kAnyQuantised) return float_few<kType>(d, ("float_few_" + name).c_str(), m, a.x, tokens, aligned);
      break;
    case Kernel::tile:
      return float_tile<kType>(d, ("float_tile_" + name).c_str(), m, a.x, tokens, aligned);
    case Kernel::none:
      break;
  }
  return failed(d, ASSAY_ERROR, "float_linear: no kernel");  // possible() has looked
}

/// Calls f<type>() with the type that kernels are compiled for.
template <class F>
auto with_type(int32_t type, F&& f) {
  switch (type) {
    case ASSAY_F32:
      return f.template operator()<ASSAY_F32>();
    case ASSAY_F16:
      return f.template operator()<ASSAY_F16>();
    case ASSAY_BF16:
      return f.template operator()<ASSAY_BF16>();
    default:
      return f.template operator()<kAnyQuantised>();
  }
}

bool possible(const AssayDevice& d, const AssayLinear& a) {
  if (a.norm != nullptr || a.gated != 0 || a.count < 1 || a.count > 3 || (a.residual != nullptr && a.count != 1)) return false;
  constexpr int64_t kMost = 1 << 24;  // what kernels count in 32 bits
  const int64_t columns = a.w[0].columns;
  if (columns < 1 || columns > kMost || a.rows < 0 || a.rows > kMost) return false;
  int64_t total = 0;
  for (int i = 0; i < a.count; i++) {
    const AssayWeight& w = a.w[i];
    if (!type_known(w.type) || w.rows < 1 || w.columns != columns || columns % type_file_block_columns(w.type) != 0) return false;
    if (with_type(w.type, [&]<int32_t kType> { return kernel_for<kType>(d, columns, a.rows); }) == Kernel::none) return false;
    total += w.rows;
  }
  return total <= kMost && (total / kTile + 1) * (a.rows / kTile + kTilesTogether) <= INT32_MAX;
}

}  // namespace

int float_linear(AssayDevice& d, const AssayLinear& a) {
  if (!possible(d, a)) return ASSAY_REFUSED;
  if (a.rows == 0) return ASSAY_DONE;
  for (int i = 0; i < a.count;) {  // one launch for neighbours of one type
    const int32_t type = a.w[i].type;
    FloatMatrices m{};
    m.columns = (int)a.w[0].columns;
    m.residual = a.residual;
    for (int j = 0; i < a.count && a.w[i].type == type; i++, j++) {
      m.w[j] = packed_weight(a.w[i]);
      m.bias[j] = a.bias[i];
      m.y[j] = a.y[i];
      m.rows[j] = (int)a.w[i].rows;
      m.total += m.rows[j];
    }
    const int done = with_type(type, [&]<int32_t kType> { return run<kType>(d, type, m, a); });
    if (done != ASSAY_DONE) return done;
  }
  return ASSAY_DONE;
}

}  // namespace assay
