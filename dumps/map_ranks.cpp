#include "dumps/map_ranks.h"

#include <fmt/format.h>

#include <algorithm>

#include "dumps/error.h"
#include "dumps/text.h"

namespace assay::mapping {
namespace {

constexpr int64_t kMaxRanks = 1000000;

}  // namespace

void count_ranks(const Group& g, RankCounts& counts) {
  for (const auto& [m, t] : g.members) {
    for (const auto& [name, number] : m.captures) {
      if (g.fixed.captures.contains(name)) continue;
      Gather& x = counts[name];
      const int64_t n = std::min(number, kMaxRanks) + 1;
      if (n > x.n) x = {name, n, t};
    }
  }
}

std::vector<Gather> gathers_of(const Group& g, const Pattern& pattern, const RankCounts& counts) {
  std::vector<Gather> out;
  for (const std::string& c : pattern.captures()) {
    if (!g.fixed.captures.contains(c)) out.push_back(counts.at(c));
  }
  return out;
}

std::vector<const DumpTensor*> grid_of(const Group& g, const std::vector<Gather>& gathers, const std::string& rule,
                                       const std::string& where) {
  int64_t n = 1;
  for (const Gather& x : gathers) {
    if (__builtin_mul_overflow(n, x.n, &n) || n > kMaxRanks)
      bad_map(rule + ": " + x.last->name, fmt::format("{{{}}} is no number of a rank", x.name),
              "0, 1, ..., all of them", std::to_string(x.n - 1));
  }
  std::vector<const DumpTensor*> grid(static_cast<size_t>(n));
  for (const auto& [m, t] : g.members) {
    int64_t at = 0;
    for (const Gather& x : gathers) at = at * x.n + m.captures.at(x.name);
    if (grid[size_t(at)]) bad_map(where, "two tensors of the same numbers", grid[size_t(at)]->name, t->name);
    grid[size_t(at)] = t;
  }
  for (int64_t i = 0; i < n; ++i) {
    const DumpTensor* t = grid[size_t(i)];
    if (!t) {
      std::string missing;
      int64_t rest = i;
      for (size_t k = gathers.size(); k-- > 0; rest /= gathers[k].n) {
        missing =
            fmt::format("{} = {}{}{}", gathers[k].name, rest % gathers[k].n, missing.empty() ? "" : ", ", missing);
      }
      // The rank may stand in other tensors of the rule only: then say in which.
      std::string hint;
      for (const Gather& x : gathers) {
        if (std::none_of(g.members.begin(), g.members.end(), [&](const auto& m) { return m.second == x.last; }))
          hint = fmt::format("{} = {} is there as {}", x.name, x.n - 1, in_quotes(x.last->name));
      }
      bad_map(where, "a rank is missing", missing, fmt::format("{} of {} tensors", g.members.size(), n), hint);
    }
    if (t->dtype != grid[0]->dtype || t->shape != grid[0]->shape) {
      bad_map(t->name, "ranks of two kinds",
              fmt::format("{} {} as in {}", name_of(grid[0]->dtype), shape_text(grid[0]->shape), grid[0]->name),
              fmt::format("{} {}", name_of(t->dtype), shape_text(t->shape)));
    }
  }
  return grid;
}

void place_ranks(Walk& walk, View& v, const std::vector<Gather>& gathers, const std::vector<const DumpTensor*>& grid,
                 const std::string& reduced) {
  int64_t replicas = 1, outer = 1, inner = 1;
  bool behind = false;
  for (const Gather& x : gathers) {
    if (x.name == reduced) {
      replicas = x.n;
      behind = true;
    } else {
      (behind ? inner : outer) *= x.n;
    }
  }
  int64_t stride = 1;
  for (size_t k = gathers.size(); k-- > 0;) {
    if (gathers[k].name == reduced) continue;
    v.axes[gathers[k].name] = {gathers[k].name, gathers[k].n, 0, stride, {}};
    stride *= gathers[k].n;
  }
  for (int64_t r = 0; r < replicas; ++r) {
    std::vector<const DumpTensor*> sources;
    for (int64_t a = 0; a < outer; ++a) {
      for (int64_t b = 0; b < inner; ++b) sources.push_back(grid[size_t((a * replicas + r) * inner + b)]);
    }
    walk.sources.push_back(std::move(sources));
    walk.replica_names.push_back(fmt::format("{} = {}", reduced, r));
  }
}

std::string from_text(const Group& g, const std::vector<Gather>& gathers, const Pattern& pattern) {
  std::string out;
  size_t star = 0;
  for (const Pattern::Piece& p : pattern.pieces) {
    if (p.kind == Pattern::Piece::Kind::literal) {
      out += p.text;
    } else if (p.kind == Pattern::Piece::Kind::star) {
      out += g.fixed.stars.at(star++);
    } else if (const auto it = g.fixed.captures.find(p.text); it != g.fixed.captures.end()) {
      out += std::to_string(it->second);
    } else {
      for (const Gather& x : gathers) {
        if (x.name == p.text) out += x.n == 1 ? "0" : fmt::format("0..{}", x.n - 1);
      }
    }
  }
  return out;
}

}  // namespace assay::mapping
