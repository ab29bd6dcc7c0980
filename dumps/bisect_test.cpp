// The first divergent node of two dumps and what is said of it: from dumps alone, and with an engine that a test plays.
#include "dumps/bisect.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

#include "dumps/compare_test_dumps.h"
#include "dumps/error.h"
#include "dumps/schema_for_tests.h"

namespace assay {
namespace {

using namespace testing_dumps;

constexpr const char* kP = "prompt0/prefill/0/";

std::vector<double> with(std::vector<double> x, size_t i, double add) {
  x[i] += add;
  return x;
}

/// embed -> attn_norm -> q_proj -> q_rope of one layer; `bad` is altered from its third element on.
std::vector<Values> chain(const std::string& bad = "", double by = 0.5, bool lists = true) {
  std::vector<Values> out;
  std::string before;
  for (const char* phase : {"embed", "layer.0/attn_norm", "layer.0/q_proj", "layer.0/q_rope", "logits"}) {
    Values v{kP + std::string(phase), {2, 8}, wave(16, double(out.size()))};
    if (lists && !before.empty()) v.inputs = {before};
    if (phase == bad) v.x = with(v.x, 10, by);
    before = phase;
    out.push_back(std::move(v));
  }
  return out;
}

BisectResult run(const Dump& base, const Dump& target, Level level = Level::byte_exact, double tol = 0,
                 Replayer* r = nullptr) {
  BisectOptions o;
  o.compare = at(level, tol);
  const BisectResult out = bisect(base, target, o, r);
  const auto record = to_record(out, base, target);
  EXPECT_EQ(Schema::read(std::string(ASSAY_DUMPS_DIR) + "/schemas/record.schema.json").check(record), "");
  const std::string text = render_bisect_text(record, false);
  EXPECT_NE(text.find(out.text), std::string::npos);
  EXPECT_NE(text.find("next"), std::string::npos);
  EXPECT_EQ(out.exit_code(), out.verdict == "equal" ? 0 : 1);
  return out;
}

TEST(Bisect, NamesTheNodeWhoseInputsAgree) {
  Folder f;
  const BisectResult r = run(write_dump(f / "b", chain()), write_dump(f / "t", chain("layer.0/q_proj")));
  EXPECT_EQ(r.verdict, "node");
  EXPECT_EQ(r.name, kP + std::string("layer.0/q_proj"));
  EXPECT_NE(r.text.find("its kernel, its weights"), std::string::npos) << r.text;
  EXPECT_EQ(r.where.find("row 1 (position 1), column 2"), 0u) << r.where;
  ASSERT_EQ(r.inputs.size(), 1u);
  EXPECT_EQ(r.inputs[0].name, kP + std::string("layer.0/attn_norm"));
  EXPECT_EQ(r.inputs[0].status, "equal");
  ASSERT_EQ(r.trail.size(), 5u);  // two that agree, the suspect, two behind it
  EXPECT_EQ(r.trail[1].status, "equal");
  EXPECT_EQ(r.trail[2].status, "differs");
}

TEST(Bisect, EqualDumpsHaveNoSuspect) {
  Folder f;
  const BisectResult r = run(write_dump(f / "b", chain()), write_dump(f / "t", chain()));
  EXPECT_EQ(r.verdict, "equal");
  EXPECT_EQ(r.name, "");
}

TEST(Bisect, OtherInputListsAreWiring) {
  Folder f;
  std::vector<Values> other = chain("layer.0/q_proj");
  other[2].inputs = {"embed"};
  const BisectResult r = run(write_dump(f / "b", chain()), write_dump(f / "t", other));
  EXPECT_EQ(r.verdict, "wiring");
  EXPECT_NE(r.text.find("reads embed in the target, and layer.0/attn_norm in the base"), std::string::npos) << r.text;
}

TEST(Bisect, WithoutListsItSaysOnlyWhereTheyPart) {
  Folder f;
  const BisectResult r =
      run(write_dump(f / "b", chain("", 0, false)), write_dump(f / "t", chain("layer.0/q_proj", 0.5, false)));
  EXPECT_EQ(r.verdict, "first_divergence");
  EXPECT_NE(r.text.find("behind layer.0/attn_norm that agrees"), std::string::npos) << r.text;
}

TEST(Bisect, OneSidesListIsEnough) {
  Folder f;
  const BisectResult r = run(write_dump(f / "b", chain("", 0, false)), write_dump(f / "t", chain("layer.0/q_proj")));
  EXPECT_EQ(r.verdict, "node");
}

TEST(Bisect, AnInputThatWasNotDumpedWidensTheWindow) {
  Folder f;
  std::vector<Values> b = chain(), t = chain("layer.0/q_proj");
  b.erase(b.begin() + 1);
  t.erase(t.begin() + 1);
  const BisectResult r = run(write_dump(f / "b", b), write_dump(f / "t", t));
  EXPECT_EQ(r.verdict, "first_divergence");
  EXPECT_NE(r.text.find("its input layer.0/attn_norm was not dumped, so that the fault lies anywhere behind embed"),
            std::string::npos)
      << r.text;
}

TEST(Bisect, HashesAloneNameTheRow) {
  Folder f;
  DumpOptions hash;
  hash.mode = CaptureMode::hash;
  const BisectResult r = run(write_dump(f / "b", chain(), hash), write_dump(f / "t", chain("layer.0/q_proj"), hash));
  EXPECT_EQ(r.verdict, "node");
  EXPECT_EQ(r.compared.divergence->row, 1);
  // A tolerance can't be held against hashes; that they differ is said all the same.
  const BisectResult loose = run(Dump::open(f / "b"), Dump::open(f / "t"), Level::max_rel, 1e-3);
  EXPECT_EQ(loose.verdict, "node");
}

TEST(Bisect, NaNIsFoundWhereItBegins) {
  Folder f;
  const BisectResult r =
      run(write_dump(f / "b", chain()), write_dump(f / "t", chain("layer.0/attn_norm", kNaN)), Level::max_rel, 10);
  EXPECT_EQ(r.verdict, "node");
  EXPECT_EQ(r.name, kP + std::string("layer.0/attn_norm"));
  EXPECT_NE(r.where.find("target nan"), std::string::npos) << r.where;
}

TEST(Bisect, ToleranceLetsSmallErrorsPassAndSaysSo) {
  Folder f;
  std::vector<Values> t = chain("layer.0/q_proj");
  t[1].x = with(t[1].x, 3, 1e-6);
  const BisectResult r = run(write_dump(f / "b", chain()), write_dump(f / "t", t), Level::max_rel, 1e-3);
  EXPECT_EQ(r.verdict, "node");
  EXPECT_EQ(r.inputs[0].status, "within");
  EXPECT_NE(r.text.find("within their tolerances"), std::string::npos) << r.text;
}

TEST(Bisect, EmptyDumpsProveNothing) {
  Folder f;
  const BisectResult r = run(write_dump(f / "b", {}), write_dump(f / "t", {}));
  EXPECT_EQ(r.verdict, "nothing");
  EXPECT_EQ(r.exit_code(), 1);
}

TEST(Bisect, OtherPromptsAndMissingTensors) {
  Folder f;
  const auto with_ids = [](int64_t id) {
    std::vector<Values> v = chain();
    v.push_back({"prompt0/ids", {2}, {5, double(id)}, DType::i64});
    return v;
  };
  const auto prompts = [](int64_t id) {
    DumpOptions o;
    o.manifest["prompts"] = {{{"name", "prompt0"}, {"ids", {5, id}}}};
    return o;
  };
  const BisectResult r =
      run(write_dump(f / "b", with_ids(7), prompts(7)), write_dump(f / "t", with_ids(8), prompts(8)));
  EXPECT_EQ(r.verdict, "other_prompts") << r.text;
  std::vector<Values> part = chain();
  part.erase(part.begin() + 2);
  const BisectResult missing = run(write_dump(f / "whole", chain()), write_dump(f / "part", part));
  EXPECT_EQ(missing.verdict, "missing");
  EXPECT_EQ(missing.name, kP + std::string("layer.0/q_proj"));
  std::vector<Values> longer = chain();
  longer[2].shape = {1, 16};
  EXPECT_EQ(run(Dump::open(f / "whole"), write_dump(f / "shape", longer)).verdict, "shape");
}

/// Rows of k and v, the cache they go to, and attention over it.
std::vector<Values> attention(double cache = 0, double out = 0) {
  std::vector<Values> v = {{kP + std::string("layer.0/k_rope"), {2, 4}, wave(8)},
                           {kP + std::string("layer.0/v_proj"), {2, 4}, wave(8, 2)},
                           {kP + std::string("layer.0/attn_context"), {2, 4}, with(wave(8, 3), 5, out)},
                           {"prompt0/state/after_prefill/layer.0/k", {1, 2, 4}, with(wave(8), 6, cache)},
                           {"prompt0/state/after_prefill/layer.0/v", {1, 2, 4}, wave(8, 2)}};
  v[2].inputs = {"state:layer.0/k", "state:layer.0/v"};
  v[3].inputs = {"layer.0/k_rope"};
  v[4].inputs = {"layer.0/v_proj"};
  return v;
}

TEST(Bisect, ACacheThatDiffersFromItsRowsIsState) {
  Folder f;
  const Dump base = write_dump(f / "b", attention());
  const BisectResult read = run(base, write_dump(f / "t", attention(0.25, 0.5)));
  EXPECT_EQ(read.verdict, "state");
  EXPECT_EQ(read.name, kP + std::string("layer.0/attn_context"));
  EXPECT_NE(read.text.find("state:layer.0/k"), std::string::npos) << read.text;
  const BisectResult unread = run(base, write_dump(f / "u", attention(0.25, 0)));
  EXPECT_EQ(unread.verdict, "state");
  EXPECT_EQ(unread.name, "prompt0/state/after_prefill/layer.0/k");
  // Caches that were not dumped are judged by their rows.
  std::vector<Values> b = attention(), t = attention(0, 0.5);
  b.resize(3);
  t.resize(3);
  const BisectResult rows = run(write_dump(f / "br", b), write_dump(f / "tr", t));
  EXPECT_EQ(rows.verdict, "node");
  EXPECT_EQ(rows.inputs[0].status, "rows equal");
  EXPECT_NE(rows.text.find("or the cache it reads"), std::string::npos) << rows.text;
}

TEST(Bisect, ForeignNamesAreFollowedThroughTheirLists) {
  Folder f;
  const auto foreign = [](double by) {
    std::vector<Values> v = {{"run/blk0.norm", {2, 4}, wave(8)}, {"run/blk0.q", {2, 4}, with(wave(8, 1), 1, by)}};
    v[1].inputs = {"blk0.norm"};
    return v;
  };
  const BisectResult r = run(write_dump(f / "b", foreign(0)), write_dump(f / "t", foreign(1)));
  EXPECT_EQ(r.verdict, "node");
  EXPECT_EQ(r.name, "run/blk0.q");
}

TEST(Bisect, TenThousandTensors) {
  Folder f;
  const auto make = [&](const char* dir, int bad) {
    std::vector<Values> v;
    for (int layer = 0; layer < 250; layer++)
      for (int step = 0; step < 40; step++) {
        Values x{"prompt0/decode/" + std::to_string(step) + "/layer." + std::to_string(layer) + "/ffn_residual",
                 {1, 4},
                 wave(4, layer + step)};
        if (layer > 0) x.inputs = {"layer." + std::to_string(layer - 1) + "/ffn_residual"};
        if (layer >= bad && step == 17) x.x[2] += 1;
        x.order = layer + 1;
        v.push_back(std::move(x));
      }
    DumpOptions hash;
    hash.mode = CaptureMode::hash;
    return write_dump(f / dir, v, hash);
  };
  const Dump base = make("b", 1000), target = make("t", 123);
  EXPECT_EQ(base.tensors().size(), 10000u);
  const auto start = std::chrono::steady_clock::now();
  const BisectResult r = run(base, target);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  RecordProperty("seconds", std::to_string(seconds));
  std::printf("10,000 tensors a side: %.3f s\n", seconds);
  EXPECT_EQ(r.verdict, "node");
  EXPECT_EQ(r.name, "prompt0/decode/17/layer.123/ffn_residual");
}

/// An engine that answers as it is told.
struct Played : Replayer {
  bool own = true;
  std::string broken;
  std::vector<Operand> found;
  std::optional<Replay> of_base, of_target;
  std::optional<TwoSided> errors;
  std::string wired;
  std::string about() const override { return "played"; }
  bool can_rerun(Side) const override { return own; }
  std::optional<std::vector<std::string>> inputs(const std::string&) const override {
    return std::vector<std::string>{kP + std::string("layer.0/attn_norm")};
  }
  std::vector<Operand> operands(const std::string&) override { return found; }
  std::string not_reproducible(const std::string&) override { return broken; }
  std::optional<Replay> replay(const std::string&, Side s) override { return s == Side::base ? of_base : of_target; }
  std::optional<TwoSided> exact(const std::string&) override { return errors; }
  std::optional<Reproducer> reproduce(const std::string&, const std::filesystem::path&) override {
    return std::nullopt;
  }
  std::string find_wiring(const std::string&) override { return wired; }
};

Replay replay_of(const Values& want, const Values& got) {
  Replay r;
  r.variant = "played";
  r.rows = 2;
  r.columns = 8;
  r.expected = encode(want);
  for (double x : got.x) r.got.push_back(float(x));
  return r;
}

TEST(Bisect, ReplayTellsKernelFromInput) {
  Folder f;
  const Dump base = write_dump(f / "b", chain()), target = write_dump(f / "t", chain("layer.0/q_proj"));
  const Values good = chain()[2], bad = chain("layer.0/q_proj")[2];
  Played p;
  p.of_base = replay_of(good, bad);
  BisectResult r = run(base, target, Level::byte_exact, 0, &p);
  EXPECT_EQ(r.verdict, "kernel");
  EXPECT_NE(r.text.find("kernel confirmed: layer.0/q_proj (played)"), std::string::npos) << r.text;
  EXPECT_NE(r.text.find("row 1, column 2"), std::string::npos) << r.text;
  p.of_base = replay_of(good, good);
  r = run(base, target, Level::byte_exact, 0, &p);
  EXPECT_EQ(r.verdict, "input");
  EXPECT_NE(r.text.find("kernel clean"), std::string::npos) << r.text;
  // An operand that differs is the verdict, whatever the kernel does.
  Operand o;
  o.name = "layer.0/w.q";
  o.kind = "weight";
  o.equal = false;
  o.text = "bytes 4-7 of 256, first seen after prompt0/prefill/0/embed";
  p.found = {o};
  r = run(base, target, Level::byte_exact, 0, &p);
  EXPECT_EQ(r.verdict, "operand");
  EXPECT_EQ(r.text.find("operand corrupted: layer.0/w.q, bytes 4-7 of 256, first seen after prompt0/prefill/0/embed"),
            0u)
      << r.text;
  EXPECT_FALSE(r.replay);
  p.found.clear();
  p.of_base.reset();
  r = run(base, target, Level::byte_exact, 0, &p);
  EXPECT_EQ(r.verdict, "node") << "what the dumps say stands";
  EXPECT_EQ(r.notes.size(), 1u);
}

TEST(Bisect, StrangersAreJudgedOnTheirOwnInputs) {
  Folder f;
  const Dump base = write_dump(f / "b", chain()), target = write_dump(f / "t", chain("layer.0/q_proj"));
  const Values good = chain()[2], bad = chain("layer.0/q_proj")[2];
  Played p;
  p.own = false;
  p.of_target = replay_of(bad, good);  // wanted: the target's value; the reference gives another
  BisectResult r = run(base, target, Level::max_rel, 1e-3, &p);
  EXPECT_EQ(r.verdict, "kernel");
  p.wired = "reads embed where layer.0/attn_norm belongs";
  r = run(base, target, Level::max_rel, 1e-3, &p);
  EXPECT_EQ(r.verdict, "wiring");
  p.of_target = replay_of(bad, bad);
  r = run(base, target, Level::max_rel, 1e-3, &p);
  EXPECT_EQ(r.verdict, "input");
  p.errors = TwoSided{3e-7, 0.12, "float64"};
  r = run(base, target, Level::max_rel, 1e-3, &p);
  EXPECT_NE(r.text.find("base 3e-07, target 0.12: the target is wrong"), std::string::npos) << r.text;
  p.errors = TwoSided{0.12, 3e-7, "float64"};
  r = run(base, target, Level::max_rel, 1e-3, &p);
  EXPECT_NE(r.text.find("the base is wrong"), std::string::npos) << r.text;
}

TEST(Bisect, ARunThatDoesNotRepeatItselfIsSaid) {
  Folder f;
  const Dump base = write_dump(f / "b", chain()), target = write_dump(f / "t", chain("layer.0/q_proj"));
  Played p;
  p.broken = "its hash differs";
  const BisectResult r = run(base, target, Level::byte_exact, 0, &p);
  EXPECT_EQ(r.verdict, "not_reproducible");
  EXPECT_TRUE(r.operands.empty());
}

}  // namespace
}  // namespace assay
