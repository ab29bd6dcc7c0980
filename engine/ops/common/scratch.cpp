#include "engine/ops/common/scratch.h"

#include <cstddef>
#include <memory>
#include <new>

#include "engine/ops/kernels.h"

namespace assay {
namespace {

constexpr std::align_val_t kAlignment{64};

struct Free {
  void operator()(float* p) const { ::operator delete(p, kAlignment); }
};
struct Scratch {
  std::unique_ptr<float, Free> data;
  int64_t floats = 0;
};
thread_local Scratch t_scratch;

}  // namespace

float* thread_scratch(int64_t floats) {
  Scratch& s = t_scratch;
  if (floats > s.floats) {
    s.data.reset();
    s.floats = 0;
    s.data.reset(static_cast<float*>(::operator new(size_t(floats) * sizeof(float), kAlignment)));
    s.floats = floats;
  }
  return s.data.get();
}

/// One score per position and the 256 lanes of a block of value columns, each rounded up to whole vectors, and the
/// query row.
int64_t attention_scratch_floats(int64_t positions, int64_t head_dim) {
  constexpr int64_t kLanes = 256, kColumns = 64, kVector = 64;
  return (positions + kVector - 1) / kVector * kVector + kLanes * kColumns +
         (head_dim + kVector - 1) / kVector * kVector;
}

}  // namespace assay
