// The registry's rules: what counts as passed, and what never does.
#include "conformance/check.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "dumps/error.h"
#include "dumps/schema_for_tests.h"

namespace assay {
namespace {

CheckContext context() {
  CheckContext c;
  c.root = ASSAY_SOURCE_DIR;
  c.work = std::filesystem::temp_directory_path() / ("assay-check-test-" + std::to_string(getpid()));
  return c;
}

Check check(int64_t expected, std::function<CheckOutcome(const CheckContext&)> run) {
  Check k;
  k.id = "test/check";
  k.family = "-";
  k.expected = expected;
  k.run = std::move(run);
  return k;
}

CheckOutcome compared(int64_t n) {
  CheckOutcome o;
  o.compared = n;
  return o;
}

TEST(Checks, ARunThatComparedTooLittleHasFailed) {   // C10
  const Check enough = check(3, [](auto&) { return compared(3); }), few = check(3, [](auto&) { return compared(2); });
  EXPECT_EQ(run_check(enough, context()).exit_code, kPass);
  const CheckResult r = run_check(few, context());
  EXPECT_EQ(r.exit_code, kMismatch);
  EXPECT_NE(r.outcome.failures.at(0).find("compared 2, expected at least 3"), std::string::npos);
}

TEST(Checks, AComparisonOfNothingIsAFailureWhateverItFound) {
  CompareResult empty{};
  CheckOutcome o;
  o.add(empty, "empty");
  EXPECT_GT(o.failed, 0);
}

TEST(Checks, NotRunIsNeverPassed) {
  const Check k = check(1, [](auto&) {
    CheckOutcome o;
    o.not_run = "no device";
    return o;
  });
  const CheckResult r = run_check(k, context());
  EXPECT_EQ(r.exit_code, kNotRun);
  const std::string text = render_checks_text({to_json(r)}, false);
  EXPECT_NE(text.find("not a pass"), std::string::npos) << text;
  EXPECT_EQ(text.find("PASS"), std::string::npos) << text;
  EXPECT_NE(render_junit({to_json(r)}).find("<skipped"), std::string::npos);
}

TEST(Checks, AnErrorIsAnErrorAndKeepsItsExitCode) {
  const Check bad = check(1, [](auto&) -> CheckOutcome { throw Error(ErrorKind::malformed, "file", "is broken"); });
  const Check full = check(1, [](auto&) -> CheckOutcome { throw Error(ErrorKind::io, "disk", "is full"); });
  const Check odd = check(1, [](auto&) -> CheckOutcome { throw std::runtime_error("<odd> & \x01"); });
  EXPECT_EQ(run_check(bad, context()).exit_code, kUsage);
  EXPECT_EQ(run_check(full, context()).exit_code, kUnfinished);
  const CheckResult r = run_check(odd, context());
  EXPECT_EQ(r.exit_code, kUnfinished);
  EXPECT_NE(render_junit({to_json(r)}).find("&lt;odd&gt; &amp; "), std::string::npos);
  EXPECT_EQ(render_junit({to_json(r)}).find('\x01'), std::string::npos);
}

TEST(Checks, ExitCodesCombineByPrecedence) {
  auto with = [](std::vector<int> codes) {
    std::vector<nlohmann::ordered_json> all;
    for (int c : codes) all.push_back({{"exit_code", c}});
    return combined_exit_code(all);
  };
  EXPECT_EQ(with({0, 0}), 0);
  EXPECT_EQ(with({0, 77}), 77);
  EXPECT_EQ(with({77, 1, 0}), 1);
  EXPECT_EQ(with({1, 3, 77}), 3);
  EXPECT_EQ(with({3, 2, 1}), 2);
  EXPECT_EQ(with({}), 2);
}

TEST(Checks, RecordsFitTheirSchema) {
  const Schema s = Schema::read(std::string(ASSAY_SOURCE_DIR) + "/conformance/schemas/check.schema.json");
  for (const Check& c : registry()) EXPECT_EQ(s.check(to_json(c)), "") << c.id;
  for (const Check& k : {check(1, [](auto&) { return compared(1); }), check(2, [](auto&) { return compared(1); })})
    EXPECT_EQ(s.check(to_json(run_check(k, context()))), "");
  nlohmann::ordered_json bad = to_json(registry().front());
  bad["kind"] = "vibes";
  EXPECT_NE(s.check(bad), "");
}

TEST(Checks, EveryCheckSaysWhatItComparesAndHowMuch) {
  EXPECT_GT(registry().size(), 50u);
  for (const Check& c : registry()) {
    EXPECT_FALSE(c.baseline.empty()) << c.id;
    EXPECT_FALSE(c.target.empty()) << c.id;
    EXPECT_GE(c.expected, 1) << c.id;
    EXPECT_EQ(c.kind == CheckKind::value, c.scope != Scope::none) << c.id << ": value checks have a scope, others none";
  }
}

}  // namespace
}  // namespace assay
