// linear with quantised weights against the scalar CPU kernels, byte for byte: every type, s16 and s8, one row (gemv), a few
// (few) and many (gemm), alone and in the fused forms, inputs with NaN, Inf, denormals, scales that are zero, subnormal, huge
// and negative. What the op writes is NaN before, with a guard behind it.
#include <cctype>

#ifdef ASSAY_SIMT
#include "cuda/quantise.cuh"
#endif
#include "cuda/test_support.h"

namespace assay {
namespace {

using namespace test;

constexpr WeightType kTypes[] = {WeightType::q8_0, WeightType::q4_0, WeightType::q4_1, WeightType::q5_0,
                                 WeightType::q5_1, WeightType::q4_k, WeightType::q5_k, WeightType::q6_k};
constexpr Activations kKinds[] = {Activations::s16, Activations::s8};

// ---- the same on the CPU, op by op
std::vector<float> cpu_norm(const std::vector<float>& x, const std::vector<float>& w, int64_t rows, float eps) {
  std::vector<float> y(x.size());
  NormArgs a{};
  a.x = x.data(), a.w = w.data(), a.y = y.data(), a.columns = int64_t(w.size()), a.eps = eps;
  kernels(Isa::scalar).rms_norm(a, 0, rows);
  return y;
}
std::vector<float> cpu_linear(const Matrix& w, const std::vector<float>* bias, const std::vector<float>& x, int64_t rows, Activations kind) {
  const Kernels& k = kernels(Isa::scalar);
  const int64_t groups = w.columns / 32;
  std::vector<std::byte> codes(size_t(rows * w.columns) * 2);
  std::vector<float> scales(size_t(rows * groups)), y(size_t(rows * w.rows));
  std::vector<int32_t> sums(size_t(rows * groups) * 2);
  QuantisedRows q{kind, code_bytes_for(Isa::scalar, w.type, kind), rows, w.columns, codes.data(), scales.data(), sums.data()};
  k.quantise({x.data(), q}, 0, rows * groups);
  QuantLinearArgs a{};
  a.w = w, a.x = q, a.bias = bias ? bias->data() : nullptr, a.y = y.data();
  k.quant_linear(a, 0, (w.rows + 15) / 16);
  return y;
}
std::vector<float> cpu_binary(void (*op)(const BinaryArgs&, int64_t, int64_t), const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> y(a.size());
  op({a.data(), b.data(), y.data(), int64_t(a.size())}, 0, 1);
  return y;
}

/// One call of linear with everything that it may fuse, on the device and on the CPU.
struct Case {
  WeightType type = WeightType::q4_0;
  Activations kind = Activations::s16;
  std::vector<int64_t> outputs;  // rows of each matrix
  int64_t columns = 0, rows = 1;
  bool bias = false, norm = false, residual = false, gated = false;
  bool in_place = false;  // residual is y
  Inputs inputs = Inputs::plain;
  test::Weights weights = test::Weights::plain;

