// Kernel scope: one entry per op, judged on any table of kernels, so that a planted one or a stranger's is judged the
// same way. An entry generates cases, runs the scalar kernel and the target on each, and holds the target against the
// scalar bytes and against float64 (oracle/ops.h) within a bound that is a formula (bounds.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "conformance/check.h"

namespace assay {

/// The members of Kernels in their order. kernels.cpp has one entry for each: an op without one does not compile.
enum class KernelOp : uint8_t {
  linear,
  quantise,
  quant_linear,
  embed,
  rms_norm,
  head_norm,
  rope,
  kv_store,
  attention,
  silu_mul,
  add,
  sigmoid_mul,
  sigmoid,
  l2_norm,
  gated_norm,
  decay,
  conv,
  delta_rule,
  topk,
  topk_weights,
  expert_sum,
  gated_add
};
inline constexpr int kKernelOps = int(KernelOp::gated_add) + 1;
static_assert(sizeof(Kernels) == (1 + kKernelOps) * sizeof(void (*)()), "KernelOp names every member of Kernels");

/// Edge widths first (DESIGN 15): around the lanes, groups and blocks of every op.
inline constexpr int64_t kEdgeWidths[] = {1, 2, 31, 32, 33, 63, 64, 96, 160, 255, 256, 257, 288, 511, 513, 576, 1025};

/// Kernels that cut work into blocks cut these differently.
inline constexpr int64_t kRealWidths[] = {2048, 8192};

/// What a case's values are like; each was a fault somewhere. `mixed` is a bit of all but non_finite.
enum class Values : uint8_t { normal, mixed, zeros, denormals, huge, equal, non_finite };
inline constexpr Values kAllValues[] = {Values::normal, Values::mixed, Values::zeros,     Values::denormals,
                                        Values::huge,   Values::equal, Values::non_finite};
std::string_view name_of(Values v);
/// n values: normal ones of magnitude 1; of magnitude 2^-140 (denormals) and 2^60 (huge); all the same (equal); zeros
/// of both signs; non_finite: normal ones with an Inf or a NaN now and then, at least one.
std::vector<float> kernel_values(std::mt19937_64& rng, size_t n, Values kind);
/// n values that no kernel may leave: NaN.
std::vector<float> unwritten(size_t n);

/// KernelRun::only: no case runs, and take() has the digest's name alone, which says which cases there are.
inline constexpr int64_t kNoCase = INT64_MAX;

/// Collects the comparisons of one op on one table of kernels.
class KernelBench {
 public:
  KernelBench(const Kernels& target, const KernelRun& run, std::string op);
  /// A stranger's kernels: bytes are not compared, and bounds are those of any order of sums with operands rounded to a
  /// type of relative error `unit` (2^-8 bf16, 2^-11 f16, 2^-10 tf32, 0 f32): (2u + u^2 + K 2^-23) sum|w x| for ours of
  /// 2^-24 (ceil(K/256) + 9) sum|w x|; eight times ours where nothing is summed. `refused()` tells, once, what was refused.
  void judge_stranger(double unit, std::function<std::string()> refused);
  /// The next bounds are of sums over k terms; 0: of none.
  void sums(int64_t k);
  const Kernels& target;
  const Kernels& scalar;
  CheckOutcome out;

