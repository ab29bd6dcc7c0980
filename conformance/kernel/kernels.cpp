// Kernel scope: every op run directly, on every instruction set, over edge shapes and hard values: the same bytes as the
// scalar form, and within the bound of NUMERICS "Bounds" from the same sum in float64.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "conformance/check.h"
#include "engine/ops/common/rope_table.h"

namespace assay {
namespace {

constexpr uint64_t kSeed = 20240817;

/// Random values of several magnitudes; `hard` mixes in zeros, denormals, huge, equal and (if allowed) non-finite ones.
std::vector<float> values(std::mt19937_64& rng, size_t n, bool hard = false, bool non_finite = false) {
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  for (float& x : v) {
    x = normal(rng);
    if (!hard) continue;
    switch (rng() % 12) {
      case 0: x = 0.0f; break;
      case 1: x = -0.0f; break;
      case 2: x = std::ldexp(x, -140); break;
      case 3: x = std::ldexp(x, 60); break;
      case 4: x = 1.0f; break;
      case 5: if (non_finite && rng() % 40 == 0) x = rng() % 2 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN(); break;
      default: break;
    }
  }
  return v;
}

/// Bytes of two results, NaNs of any sign and payload being one value (they differ between machines).
bool same_bytes(const std::vector<float>& a, const std::vector<float>& b, size_t* at) {
  for (size_t i = 0; i < a.size(); i++) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) {
      *at = i;
      return false;
    }
  }
  return true;
}

/// Collects comparisons of one op on one ISA against the scalar bytes and against float64.
struct Bench {
  CheckOutcome out;
  double worst_share = 0;

  void bytes(const std::string& what, const std::vector<float>& scalar, const std::vector<float>& got) {
    out.compared++;
    size_t at = 0;
    if (!same_bytes(scalar, got, &at)) out.fail(fmt::format("{}: element {}: {:a}, scalar {:a}", what, at, got[at], scalar[at]));
  }
  void bound(const std::string& what, double got, double want, double limit) {
    const double share = limit > 0 ? std::fabs(got - want) / limit : got == want ? 0 : INFINITY;
    if (std::isfinite(share)) worst_share = std::max(worst_share, share);
    if (!(share <= 1)) out.fail(fmt::format("{}: {:.9g}, float64 {:.9g}: {:.2f} times its bound", what, got, want, share));
  }
  CheckOutcome take() {
    out.notes.push_back(fmt::format("seed {}; {:.0f}% of the bound used", kSeed, 100 * worst_share));
    return std::move(out);
  }
};

const int64_t kWidths[] = {1, 2, 31, 32, 33, 63, 64, 96, 160, 255, 256, 257, 288, 511, 513, 576, 1025};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

CheckOutcome linear(Isa isa) {
  Bench b;
  std::mt19937_64 rng(kSeed);
  for (int64_t k : kWidths)
    for (int64_t n : {1, 5, 16, 19})
      for (int64_t tokens : {1, 2, 3, 7, 33}) {
        const bool hard = rng() % 3 == 0;
        const std::vector<float> w = values(rng, n * k, hard), x = values(rng, tokens * k, hard, hard), bias = values(rng, n);
        const LinearArgs args{{WeightType::f32, n, k, reinterpret_cast<const std::byte*>(w.data())}, rng() % 2 ? bias.data() : nullptr, x.data(), nullptr, tokens};
        std::vector<float> scalar(tokens * n, kNan), got(tokens * n, kNan);
        LinearArgs a = args;
        a.y = scalar.data();
        kernels(Isa::scalar).linear(a, 0, n);
        a.y = got.data();
        const int64_t cut = int64_t(rng() % (n + 1));   // any cut of the items
        kernels(isa).linear(a, 0, cut);
        kernels(isa).linear(a, cut, n);
        const std::string what = fmt::format("k {} n {} tokens {}{}", k, n, tokens, hard ? " hard" : "");
        b.bytes(what, scalar, got);
        if (hard) continue;
        for (int64_t t = 0; t < tokens; t++)
          for (int64_t r = 0; r < n; r++) {
            double sum = 0, magnitude = 0;
            for (int64_t i = 0; i < k; i++) {
              sum += double(w[r * k + i]) * x[t * k + i];
              magnitude += std::fabs(double(w[r * k + i]) * x[t * k + i]);
            }
            if (args.bias) sum += bias[r];
            const double e = std::ldexp(double(k + 9), -149) + (args.bias ? std::ldexp(std::fabs(sum), -24) : 0);
            b.bound(what, got[t * n + r], sum, std::ldexp(double((k + 255) / 256 + 9) * magnitude, -24) + e);
          }
      }
  return b.take();
}

