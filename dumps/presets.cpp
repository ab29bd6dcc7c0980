// Tolerances with names. What each is for and where its figures come from: dumps/README.md "Comparing".
#include <algorithm>
#include <string>

#include "dumps/compare.h"

namespace assay {
namespace {

Tolerance preset(std::string name, double fixed, double noise_factor, std::string floor, double cap, int64_t near_ties,
                 double regret, double flips, double cache_ulps = 0, double unit = 0) {
  Tolerance t;
  t.preset = std::move(name);
  t.fixed = fixed;
  t.noise_factor = noise_factor;
  t.floor = std::move(floor);
  t.greedy_margin_cap = cap;
  t.max_near_ties = near_ties;
  t.regret_cap = regret;
  t.max_flip_share = flips;
  t.cache_ulps = cache_ulps;
  t.unit = unit;
  return t;
}

/// The floor of a phase in the table `floor` of an official case's manifest; nullopt if there is none.
std::optional<double> floor_of(const Dump& base, const std::string& table, const std::string& phase) {
  if (table == "float32") {
    const auto it = base.noise_floor().find(phase);
    return it == base.noise_floor().end() ? std::nullopt : std::optional(it->second);
  }
  std::optional<double> most;
  if (base.kind() != Dump::Kind::official_case) return most;
  for (const char* part : {"noise_floor", "noise_floor_other_prompts"}) {
    const auto& m = base.manifest();
    if (!m.contains(part) || !m[part].contains(table) || !m[part][table].contains(phase)) continue;
    const auto& entry = m[part][table][phase];
    if (!entry.contains("max_rel_row") || !entry["max_rel_row"].is_number()) continue;
    most = std::max(most.value_or(0), entry["max_rel_row"].get<double>());
  }
  return most;
}

}  // namespace

const std::map<std::string, Tolerance>& presets() {
  static const std::map<std::string, Tolerance> table = [] {
    std::map<std::string, Tolerance> out;
    for (Tolerance t : {
             //     name             fixed  factor floor       cap   near ties, regret and share of other experts, ULPs of
             //                                                        caches, unit of added errors
             preset("official-f32", 1e-6, 4, "float32", 1e-3, 0, 1e-4, 1e-3),
             preset("official-bf16", 1e-2, 4, "bfloat16", 0.25, 4, 0.25, 0.1, 0, 0x1p-8),
             preset("f32", 1e-4, 0, "float32", 1e-3, 1, 1e-3, 1e-3, 2),
             preset("s16", 1e-3, 0, "float32", 1e-2, 2, 1e-2, 1e-2, 2),
             preset("f16", 2e-2, 0, "float32", 0.05, 3, 0.05, 0.05),
             preset("bf16", 0.1, 0, "float32", 0.25, 4, 0.25, 0.1, 0, 0x1p-8),
             preset("q8", 0.1, 0, "float32", 0.25, 4, 0.25, 0.1),
         }) {
      out.emplace(t.preset, t);
    }
    return out;
  }();
  return table;
}

std::optional<double> tolerance_of(const Tolerance& t, const std::string& phase, const Dump& base) {
  if (const auto it = t.by_phase.find(phase); it != t.by_phase.end()) return it->second;
  double out = t.fixed;
  if (t.noise_factor > 0) {
    if (const std::optional<double> floor = floor_of(base, t.floor, phase)) {
      // A floor of 0 (the embedding) is a floor, and the tolerance 0 asks for equal values.
      return std::max(out, t.noise_factor * *floor);
    }
  }
  // The cache itself is one rounding away from its neighbour; what is computed from keys and values is so twice.
  const double roundings = phase.starts_with("state/") ? std::min(t.cache_ulps, 1.0) : phase == "embed" ? 0 : t.cache_ulps;
  out += roundings * t.cache_ulp;
  // --tol 0 asks for equal values; no tolerance at all is another thing.
  const bool zero_asked = t.preset == "custom" && t.noise_factor == 0;
  return out > 0 || zero_asked ? std::optional(out) : std::nullopt;
}

}  // namespace assay
