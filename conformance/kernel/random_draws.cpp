// Kernel scope on a device: random draws of op, shape, type and rows, against the best CPU kernels, which other checks hold
// equal to the scalar ones. The cases of kernel_check.h sit on edges; these go where nobody thought of an edge.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "conformance/kernel/device_kernels.h"
#include "conformance/kernel/kernel_check.h"
#include "conformance/kernel/matrices.h"
#include "engine/ops/panel.h"

namespace assay {
namespace {

/// One op on operands of its own; what each table writes is compared byte by byte (NaNs of any payload are one value).
class Draw {
 public:
  Draw(uint64_t seed, const Kernels& device) : rng_(seed), device_(device), cpu_(kernels(best_isa())) {}
  std::string what;

  /// "" or where they part.
  std::string run() {
    switch (rng_() % 9) {
      case 0: return linear();
      case 1: case 2: case 3: return quant_linear();
      case 4: return norm();
      case 5: return rope();
      case 6: return attention();
      case 7: return kv_store();
      default: return pointwise();
    }
  }

 private:
  /// From 1 to most, small ones as likely as large ones.
  int64_t size(int64_t most) { return int64_t(std::exp2(std::uniform_real_distribution<double>(0, std::log2(double(most) + 0.99))(rng_))); }
  Values kind() { return kAllValues[rng_() % std::size(kAllValues)]; }
  std::vector<float> values(int64_t n, Values k) { return kernel_values(rng_, size_t(n), k); }
  static std::string parted(const std::vector<float>& want, const std::vector<float>& got, int64_t columns) {
    for (size_t i = 0; i < want.size(); i++)
      if (std::memcmp(&want[i], &got[i], 4) != 0 && !(std::isnan(want[i]) && std::isnan(got[i])))
        return fmt::format("row {}, column {}: {:a}, cpu {:a}", int64_t(i) / columns, int64_t(i) % columns, got[i], want[i]);
    return "";
  }