CheckOutcome norm(Isa isa, bool per_head) {
  Bench b;
  std::mt19937_64 rng(kSeed + 1);
  for (int64_t width : kWidths)
    for (int64_t heads : per_head ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{1})
      for (bool hard : {false, true}) {
        const int64_t rows = 4, columns = heads * width;
        const std::vector<float> x = values(rng, rows * columns, hard, hard), w = values(rng, width);
        std::vector<float> scalar(rows * columns, kNan), got(rows * columns, kNan);
        NormArgs a{x.data(), w.data(), scalar.data(), columns, heads, width, 1e-6f};
        auto run = [&](Isa i) { per_head ? kernels(i).head_norm(a, 0, rows) : kernels(i).rms_norm(a, 0, rows); };
        run(Isa::scalar);
        a.y = got.data();
        run(isa);
        const std::string what = fmt::format("width {} heads {}{}", width, heads, hard ? " hard" : "");
        b.bytes(what, scalar, got);
        if (hard) continue;
        for (int64_t g = 0; g < rows * heads; g++) {
          double sum = 0;
          for (int64_t i = 0; i < width; i++) sum += double(x[g * width + i]) * x[g * width + i];
          const double r = 1 / std::sqrt(sum / double(width) + double(1e-6f));
          // The sum is relative-accurate (all terms positive), halved by the root; division, root, reciprocal, two products.
          const int64_t lanes = per_head ? 32 : 256;
          const double relative = std::ldexp(double((width + lanes - 1) / lanes + 9) / 2 + 6, -24);
          for (int64_t i = 0; i < width; i++) {
            const double want = double(x[g * width + i]) * r * w[i];
            b.bound(what, got[g * width + i], want, relative * std::fabs(want) + std::ldexp(2.0, -149));
          }
        }
      }
  return b.take();
}

CheckOutcome rope(Isa isa) {
  Bench b;
  std::mt19937_64 rng(kSeed + 2);
  for (int64_t d : {2, 8, 16, 40, 64, 96, 128, 256})
    for (int64_t rotary : {d, d / 2 / 2 * 2}) {
      if (rotary < 2) continue;
      RopeConfig config;
      config.rotary = rotary;
      const RopeTable table = make_rope_table(config, 600);
      const int64_t heads = 3, rows = 5, columns = heads * d;
      const int64_t positions[rows] = {0, 1, 17, 256, 599};
      const std::vector<float> x = values(rng, rows * columns);
      std::vector<float> scalar(rows * columns, kNan), got(rows * columns, kNan);
      RopeArgs a{x.data(), scalar.data(), positions, table.cos.data(), table.sin.data(), heads, d, rotary};
      kernels(Isa::scalar).rope(a, 0, rows);
      a.y = got.data();
      kernels(isa).rope(a, 0, rows);
      const std::string what = fmt::format("head_dim {} rotary {}", d, rotary);
      b.bytes(what, scalar, got);
      for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads; h++)
          for (int64_t j = 0; j < rotary / 2; j++) {
            const double angle = double(positions[r]) * std::pow(config.theta, -2.0 * double(j) / double(rotary));
            const double x0 = x[r * columns + h * d + j], x1 = x[r * columns + h * d + j + rotary / 2];
            // cos and sin are rounded once (2^-24 each, and the angle's own 2^-50 * angle), a product and an fma.
            const double limit = (std::fabs(x0) + std::fabs(x1)) * (std::ldexp(3.0, -24) + std::ldexp(angle, -48));
            b.bound(what, got[r * columns + h * d + j], x0 * std::cos(angle) - x1 * std::sin(angle), limit);
            b.bound(what, got[r * columns + h * d + j + rotary / 2], x1 * std::cos(angle) + x0 * std::sin(angle), limit);
          }
    }
  return b.take();
}

