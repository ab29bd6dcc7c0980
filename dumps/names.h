// The vocabulary of a dump: passes, phases, tensor names. DESIGN "Phase names"; axes as in goldens/official/README.md.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace assay {

/// Kinds of forward call, in the order in which a timeline meets them.
enum class Pass : uint8_t { prefill, decode, verify, mtp_prefill, mtp_draft, mtp_decode };
std::string_view name_of(Pass p);
std::optional<Pass> pass_from_name(std::string_view s);

/// A tensor name taken apart: prompt<i>/<pass>/<step>/<layer.N/>?<phase>, prompt<i>/state/<when>/<layer.N/><what>,
/// prompt<i>/ids, prompt<i>/greedy_ids. `layer` keeps its text ("layer.3", "mtp.0") since other engines may bring other stems.
struct TensorName {
  std::string prompt;  // "prompt0"
  std::string pass;    // "prefill", "decode", ..., "state"; empty for ids and greedy_ids
  std::string step;    // "0", "17"; for state: "after_prefill", "after_decode"
  std::string layer;   // "layer.3" or empty
  std::string phase;   // "q_rope", "k", "logits_last"
  bool is_state() const { return pass == "state"; }
};
std::optional<TensorName> parse_tensor_name(std::string_view name);
std::string tensor_name(int prompt, Pass pass, int64_t step, int layer, std::string_view phase);  // layer < 0: none

}  // namespace assay
