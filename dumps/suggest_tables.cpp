#include "dumps/suggest_tables.h"

#include <algorithm>

#include "dumps/map_tables.h"

namespace assay::suggesting {
namespace {

// The pages of the prompt's row, up to the first that was there before or is no page.
PageTable table_of(const DumpTensor& t, int64_t prompt) {
  PageTable out;
  const bool by_row = t.shape.size() == 2;
  if (!mapping::is_integer(t.dtype) || t.shape.empty() || t.shape.size() > 2 || (by_row && t.shape[0] <= prompt))
    return out;
  out.tensor = &t;
  const int64_t blocks = t.shape.back(), first = by_row ? prompt * blocks : 0;
  std::set<int64_t> seen;
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t page = mapping::int_at(t, first + b);
    if (page < 0 || !seen.insert(page).second) break;
    out.pages.push_back(page);
    out.most.push_back(std::max(page, out.most.empty() ? 0 : out.most.back()));
  }
  return out;
}

}  // namespace

std::vector<int64_t> PageTable::places(int64_t positions, int64_t size, int64_t slots) const {
  if (slots < 1 || positions < 1) return {};
  const int64_t needed = (positions + slots - 1) / slots;
  if (needed > int64_t(pages.size()) || most[size_t(needed - 1)] >= size) return {};
  std::vector<int64_t> out;
  for (int64_t p = 0; p < positions; ++p) out.push_back(pages[size_t(p / slots)] * slots + p % slots);
  return out;
}

std::vector<PageTable> page_tables(const std::map<std::string, Family>& families, const std::set<const Family*>& done,
                                   int64_t prompt) {
  std::vector<PageTable> out;
  std::set<std::vector<int64_t>> seen;
  for (const auto& [key, f] : families) {
    if (done.contains(&f)) continue;
    PageTable best;
    bool best_is_named = false;
    for (const auto& [numbers, t] : f.members) {
      const bool named = std::find(numbers.begin(), numbers.end(), prompt) != numbers.end();
      if (best.tensor && (best_is_named || !named)) continue;
      PageTable table = table_of(*t, prompt);
      if (!table.pages.empty()) best = std::move(table), best_is_named = named;
    }
    if (best.tensor && seen.insert(best.pages).second) out.push_back(std::move(best));
  }
  return out;
}

}  // namespace assay::suggesting
