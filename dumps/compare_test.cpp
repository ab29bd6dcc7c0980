// Comparing whole dumps: pairing, levels, tolerances, hashes, what is partial, where the first difference is said to be.
#include "dumps/compare.h"

#include <gtest/gtest.h>

#include <fstream>

#include "dumps/compare_test_dumps.h"
#include "dumps/error.h"

namespace assay {
namespace {

using namespace testing_dumps;
using Doubles = std::vector<double>;

Doubles plus(Doubles x, size_t i, double d) {
  x[i] += d;
  return x;
}

TEST(Compare, FiguresAreThoseOfTheIndependentScript) {
  // goldens/official/compare_case.py by hand: two prompts share the usual scale 10 of (layer.0, q_proj), so that no row's
  // scale is below 1; layer.1 has its own, 0.4; the caches after prefill and after decode share theirs.
  Folder f;
  const Dump base = write_case(
      f / "case",
      {{"prompt0/prefill/0/layer.0/q_proj", {2, 2}, {10, -2, 0.5, 0.25}, DType::f64},
       {"prompt1/prefill/0/layer.0/q_proj", {1, 2}, {0.25, 2}, DType::f64},
       {"prompt0/prefill/0/layer.1/q_proj", {2, 2}, {0.4, 0.1, 0.01, 0.02}, DType::f64},
       {"prompt0/state/after_prefill/layer.0/k", {1, 2, 2}, {1, 2, 0.5, 0.25}, DType::f64},
       {"prompt0/state/after_decode/layer.0/k", {1, 3, 2}, {1, 2, 0.5, 0.25, 8, 1}, DType::f64}},
      {{"q_proj", 1e-3}, {"state/k", 0}}, {{"case", "by-hand"}});
  const Dump target = write_dump(
      f / "t", {{"prompt0/prefill/0/layer.0/q_proj", {2, 2}, {10.5, -2, 0.5, 0.5}, DType::f64},
                {"prompt1/prefill/0/layer.0/q_proj", {1, 2}, {0.25, 2.5}, DType::f64},
                {"prompt0/prefill/0/layer.1/q_proj", {2, 2}, {0.4, 0.1, 0.01, 0.03}, DType::f64},
                {"prompt0/state/after_prefill/layer.0/k", {1, 2, 2}, {1, 2, 0.75, 0.25}, DType::f64},
                {"prompt0/state/after_decode/layer.0/k", {1, 3, 2}, {1, 2, 0.5, 0.25, 8, 1}, DType::f64}});
  CompareOptions o = at(Level::max_rel, 1e-6);
  o.tolerance.noise_factor = 4;
  const CompareResult r = compare(base, target, o);
  const TensorMetrics& a = *record_of(r, "prompt0/prefill/0/layer.0/q_proj").metrics;
  EXPECT_DOUBLE_EQ(a.max_abs, 0.5);
  EXPECT_DOUBLE_EQ(a.max_rel, 0.25);  // row 1: 0.25 / max(0.5, 1); row 0: 0.5 / 10
  EXPECT_EQ(a.max_rel_at.row, 1);
  EXPECT_EQ(a.max_abs_at.row, 0);
  EXPECT_DOUBLE_EQ(record_of(r, "prompt1/prefill/0/layer.0/q_proj").metrics->max_rel, 0.25);  // 0.5 / max(2, 1)
  EXPECT_NEAR(record_of(r, "prompt0/prefill/0/layer.1/q_proj").metrics->max_rel, 0.25, 1e-12);  // 0.01 / max(0.02, 0.04)
  EXPECT_DOUBLE_EQ(record_of(r, "prompt0/state/after_prefill/layer.0/k").metrics->max_rel, 0.3125);  // 0.25 / max(0.5, 0.8)
  EXPECT_DOUBLE_EQ(record_of(r, "prompt0/prefill/0/layer.0/q_proj").tolerance, 4e-3);
  EXPECT_DOUBLE_EQ(record_of(r, "prompt0/state/after_prefill/layer.0/k").tolerance, 1e-6);
  EXPECT_EQ(r.failed, 4);
  EXPECT_DOUBLE_EQ(r.smallest_passing_tolerance, 0.3125);
  // One --tol of that size passes, and the next smaller one does not.
  EXPECT_EQ(compare(base, target, at(Level::max_rel, 0.3125)).exit_code(), 0);
  EXPECT_EQ(compare(base, target, at(Level::max_rel, std::nextafter(0.3125, 0))).exit_code(), 1);
}

TEST(Compare, ByteExactReadsNoValuesWhereHashesDecide) {
  Folder f;
  const Doubles x = wave(64), y = plus(x, 40, 0.5);
  const Values a{"prompt0/prefill/0/embed", {4, 16}, x}, b{"prompt0/prefill/0/final_norm", {4, 16}, x};
  Values b2 = b;
  b2.x = y;
  write_dump(f / "b", {a, b});
  write_dump(f / "t", {a, b2});
  // Values gone bad behind intact manifests: what is read would show.
  for (const char* side : {"b", "t"}) {
    for (const auto& e : std::filesystem::directory_iterator(f / side)) {
      if (e.path().extension() != ".safetensors") continue;
      std::fstream file(e.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(-300, std::ios::end);  // inside `a` and `b`
      file.write("\x12\x34\x56\x42", 4);
    }
  }
  const Dump base = Dump::open(f / "b"), target = Dump::open(f / "t");
  const CompareResult same = compare(base, base, at(Level::byte_exact));
  EXPECT_EQ(same.exit_code(), 0);
  EXPECT_EQ(same.reached, Level::byte_exact);
  EXPECT_EQ(same.bytes_read, 0);
  const CompareResult r = compare(base, target, at(Level::byte_exact));
  EXPECT_EQ(r.failed, 1);
  EXPECT_EQ(r.bytes_read, 2 * 4 * 64) << "only the tensor whose hashes differ";
}

TEST(Compare, HashDumpsLocateTheRowAndSayThatValuesAreMissing) {
  Folder f;
  const Doubles x = wave(64);
  const Values a{"prompt0/prefill/0/layer.2/q_rope", {4, 16}, x};
  Values c = a;
  c.x = plus(x, 40, 0.5);
  DumpOptions hash;
  hash.mode = CaptureMode::hash;
  const Dump base = write_dump(f / "b", {a}, hash), same = write_dump(f / "s", {a}), other = write_dump(f / "o", {c});
  EXPECT_EQ(compare(base, same, at(Level::byte_exact)).exit_code(), 0);
  EXPECT_EQ(compare(base, same, at(Level::max_rel, 1e-6)).exit_code(), 0) << "equal hashes hold at every level";
  const CompareResult exact = compare(base, other, at(Level::byte_exact));
  EXPECT_EQ(exact.records[0].kind, "bits");
  EXPECT_NE(exact.records[0].reason.find("row 2"), std::string::npos) << exact.records[0].reason;
  EXPECT_EQ(exact.divergence->row, 2);
  EXPECT_EQ(exact.divergence->layer, "layer.2");
  const CompareResult rel = compare(base, other, at(Level::max_rel, 1e6));
  EXPECT_EQ(rel.exit_code(), 1);
  EXPECT_EQ(rel.records[0].kind, "no_values");
}

TEST(Compare, ByteExactNeedsEqualDtypesAndBits) {
  Folder f;
  const Doubles x = {0.5, -0.25, 1, 0};
  const Dump f32 = write_dump(f / "a", {{"prompt0/prefill/0/embed", {1, 4}, x}});
  const Dump bf16 = write_dump(f / "b", {{"prompt0/prefill/0/embed", {1, 4}, x, DType::bf16}});
  const Dump minus = write_dump(f / "c", {{"prompt0/prefill/0/embed", {1, 4}, {0.5, -0.25, 1, -0.0}}});
  CompareResult r = compare(f32, bf16, at(Level::byte_exact, 1e-6));
  EXPECT_EQ(r.records[0].kind, "dtype");
  EXPECT_EQ(r.reached, Level::max_rel);
  r = compare(f32, bf16, at(Level::max_rel, 1e-6));
  EXPECT_EQ(r.exit_code(), 0) << "below byte_exact both are widened";
  EXPECT_EQ(r.records[0].metrics->bits_equal, 4);
  EXPECT_EQ(r.reached, Level::max_rel);
  r = compare(f32, minus, at(Level::byte_exact, 1e-6));
  EXPECT_EQ(r.records[0].kind, "bits");
  EXPECT_EQ(r.records[0].metrics->first_difference.column, 3);
  EXPECT_EQ(compare(f32, minus, at(Level::max_rel, 1e-6)).exit_code(), 0) << "-0 is 0";
}

TEST(Compare, ShapesAndIntegersAreExact) {
  Folder f;
  const std::string ids = "prompt0/prefill/0/layer.0/router_topk_ids", q = "prompt0/prefill/0/layer.0/q_proj";
  const Dump base = write_dump(f / "b", {{ids, {2, 2}, {3, 1, 0, 2}, DType::i64}, {q, {2, 3}, wave(6)}});
  const Dump other = write_dump(f / "t", {{ids, {2, 2}, {3, 1, 2, 0}, DType::i64}, {q, {3, 2}, wave(6)}});
  const CompareResult r = compare(base, other, at(Level::max_rel, 1e9));
  EXPECT_EQ(record_of(r, ids).kind, "ids");
  EXPECT_NE(record_of(r, ids).reason.find("2 of 4 values differ"), std::string::npos);
  EXPECT_EQ(record_of(r, q).kind, "shape");
  EXPECT_EQ(record_of(r, q).reason, "shape [3, 2], wanted [2, 3]");
  EXPECT_TRUE(std::isinf(r.smallest_passing_tolerance));
  // Narrower integers of the same values are the same ids.
  const Dump narrow = write_dump(f / "n", {{ids, {2, 2}, {3, 1, 0, 2}, DType::i32}, {q, {2, 3}, wave(6)}});
  EXPECT_EQ(compare(base, narrow, at(Level::max_rel, 1e-6)).exit_code(), 0);
}

TEST(Compare, ATensorWithoutToleranceFails) {
  Folder f;
  const Dump base = write_case(f / "c", {{"prompt0/prefill/0/embed", {1, 4}, wave(4)}, {"prompt0/prefill/0/odd_phase", {1, 4}, wave(4)}},
                               {{"embed", 0}}, {{"case", "x"}});
  const Dump target = write_dump(f / "t", {{"prompt0/prefill/0/embed", {1, 4}, wave(4)}, {"prompt0/prefill/0/odd_phase", {1, 4}, wave(4)}});
  CompareOptions o = at(Level::max_rel);
  o.tolerance.noise_factor = 4;
  CompareResult r = compare(base, target, o);
  EXPECT_EQ(record_of(r, "prompt0/prefill/0/embed").status, Status::pass) << "its floor is 0: equal values are asked for";
  EXPECT_EQ(record_of(r, "prompt0/prefill/0/odd_phase").kind, "no_tolerance");
  EXPECT_EQ(r.exit_code(), 1);
  o.tolerance.by_phase["odd_phase"] = 1e-3;
  EXPECT_EQ(compare(base, target, o).exit_code(), 0);
}

TEST(Compare, FirstDivergenceIsTheMostUpstreamNode) {
  // prompt0 has only its logits captured and comes first; prompt1 is captured whole, and its layer 3 is where it begins.
  Folder f;
  auto dump = [&](const char* dir, double fault) {
    return write_dump(f / dir, {{"prompt0/prefill/0/logits_last", {1, 8}, plus(wave(8), 3, fault)},
                                {"prompt0/decode/0/logits", {1, 8}, plus(wave(8), 3, fault)},
                                {"prompt0/ids", {5}, {1, 2, 3, 4, 5}, DType::i64},
                                {"prompt1/prefill/0/layer.2/q_rope", {5, 8}, wave(40)},
                                {"prompt1/prefill/0/layer.3/q_rope", {5, 8}, plus(plus(wave(40), 4 * 8 + 6, fault), 2 * 8 + 5, fault / 4)},
                                {"prompt1/prefill/0/layer.3/attn_context", {5, 8}, plus(wave(40), 1, fault)},
                                {"prompt1/prefill/0/logits_last", {1, 8}, plus(wave(8), 3, fault)},
                                {"prompt1/ids", {5}, {9, 2, 3, 4, 5}, DType::i64}});
  };
  const Dump base = dump("b", 0), target = dump("t", 0.25);
  const CompareResult r = compare(base, target, at(Level::max_rel, 1e-3));
  ASSERT_TRUE(r.divergence);
  EXPECT_EQ(r.divergence->name, "prompt1/prefill/0/layer.3/q_rope");
  EXPECT_EQ(r.divergence->row, 2) << "the first row over the tolerance, not the worst";
  EXPECT_EQ(r.divergence->position, 2);
  EXPECT_EQ(r.divergence->column, 5);
  EXPECT_EQ(record_of(r, "prompt1/prefill/0/layer.3/q_rope").metrics->max_abs_at.row, 4);
  for (const char* part : {"prompt1", "step prefill/0", "layer 3", "phase q_rope", "row 2 (position 2), column 5", "base ", "target "}) {
    EXPECT_NE(r.first_divergence->find(part), std::string::npos) << part << " in " << *r.first_divergence;
  }
  // A decode step's row is at the position behind the prompt.
  const CompareResult one = compare(base, target, [&] {
    CompareOptions o = at(Level::max_rel, 1e-3);
    o.only = {"logits"};
    return o;
  }());
  EXPECT_TRUE(one.partial);
  EXPECT_EQ(one.divergence->name, "prompt0/decode/0/logits");
  EXPECT_EQ(one.divergence->position, 5);
}

TEST(Compare, UntilComparesUpToAndIncludingTheNode) {
  Folder f;
  auto dump = [&](const char* dir, double fault) {
    return write_dump(f / dir, {{"prompt0/prefill/0/embed", {1, 8}, wave(8)},
                                {"prompt0/prefill/0/layer.0/q_rope", {1, 8}, wave(8)},
                                {"prompt0/prefill/0/layer.1/q_rope", {1, 8}, plus(wave(8), 0, fault)}});
  };
  const Dump base = dump("b", 0), target = dump("t", 1);
  CompareOptions o = at(Level::max_rel, 1e-6);
  o.until = "layer.0/q_rope";
  CompareResult r = compare(base, target, o);
  EXPECT_EQ(r.compared, 2);
  EXPECT_TRUE(r.partial);
  EXPECT_EQ(r.exit_code(), 0);
  EXPECT_NE(render_text(to_records(r, base, target), false, false).find("PASS max_rel (partial)"), std::string::npos);
  o.until = "prompt0/prefill/0/layer.1/q_rope";
  EXPECT_EQ(compare(base, target, o).exit_code(), 1);
  o.until = "layer.7/q_rope";
  EXPECT_THROW(compare(base, target, o), Error);
  o.until.reset();
  o.only = {"*/layer.0/*", "embed"};
  EXPECT_EQ(compare(base, target, o).compared, 2);
  o.only = {"*/prefill/*"};
  EXPECT_EQ(compare(base, target, o).exit_code(), 1);
  o.only = {"*/layer.7/*"};
  EXPECT_THROW(compare(base, target, o), Error) << "a glob that takes nothing";
  o.only = {"q_ropes"};
  EXPECT_THROW(compare(base, target, o), Error);
}

TEST(Compare, MissingExtraPartialAndNotMaterialised) {
  Folder f;
  const Values a{"prompt0/prefill/0/embed", {1, 8}, wave(8)}, b{"prompt0/prefill/0/layer.0/gate_proj", {1, 8}, wave(8)};
  DumpOptions fused, part;
  fused.not_materialised = {b.name};
  part.partial = true;
  const Dump full = write_dump(f / "full", {a, b}), without = write_dump(f / "fused", {a}, fused);
  CompareResult r = compare(full, without, at(Level::byte_exact));
  EXPECT_EQ(r.exit_code(), 0);
  EXPECT_EQ(r.skipped, 1);
  EXPECT_EQ(r.missing, 0);
  r = compare(without, full, at(Level::byte_exact));
  EXPECT_EQ(r.exit_code(), 0) << "nor is it extra the other way round";
  EXPECT_EQ(r.extra, 0);
  const Dump partial = write_dump(f / "part", {a}, part);
  EXPECT_EQ(compare(partial, full, at(Level::byte_exact)).exit_code(), 0);
  EXPECT_EQ(compare(full, partial, at(Level::byte_exact)).exit_code(), 1) << "a partial target lacks what is wanted";
}

TEST(Compare, LogitsAnswerForLogitsLast) {
  Folder f;
  const Doubles rows = wave(24), last(rows.begin() + 16, rows.end());
  const Values all{"prompt0/prefill/0/logits", {3, 8}, rows}, one{"prompt0/prefill/0/logits_last", {1, 8}, last};
  DumpOptions part;
  part.partial = true;
  const Dump base = write_dump(f / "b", {one}, part), target = write_dump(f / "t", {all});
  CompareResult r = compare(base, target, at(Level::byte_exact));
  EXPECT_EQ(r.exit_code(), 0);
  EXPECT_EQ(r.records[0].answered_by, "prompt0/prefill/0/logits");
  Values wrong = all;
  wrong.x[23] += 1;
  r = compare(base, write_dump(f / "w", {wrong}), at(Level::max_rel, 1e-3));
  EXPECT_EQ(r.exit_code(), 1);
  EXPECT_EQ(r.records[0].metrics->max_abs_at.column, 7);
  EXPECT_EQ(compare(write_dump(f / "a", {all}, part), write_dump(f / "o", {one}), at(Level::max_rel, 1e-3)).missing, 1)
      << "one row does not answer for three";
}

TEST(Compare, TopIdsOfAGoldenAreReportedNotRequired) {
  Folder f;
  const Dump base = write_case(f / "c",
                               {{"prompt0/prefill/0/logits_last", {1, 6}, {0, 5, 4, 3, 2, 1}, DType::f64},
                                {"prompt0/prefill/0/logits_top_ids", {2, 3}, {5, 4, 3, 1, 2, 3}, DType::i64},
                                {"prompt0/prefill/0/logits_top_values", {2, 3}, {9, 8, 7, 5, 4, 3}, DType::f64}},
                               {{"logits_last", 1e-6}}, {{"case", "x"}});
  // Row 0: ids 5 and 4 tie, the lower comes first. Row 1 as the golden.
  const Dump target = write_dump(f / "t", {{"prompt0/prefill/0/logits", {2, 6}, {0, 0, 0, 7, 9, 9, 0, 5, 4, 3, 2, 1}}});
  const CompareResult r = compare(base, target, at(Level::max_rel, 1e-6));
  EXPECT_EQ(r.exit_code(), 0);
  ASSERT_EQ(r.topk.size(), 1u);
  EXPECT_EQ(r.topk[0].rows, 2);
  EXPECT_EQ(r.topk[0].top1, 1);
  EXPECT_EQ(r.topk[0].order, 1);
  EXPECT_EQ(r.topk[0].common, 6);
  EXPECT_EQ(r.topk[0].values_max_abs, 1);
}

TEST(Compare, StatisticsThatContradictTheValuesLoseAndAreNamed) {
  // A manifest that claims a larger maximum would widen the scale of quiet rows.
  Folder f;
  Doubles x(32, 0.0), y;
  x[0] = 1;
  x[16] = 1e-3;
  y = x;
  y[16] = 1.5e-3;
  const Values a{"prompt0/prefill/0/embed", {2, 16}, x};
  Values b = a;
  b.x = y;
  write_dump(f / "b", {a});
  std::ifstream in(f / "b/manifest.json");
  nlohmann::ordered_json m = nlohmann::ordered_json::parse(in);
  m["tensors"][0]["max"] = 1000.0;
  in.close();
  std::ofstream(f / "b/manifest.json") << m.dump();
  const Dump base = Dump::open(f / "b"), target = write_dump(f / "t", {b});
  const CompareResult r = compare(base, target, at(Level::max_rel, 1e-3));
  EXPECT_LT(0.5e-3 / (0.1 * 1000), 1e-3) << "the claimed scale would pass it";
  EXPECT_EQ(r.exit_code(), 1);
  EXPECT_NEAR(r.records[0].metrics->max_rel, 0.5e-3 / 0.1, 1e-9);
  ASSERT_EQ(r.warnings.size(), 1u);
  EXPECT_NE(r.warnings[0].find("prompt0/prefill/0/embed"), std::string::npos);
}

TEST(Compare, SettingsThatDifferAreSaid) {
  Folder f;
  const Values a{"prompt0/prefill/0/embed", {1, 2}, {0.5, 1.5}};
  DumpOptions base, target;
  base.manifest["options"] = {{"activations", "f32"}, {"kv", "f16"}, {"chunk", 0}};
  target.manifest["options"] = {{"activations", "s16"}, {"kv", "f16"}, {"chunk", 3}};
  const CompareResult r = compare(write_dump(f / "b", {a}, base), write_dump(f / "t", {a}, target), at(Level::byte_exact, 0));
  EXPECT_EQ(r.exit_code(), 0);
  ASSERT_EQ(r.warnings.size(), 1u) << "a chunk size changes no bit";
  EXPECT_NE(r.warnings[0].find("activations is \"f32\" in the base, \"s16\" in the target"), std::string::npos) << r.warnings[0];
}

TEST(Compare, TheOutcomeDoesNotDependOnThreads) {
  Folder f;
  const int64_t rows = 700, columns = 3000;  // several pieces of 4 MiB
  Doubles x = wave(rows * columns), y = x;
  for (size_t i = 0; i < y.size(); i += 7) y[i] *= 1 + 1e-6 * std::sin(double(i));
  const Dump base = write_dump(f / "b", {{"prompt0/prefill/0/embed", {rows, columns}, x}, {"prompt0/prefill/0/final_norm", {3, 5}, wave(15)}});
  const Dump target = write_dump(f / "t", {{"prompt0/prefill/0/embed", {rows, columns}, y}, {"prompt0/prefill/0/final_norm", {3, 5}, wave(15)}});
  std::string first;
  for (int threads : {1, 2, 7}) {
    CompareOptions o = at(Level::max_rel, 1e-7);
    o.threads = threads;
    int64_t done = 0, calls = 0;
    o.progress = [&](int64_t d, int64_t total) {
      EXPECT_GT(d, done);
      EXPECT_LE(d, total);
      done = d;
      calls++;
    };
    const CompareResult r = compare(base, target, o);
    EXPECT_EQ(done, 2 * 4 * (rows * columns + 15));
    EXPECT_GT(calls, 2);
    std::string text;
    for (const auto& j : to_records(r, base, target)) text += j.dump() + "\n";
    if (first.empty()) first = text;
    EXPECT_EQ(text, first) << threads;
  }
}

TEST(Compare, RecordsAndTextSayTheSame) {
  Folder f;
  const Values a{"prompt0/prefill/0/layer.3/q_rope", {5, 32}, wave(160)};
  Values b = a;
  b.x[4 * 32 + 17] += 0.5;
  const Dump base = write_dump(f / "b", {a, {"prompt0/ids", {5}, {1, 2, 3, 4, 5}, DType::i64}});
  const Dump target = write_dump(f / "t t", {b, {"prompt0/ids", {5}, {1, 2, 3, 4, 5}, DType::i64}});
  const CompareResult r = compare(base, target, at(Level::max_rel, 1e-4));
  auto records = to_records(r, base, target);
  ASSERT_EQ(records.front()["record"], "compare");
  ASSERT_EQ(records.back()["record"], "summary");
  EXPECT_EQ(records.back()["exit_code"], 1);
  EXPECT_EQ(records.back()["first_divergence"]["layer"], "layer.3");
  const std::string text = render_text(records, false, false);
  EXPECT_EQ(text.find("FAIL max_rel: first at prompt0, step prefill/0, layer 3, phase q_rope, row 4 (position 4), column 17: base "), 0u) << text;
  EXPECT_EQ(text.find('\033'), std::string::npos) << "no colour unless asked for";
  EXPECT_NE(render_text(records, true, false).find("\033[31mFAIL"), std::string::npos);
  EXPECT_NE(text.find("assay bisect "), std::string::npos) << text;
  EXPECT_NE(text.find("t t'"), std::string::npos) << "a path with a blank is quoted for the shell";
  // Through JSON text and back: the rendering needs nothing else.
  for (auto& j : records) j = nlohmann::ordered_json::parse(j.dump());
  EXPECT_EQ(render_text(records, false, false), text);
}

TEST(Compare, CachesOfOneTypeMayRoundToNeighbours) {
  Folder f;
  const auto dump = [&](const char* name, DType cache, double x, double context) {
    return write_dump(f / name, {{"prompt0/prefill/0/embed", {1, 2}, {1, x == 1 ? 1 : 1.0005}},
                                 {"prompt0/prefill/0/layer.0/attn_context", {1, 2}, {1, context}},
                                 {"prompt0/state/after_prefill/layer.0/k", {1, 1, 2}, {1, x}, cache}});
  };
  CompareOptions o;
  o.tolerance = presets().at("s16");
  o.threads = 1;
  // One ULP of bf16 between the caches; what is computed from them moves with it.
  const Dump base = dump("b", DType::bf16, 1, 0.5), target = dump("t", DType::bf16, 1.0078125, 0.51);
  EXPECT_EQ(compare(base, target, o).exit_code(), 0);
  EXPECT_DOUBLE_EQ(record_of(compare(base, target, o), "prompt0/state/after_prefill/layer.0/k").tolerance, 1e-3 + 0x1p-7);
  EXPECT_DOUBLE_EQ(record_of(compare(base, target, o), "prompt0/prefill/0/layer.0/attn_context").tolerance, 1e-3 + 2 * 0x1p-7);
  EXPECT_DOUBLE_EQ(record_of(compare(base, target, o), "prompt0/prefill/0/embed").tolerance, 1e-3) << "before any cache";
  EXPECT_EQ(compare(base, dump("two", DType::bf16, 1.015625, 0.5), o).exit_code(), 1) << "two ULPs are no rounding";
  // float32 caches, or types that differ, round to no neighbours.
  const Dump wide = dump("w", DType::f32, 1, 0.5);
  EXPECT_EQ(compare(wide, dump("w2", DType::f32, 1.0078125, 0.5), o).exit_code(), 1);
  EXPECT_EQ(compare(wide, target, o).exit_code(), 1);
}

TEST(Compare, WhatIsMissingNamesTheOptionThatCapturesIt) {
  Folder f;
  const Values embed{"prompt0/prefill/0/embed", {1, 4}, wave(4)}, step{"prompt0/decode/1/embed", {1, 4}, wave(4)};
  const Values k{"prompt0/state/after_prefill/layer.0/k", {1, 1, 4}, wave(4)}, v{"prompt0/state/after_prefill/layer.0/v", {1, 1, 4}, wave(4)};
  const Dump all = write_dump(f / "all", {embed, step, k, v}), plain = write_dump(f / "plain", {embed}), half = write_dump(f / "half", {embed, step, k});
  CompareResult r = compare(all, plain, at(Level::max_rel, 1));
  EXPECT_NE(record_of(r, k.name).reason.find("--state"), std::string::npos);
  EXPECT_NE(record_of(r, step.name).reason.find("--decode 2"), std::string::npos);
  EXPECT_NE(record_of(compare(plain, all, at(Level::max_rel, 1)), k.name).reason.find("--state"), std::string::npos);
  EXPECT_EQ(record_of(compare(all, half, at(Level::max_rel, 1)), v.name).reason, "missing on the target") << "caches were asked for";
}

TEST(Compare, TheTextCountsWhatHashesDecidedAndBeginsAtTheDivergence) {
  Folder f;
  std::vector<Values> b, t;
  for (int layer = 0; layer < 3; layer++) b.push_back({"prompt0/prefill/0/layer." + std::to_string(layer) + "/q_proj", {2, 4}, wave(8, layer)});
  t = b;
  t[2].x[1] += 0.5;
  const Dump base = write_dump(f / "b", b), target = write_dump(f / "t", t);
  const std::string text = render_text(to_records(compare(base, target, at(Level::byte_exact)), base, target), false, false);
  EXPECT_NE(text.find("95.8%"), std::string::npos) << "23 of 24, two tensors by hash\n" << text;
  // A prompt with late phases alone comes first by name; the divergence is upstream of it, and leads.
  std::vector<Values> two = {{"prompt0/prefill/0/logits", {1, 4}, wave(4)}, {"prompt1/prefill/0/layer.0/q_proj", {1, 4}, wave(4)}};
  std::vector<Values> wrong = two;
  wrong[0].x[0] += 1;
  wrong[1].x[0] += 1;
  const Dump base2 = write_dump(f / "b2", two), target2 = write_dump(f / "t2", wrong);
  const std::string order = render_text(to_records(compare(base2, target2, at(Level::max_rel, 1e-6)), base2, target2), false, false);
  EXPECT_LT(order.find("fail  prompt1/prefill/0/layer.0/q_proj"), order.find("fail  prompt0/prefill/0/logits")) << order;
}

}  // namespace
}  // namespace assay
