// Comparators that passed what they should fail, or failed what is right. Each fault is a flawed comparator, each check
// a pair of dumps with a known right answer: compare() gives that answer, and the flaw would give another one.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "conformance/check.h"
#include "conformance/faults/faults.h"
#include "dumps/compare_test_dumps.h"
#include "dumps/greedy.h"

namespace assay {
namespace {

using namespace testing_dumps;
using Doubles = std::vector<double>;
constexpr const char* kName = "prompt0/prefill/0/layer.1/ffn_act";
constexpr const char* kPasses = "passes";

/// What a comparator was asked, and what compare() says of it.
struct Case {
  Dump base, target;
  CompareOptions options;
};

std::string verdict(const CompareResult& r) {
  if (r.exit_code() == kPass) return kPasses;
  if (r.compared == 0 && r.failed == 0) return "fails: nothing was compared";
  if (!r.divergence) return "fails";
  return fmt::format("fails: {} at {}{}{}", r.divergence->kind, r.divergence->name,
                     r.divergence->where.empty() ? "" : ", ", r.divergence->where);
}
std::string ours(const Case& c) {
  try {
    return verdict(compare(c.base, c.target, c.options));
  } catch (const Error& e) {
    return std::string("refuses: ") + e.what();
  }
}

struct Comparator {
  const char* id;
  const char* what;
  /// The pair, written below `dir`.
  Case (*make)(const std::filesystem::path& dir);
  /// The right answer: what compare() must say. Only its beginning for refusals, which name files.
  const char* right;
  /// What the flawed comparator says of the same values.
  std::string (*flawed)(const Case&);
};

Case pair(const std::filesystem::path& dir, const Doubles& b, const Doubles& t, std::vector<int64_t> shape, double tol,
          const char* name = kName) {
  return {write_dump(dir / "b", {{name, shape, b}}), write_dump(dir / "t", {{name, shape, t}}),
          at(Level::max_rel, tol)};
}

Doubles values(const Dump& d, size_t tensor = 0) {
  const DumpTensor& found = d.tensors().at(tensor);
  std::vector<float> x(size_t(found.elements()));
  std::memcpy(x.data(), found.data, x.size() * sizeof(float));
  return {x.begin(), x.end()};
}
double cosine(const Doubles& b, const Doubles& t) {
  double bt = 0, bb = 0, tt = 0;
  for (size_t i = 0; i < b.size(); i++) bt += b[i] * t[i], bb += b[i] * b[i], tt += t[i] * t[i];
  return bt / std::sqrt(bb * tt);
}
double mean(const Doubles& x) {
  double sum = 0;
  for (double v : x) sum += v;
  return sum / double(x.size());
}
std::string says(bool pass) {
  return pass ? kPasses : "fails";
}

Case nan_in_target(const std::filesystem::path& dir) {
  const Doubles b = wave(5 * 64);
  Doubles t = b;
  t[3 * 64 + 17] = kNaN;
  return pair(dir, b, t, {5, 64}, 1e-6);
}
Case nan_in_both(const std::filesystem::path& dir) {
  Doubles x = wave(64);
  x[9] = kNaN;
  Case c = pair(dir, x, x, {1, 64}, 0);
  c.options = at(Level::byte_exact);
  return c;
}
Case both_zero(const std::filesystem::path& dir) {
  Doubles b = wave(64), t;
  b[63] = 0;
  t = b;
  t[30] += 0.125;
  return pair(dir, b, t, {1, 64}, 1e-9);
}
Case nan_against_zero(const std::filesystem::path& dir) {
  Doubles b = wave(64), t;
  b[20] = 0;
  t = b;
  t[20] = kNaN;
  return pair(dir, b, t, {1, 64}, 1e-3);
}
Case zeroed_rows(const std::filesystem::path& dir) {
  const Doubles b = wave(50 * 64);
  Doubles t = b;
  for (int64_t r = 7; r < 16; r++) std::fill_n(t.begin() + r * 64, 64, 0.0);
  return pair(dir, b, t, {50, 64}, 0.5);
}
Case near_zero(const std::filesystem::path& dir) {
  Doubles b = wave(64), t = b;
  b[12] = 1e-9;
  t[12] = 1.45e-7;
  return pair(dir, b, t, {1, 64}, 1e-6);
}
Case all_zero(const std::filesystem::path& dir) {
  const Doubles zeros(64, 0.0);
  return pair(dir, zeros, zeros, {2, 32}, 1e-9);
}
Case missing(const std::filesystem::path& dir) {
  const Values a{"prompt0/prefill/0/embed", {2, 8}, wave(16)}, b{kName, {2, 8}, wave(16, 1)};
  return {write_dump(dir / "b", {a, b}), write_dump(dir / "t", {a}), at(Level::max_rel, 1e-3)};
}
Case rotated(const std::filesystem::path& dir) {
  const Doubles b = wave(256);
  Doubles t = b;
  std::rotate(t.begin(), t.begin() + 1, t.end());
  return pair(dir, b, t, {4, 64}, 1e-2);
}
Case one_logit(const std::filesystem::path& dir) {
  Doubles b = wave(4000, 0, 8), t = b;
  t[size_t(std::min_element(b.begin(), b.end()) - b.begin())] += 1.67;
  return pair(dir, b, t, {1, 4000}, 1e-3, "prompt0/decode/0/logits");
}
Case nothing(const std::filesystem::path& dir) {
  return {write_dump(dir / "b", {}), write_dump(dir / "t", {}), at(Level::max_rel, 1e-3)};
}
Case long_names(const std::filesystem::path& dir) {
  const std::string name = "prompt0/prefill/0/" + std::string(450, 'x');
  return pair(dir, {1, 2}, {1, 3}, {1, 2}, 1e-3, name.c_str());
}
Case padded(const std::filesystem::path& dir) {
  const Doubles rows = wave(4 * 8), three(rows.begin(), rows.begin() + 24);
  DumpOptions plain, tabled;
  plain.manifest["prompts"] = tabled.manifest["prompts"] = {{{"name", "prompt0"}, {"ids", {5, 6, 7}}}};
  tabled.manifest["rows"] = {{"pass0", "pass0/rows"}};
  const Doubles table = {0, 0, 0, 0, 1, 0, 0, 2, 0, 0, 2, 0};  // the padding row says that it is position 2
  return {write_dump(dir / "b", {{"prompt0/prefill/0/embed", {3, 8}, three}}, plain),
          write_dump(dir / "t", {{"pass0/embed", {4, 8}, rows}, {"pass0/rows", {4, 3}, table, DType::i64}}, tabled),
          at(Level::byte_exact)};
}
/// The best two logits of step 1 are 0.02 apart, and the target, all of whose logits are off by up to 0.1, takes the
/// other.
Case noisy_flip(const std::filesystem::path& dir) {
  const auto side = [&](const char* name, double noise, bool flip) {
    std::vector<Values> tensors;
    Doubles ids;
    for (int s = 0; s < 4; s++) {
      Doubles x = wave(2000, s, 2);
      x[11] = 5;
      x[22] = 4.98;
      for (size_t i = 0; i < x.size(); i++)
        if (i != 11 && i != 22) x[i] += noise * std::sin(0.9 * double(i) + s);
      if (flip && s == 1) x[22] = 5.01;
      ids.push_back(flip && s == 1 ? 22 : 11);
      tensors.push_back(
          {s == 0 ? "prompt0/prefill/0/logits_last" : fmt::format("prompt0/decode/{}/logits", s - 1), {1, 2000}, x});
    }
    tensors.push_back({"prompt0/ids", {1}, {3}, DType::i64});
    tensors.push_back({"prompt0/greedy_ids", {4}, ids, DType::i64});
    DumpOptions o;
    o.manifest["prompts"] = {{{"name", "prompt0"}, {"ids", {3}}, {"fed_ids", {11, 11, 11}}}};
    return write_dump(dir / name, tensors, o);
  };
  Case c{side("b", 0, false), side("t", 0.1, true), at(Level::greedy_prefix)};
  c.options.tolerance.greedy_margin_cap = 1e-3;
  c.options.tolerance.max_near_ties = 1;
  return c;
}

const Comparator kComparators[] = {
    {"C1/nan-passes", "a NaN metric is compared with >", nan_in_target,
     "fails: non_finite at prompt0/prefill/0/layer.1/ffn_act, row 3 (position 3), column 17",
     [](const Case& c) {
       double worst = 0;
       const Doubles b = values(c.base), t = values(c.target);
       for (size_t i = 0; i < b.size(); i++)
         if (std::fabs(t[i] - b[i]) > worst) worst = std::fabs(t[i] - b[i]);
       return says(!(worst > 1e-6));
     }},
    {"C1/equal-hashes-of-nan", "hashes alone decide: a NaN on both sides passes", nan_in_both,
     "fails: non_finite at prompt0/prefill/0/layer.1/ffn_act, row 0 (position 0), column 9",
     [](const Case& c) { return says(c.base.tensors()[0].xxh3_128 == c.target.tensors()[0].xxh3_128); }},
    {"C2/zero-over-zero-is-worst", "the element where both are zero is named worst", both_zero,
     "fails: value at prompt0/prefill/0/layer.1/ffn_act, row 0 (position 0), column 30",
     [](const Case& c) {
       const Doubles b = values(c.base), t = values(c.target);
       size_t worst_at = 0;
       double worst = 0;
       for (size_t i = 0; i < b.size(); i++)
         if (const double rel = std::fabs(t[i] - b[i]) / std::fabs(b[i]); !(rel <= worst)) worst = rel, worst_at = i;
       return fmt::format("fails: value at {}, row 0 (position 0), column {}", kName, worst_at);
     }},
    {"C3/nan-is-zero", "NaN against an exact 0 is a difference of 0", nan_against_zero,
     "fails: non_finite at prompt0/prefill/0/layer.1/ffn_act, row 0 (position 0), column 20",
     [](const Case& c) {
       const Doubles b = values(c.base), t = values(c.target);
       double worst = 0;
       for (size_t i = 0; i < b.size(); i++) worst = std::max(worst, std::fabs((std::isnan(t[i]) ? 0 : t[i]) - b[i]));
       return says(worst <= 1e-3);
     }},
    {"C4/cosine", "the cosine accepts a tensor with 18% of its rows zeroed", zeroed_rows,
     "fails: value at prompt0/prefill/0/layer.1/ffn_act, row 7 (position 7)",
     [](const Case& c) { return says(cosine(values(c.base), values(c.target)) > 0.9); }},
    {"C5/elementwise-relative", "relative to an element near zero, honest noise is a difference of 144", near_zero,
     kPasses,
     [](const Case& c) {
       const Doubles b = values(c.base), t = values(c.target);
       double worst = 0;
       for (size_t i = 0; i < b.size(); i++) worst = std::max(worst, std::fabs(t[i] - b[i]) / std::fabs(b[i]));
       return says(worst <= 1e-6);
     }},
    {"C6/zeros-fail", "identical zeros have no cosine, and fail", all_zero, kPasses,
     [](const Case& c) { return says(cosine(values(c.base), values(c.target)) > 0.999); }},
    {"C7/missing-skipped", "what the target lacks is skipped", missing,
     "fails: missing at prompt0/prefill/0/layer.1/ffn_act",
     [](const Case& c) {
       bool same = true;
       for (const DumpTensor& t : c.base.tensors())
         if (const DumpTensor* o = c.target.find(t.name)) same = same && o->xxh3_128 == t.xxh3_128;
       return says(same);
     }},
    {"C8/means", "means of tensors are compared", rotated,
     "fails: value at prompt0/prefill/0/layer.1/ffn_act, row 0 (position 0), column 1",
     [](const Case& c) { return says(std::fabs(mean(values(c.base)) - mean(values(c.target))) < 1e-2); }},
    {"C9/best-id-stays", "a logit is off by 1.67 and the best id stays", one_logit,
     "fails: value at prompt0/decode/0/logits, row 0",
     [](const Case& c) {
       const Doubles b = values(c.base), t = values(c.target);
       const auto best = [](const Doubles& x) { return std::max_element(x.begin(), x.end()) - x.begin(); };
       return says(best(b) == best(t) && cosine(b, t) > 0.999);
     }},
    {"C10/nothing-failed", "the exit code asks whether anything failed, not whether anything was compared", nothing,
     "fails: nothing was compared",
     [](const Case& c) { return says(compare(c.base, c.target, c.options).failed == 0); }},
    {"C14/files-named-after-tensors", "a file per tensor, under the tensor's name", long_names,
     "fails: value at prompt0/prefill/0/xxx",
     [](const Case& c) {
       std::string file = c.base.tensors()[0].name;
       std::replace(file.begin(), file.end(), '/', '.');
       return file.size() <= 255 ? std::string(kPasses)
                                 : fmt::format("refuses: a file name of {} characters", file.size());
     }},
    {"E4/padding-as-token", "rows are taken by number: a padding row is compared as a token", padded, "refuses: ",
     [](const Case& c) {
       const Doubles b = values(c.base), t = values(c.target);
       return says(std::equal(b.begin(), b.end(), t.begin()));
     }},
    {"E5/noise-excuses-flips", "noise raised tenfold makes a near tie of every flip", noisy_flip,
     "fails: greedy at prompt0/greedy_ids",
     [](const Case& c) {
       CompareOptions uncapped = c.options;
       uncapped.tolerance.greedy_margin_cap = kInf;
       return verdict(compare(c.base, c.target, uncapped));
     }},
};

Finding judge(const CheckContext& c, const Comparator& k, bool planted) {
  std::filesystem::create_directories(c.work);
  const Case made = k.make(c.work);
  Finding f;
  const std::string honest = ours(made), got = planted ? k.flawed(made) : honest;
  f.failed = got.rfind(k.right, 0) != 0;
  f.place = got;
  f.changed = got != honest;
  return f;
}

}  // namespace

void add_comparator_faults(std::vector<Fault>& out) {
  for (const Comparator& k : kComparators) {
    Fault f{k.id, k.what, How::comparator};
    f.own = [&k](const CheckContext& c, const std::string&, bool planted) { return judge(c, k, planted); };
    out.push_back(std::move(f));
  }
}

}  // namespace assay
