// FAULTS E6: an epsilon of another family is invisible in bf16 values. What a dump says it used is held against
// config.json, which is read here once more and by other code than the engine's.
#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "conformance/artifact/options_echo.h"
#include "conformance/integration/cases.h"
#include "dumps/error.h"

namespace assay {

std::vector<std::string> echoes_unlike_config(const nlohmann::ordered_json& manifest,
                                              const std::filesystem::path& config_json) {
  std::ifstream in(config_json);
  if (!in) throw Error(ErrorKind::malformed, config_json.string(), "can't be read");
  nlohmann::json config = nlohmann::json::parse(in);
  if (config.contains("text_config")) config = nlohmann::json(config.at("text_config"));
  const nlohmann::json rope = config.value("rope_parameters", nlohmann::json::object());
  const auto& options = manifest.at("options");
  std::vector<std::string> out;
  const auto number = [&](const char* what, const nlohmann::ordered_json& echoed, double wanted) {
    // Epsilon is used, and echoed, as the f32 that is nearest to it.
    if (!echoed.is_number() || float(echoed.get<double>()) != float(wanted))
      out.push_back(fmt::format("{} {}, wanted {:.6g}", what,
                                echoed.is_number() ? fmt::format("{:.6g}", echoed.get<double>()) : echoed.dump(),
                                wanted));
  };
  number("rms_eps", options.at("rms_eps"), config.at("rms_norm_eps").get<double>());
  number("rope theta", options.at("rope").at("theta"),
         rope.contains("rope_theta") ? rope.at("rope_theta").get<double>() : config.at("rope_theta").get<double>());
  const double heads = config.at("num_attention_heads"), hidden = config.at("hidden_size");
  const bool has_dim = config.contains("head_dim") && config.at("head_dim").is_number();
  number("attention_scale_head_dim", options.at("attention_scale_head_dim"),
         has_dim ? config.at("head_dim").get<double>() : hidden / heads);
  if (options.at("tied") != config.value("tie_word_embeddings", true))
    out.push_back(
        fmt::format("tied {}, wanted {}", options.at("tied").dump(), config.value("tie_word_embeddings", true)));
  return out;
}

void add_config_echo_checks(std::vector<Check>& out) {
  for (const OfficialCase& oc : official_cases()) {
    Check k;
    k.id = fmt::format("artifact/{}/options-as-config", oc.name);
    k.kind = CheckKind::artifact;
    k.scope = Scope::none;
    k.family = oc.family;
    k.baseline = "the model's config.json";
    k.target = "epsilon, theta, head_dim and tying as a dump says they were used";
    k.expected = 4;
    k.run = [&oc](const CheckContext& c) {
      CheckOutcome o;
      DumpSpec spec = case_spec(c, oc, false);
      spec.requests.resize(1);
      spec.requests[0].decode = 0;
      spec.mode = CaptureMode::hash;
      spec.out = c.work / "dump";
      run_dump(shared_model(case_dir(c, oc) / "model"), spec);
      o.compared = 4;
      for (const std::string& line :
           echoes_unlike_config(Dump::open(spec.out).manifest(), case_dir(c, oc) / "model" / "config.json"))
        o.fail(line);
      return o;
    };
    out.push_back(std::move(k));
  }
}

}  // namespace assay
