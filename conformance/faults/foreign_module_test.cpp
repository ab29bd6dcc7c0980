// A module that answers a call wrongly, where the engine could go on with nothing: each has to be an error that names the call.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "conformance/apart.h"
#include "conformance/faults/device_probe.h"
#include "dumps/error.h"
#include "engine/formats/loader.h"

namespace assay::device_faults {
namespace {

std::shared_ptr<const Model> model() {
  static auto const model = std::make_shared<Model>(load_model(std::string(ASSAY_SOURCE_DIR) + "/goldens/official/" + kCase + "/model"));
  return model;
}

/// Prefill and two decode passes on the emulation with a table as `alter` makes it: the error's words.
std::string error_with(AlterTable alter, bool required = true) {
  const PlantedModule planted(built_module("simt"), "foreign-module-test", alter);
  EngineOptions o;
  o.threads = 1;
  o.context = 16;
  o.device.module = "foreign-module-test";
  o.device.required = required;
  try {
    Engine engine(model(), o);
    Batch b;
    b.pass = Pass::prefill;
    b.ids = {1, 2, 3};
    b.segments = {{0, 0, 3, 0, 0}};
    b.logit_rows = {2};
    engine.forward(b);
    for (int64_t position : {3, 4}) {
      b.pass = Pass::decode;
      b.ids = {4};
      b.segments = {{0, position, 1, 0, 0}};
      b.logit_rows = {0};
      engine.forward(b);
    }
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(ForeignModule, OnlyOpsMayBeRefused) {
  EXPECT_EQ(error_with([](AssayModule&) {}), "no error");
  const std::pair<const char*, AlterTable> calls[] = {
      {"refuses info", [](AssayModule& t) { t.info = [](AssayDevice*, AssayDeviceInfo*) { return int(ASSAY_REFUSED); }; }},
      {"refuses to allocate", [](AssayModule& t) { t.allocate = [](AssayDevice*, uint64_t, void**) { return int(ASSAY_REFUSED); }; }},
      {"refuses to allocate", [](AssayModule& t) { t.allocate_host = [](AssayDevice*, uint64_t, void**) { return int(ASSAY_REFUSED); }; }},
      {"refuses upload", [](AssayModule& t) { t.upload = [](AssayDevice*, void*, const void*, uint64_t) { return int(ASSAY_REFUSED); }; }},
      {"refuses download", [](AssayModule& t) { t.download = [](AssayDevice*, void*, const void*, uint64_t) { return int(ASSAY_REFUSED); }; }},
      {"refuses fill", [](AssayModule& t) { t.fill = [](AssayDevice*, void*, int32_t, uint64_t) { return int(ASSAY_REFUSED); }; }},
      {"refuses finish", [](AssayModule& t) { t.finish = [](AssayDevice*) { return int(ASSAY_REFUSED); }; }},
      {"refuses scratch", [](AssayModule& t) { t.reserve = [](AssayDevice*, const AssayLimits*) { return int(ASSAY_REFUSED); }; }},
      {"refuses capture", [](AssayModule& t) { t.capture_begin = [](AssayDevice*) { return int(ASSAY_REFUSED); }; }},
      {"refuses capture", [](AssayModule& t) {
         t.capture_end = [](AssayDevice* d, void** graph) {
           kept.real->capture_end(d, graph);
           return int(ASSAY_REFUSED);
         };
       }},
      {"refuses replay", [](AssayModule& t) { t.replay = [](AssayDevice*, void*) { return int(ASSAY_REFUSED); }; }},
  };
  for (const auto& [says, alter] : calls) {
    const std::string words = error_with(alter);
    EXPECT_NE(words.find(says), std::string::npos) << says << ": " << words;
  }
}

TEST(ForeignModule, NothingInHandIsNoSuccess) {
  EXPECT_NE(error_with([](AssayModule& t) {
              t.allocate = [](AssayDevice*, uint64_t, void** at) {
                *at = nullptr;
                return int(ASSAY_DONE);
              };
            }).find("does not fit the device"), std::string::npos);
  EXPECT_NE(error_with([](AssayModule& t) {
              t.allocate_host = [](AssayDevice*, uint64_t, void** at) {
                *at = nullptr;
                return int(ASSAY_DONE);
              };
            }).find("does not fit the device"), std::string::npos);
  EXPECT_NE(error_with([](AssayModule& t) {
              t.capture_end = [](AssayDevice* d, void** graph) {
                const int result = kept.real->capture_end(d, graph);
                if (*graph) kept.real->release_graph(d, *graph);
                *graph = nullptr;
                return result;
              };
            }).find("gives no graph"), std::string::npos);
}

TEST(ForeignModule, TheCpuTakesOverOnlyWhereNoModuleWasNamed) {
  const AlterTable without_device = [](AssayModule& t) {
    t.open = [](int32_t, AssayDevice**) { return int(ASSAY_ERROR); };
    t.error = [](const AssayDevice*) { return "no device for this test"; };
  };
  EXPECT_EQ(error_with(without_device, false), "no error");
  EXPECT_NE(error_with(without_device, true).find("no device for this test"), std::string::npos);
}

TEST(ForeignModule, AWriteBehindTheOutputIsFoundWhateverTheValues) {
  const PlantedModule planted(built_module("simt"), "foreign-module-test", [](AssayModule& t) {
    t.silu_mul = [](AssayDevice* d, const AssayBinary* a) {
      const int result = kept.real->silu_mul(d, a);
      if (result == ASSAY_DONE && a->rows == 1 && a->columns == 257) kept.real->fill(d, a->y + 257, 0, 1);
      return result;
    };
  });
  const auto& checks = stranger_checks();
  const auto check = std::find_if(checks.begin(), checks.end(), [](const Check& c) { return c.id == "kernel/silu_mul/module"; });
  ASSERT_NE(check, checks.end());
  CheckContext context;
  context.work = std::filesystem::temp_directory_path() / "assay-foreign-module";
  context.module = "foreign-module-test";
  const CheckResult r = run_check(*check, context);
  EXPECT_EQ(r.verdict, Verdict::fail);
  ASSERT_FALSE(r.outcome.failures.empty());
  EXPECT_NE(r.outcome.failures[0].find("silu_mul writes behind the end of its memory: byte 0 behind 1028 bytes"), std::string::npos)
      << r.outcome.failures[0];
  std::filesystem::remove_all(context.work);
}

TEST(ForeignModule, WhatEndsTheProcessOrHangsCostsOneCheck) {
  Check check;
  check.id = "kernel/theirs/module";
  CheckContext context;
  context.work = std::filesystem::temp_directory_path() / "assay-foreign-module";
  context.module = "theirs.so";
  const auto failure_of = [&](std::function<void()> what, double limit) {
    check.run = [what](const CheckContext&) {
      what();
      CheckOutcome o;
      o.compared = 1;
      return o;
    };
    const nlohmann::ordered_json r = run_check_apart(check, context, limit);
    if (r["verdict"] == "pass") return std::string("pass");
    EXPECT_EQ(r["exit_code"], int(kUnfinished));
    return r["failures"].at(0).get<std::string>();
  };
  EXPECT_EQ(failure_of([] {}, 600), "pass");
  EXPECT_NE(failure_of([] { raise(SIGKILL); }, 600).find("theirs.so was ended by signal 9"), std::string::npos);
  EXPECT_NE(failure_of([] { _exit(0); }, 600).find("theirs.so ended itself with exit code 0"), std::string::npos);
  EXPECT_NE(failure_of([] { while (true) pause(); }, 0.2).find("theirs.so had no verdict after 0.2 s"), std::string::npos);
  std::filesystem::remove_all(context.work);
}

}  // namespace
}  // namespace assay::device_faults
