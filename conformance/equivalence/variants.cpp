#include "conformance/equivalence/variants.h"

#include <fmt/format.h>

#include "conformance/quality/smollm2.h"

namespace assay {
namespace {

Variant isa(Isa i) {
  return {fmt::format("isa {}", name_of(i)), [i](DumpSpec& s) { s.engine.isa = i; }};
}
Variant threads(int n) {
  return {fmt::format("threads {}", n), [n](DumpSpec& s) { s.engine.threads = n; }};
}
Variant chunk(int64_t n) {
  return {n ? fmt::format("chunk {}", n) : "chunk all", [n](DumpSpec& s) { s.generate.chunk = n; }};
}
Variant alone() {
  return {"alone", [](DumpSpec&) {}};
}
Variant batched() {
  return {"batched", [](DumpSpec& s) { s.generate.batch = true; }};
}
Variant other_slot() {
  return {"slot 2 of 4", [](DumpSpec& s) { s.generate.slot = 2; s.engine.slots = 4; }};
}
Variant longer_context() {
  return {"context + 37", [](DumpSpec& s) {
            for (const Request& r : s.requests) s.engine.context = std::max(s.engine.context, int64_t(r.ids.size()) + r.decode + 37);
          }};
}
Variant both(const Variant& a, const Variant& b) {
  return {a.name + ", " + b.name, [a, b](DumpSpec& s) {
            a.apply(s);
            b.apply(s);
          }};
}

}  // namespace

std::vector<Isa> supported_isas() {
  std::vector<Isa> out;
  for (Isa i : kBuiltIsas)
    if (isa_supported(i)) out.push_back(i);
  return out;
}

std::vector<Variant> axis_variants(size_t prompts) {
  std::vector<Variant> out;
  for (Isa i : supported_isas()) out.push_back(isa(i));
  for (int n : {1, 2, 7}) out.push_back(threads(n));
  for (int n : {1, 3, 31, 32, 33, 64, 65}) out.push_back(chunk(n));
  if (prompts > 1) out.push_back(batched());
  out.push_back(other_slot());
  out.push_back(longer_context());
  out.push_back(both(both(both(isa(Isa::scalar), threads(7)), chunk(3)), batched()));
  return out;
}

std::vector<Variant> combined_variants() {
  return {both(both(both(isa(Isa::scalar), threads(7)), chunk(3)), batched()), both(both(threads(1), chunk(64)), other_slot())};
}

std::vector<Variant> product_variants() {
  std::vector<Variant> out;
  for (Isa i : supported_isas())
    for (int t : {1, 2, 7})
      for (int64_t c : {1, 3, 64, 0})
        for (const Variant& place : {alone(), batched(), other_slot()}) out.push_back(both(both(isa(i), threads(t)), both(chunk(c), place)));
  return out;
}

Check smollm2_equivalence_check(int axis, Activations kind) {
  static const char* kNames[kSmolAxes] = {"isa", "threads", "chunk", "placement", "all-at-once"};
  Check k;
  k.id = fmt::format("equivalence/smollm2/{}{}", kind == Activations::f32 ? "" : std::string(name_of(kind)) + "/", kNames[axis]);
  k.level = Level::byte_exact;
  k.family = "llama";
  k.cost = Cost::slow;
  k.baseline = fmt::format("our dump of SmolLM2-135M Q4_1, {} activations, best ISA, whole prompts, alone", name_of(kind));
  k.target = fmt::format("axis: {}", kNames[axis]);
  k.expected = 1000;
  k.run = [axis, kind](const CheckContext& c) {
    CheckOutcome out;
    if (!smollm2_present(c)) {
      out.not_run = smollm2_how();
      return out;
    }
    DumpSpec base = smollm2_spec(c, 3, 2);   // three prompts, two decode passes: every axis on real weights in minutes
    base.engine.activations = kind;
    std::vector<Variant> variants;
    switch (axis) {
      case 0: for (Isa i : supported_isas()) variants.push_back(isa(i)); break;
      case 1: for (int n : {1, 2, 7}) variants.push_back(threads(n)); break;
      case 2: for (int n : {1, 3, 64}) variants.push_back(chunk(n)); break;
      case 3: variants = {batched(), other_slot()}; break;
      default: variants = {both(both(both(isa(Isa::scalar), threads(7)), chunk(3)), batched())};
    }
    return compare_variants(c, smollm2_model(c), base, variants);
  };
  return k;
}

}  // namespace assay
