// The vocabulary of a dump: passes, phases, tensor names. DESIGN "Phase names"; axes as in goldens/official/README.md.
#pragma once
#include <compare>
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
  /// Of a parsed name, which has a number there: 0 to kMostPrompts, 0 to kMostSteps.
  int prompt_number() const;
  int64_t step_number() const;            // not of state, ids and greedy_ids: -1
  std::optional<int> layer_number() const;  // -1 outside layers; nullopt where the text is no "layer.N" ("mtp.0")
};
inline constexpr int64_t kMostPrompts = INT32_MAX, kMostSteps = int64_t(1) << 40;
/// nullopt: not of the vocabulary, or a number beyond those limits.
std::optional<TensorName> parse_tensor_name(std::string_view name);
/// "phase", "state" or "ids"; empty for names outside the vocabulary.
std::string role_of(std::string_view name);
/// What a dump accepts as a tensor name: 1 to 512 printable ASCII characters, no blanks.
bool is_valid_name(std::string_view name);
/// layer < 0: none. In mtp_* passes the stem of a layer is "mtp" ("mtp.0"), elsewhere "layer".
std::string tensor_name(int prompt, Pass pass, int64_t step, int layer, std::string_view phase);
/// prompt<i>/state/<when>/<layer>/<what>; `layer` as text ("layer.3", "mtp.0").
std::string state_name(int prompt, std::string_view when, std::string_view layer, std::string_view what);

/// The vocabulary's phases in execution order (DESIGN 5): rank of a phase, or a rank behind all of them if it is unknown.
int phase_rank(std::string_view phase);

/// Where a tensor stands in a timeline, made from its name alone: prompt, ids and state last within a prompt, pass, step,
/// then embed .. layers .. final_norm .. logits. Names outside the vocabulary sort last, among themselves by `order`, then
/// by name. `order` is the place within the pass that a manifest gives (-1: not given, the vocabulary decides).
struct ExecutionKey {
  int64_t prompt = 0;
  int group = 0;  // pass kind, 100 state, 110 ids, 120 greedy_ids, 1000 unknown
  int64_t step = 0;
  int64_t order = -1;
  int64_t layer = 0;  // -1 before the layers, N inside, INT64_MAX behind
  int rank = 0;
  std::string name;
  auto operator<=>(const ExecutionKey&) const = default;
};
ExecutionKey execution_key(std::string_view name, int64_t order = -1);

}  // namespace assay
