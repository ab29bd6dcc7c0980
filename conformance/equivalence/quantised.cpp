// One set of bits with quantised weights: every type and every kind of activations along the axes of variants.h, on
// official cases converted and on synthetic models of real width.
#include <fmt/format.h>

#include "conformance/equivalence/variants.h"
#include "conformance/integration/quantised.h"
#include "engine/formats/synth.h"

namespace assay {
namespace {

void take(CheckOutcome& all, const std::string& what, CheckOutcome o) {
  all.compared += o.compared;
  for (const std::string& f : o.failures) all.fail(what + ": " + f);
  for (const std::string& n : o.notes) all.notes.push_back(what + ": " + n);
}

DumpSpec quantised_spec(const CheckContext& c, const OfficialCase& oc, Activations kind, KvType kv) {
  DumpSpec base = case_spec(c, oc, false);
  for (Request& r : base.requests) r.decode = std::min<int64_t>(r.decode, 4);
  base.engine.kv = kv;
  base.engine.activations = kind;
  return base;
}

/// s16 along every axis; the other kinds and the f32 cache with all axes changed at once.
CheckOutcome axes_of(const CheckContext& c, const OfficialCase& oc, WeightType type) {
  CheckOutcome all;
  const auto model = quantised_case(c, oc, type);
  DumpSpec base = quantised_spec(c, oc, Activations::s16, KvType::f16);
  take(all, "s16", compare_variants(c, model, base, axis_variants(base.requests.size())));
  take(all, "s16, f32 cache",
       compare_variants(c, model, quantised_spec(c, oc, Activations::s16, KvType::f32), combined_variants()));
  for (Activations kind : {Activations::s8, Activations::f32})
    take(all, std::string(name_of(kind)),
         compare_variants(c, model, quantised_spec(c, oc, kind, KvType::f16), combined_variants()));
  return all;
}

CheckOutcome every_type(const CheckContext& c, const OfficialCase& oc) {
  CheckOutcome all;
  for (WeightType type : quantised_types(oc))
    for (Activations kind : {Activations::s16, Activations::s8})
      take(all, fmt::format("{} {}", id_of(type), name_of(kind)),
           compare_variants(c, quantised_case(c, oc, type), quantised_spec(c, oc, kind, KvType::f16),
                            combined_variants()));
  return all;
}

CheckOutcome product_of(const CheckContext& c, const OfficialCase& oc, WeightType type) {
  CheckOutcome all;
  for (Activations kind : {Activations::s16, Activations::s8})
    take(
        all, std::string(name_of(kind)),
        compare_variants(c, quantised_case(c, oc, type), quantised_spec(c, oc, kind, KvType::f16), product_variants()));
  return all;
}

/// Two layers of the 8B shape: panels of thousands of rows, 128 and 384 groups, prompts around the blocks of tokens.
/// The scalar kernels take the short prompts only.
CheckOutcome real_width(const CheckContext& c, WeightType type) {
  CheckOutcome all;
  SynthSpec synth;
  synth.shape = "8B";
  synth.type = type;
  synth.layers = 2;
  const auto model = std::make_shared<Model>(make_synthetic_model(synth, c.threads));
  const auto prompt = [&](int64_t n) {
    Request r;
    for (int64_t i = 0; i < n; i++)
      r.ids.push_back(int32_t((uint64_t(i + 1) * 2654435761u) % uint64_t(model->config.vocab)));
    r.decode = 2;
    return r;
  };
  const auto variant = [](std::string name, std::function<void(DumpSpec&)> apply) {
    return Variant{std::move(name), std::move(apply)};
  };
  for (Activations kind : {Activations::s16, Activations::s8})
    for (bool scalar : {true, false}) {
      DumpSpec base;
      base.engine.isa = c.isa;
      base.engine.threads = c.threads;
      base.engine.activations = kind;
      base.engine.poison = true;
      base.sync = false;
      base.capture.state = true;
      base.capture.phases = {"embed",  "*_norm", "*_proj",
                             "*_rope", "attn_*", "ffn_*"};  // logits of 300 rows x 151936 are not asked for
      std::vector<Variant> variants;
      if (scalar) {
        base.requests = {prompt(1), prompt(33)};
        variants = {variant("isa scalar", [](DumpSpec& s) { s.engine.isa = Isa::scalar; })};
      } else {
        base.requests = {prompt(1), prompt(33), prompt(257), prompt(300)};
        for (Isa i : supported_isas())
          if (i != Isa::scalar && i != c.isa)
            variants.push_back(variant(std::string(name_of(i)), [i](DumpSpec& s) { s.engine.isa = i; }));
        variants.push_back(variant("one thread, chunk 64", [](DumpSpec& s) {
          s.engine.threads = 1;
          s.generate.chunk = 64;
        }));
        variants.push_back(variant("batched, 7 threads", [](DumpSpec& s) {
          s.generate.batch = true;
          s.engine.threads = 7;
        }));
      }
      take(all, fmt::format("{}{}", name_of(kind), scalar ? ", short prompts" : ""),
           compare_variants(c, model, base, variants));
    }
  return all;
}

}  // namespace

void add_quantised_equivalence_checks(std::vector<Check>& out) {
  const auto add = [&](std::string id, const std::string& family, Cost cost, std::string target, int64_t expected,
                       std::function<CheckOutcome(const CheckContext&)> run) {
    Check k;
    k.id = std::move(id);
    k.level = Level::byte_exact;
    k.family = family;
    k.cost = cost;
    k.baseline = "our dump with the same quantised weights and activations, best ISA, whole prompts, alone";
    k.target = std::move(target);
    k.expected = expected;
    k.run = std::move(run);
    out.push_back(std::move(k));
  };
  for (const OfficialCase& oc : official_cases()) {
    if (!oc.gguf) continue;
    const std::string id = std::string("equivalence/") + oc.name + "/";
    const auto types = quantised_types(oc);
    add(id + "quantised", oc.family, oc.trained ? Cost::slow : Cost::fast,
        "every type with s16 and s8 activations, all axes at once", int64_t(types.size()) * 2 * 2 * oc.tensors,
        [&oc](const CheckContext& c) { return every_type(c, oc); });
    for (WeightType type : types) {
      if (types.size() == 8)
        add(id + id_of(type) + "/axes", oc.family, Cost::fast,
            "s16 along each axis; s8, f32 activations and an f32 cache, all axes at once", 16 * oc.tensors,
            [&oc, type](const CheckContext& c) { return axes_of(c, oc, type); });
      if (!oc.trained)
        add(id + id_of(type) + "/product", oc.family, Cost::slow,
            "s16 and s8: every product of ISA, threads, chunk and placement", 2 * 35 * oc.tensors,
            [&oc, type](const CheckContext& c) { return product_of(c, oc, type); });
    }
  }
  for (WeightType type : quantised_types(official_case("qwen3-k256")))
    add("equivalence/synth-8b/" + id_of(type), "qwen3", Cost::slow,
        "two layers of the 8B shape, prompts of 1, 33, 257 and 300 tokens, s16 and s8", 500,
        [type](const CheckContext& c) { return real_width(c, type); });
}

}  // namespace assay
