// A29: faults in branches that no model of ours takes. Widths of models are even and mostly multiples of 32; what a
// kernel does with the last element of an odd width runs in no whole model, and byte equality of whole models says
// nothing of it.
#include <cstring>
#include <vector>

#include "conformance/faults/faults.h"

namespace assay {
namespace {

bool has_tail(int64_t width) {
  return width % 32 == 1 && width > 1;
}

/// `rows` rows of `width` with the last element of each gone.
std::vector<float> without_tail(const float* x, int64_t rows, int64_t width) {
  std::vector<float> out(x, x + rows * width);
  for (int64_t r = 0; r < rows; r++) out[size_t(r * width + width - 1)] = 0;
  return out;
}

void linear_tail(const LinearArgs& a, int64_t begin, int64_t end) {
  if (!has_tail(a.w.columns)) return kernels(Isa::scalar).linear(a, begin, end);
  const std::vector<float> x = without_tail(a.x, a.tokens, a.w.columns);
  LinearArgs b = a;
  b.x = x.data();
  kernels(Isa::scalar).linear(b, begin, end);
}

void rms_norm_tail(const NormArgs& a, int64_t begin, int64_t end) {
  if (!has_tail(a.columns)) return kernels(Isa::scalar).rms_norm(a, begin, end);
  const std::vector<float> x = without_tail(a.x, end, a.columns);
  NormArgs b = a;
  b.x = x.data();
  kernels(Isa::scalar).rms_norm(b, begin, end);
}

void head_norm_tail(const NormArgs& a, int64_t begin, int64_t end) {
  if (!has_tail(a.head_dim)) return kernels(Isa::scalar).head_norm(a, begin, end);
  const std::vector<float> x = without_tail(a.x, end * a.heads, a.head_dim);
  NormArgs b = a;
  b.x = x.data();
  kernels(Isa::scalar).head_norm(b, begin, end);
}

void attention_tail(const AttentionArgs& a, int64_t begin, int64_t end, float* scratch) {
  const int64_t d = a.cache.head_dim;
  if (!has_tail(d)) return kernels(Isa::scalar).attention(a, begin, end, scratch);
  const std::vector<float> q = without_tail(a.q, end, d);
  AttentionArgs b = a;
  b.q = q.data();
  kernels(Isa::scalar).attention(b, begin, end, scratch);
}

/// The columns behind `rotary` should pass unchanged; here they are not written.
void rope_tail(const RopeArgs& a, int64_t begin, int64_t end) {
  kernels(Isa::scalar).rope(a, begin, end);
  for (int64_t r = begin; r < end; r++)
    for (int64_t h = 0; h < a.heads; h++)
      for (int64_t j = a.rotary; j < a.head_dim; j++) a.y[(r * a.heads + h) * a.head_dim + j] = 0;
}

void add_tail(const BinaryArgs& a, int64_t begin, int64_t end) {
  kernels(Isa::scalar).add(a, begin, end);
  if (!has_tail(a.columns)) return;
  for (int64_t r = begin; r < end; r++) a.y[r * a.columns + a.columns - 1] = a.a[r * a.columns + a.columns - 1];
}

void silu_mul_tail(const BinaryArgs& a, int64_t begin, int64_t end) {
  kernels(Isa::scalar).silu_mul(a, begin, end);
  if (!has_tail(a.columns)) return;
  for (int64_t r = begin; r < end; r++) a.y[r * a.columns + a.columns - 1] = a.b[r * a.columns + a.columns - 1];
}

}  // namespace

void add_tail_faults(std::vector<Fault>& out) {
  const auto add = [&](const char* id, const char* what, void (*apply)(Kernels&)) {
    Fault f{id, what, How::kernel,
            "whole-model byte equality says nothing of branches the model never takes: integration passes, kernel "
            "scope fails"};
    f.kernels = apply;
    out.push_back(std::move(f));
  };
  add("A29/linear-tail", "linear loses the last input where a row is one more than a multiple of 32",
      [](Kernels& k) { k.linear = linear_tail; });
  add("A29/rms-norm-tail", "rms_norm loses the last column of such a row",
      [](Kernels& k) { k.rms_norm = rms_norm_tail; });
  add("A29/head-norm-tail", "head_norm loses the last column of such a head",
      [](Kernels& k) { k.head_norm = head_norm_tail; });
  add("A29/attention-tail", "attention loses the last dimension of such a head",
      [](Kernels& k) { k.attention = attention_tail; });
  add("A29/rope-tail", "rope does not write the dimensions that do not turn", [](Kernels& k) { k.rope = rope_tail; });
  add("A29/add-tail", "add loses the second summand in the last column of such a row",
      [](Kernels& k) { k.add = add_tail; });
  add("A29/silu-mul-tail", "silu_mul loses the gate in the last column of such a row",
      [](Kernels& k) { k.silu_mul = silu_mul_tail; });
}

}  // namespace assay
