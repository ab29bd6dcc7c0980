#include "dumps/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <vector>

namespace assay {
namespace {

constexpr std::string_view kPasses[] = {"prefill", "decode", "verify", "mtp_prefill", "mtp_draft", "mtp_decode"};

// Every name of DESIGN 5 once, in the order in which any of the families computes it. Phases of different families never
// stand in the same layer, so one list serves all.
constexpr std::string_view kPhases[] = {
    // before the layers
    "embed", "mtp_embed", "mtp_hidden", "mtp_embed_norm", "mtp_hidden_norm", "mtp_concat", "mtp_fc",
    // attention
    "attn_norm", "q_proj", "k_proj", "v_proj", "attn_gate", "q_norm", "k_norm", "q_rope", "k_rope", "attn_context",
    "attn_gated", "o_proj",
    // gated DeltaNet
    "gdn_qkvz", "gdn_ba", "gdn_qkv", "gdn_z", "gdn_b", "gdn_a", "gdn_conv", "gdn_q", "gdn_k", "gdn_v", "gdn_beta",
    "gdn_decay", "gdn_core", "gdn_norm", "gdn_out",
    // both; a norm behind the block (olmo2) comes before the residual
    "attn_post_norm", "attn_residual",
    // FFN, dense and MoE
    "ffn_norm", "gate_proj", "up_proj", "ffn_act", "down_proj", "router_logits", "router_topk_ids",
    "router_topk_weights", "expert_gate_proj", "expert_up_proj", "expert_act", "expert_down_proj", "moe_out",
    "shared_expert_gate", "shared_gate_proj", "shared_up_proj", "shared_act", "shared_expert_out", "ffn_out",
    "ffn_post_norm", "ffn_residual",
    // behind the layers
    "final_norm", "mtp_norm", "logits", "logits_last", "logits_top_ids", "logits_top_values"};
// Phases of the whole model that come before the first layer: all up to and including mtp_fc.
constexpr int kBeforeLayers = 7;

// Caches, in the order in which DESIGN 5 names them.
constexpr std::string_view kStates[] = {"k", "v", "conv_state", "recurrent_state"};

std::vector<std::string_view> split(std::string_view s) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t slash = s.find('/');
    parts.push_back(s.substr(0, slash));
    if (slash == std::string_view::npos) return parts;
    s.remove_prefix(slash + 1);
  }
}

// A decimal number without sign, leading zeros or overflow: every tensor has exactly one spelling of its name.
std::optional<int64_t> number(std::string_view s) {
  int64_t value = 0;
  if (s.empty() || (s.size() > 1 && s[0] == '0') || s[0] < '0' || s[0] > '9') return std::nullopt;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);
  if (error != std::errc{} || end != s.data() + s.size()) return std::nullopt;
  return value;
}

}  // namespace

std::string_view name_of(Pass p) { return kPasses[size_t(p)]; }

std::optional<Pass> pass_from_name(std::string_view s) {
  for (size_t i = 0; i < std::size(kPasses); ++i) {
    if (kPasses[i] == s) return static_cast<Pass>(i);
  }
  return std::nullopt;
}

std::optional<TensorName> parse_tensor_name(std::string_view name) {
  constexpr std::string_view kPrompt = "prompt";
  const std::vector<std::string_view> parts = split(name);
  if (parts.size() < 2 || parts.size() > 5 || !parts[0].starts_with(kPrompt)) return std::nullopt;
  if (number(parts[0].substr(kPrompt.size())).value_or(INT64_MAX) > kMostPrompts) return std::nullopt;
  if (std::any_of(parts.begin(), parts.end(), [](std::string_view p) { return p.empty(); })) return std::nullopt;
  TensorName out;
  out.prompt = parts[0];
  out.phase = parts.back();
  if (parts.size() == 2) {
    if (parts[1] != "ids" && parts[1] != "greedy_ids") return std::nullopt;
    return out;
  }
  if (parts.size() == 3) return std::nullopt;
  out.pass = parts[1];
  out.step = parts[2];
  if (parts.size() == 5) out.layer = parts[3];
  if (!out.is_state() && number(out.step).value_or(INT64_MAX) > kMostSteps) return std::nullopt;
  if (out.is_state() && out.layer.empty()) return std::nullopt;
  return out;
}

int TensorName::prompt_number() const { return int(number(std::string_view(prompt).substr(6)).value_or(-1)); }

int64_t TensorName::step_number() const { return number(step).value_or(-1); }

std::optional<int> TensorName::layer_number() const {
  if (layer.empty()) return -1;
  if (!layer.starts_with("layer.")) return std::nullopt;
  const auto n = number(std::string_view(layer).substr(6));
  return n && *n <= INT32_MAX ? std::optional(int(*n)) : std::nullopt;
}

std::string role_of(std::string_view name) {
  const std::optional<TensorName> n = parse_tensor_name(name);
  return !n ? "" : n->is_state() ? "state" : n->pass.empty() ? "ids" : "phase";
}

bool is_valid_name(std::string_view name) {
  return !name.empty() && name.size() <= 512 && name != "__metadata__" &&
         std::all_of(name.begin(), name.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

std::string tensor_name(int prompt, Pass pass, int64_t step, int layer, std::string_view phase) {
  if (layer < 0) return fmt::format("prompt{}/{}/{}/{}", prompt, name_of(pass), step, phase);
  const std::string_view stem = pass >= Pass::mtp_prefill ? "mtp" : "layer";
  return fmt::format("prompt{}/{}/{}/{}.{}/{}", prompt, name_of(pass), step, stem, layer, phase);
}

std::string state_name(int prompt, std::string_view when, std::string_view layer, std::string_view what) {
  return fmt::format("prompt{}/state/{}/{}/{}", prompt, when, layer, what);
}

int phase_rank(std::string_view phase) {
  return static_cast<int>(std::find(std::begin(kPhases), std::end(kPhases), phase) - std::begin(kPhases));
}

ExecutionKey execution_key(std::string_view name, int64_t order) {
  constexpr int64_t kLast = std::numeric_limits<int64_t>::max();
  ExecutionKey key;
  key.name = name;
  key.order = order;
  const std::optional<TensorName> parts = parse_tensor_name(name);
  if (!parts) {
    key.prompt = kLast;
    key.group = 1000;
    return key;
  }
  key.prompt = parts->prompt_number();
  key.rank = phase_rank(parts->phase);
  if (parts->pass.empty()) {
    key.group = parts->phase == "ids" ? 110 : 120;
    key.order = -1;
    return key;
  }
  const size_t dot = parts->layer.rfind('.');
  const int64_t layer = dot == std::string::npos ? kLast - 1 : number(parts->layer.substr(dot + 1)).value_or(kLast - 1);
  if (parts->is_state()) {
    key.group = 100;
    key.step = parts->step == "after_prefill" ? 0 : parts->step == "after_decode" ? 1 : 2;
    key.layer = layer;
    key.rank = static_cast<int>(std::find(std::begin(kStates), std::end(kStates), parts->phase) - std::begin(kStates));
    if (parts->layer.starts_with("mtp.")) key.layer = kLast;  // the MTP head's caches stand behind the model's
    return key;
  }
  const std::optional<Pass> pass = pass_from_name(parts->pass);
  key.group = pass ? static_cast<int>(*pass) : 99;
  key.step = parts->step_number();
  key.layer = !parts->layer.empty() ? layer : key.rank < kBeforeLayers ? -1 : kLast;
  return key;
}

}  // namespace assay
