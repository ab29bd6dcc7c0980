// Files and options: what a dump says of itself, and what a loader refuses.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "conformance/artifact/options_echo.h"
#include "conformance/integration/cases.h"
#include "dumps/error.h"
#include "engine/formats/convert.h"

namespace assay {

std::vector<std::string> missing_echoes(const nlohmann::ordered_json& manifest) {
  static const char* const kRequired[] = {
      "/engine/name", "/engine/version", "/engine/source_hash", "/engine/numerics", "/device/backend", "/device/isa", "/device/threads",
      "/model/hash", "/model/family", "/model/quantisation", "/model/tokenizer_hash", "/options/activations", "/options/kv", "/options/context",
      "/options/chunk", "/options/batch", "/options/slot", "/options/rms_eps", "/options/rope/theta", "/options/rope/rotary", "/options/rope/type",
      "/options/tied", "/options/attention_scale_head_dim", "/prompts", "/trace/nodes_by_variant"};
  std::vector<std::string> missing;
  for (const char* path : kRequired)
    if (!manifest.contains(nlohmann::ordered_json::json_pointer(path))) missing.push_back(path);
  return missing;
}

namespace {

/// B13: whatever can change a bit is echoed; a hidden option is a failure. The check drops each echo once and must notice.
CheckOutcome options_echoed(const CheckContext& c) {
  CheckOutcome out;
  const OfficialCase& oc = official_cases().front();
  DumpSpec spec = case_spec(c, oc, false);
  spec.requests.resize(1);
  spec.mode = CaptureMode::hash;
  spec.out = c.work / "dump";
  run_dump(shared_model(case_dir(c, oc) / "model"), spec);
  const nlohmann::ordered_json manifest = Dump::open(spec.out).manifest();
  for (const std::string& m : missing_echoes(manifest)) out.fail("not echoed: " + m);
  out.compared++;
  for (auto block = manifest.at("options").begin(); block != manifest.at("options").end(); ++block) {
    if (block.key() == "slots") continue;   // how many were allotted moves no bit
    nlohmann::ordered_json hidden = manifest;
    hidden.at("options").erase(block.key());
    out.compared++;
    if (missing_echoes(hidden).empty()) out.fail("a hidden option " + block.key() + " is not noticed");
  }
  return out;
}

/// One folder as Hugging Face and as GGUF: equal dumps, so that a format is only a format.
CheckOutcome gguf_equals_hf(const CheckContext& c, const OfficialCase& oc) {
  CheckOutcome out;
  const std::filesystem::path folder = case_dir(c, oc) / "model", gguf = c.work / "model.gguf";
  DumpSpec spec = case_spec(c, oc, false);
  spec.mode = CaptureMode::hash;
  spec.out = c.work / "hf";
  run_dump(std::make_shared<Model>(load_model(folder)), spec);
  for (WeightType type : {WeightType::f32, WeightType::bf16}) {
    ConvertOptions convert;
    convert.type = type;
    convert.replace = true;
    convert_model(folder, gguf, convert);
    DumpSpec other = spec;
    other.out = c.work / std::string(name_of(type));
    run_dump(std::make_shared<Model>(load_model(gguf)), other);
    CompareOptions options;
    options.level = Level::byte_exact;
    out.add(compare(Dump::open(spec.out), Dump::open(other.out), options), std::string(name_of(type)));
  }
  return out;
}

}  // namespace

void add_artifact_checks(std::vector<Check>& out) {
  Check k;
  k.id = "artifact/options-echoed";
  k.kind = CheckKind::artifact;
  k.scope = Scope::none;
  k.family = "-";
  k.baseline = "every option that can change a bit";
  k.target = "a dump's manifest";
  k.expected = 8;
  k.run = options_echoed;
  out.push_back(std::move(k));
  for (const OfficialCase& oc : official_cases()) {
    if (!oc.gguf) continue;
    Check g;
    g.id = fmt::format("equivalence/{}/gguf", oc.name);
    g.level = Level::byte_exact;
    g.family = oc.family;
    g.cost = oc.trained ? Cost::slow : Cost::fast;   // 48 layers, three times
    g.baseline = "our dump of the Hugging Face folder";
    g.target = "our dump of the same weights as F32 and BF16 GGUF";
    g.expected = 2 * oc.tensors;
    g.run = [&oc](const CheckContext& c) { return gguf_equals_hf(c, oc); };
    out.push_back(std::move(g));
  }
}

}  // namespace assay