  /// Begins the next case; false: another one is asked for. `what` names it in failures. Every case has a generator of
  /// its own, seeded by seed, op and number, so that it runs alone as it runs among the others.
  bool next(std::string what);
  std::mt19937_64& rng() { return rng_; }
  /// Equal bytes, NaNs of any sign and payload being one value (they differ between machines). One comparison.
  void bytes(const char* part, std::span<const float> want, std::span<const float> got);
  void bytes(const char* part, std::span<const std::byte> want, std::span<const std::byte> got);
  /// Equal words, whatever they mean: their bound is 0. One comparison.
  void words(std::span<const uint32_t> want, std::span<const uint32_t> got);
  /// |got - want| <= limit. Where NaN is wanted it must be one, where Inf is, no finite value will do. An infinite
  /// limit (bounds.h): a finite value is judged by bytes alone.
  void bound(double got, double want, double limit, int64_t row = -1, int64_t column = -1);
  /// Every element of a [rows, columns] result; `limit(row, column)`.
  template <class Want, class Limit>
  void bounds(std::span<const float> got, int64_t rows, int64_t columns, Want&& want, Limit&& limit) {
    for (int64_t r = 0; r < rows; r++)
      for (int64_t c = 0; c < columns; c++) bound(double(got[size_t(r * columns + c)]), want(r, c), limit(r, c), r, c);
  }
  /// The bytes of another way to the same [rows, columns]; as numbers too, so that a failure names row and column.
  void same(const char* part, std::span<const float> want, std::span<const float> got, int64_t columns) {
    bytes(part, want, got);
    bounds(
        got, int64_t(got.size()) / columns, columns,
        [&](int64_t r, int64_t c) { return double(want[size_t(r * columns + c)]); }, [](int64_t, int64_t) { return 0.0; });
  }
  /// Whether a stranger's module refused the case: nothing more is said of it.
  bool refused() const { return refused_now_; }
  void fail(const std::string& line);
  /// What was found; with a digest over the scalar bytes of all cases (none where one case alone ran, or a stranger's kernels).
  /// Its name has a hash of what the cases are called: with other cases it is another digest, not another result.
  CheckOutcome take();

 private:
  const KernelRun run_;
  const std::string op_;
  std::mt19937_64 rng_;
  std::string what_;
  int64_t case_ = -1, ran_ = 0, bounded_ = 0;
  double worst_share_ = 0;
  bool stranger_ = false;
  double unit_ = 0, factor_ = 1;
  std::function<std::string()> refused_;
  bool refused_now_ = false;
  int64_t refusals_ = 0;
  std::string worst_;
  std::string wanted_;   // hashes of the scalar bytes, one after the other
  std::string cases_;    // what the cases that ran are called
};

struct KernelCheck {
  KernelOp member;
  const char* op;     // "linear", as in check ids
  int64_t expected;   // comparisons at least
  const char* bound;  // the formula, in words
  void (*cases)(KernelBench&);
  Cost cost = Cost::fast;
  bool on_device = true;  // a device module may offer it (engine/abi.h)
  CheckOutcome run(const Kernels& target, const KernelRun& run = {}) const;
  /// Of a module that need not keep our order: by bounds alone (KernelBench::judge_stranger).
  CheckOutcome run_stranger(const Kernels& target, const KernelRun& run, double unit, std::function<std::string()> refused) const;
};
std::span<const KernelCheck> kernel_checks();

/// y [tokens, w.rows] of a table's product with quantised weights, computed in two parts cut at panel `cut`. The scalar
/// kernels read the blocks, the others panels; f32 activations are linear's.
std::vector<float> quantised_product(const Kernels& k, const Matrix& w, const std::vector<float>& x, int64_t tokens, Activations kind,
                                     const float* bias, int64_t cut);   // quant_linear.cpp

void linear_cases(KernelBench& b);        // linear.cpp
void quantise_cases(KernelBench& b);      // quantise.cpp
void quant_linear_cases(KernelBench& b);  // quant_linear.cpp
void embed_cases(KernelBench& b);         // embed.cpp
void rms_norm_cases(KernelBench& b);      // norm.cpp
void head_norm_cases(KernelBench& b);
void rope_cases(KernelBench& b);      // rope.cpp
void kv_store_cases(KernelBench& b);  // attention.cpp
void attention_cases(KernelBench& b);
void attention_long_cases(KernelBench& b);  // what numerics 1 waits for: prefill of 2048 rows, and rows up to position 32767
void silu_mul_cases(KernelBench& b);  // pointwise.cpp
void add_cases(KernelBench& b);
void sigmoid_mul_cases(KernelBench& b);
void sigmoid_cases(KernelBench& b);  // gdn.cpp
void l2_norm_cases(KernelBench& b);
void gated_norm_cases(KernelBench& b);
void decay_cases(KernelBench& b);
void conv_cases(KernelBench& b);
void delta_rule_cases(KernelBench& b);
void topk_cases(KernelBench& b);  // moe.cpp
void topk_weights_cases(KernelBench& b);
void expert_sum_cases(KernelBench& b);
void gated_add_cases(KernelBench& b);
void expert_linear_cases(KernelBench& b);  // products by expert, through the CPU backend with the table's kernels

}  // namespace assay