  std::string linear() {
    constexpr WeightType kTypes[] = {WeightType::f32, WeightType::f16, WeightType::bf16};
    const WeightType type = kTypes[rng_() % 3];
    const int64_t columns = size(1500), rows = size(300), tokens = size(80);
    const Values v = kind();
    what = fmt::format("linear {} k {} n {} tokens {}, {}", name_of(type), columns, rows, tokens, name_of(v));
    const StoredMatrix w = stored_matrix(rng_, type, rows, columns, v);
    const std::vector<float> x = values(tokens * columns, v), bias = values(rows, Values::normal);
    std::vector<float> want = unwritten(size_t(tokens * rows)), got = want;
    LinearArgs a{w.matrix, rng_() % 2 ? bias.data() : nullptr, x.data(), want.data(), tokens};
    cpu_.linear(a, 0, rows);
    a.y = got.data();
    device_.linear(a, 0, rows);
    return parted(want, got, rows);
  }
  std::string quant_linear() {
    constexpr WeightType kTypes[] = {WeightType::q8_0, WeightType::q4_0, WeightType::q4_1, WeightType::q5_0,
                                     WeightType::q5_1, WeightType::q4_k, WeightType::q5_k, WeightType::q6_k};
    constexpr Activations kKinds[] = {Activations::s16, Activations::s16, Activations::s8, Activations::f32};
    const WeightType type = kTypes[rng_() % std::size(kTypes)];
    const Activations activations = kKinds[rng_() % std::size(kKinds)];
    const int64_t block = std::max<int64_t>(block_elements(type), 32), columns = block * size(2048 / block), rows = size(400),
                  tokens = rng_() % 3 == 0 ? 1 : size(300);
    const Values v = kind(), weights = rng_() % 2 ? Values::normal : Values::mixed;
    what = fmt::format("{} {} k {} n {} tokens {}, weights {}, x {}", name_of(type), name_of(activations), columns, rows, tokens,
                       name_of(weights), name_of(v));
    const StoredMatrix w = stored_matrix(rng_, type, rows, columns, weights);
    const std::vector<float> x = values(tokens * columns, v), bias = values(rows, Values::normal);
    const float* added = rng_() % 2 ? bias.data() : nullptr;
    return parted(quantised_product(cpu_, w.matrix, x, tokens, activations, added, panels_of(w.matrix)),
                  quantised_product(device_, w.matrix, x, tokens, activations, added, panels_of(w.matrix)), rows);
  }
  std::string norm() {
    const bool heads = rng_() % 2;
    const int64_t width = heads ? size(300) : size(9000), count = heads ? size(40) : 1, rows = size(20), columns = width * count;
    const Values v = kind();
    what = fmt::format("{} width {} heads {} rows {}, {}", heads ? "head_norm" : "rms_norm", width, count, rows, name_of(v));
    const std::vector<float> x = values(rows * columns, v), w = values(width, Values::normal);
    std::vector<float> want = unwritten(x.size()), got = want;
    NormArgs a{x.data(), w.data(), want.data(), columns, count, width, 1e-6f};
    const auto op = heads ? &Kernels::head_norm : &Kernels::rms_norm;
    (cpu_.*op)(a, 0, rows);
    a.y = got.data();
    (device_.*op)(a, 0, rows);
    return parted(want, got, columns);
  }
  std::string rope() {
    const int64_t dim = 2 * size(130), rotary = 2 * (1 + int64_t(rng_() % uint64_t(dim / 2))), heads = size(40), rows = size(40);
    const Values v = kind();
    what = fmt::format("rope head_dim {} rotary {} heads {} rows {}, {}", dim, rotary, heads, rows, name_of(v));
    constexpr int64_t kContext = 64;
    const std::vector<float> x = values(rows * heads * dim, v), cos = values(kContext * rotary / 2, Values::normal),
                             sin = values(kContext * rotary / 2, Values::normal);
    std::vector<int64_t> positions;
    for (int64_t r = 0; r < rows; r++) positions.push_back(int64_t(rng_() % kContext));
    std::vector<float> want = unwritten(x.size()), got = want;
    RopeArgs a{x.data(), want.data(), positions.data(), cos.data(), sin.data(), heads, dim, rotary};
    cpu_.rope(a, 0, rows);
    a.y = got.data();
    device_.rope(a, 0, rows);
    return parted(want, got, heads * dim);
  }
  KvType kv() { return std::array{KvType::f32, KvType::f16, KvType::bf16}[rng_() % 3]; }
  struct Cache {
    std::vector<std::byte> k, v;
    KvLayer layer;
    Cache(KvType type, int64_t slots, int64_t heads, int64_t context, int64_t dim)
        : k(size_t(slots * heads * context * dim) * size_of(type), std::byte(0xff)), v(k) {
      layer = {type, slots, heads, context, dim, k.data(), v.data()};
    }
    Cache(const Cache& o) : k(o.k), v(o.v), layer(o.layer) { layer.k = k.data(), layer.v = v.data(); }
  };
  std::string attention() {
    const KvType type = kv();
    const int64_t dim = rng_() % 2 ? 32 * (1 + int64_t(rng_() % 8)) : size(256), kv_heads = size(4), group = size(8), heads = kv_heads * group,
                  slots = size(3), context = size(700), rows = size(24);
    const Values v = kind(), cached = v == Values::huge || v == Values::mixed ? Values::normal : v;
    what = fmt::format("attention kv {} head_dim {} heads {}/{} context {} rows {} slots {}, {}", name_of(type), dim, heads, kv_heads, context,
                       rows, slots, name_of(v));
    Cache cache(type, slots, kv_heads, context, dim);
    for (int64_t s = 0; s < slots; s++) {
      const std::vector<float> k = values(context * kv_heads * dim, cached), x = values(context * kv_heads * dim, cached);
      std::vector<RowPlace> places;
      for (int64_t p = 0; p < context; p++) places.push_back({int32_t(s), p});
      int64_t ignored = std::numeric_limits<int64_t>::max();
      cpu_.kv_store({k.data(), x.data(), places.data(), cache.layer, context, &ignored}, 0, context);
    }
    std::vector<RowPlace> places;
    const bool chunk = rng_() % 2;   // consecutive positions of one slot, or anything
    const int64_t from = int64_t(rng_() % uint64_t(context));
    for (int64_t r = 0; r < rows; r++)
      places.push_back(chunk ? RowPlace{0, std::min(from + r, context - 1)} : RowPlace{int32_t(rng_() % uint64_t(slots)), int64_t(rng_() % uint64_t(context))});
    std::vector<float> q = values(rows * heads * dim, v == Values::non_finite ? Values::normal : v);
    if (v == Values::huge)
      for (float& x : q) x *= 0x1p-50f;
    std::vector<float> want = unwritten(q.size()), got = want, scratch(size_t(attention_scratch_floats(context, dim)));
    AttentionArgs a{q.data(), want.data(), places.data(), cache.layer, heads, float(1.0 / std::sqrt(double(dim)))};
    cpu_.attention(a, 0, rows * heads, scratch.data());
    a.y = got.data();
    device_.attention(a, 0, rows * heads, nullptr);
    return parted(want, got, heads * dim);
  }
  std::string kv_store() {
    const KvType type = kv();
    const int64_t dim = size(256), heads = size(8), rows = size(40), context = rows + size(30);
    const Values v = kind();
    what = fmt::format("kv_store {} head_dim {} heads {} rows {}, {}", name_of(type), dim, heads, rows, name_of(v));
    const std::vector<float> k = values(rows * heads * dim, v), x = values(rows * heads * dim, v);
    const int64_t from = int64_t(rng_() % uint64_t(context - rows + 1));
    std::vector<RowPlace> places;
    for (int64_t r = 0; r < rows; r++) places.push_back({0, from + r});
    Cache want(type, 1, heads, context, dim), got(want);
    int64_t overflow[2] = {std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::max()};
    cpu_.kv_store({k.data(), x.data(), places.data(), want.layer, rows, &overflow[0]}, 0, rows);
    device_.kv_store({k.data(), x.data(), places.data(), got.layer, rows, &overflow[1]}, 0, rows);
    if (overflow[0] != overflow[1]) return fmt::format("overflow seen at {}, cpu {}", overflow[1], overflow[0]);
    for (size_t i = 0; i < want.k.size(); i++)
      if (want.k[i] != got.k[i] || want.v[i] != got.v[i]) return fmt::format("byte {} of the cache", i);
    return "";
  }
  std::string pointwise() {
    const bool add = rng_() % 2;
    const int64_t rows = size(60), columns = size(3000);
    const Values v = kind();
    what = fmt::format("{} rows {} columns {}, {}", add ? "add" : "silu_mul", rows, columns, name_of(v));
    const std::vector<float> a = values(rows * columns, v), b = values(rows * columns, v);
    std::vector<float> want = unwritten(a.size()), got = want;
    const auto op = add ? &Kernels::add : &Kernels::silu_mul;
    (cpu_.*op)({a.data(), b.data(), want.data(), columns}, 0, rows);
    (device_.*op)({a.data(), b.data(), got.data(), columns}, 0, rows);
    return parted(want, got, columns);
  }

