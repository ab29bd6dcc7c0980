#include "dumps/map_tables.h"

#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <set>

#include "dumps/error.h"
#include "dumps/json.h"
#include "dumps/names.h"
#include "dumps/text.h"

namespace assay::mapping {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxPositions = int64_t(1) << 28;  // of one cache

// As many positions as a cache holds after the prefill or the decode, by the manifest's prompts.
int64_t known_positions(const Dump& theirs, const std::string& name, const std::string& where) {
  const auto n = parse_tensor_name(name);
  const Json& manifest = theirs.manifest();
  const char* hint = "Or say position < SIZE in the rule";
  if (!n || !n->is_state() || !manifest.contains("prompts") || !manifest["prompts"].is_array()) {
    bad_map(where, "the number of valid positions is not known", "prompts in the manifest", "none", hint);
  }
  const size_t prompt = size_t(std::stoll(n->prompt.substr(6)));
  const Json& prompts = manifest["prompts"];
  const std::string at = theirs.path().string() + fmt::format(": manifest.prompts[{}]", prompt);
  if (prompt >= prompts.size())
    bad_map(where, "the manifest has no such prompt", fmt::format("{} prompts", prompts.size()), n->prompt, hint);
  int64_t length = int64_t(json_ints(json_get(prompts[prompt], "ids", at), at + ".ids", 0).size());
  if (n->step == "after_decode") {
    const int64_t greedy =
        int64_t(json_ints(json_get(prompts[prompt], "greedy_ids", at), at + ".greedy_ids", 0).size());
    length += std::max<int64_t>(greedy - 1, 0);
  }
  return length;
}

}  // namespace

int64_t int_at(const DumpTensor& t, int64_t i) {
  auto load = [&]<class T>(T x) {
    std::memcpy(&x, t.data + size_t(i) * sizeof(T), sizeof(T));
    return int64_t(x);
  };
  switch (t.dtype) {
    case DType::i64:
    case DType::u64:
      return load(int64_t());  // beyond 2^63 it is negative, and refused as such
    case DType::i32:
      return load(int32_t());
    case DType::u32:
      return load(uint32_t());
    case DType::i16:
      return load(int16_t());
    case DType::u16:
      return load(uint16_t());
    case DType::i8:
      return load(int8_t());
    default:
      return load(uint8_t());
  }
}

bool is_integer(DType t) {
  return !is_float(t) && t != DType::boolean;
}

const DumpTensor& table_of(const Dump& theirs, const TableRef& ref, const std::map<std::string, int64_t>& bound,
                           const std::string& where) {
  const std::string name = ref.name.fill(bound, {}, where);
  const DumpTensor* t = theirs.find(name);
  if (!t) bad_map(where, "the table " + in_quotes(name) + " is not in the dump");
  if (!is_integer(t->dtype)) bad_map(name, "a table of an odd type", "integers", std::string(name_of(t->dtype)));
  return *t;
}

int64_t limit_of(const Dump& theirs, const Limit& l, const std::map<std::string, int64_t>& bound,
                 const std::string& where) {
  if (!l.table) return l.size;
  const DumpTensor& t = table_of(theirs, *l.table, bound, where);
  const int64_t row = l.table->row.empty() ? 0 : bound.at(l.table->row);
  if (row >= t.elements() || (l.table->row.empty() && t.elements() != 1)) {
    bad_map(where, "the table " + t.name + " of lengths", fmt::format("{} numbers", row + 1), shape_text(t.shape));
  }
  const int64_t n = int_at(t, row);
  if (n < 0) bad_map(fmt::format("{} [{}]", t.name, row), "a negative length", "0 or more", std::to_string(n));
  return n;
}

ViewAxis position_axis(const Dump& theirs, const Rule& rule, const View& view, const std::string& name,
                       const std::map<std::string, int64_t>& bound, const std::string& where) {
  const ViewAxis &page = view.axes.at("page"), &slot = view.axes.at("slot");
  const DumpTensor& table = table_of(theirs, *rule.pages, bound, where);
  const bool by_row = !rule.pages->row.empty();
  if (table.shape.size() != (by_row ? 2u : 1u)) {
    bad_map(where, "the block table " + table.name, by_row ? "[sequences, blocks]" : "[blocks]",
            shape_text(table.shape));
  }
  const int64_t row = by_row ? bound.at(rule.pages->row) : 0, blocks = table.shape.back();
  if (by_row && row >= table.shape[0]) {
    bad_map(where, "the block table " + table.name + " has no such row", fmt::format("0 .. {}", table.shape[0] - 1),
            std::to_string(row));
  }
  std::optional<int64_t> said;
  for (const Limit& l : rule.limits) {
    if (l.axis == "position") said = limit_of(theirs, l, bound, where);
  }
  const int64_t positions = said ? *said : known_positions(theirs, name, where);
  if (positions > kMaxPositions || slot.size < 1 || (positions + slot.size - 1) / slot.size > blocks) {
    bad_map(where, "the block table " + table.name + " is too short", fmt::format("pages for {} positions", positions),
            fmt::format("{} pages of {} slots", blocks, slot.size));
  }
  ViewAxis out;
  out.name = "position";
  out.size = positions;
  std::set<int64_t> seen;
  for (int64_t p = 0; p < positions; ++p) {
    const int64_t number = int_at(table, row * blocks + p / slot.size);
    if (p % slot.size == 0) {
      const std::string entry = fmt::format("{} [{}]", table.name, p / slot.size);
      if (number < 0 || number >= page.size)
        bad_map(entry, "a page outside of the cache", fmt::format("0 .. {}", page.size - 1), std::to_string(number));
      if (!seen.insert(number).second)
        bad_map(entry, "a page twice in one sequence", "each page once", std::to_string(number));
    }
    const auto offset = [](const ViewAxis& a, int64_t i) {
      return a.offsets.empty() ? i * a.stride : a.offsets[size_t(i)];
    };
    out.offsets.push_back(offset(page, number) + offset(slot, p % slot.size));
  }
  return out;
}

}  // namespace assay::mapping
