// What the tests of maps share: small dumps of theirs, what a map makes of them, what it refuses.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "dumps/compare_test_dumps.h"
#include "dumps/error.h"
#include "dumps/map.h"
#include "dumps/metrics.h"

namespace assay::testing_maps {

using namespace testing_dumps;
using Json = nlohmann::ordered_json;
using V = std::vector<double>;
using S = std::vector<int64_t>;

inline std::vector<double> count(int64_t n, double from = 0) {
  std::vector<double> out(static_cast<size_t>(n));
  std::iota(out.begin(), out.end(), from);
  return out;
}

inline std::vector<double> values(const Dump& d, const std::string& name) {
  const DumpTensor* t = d.find(name);
  if (!t) throw std::runtime_error("no tensor " + name);
  std::vector<double> out;
  for (int64_t i = 0; i < t->elements(); i++) out.push_back(value_at(t->dtype, t->data, i));
  return out;
}

inline std::vector<int64_t> shape(const Dump& d, const std::string& name) {
  return d.find(name)->shape;
}

inline Dump map_dump(const Dump& theirs, const std::string& text) {
  return Mapping(theirs, DumpMap::parse(text, "m")).dump();
}

class Maps : public testing::Test {
 protected:
  Folder f;
  Dump theirs(const std::vector<Values>& v, const Json& manifest = Json::object()) {
    DumpOptions o;
    o.manifest = manifest;
    return write_dump(f / "theirs", v, o);
  }
  Dump ours(const std::vector<Values>& v) { return write_dump(f / "ours", v); }
};

// A cache of 3 pages of 2 slots, 2 kv heads, head_dim 1; keys and values in one tensor; sequence 0 has 3 positions, 1
// has 2. Value: 100 * (v?) + 10 * position + head, of sequence 1 negative.
struct Paged {
  std::vector<double> cache;
  std::vector<double> table;
};
inline Paged paged(const std::vector<int>& pages) {
  Paged out;
  out.cache.assign(2 * 3 * 2 * 2, 999);
  auto put = [&](int kv, int page, int slot, int head, double x) {
    out.cache[size_t(((kv * 3 + page) * 2 + slot) * 2 + head)] = x;
  };
  for (int kv = 0; kv < 2; kv++) {
    for (int h = 0; h < 2; h++) {
      for (int p = 0; p < 3; p++) put(kv, pages[size_t(p / 2)], p % 2, h, 100 * kv + 10 * p + h + 1);
      for (int p = 0; p < 2; p++) put(kv, pages[2], p % 2, h, -(100 * kv + 10 * p + h + 1));
    }
  }
  out.table = {double(pages[0]), double(pages[1]), double(pages[2]), -1};
  return out;
}
inline const char* const kPaged =
    "kv.{L} -> prompt{P}/state/after_prefill/layer.{L}/k | v"
    " : (1|1) page slot head d => head position d | head position d, pages table[P]\n";
inline const Json kTwoPrompts = {
    {"prompts", {{{"name", "prompt0"}, {"ids", {1, 2, 3}}}, {{"name", "prompt1"}, {"ids", {4, 5}}}}}};

inline std::string refusal(const std::function<void()>& job) {
  try {
    job();
  } catch (const Error& e) {
    return e.exit_code() == kUsage ? e.what() : std::string("exit code ") + std::to_string(e.exit_code());
  }
  return "accepted";
}

}  // namespace assay::testing_maps