  std::mt19937_64 rng_;
  const Kernels& device_;
  const Kernels& cpu_;
};

}  // namespace

void add_random_draw_checks(std::vector<Check>& out) {
  for (const std::string device : {"simt", "cuda"})
    for (const bool many : {false, true}) {
      if (device == "simt" && many) continue;
      const int64_t draws = many ? 100000 : device == "simt" ? 60 : 4000;
      Check k;
      k.id = fmt::format("kernel/random{}/{}", many ? "-100000" : "", device);
      k.level = Level::byte_exact;
      k.scope = Scope::kernel;
      k.family = "-";
      k.device = device;
      k.cost = many ? Cost::slow : Cost::fast;
      k.baseline = "the best CPU kernels";
      k.target = fmt::format("{} random draws of op, shape, type, rows and values on {}", draws, device);
      k.expected = draws;
      k.run = [device, draws](const CheckContext& c) {
        CheckOutcome o;
        const auto d = open_device(c, device, o);
        if (!d) return o;
        DeviceKernels target(d, device != std::string_view("simt"));
        const int64_t first = c.kernel.only < 0 ? 0 : c.kernel.only, last = c.kernel.only < 0 ? draws : first + 1;
        for (int64_t i = first; i < last; i++) {
          Draw draw(c.kernel.seed * 1000003 + uint64_t(i), target.table());
          const std::string parted = draw.run(), refused = target.refused(), strayed = target.strayed();
          o.compared++;
          if (!strayed.empty()) o.fail(fmt::format("{}: {} [case {}]", draw.what, strayed, i));
          if (!refused.empty()) o.fail(fmt::format("{}: the module refuses {} [case {}]", draw.what, refused, i));
          else if (!parted.empty()) o.fail(fmt::format("{}: {} [case {}]", draw.what, parted, i));
        }
        o.notes.push_back(fmt::format("{}, {}; seed {}; ran {}", d->info().name, d->info().architecture, c.kernel.seed, target.variants()));
        o.ran = ran_on(*d);
        o.ran.variants = target.ran();
        o.ran.launches = int64_t(d->counters().launches);
        return o;
      };
      out.push_back(std::move(k));
    }
}

}  // namespace assay