  std::string words() const {
    std::string n;
    for (int64_t o : outputs) n += std::to_string(o) + " ";
    return joined(name_of(type), kind == Activations::s16 ? " s16 " : " s8 ", n, "x ", columns, ", ", rows, " rows", bias ? ", bias" : "",
                  norm ? ", norm" : "", residual ? ", residual" : "", in_place ? " in place" : "", gated ? ", gated" : "",
                  inputs == Inputs::special ? ", special" : "", weights == test::Weights::odd ? ", odd" : "");
  }
};

/// The kernels that ran, "" if it was refused. Fails the test on a differing byte.
std::string run(const Device& device, Rng& rng, const Case& c) {
  constexpr size_t kGuard = 64;
  SCOPED_TRACE(c.words());
  const std::vector<float> x = inputs(rng, c.rows * c.columns, c.inputs);
  const std::vector<float> norm = inputs(rng, c.columns, Inputs::plain);
  const Buffer<float> device_x(device, x), device_norm(device, norm);
  AssayLinear a{};
  a.activations = int32_t(c.kind);
  a.count = int32_t(c.outputs.size());
  a.x = device_x.get(), a.rows = c.rows, a.eps = 1e-5f, a.gated = c.gated;
  a.norm = c.norm ? device_norm.get() : nullptr;
  std::vector<HostWeight> weights;
  std::vector<test::PackedWeight> packed;
  std::vector<std::vector<float>> bias, want;
  std::vector<Buffer<float>> device_bias, y;
  weights.reserve(3), packed.reserve(3), bias.reserve(3), device_bias.reserve(3), y.reserve(3);
  const std::vector<float> normed = c.norm ? cpu_norm(x, norm, c.rows, a.eps) : x;
  for (size_t i = 0; i < c.outputs.size(); i++) {
    weights.push_back(random_weight(rng, c.type, c.outputs[i], c.columns, c.weights));
    packed.emplace_back(device, weights[i].matrix);
    bias.push_back(inputs(rng, c.outputs[i]));
    device_bias.emplace_back(device, bias[i]);
    y.emplace_back(device, size_t(c.rows * c.outputs[i]) + kGuard);
    a.w[i] = packed[i].get();
    a.bias[i] = c.bias ? device_bias[i].get() : nullptr;
    a.y[i] = y[i].get();
    want.push_back(cpu_linear(weights[i].matrix, c.bias ? &bias[i] : nullptr, normed, c.rows, c.kind));
  }
  std::vector<float> residual = inputs(rng, c.rows * c.outputs[0]);
  const Buffer<float> device_residual(device, residual);
  if (c.residual) {
    want[0] = cpu_binary(kernels(Isa::scalar).add, residual, want[0]);
    a.residual = c.in_place ? y[0].get() : device_residual.get();
    if (c.in_place) {
      residual.resize(residual.size() + kGuard, std::numeric_limits<float>::quiet_NaN());
      y[0].upload(residual);
    }
  }
  if (c.gated) {
    want = {cpu_binary(kernels(Isa::scalar).silu_mul, want[0], want[1])};
    a.y[1] = nullptr;
  }
  const int result = device.module().linear(device, &a);
  if (result == ASSAY_REFUSED) {
    EXPECT_TRUE(device.variant().empty()) << "refused after " << device.variant();
    return "";
  }
  device.ok(result);
  const std::string variant = device.variant();
  for (size_t i = 0; i < want.size(); i++) {
    std::vector<float> got = y[i].download();
    for (size_t n = got.size() - kGuard; n < got.size(); n++) EXPECT_TRUE(std::isnan(got[n])) << "guard " << n;
    got.resize(got.size() - kGuard);
    EXPECT_TRUE(same_rows(got, want[i], c.outputs[i])) << "matrix " << i << ", " << variant;
  }
  return variant;
}

std::string kernel_name(const char* kernel, WeightType type, Activations kind) {
  std::string name(name_of(type));
  for (char& c : name) c = char(std::tolower(c));
  return joined(kernel, "_", name, kind == Activations::s16 ? "_s16" : "_s8");
}

int64_t random_columns(Rng& rng, WeightType type, int64_t most) {
  const int64_t unit = block_elements(type);
  return unit * uniform(rng, 1, std::max<int64_t>(1, most / unit));
}
void random_data(Rng& rng, Case& c) {
  if (uniform(rng, 0, 2) == 0) c.inputs = uniform(rng, 0, 1) ? Inputs::special : Inputs::wide;
  if (uniform(rng, 0, 2) == 0) c.weights = test::Weights::odd;
}
[[maybe_unused]] void reserve(const Device& device) {
  AssayLimits limits{};
  limits.rows = 300, limits.columns = 8192;
  limits.heads = 1, limits.head_dim = 32, limits.context = 32;
  device.reserve(limits);
}

TEST(CudaQuantLinear, OneRow) {
  Rng rng = seeded(911);
  const Device device;
  for (WeightType type : kTypes) {
    for (Activations kind : kKinds) {
      for (int i = 0; i < 8; i++) {
        Case c;
        c.type = type, c.kind = kind;
        c.columns = random_columns(rng, type, i < 4 ? 1500 : 5000);
        c.outputs.assign(size_t(uniform(rng, 1, 3)), 0);
        for (int64_t& n : c.outputs) n = uniform(rng, 1, i < 5 ? 40 : 300);
        c.bias = uniform(rng, 0, 1), c.norm = uniform(rng, 0, 1);
        if (i % 4 == 3) c.outputs = {c.outputs[0], c.outputs[0]}, c.gated = true;
        if (c.outputs.size() == 1) c.residual = uniform(rng, 0, 1), c.in_place = c.residual && uniform(rng, 0, 1);
        random_data(rng, c);
        int64_t fours = 0;  // tasks of four rows: where each has a warp at once, that is what they are
        for (const int64_t n : c.outputs) fours += (n + 3) / 4;
        const bool one_each = !c.gated && fours <= 8 * device.info().processors;
        EXPECT_EQ(run(device, rng, c), kernel_name(one_each ? "gemv_r1" : "gemv", type, kind));
      }
    }
  }
}

TEST(CudaQuantLinear, AFewRows) {
  Rng rng = seeded(913);
  const Device device;
  reserve(device);
  for (WeightType type : kTypes) {
    for (Activations kind : kKinds) {
      for (int i = 0; i < 5; i++) {
        Case c;
        c.type = type, c.kind = kind;
        c.rows = uniform(rng, 2, i < 4 ? 8 : 20);
        c.columns = random_columns(rng, type, i < 3 ? 1200 : 5000);
        c.outputs.assign(size_t(uniform(rng, 1, 3)), 0);
        for (int64_t& n : c.outputs) n = uniform(rng, 1, i < 2 ? 400 : 90);
        c.bias = uniform(rng, 0, 1), c.norm = uniform(rng, 0, 1);
        if (c.outputs.size() == 1) c.residual = uniform(rng, 0, 1), c.in_place = c.residual && uniform(rng, 0, 1);
        random_data(rng, c);
        std::string want = joined(c.norm ? "norm_quantise" : "quantise");
        for (size_t n = 0; n < c.outputs.size(); n++) want += "+" + kernel_name("few", type, kind);
        EXPECT_EQ(run(device, rng, c), want);
      }
    }
  }
}

#ifdef ASSAY_SIMT
template <int kDigits>
void expect_divisions() {
  int64_t other = 0;
  for (uint32_t significand = 0; significand < (1u << 23); significand++) {  // of [1, 2): the exponent changes nothing
    const float amax = float_of(0x3f800000u | significand);
    other += bits_of(scale_of_largest<kDigits>(amax)) != bits_of(div_f32(amax, kLargestCode<kDigits>));
  }
  EXPECT_EQ(other, 0) << kDigits << " digits";
}

TEST(CudaQuantLinear, ScalesAreIeeeQuotients) {
  expect_divisions<1>();
  expect_divisions<2>();
}
#endif

TEST(CudaQuantLinear, ManyRows) {
  Rng rng = seeded(912);
  const Device device;
  reserve(device);
  for (WeightType type : kTypes) {
    for (Activations kind : kKinds) {
      for (int i = 0; i < 4; i++) {
        Case c;
        c.type = type, c.kind = kind;
        c.rows = i == 0 ? uniform(rng, 33, 128) : uniform(rng, 100, 200);
        c.columns = random_columns(rng, type, i < 3 ? 800 : 2100);
        c.outputs.assign(i == 1 ? 2 : 1, 0);
        for (int64_t& n : c.outputs) n = uniform(rng, 1, i < 2 ? 140 : 70);
        c.bias = uniform(rng, 0, 1), c.norm = uniform(rng, 0, 1);
        if (c.outputs.size() == 1) c.residual = uniform(rng, 0, 1), c.in_place = c.residual && uniform(rng, 0, 1);
        random_data(rng, c);
        std::string want = joined(c.norm ? "norm_quantise" : "quantise");
        for (size_t n = 0; n < c.outputs.size(); n++) want += "+" + kernel_name("gemm", type, kind);
        EXPECT_EQ(run(device, rng, c), want);
      }
    }
  }
}

#ifdef ASSAY_SIMT
/// One row is done everywhere; more where their stages fit, by the kernel for few where tiles do not.
TEST(CudaQuantLinear, OnDevicesWithLessSharedMemory) {
  for (const OtherDevice& other : kOtherDevices) {
    SCOPED_TRACE(other.name);
    const Emulated emulated(other);
    const Device device;
    reserve(device);
    Rng rng = seeded(109);
    int refused = 0, done = 0;
    for (WeightType type : kTypes)
      for (Activations kind : kKinds) {
        EXPECT_EQ(run(device, rng, {type, kind, {33}, 512, 1, true}).find("gemv"), 0u);
        EXPECT_EQ(run(device, rng, {type, kind, {13, 13}, 1024, 1, true, true, false, true}).find("gemv"), 0u);
        for (int64_t rows : {5, 40}) {
          const std::string variant = run(device, rng, {type, kind, {33}, 512, rows, true, true});
          variant.empty() ? refused++ : done++;
          EXPECT_TRUE(variant.empty() || variant.find("few") != std::string::npos) << variant;
        }
        if (other.kib() >= 99) {  // its row alone takes 36 KiB
          EXPECT_NE(run(device, rng, {type, kind, {9}, 6144, 1, false, true}), "");
        }
        if (other.kib() == 99 && type == WeightType::q4_0) {  // more than there is: one row goes the way of a few
          EXPECT_EQ(run(device, rng, {type, kind, {9}, 24576, 1, false, true}).find("norm_quantise+few"), 0u);
        }
      }
    EXPECT_EQ(refused > 0, other.kib() < 110) << refused << " of " << refused + done;  // Q5_0, Q5_1 and Q5_K want more than 99
    EXPECT_EQ(done > 0, other.kib() >= 99);
  }
}
#endif

}  // namespace
}  // namespace assay