/// A cache filled through kv_store; what lies beyond each slot's length stays NaN and must have no influence.
CheckOutcome attention(Isa isa) {
  Bench b;
  std::mt19937_64 rng(kSeed + 3);
  for (KvType type : {KvType::f32, KvType::f16, KvType::bf16})
    for (int64_t d : {1, 16, 33, 40, 96, 128, 256})
      for (int64_t length : {1, 2, 31, 33, 255, 256, 257, 600}) {
        const int64_t kv_heads = 2, heads = 6, context = length + 3, slots = 2, half = slots * kv_heads * context * d;
        std::vector<float> k = values(rng, length * kv_heads * d), v = values(rng, length * kv_heads * d), q = values(rng, 2 * heads * d);
        std::vector<RowPlace> places;
        for (int64_t p = 0; p < length; p++) places.push_back({1, p});
        const RowPlace asked[2] = {{1, length - 1}, {1, length / 2}};
        auto run = [&](Isa i, std::vector<std::byte>& kc, std::vector<std::byte>& vc) {
          kc.assign(half * size_of(type), std::byte(0xff));
          vc = kc;
          KvLayer cache{type, slots, kv_heads, context, d, kc.data(), vc.data()};
          int64_t overflow = std::numeric_limits<int64_t>::max();
          kernels(i).kv_store({k.data(), v.data(), places.data(), cache, length, &overflow}, 0, length);
          std::vector<float> y(2 * heads * d, kNan), scratch(attention_scratch_floats(length, d), kNan);
          kernels(i).attention({q.data(), y.data(), asked, cache, heads, float(1.0 / std::sqrt(double(d)))}, 0, 2 * heads, scratch.data());
          return y;
        };
        std::vector<std::byte> ks, vs, kg, vg;
        const std::vector<float> scalar = run(Isa::scalar, ks, vs), got = run(isa, kg, vg);
        const std::string what = fmt::format("kv {} head_dim {} length {}", name_of(type), d, length);
        b.bytes(what, scalar, got);
        b.out.compared++;
        if (ks != kg || vs != vg) b.out.fail(what + ": the caches differ");
        if (type != KvType::f32) continue;
        for (int64_t row = 0; row < 2; row++)
          for (int64_t h = 0; h < heads; h++) {
            const int64_t kvh = h / (heads / kv_heads), n = asked[row].position + 1;
            std::vector<double> score(n);
            double largest = -INFINITY, total = 0, magnitude = 0;
            for (int64_t p = 0; p < n; p++) {
              double dot = 0, m = 0;
              for (int64_t j = 0; j < d; j++) {
                dot += double(q[(row * heads + h) * d + j]) * k[(p * kv_heads + kvh) * d + j];
                m += std::fabs(double(q[(row * heads + h) * d + j]) * k[(p * kv_heads + kvh) * d + j]);
              }
              score[p] = dot / std::sqrt(double(d));
              magnitude = std::max(magnitude, m / std::sqrt(double(d)));
              largest = std::max(largest, score[p]);
            }
            for (double& s : score) total += s = std::exp(s - largest);
            // A score's error (its own sum, the scale, the subtraction) enters exp as a relative one, twice (mix and sum).
            const double relative = std::ldexp(2 * (double((d + 31) / 32 + 9) * magnitude + 2 * std::fabs(largest) + 4) + 2 * (double(n) / 256 + 10) + 4, -24);
            for (int64_t j = 0; j < d; j++) {
              double mix = 0, mass = 0;
              for (int64_t p = 0; p < n; p++) {
                mix += score[p] * v[(p * kv_heads + kvh) * d + j];
                mass += score[p] * std::fabs(v[(p * kv_heads + kvh) * d + j]);
              }
              b.bound(what, got[(row * heads + h) * d + j], mix / total, relative * mass / total);
            }
          }
      }
  return b.take();
}

CheckOutcome pointwise(Isa isa) {
  Bench b;
  std::mt19937_64 rng(kSeed + 4);
  for (int64_t columns : kWidths)
    for (bool hard : {false, true}) {
      const int64_t rows = 3;
      std::vector<float> x = values(rng, rows * columns, hard, hard), y = values(rng, rows * columns, hard, hard);
      for (float& f : x) f *= 20;   // through both tails of the sigmoid
      for (bool is_add : {false, true}) {
        std::vector<float> scalar(rows * columns, kNan), got(rows * columns, kNan);
        BinaryArgs a{x.data(), y.data(), scalar.data(), columns};
        auto run = [&](Isa i) { (is_add ? kernels(i).add : kernels(i).silu_mul)(a, 0, rows); };
        run(Isa::scalar);
        a.y = got.data();
        run(isa);
        const std::string what = fmt::format("{} columns {}{}", is_add ? "add" : "silu_mul", columns, hard ? " hard" : "");
        b.bytes(what, scalar, got);
        if (hard) continue;
        for (int64_t i = 0; i < rows * columns; i++) {
          const double want = is_add ? double(x[i]) + y[i] : double(x[i]) / (1 + std::exp(-double(x[i]))) * y[i];
          b.bound(what, got[i], want, std::fabs(want) * std::ldexp(is_add ? 1.0 : 6.0, -24) + std::ldexp(1.0, -140));
        }
      }
    }
  return b.take();
}

struct Entry {
  const char* op;
  int64_t expected;
  CheckOutcome (*run)(Isa);
};
const Entry kEntries[] = {
    {"linear", 340, linear},
    {"rms_norm", 34, [](Isa i) { return norm(i, false); }},
    {"head_norm", 68, [](Isa i) { return norm(i, true); }},
    {"rope", 15, rope},
    {"kv_store+attention", 336, attention},
    {"silu_mul+add", 68, pointwise},
};

}  // namespace

void add_kernel_checks(std::vector<Check>& out) {
  for (const Entry& e : kEntries)
    for (Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512, Isa::avx512vnni}) {
      Check k;
      k.id = fmt::format("kernel/{}/{}", e.op, name_of(isa));
      k.level = Level::byte_exact;
      k.scope = Scope::kernel;
      k.isa = isa;
      k.family = "-";
      k.baseline = "scalar bytes; float64 within the computed bound";
      k.target = fmt::format("the {} kernel", name_of(isa));
      k.expected = e.expected;
      k.run = [&e, isa](const CheckContext&) {
        CheckOutcome o;
        if (isa_supported(isa)) return e.run(isa);
        o.not_run = fmt::format("this CPU or build lacks {}", name_of(isa));
        return o;
      };
      out.push_back(std::move(k));
    }
}

}  // namespace assay
