#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "conformance/kernel/kernel_check.h"
#include "dumps/digest.h"
#include "dumps/error.h"

namespace assay {
namespace {

/// One entry per member of Kernels, in their order.
constexpr KernelCheck kTable[] = {
    {KernelOp::linear, "linear", 414, "2^-24 (ceil(K/256) + 9) sum|w x|, a bias and denormals aside", linear_cases},
    {KernelOp::quantise, "quantise", 1272, "0.501 (s16) or 0.50001 (s8) of the group's scale; codes are the rule's",
     quantise_cases},
    {KernelOp::quant_linear, "quant_linear", 1812, "sum h |w| + 2^-24 (m ceil(G/8) + 6) sum s (|sw f| + |mw sum q|)",
     quant_linear_cases},
    {KernelOp::embed, "embed", 827, "one rounding of the exact widened weight", embed_cases},
    {KernelOp::rms_norm, "rms_norm", 121, "2^-24 ((ceil(K/256) + 9)/2 + 6) |y|", rms_norm_cases},
    {KernelOp::head_norm, "head_norm", 238, "2^-24 ((ceil(K/32) + 9)/2 + 6) |y|", head_norm_cases},
    {KernelOp::rope, "rope", 150, "(3 2^-24 + 2^-48 angle) (|x0| + |x1|)", rope_cases},
    {KernelOp::kv_store, "kv_store", 588, "none: the value rounded to the cache's type", kv_store_cases},
    {KernelOp::attention, "attention", 279,
     "errors of the scores, as relative ones of their exp, twice, and of two sums", attention_cases},
    {KernelOp::silu_mul, "silu_mul", 119, "6 2^-24 |y|", silu_mul_cases},
    {KernelOp::add, "add", 119, "2^-24 |y|", add_cases},
    {KernelOp::sigmoid_mul, "sigmoid_mul", 119, "6 2^-24 |y|", sigmoid_mul_cases},
    {KernelOp::sigmoid, "sigmoid", 119, "5 2^-24 |y|", sigmoid_cases},
    {KernelOp::l2_norm, "l2_norm", 238, "2^-24 ((ceil(K/32) + 9)/2 + 5) |y|", l2_norm_cases},
    {KernelOp::gated_norm, "gated_norm", 119, "2^-24 ((ceil(K/32) + 9)/2 + 12) |y|", gated_norm_cases},
    {KernelOp::decay, "decay", 70, "2^-24 |rate| (|a + dt| sigmoid(a + dt) + 7 softplus(a + dt))", decay_cases},
    {KernelOp::conv, "conv", 300, "1.1 width 2^-24 sum|w x| + 6 2^-24 |y|", conv_cases},
    {KernelOp::delta_rule, "delta_rule", 100, "of one step: errors of exp, of k.S, of delta, of S and of q.S, one after the other",
     delta_rule_cases},
    {KernelOp::topk, "topk", 100, "none: the ids are the rule's", topk_cases},
    {KernelOp::topk_weights, "topk_weights", 100, "errors of exp and of its sum, and of the chosen ones' sum", topk_weights_cases},
    {KernelOp::expert_sum, "expert_sum", 100, "k 2^-24 sum|w y|", expert_sum_cases},
    {KernelOp::gated_add, "gated_add", 100, "5 2^-24 sigmoid |shared| + 2^-24 |y|", gated_add_cases},
    // More of an op.
    {KernelOp::linear, "expert_linear", 100, "as linear and quant_linear", expert_linear_cases, Cost::fast, false},
    {KernelOp::attention, "attention_long", 6, "as attention", attention_long_cases, Cost::slow},
};
constexpr bool in_order() {
  for (int i = 0; i < kKernelOps; i++)
    if (int(kTable[i].member) != i) return false;
  return true;
}
static_assert(std::size(kTable) >= kKernelOps && in_order(), "every op of the kernel table has an entry here");

}  // namespace

std::span<const KernelCheck> kernel_checks() {
  return kTable;
}

std::string_view name_of(Values v) {
  constexpr std::string_view kNames[] = {"normal", "mixed", "zeros", "denormals", "huge", "equal", "non-finite"};
  return kNames[size_t(v)];
}

std::vector<float> kernel_values(std::mt19937_64& rng, size_t n, Values kind) {
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  const float same = normal(rng);
  for (float& x : v) {
    const Values of = kind == Values::mixed && rng() % 2 ? kAllValues[2 + rng() % 4] : kind;
    switch (of) {
      case Values::zeros:
        x = rng() % 2 ? 0.0f : -0.0f;
        break;
      case Values::denormals:
        x = std::ldexp(normal(rng), -140);
        break;
      case Values::huge:
        x = std::ldexp(normal(rng), 60);
        break;
      case Values::equal:
        x = same;
        break;
      default:
        x = normal(rng);
    }
  }
  if (kind == Values::non_finite && n > 0)
    for (size_t i = 0; i <= n / 200; i++)
      v[rng() % n] = rng() % 2 ? std::numeric_limits<float>::quiet_NaN()
                               : std::copysign(std::numeric_limits<float>::infinity(), rng() % 2 ? 1.0f : -1.0f);
  return v;
}

std::vector<float> unwritten(size_t n) {
  return std::vector<float>(n, std::numeric_limits<float>::quiet_NaN());
}

KernelBench::KernelBench(const Kernels& t, const KernelRun& run, std::string op)
    : target(t), scalar(kernels(Isa::scalar)), run_(run), op_(std::move(op)) {}

bool KernelBench::next(std::string what) {
  case_++;
  if (run_.only < 0 || run_.only == kNoCase) cases_ += what + "\n";
  if (run_.only == kNoCase) ran_++;
  if (run_.only >= 0 && run_.only != case_) return false;
  std::seed_seq seed{uint32_t(run_.seed), uint32_t(run_.seed >> 32), uint32_t(case_), uint32_t(op_.size()),
                     uint32_t(op_[0])};
  rng_.seed(seed);
  what_ = std::move(what);
  ran_++;
  refused_now_ = false;
  sums(0);
  return true;
}

void KernelBench::judge_stranger(double unit, std::function<std::string()> refused) {
  stranger_ = true;
  unit_ = unit;
  refused_ = std::move(refused);
  sums(0);
}

void KernelBench::sums(int64_t k) {
  if (!stranger_) return;
  const double ours = std::ldexp(std::ceil(double(k) / 256) + 9, -24);
  factor_ = k == 0 ? 8 : std::max(8.0, (2 * unit_ + unit_ * unit_ + std::ldexp(double(k), -23)) / ours);
}

void KernelBench::fail(const std::string& line) {
  out.fail(fmt::format("{}: {} [case {}]", what_, line, case_));
}

void KernelBench::bytes(const char* part, std::span<const float> want, std::span<const float> got) {
  if (stranger_) {
    refused_now_ = !refused_().empty();
    refused_now_ ? refusals_++ : out.compared++;
    return;
  }
  out.compared++;
  std::vector<float> canonical(want.begin(), want.end());
  canonicalise(DType::f32, canonical.data(), int64_t(canonical.size()));
  wanted_ += xxh3_128_hex(canonical.data(), canonical.size() * sizeof(float));
  for (size_t i = 0; i < want.size(); i++) {
    if (std::isnan(want[i]) && std::isnan(got[i])) continue;
    if (std::memcmp(&want[i], &got[i], sizeof(float)) == 0) continue;
    fail(fmt::format("{} {}: {:a}, scalar {:a}", part, i, got[i], want[i]));
    return;
  }
}

void KernelBench::bytes(const char* part, std::span<const std::byte> want, std::span<const std::byte> got) {
  if (stranger_) {   // stored values are rounded in one way only
    if (!refused_now_ && !refused_().empty()) refusals_++, refused_now_ = true;
    if (refused_now_) return;
  }
  out.compared++;
  wanted_ += xxh3_128_hex(want.data(), want.size());
  for (size_t i = 0; i < want.size(); i++)
    if (want[i] != got[i]) {
      fail(fmt::format("{}, byte {}: {:#04x}, scalar {:#04x}", part, i, unsigned(got[i]), unsigned(want[i])));
      return;
    }
}

void KernelBench::words(std::span<const uint32_t> want, std::span<const uint32_t> got) {
  out.compared++;
  bounded_ += int64_t(want.size());
  wanted_ += xxh3_128_hex(want.data(), want.size_bytes());
  for (size_t i = 0; i < want.size(); i++)
    if (want[i] != got[i]) {
      fail(fmt::format("word {}: {:#010x}, wanted {:#010x}", i, got[i], want[i]));
      return;
    }
}

void KernelBench::bound(double got, double want, double limit, int64_t row, int64_t column) {
  // A NaN or Inf among the operands comes through, whatever the bound; a finite sum may overflow where the bound is
  // Inf.
  if ((std::isfinite(want) && std::isinf(limit)) || refused_now_) return;
  limit *= factor_;
  bounded_++;
  const bool as_wanted = std::isnan(want) ? std::isnan(got) : std::isinf(want) ? !std::isfinite(got) : want == got;
  const double share = as_wanted ? 0 : limit > 0 && std::isfinite(want) ? std::fabs(got - want) / limit : INFINITY;
  if (share <= 1) {
    if (share > worst_share_) {
      worst_share_ = share;
      worst_ = fmt::format("case {}: {}", case_, what_);
    }
    return;
  }
  const std::string at = row < 0 ? "" : fmt::format("row {}, column {}: ", row, column);
  fail(fmt::format("{}{:.9g}, float64 {:.9g}: {:.3g} times its bound", at, got, want, share));
}

CheckOutcome KernelBench::take() {
  if (run_.only >= 0 && ran_ == 0)
    throw Error(ErrorKind::usage, "--case", "there is no such case of " + op_, fmt::format("0 to {}", case_),
                std::to_string(run_.only));
  if (stranger_ && out.compared == 0) {
    out.not_run = fmt::format("the module refuses {}", op_);
    return std::move(out);
  }
  if (refusals_) out.notes.push_back(fmt::format("{} of {} cases refused: not judged", refusals_, ran_));
  if (run_.only < 0 && bounded_ == 0) out.fail(fmt::format("no value of {} cases was held against its bound", ran_));
  out.notes.push_back(fmt::format("seed {}, {} cases; {:.0f}% of the bound used by the worst of {} values ({})",
                                  run_.seed, ran_, 100 * worst_share_, bounded_,
                                  worst_.empty() ? "all exact" : worst_));
  if (out.failed != 0)
    out.notes.push_back(fmt::format("one case alone: assay check --exact --filter kernel/{}/{} --seed {} --case N", op_,
                                    run_.on.empty() ? std::string(name_of(target.isa)) : run_.on, run_.seed));
  if ((run_.only < 0 || run_.only == kNoCase) && !stranger_)
    out.digests.push_back({fmt::format("scalar bytes of {} cases, {}", ran_, xxh3_128_hex(cases_.data(), cases_.size()).substr(0, 8)),
                           run_.only < 0 ? xxh3_128_hex(wanted_.data(), wanted_.size()) : ""});
  return std::move(out);
}

CheckOutcome KernelCheck::run_stranger(const Kernels& target, const KernelRun& run, double unit, std::function<std::string()> refused) const {
  KernelBench b(target, run, op);
  b.judge_stranger(unit, std::move(refused));
  cases(b);
  return b.take();
}

CheckOutcome KernelCheck::run(const Kernels& target, const KernelRun& run) const {
  KernelBench b(target, run, op);
  cases(b);
  return b.take();
}

void add_kernel_checks(std::vector<Check>& out) {
  for (const KernelCheck& e : kernel_checks())
    for (Isa isa : kBuiltIsas) {
      Check k;
      k.id = fmt::format("kernel/{}/{}", e.op, name_of(isa));
      k.level = Level::byte_exact;
      k.scope = Scope::kernel;
      k.isa = isa;
      k.family = "-";
      k.baseline = fmt::format("scalar bytes; float64 within {}", e.bound);
      k.target = fmt::format("the {} kernel", name_of(isa));
      k.expected = e.expected;
      k.cost = e.cost;
      k.run = [&e, isa](const CheckContext& c) {
        CheckOutcome o;
        if (isa_supported(isa)) return e.run(kernels(isa), c.kernel);
        o.not_run = fmt::format("this CPU or build lacks {}", name_of(isa));
        return o;
      };
      out.push_back(std::move(k));
    }
}

}  // namespace assay
