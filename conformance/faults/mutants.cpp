#include "conformance/faults/mutants.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "engine/numerics.h"
#include "engine/ops/common/rope_table.h"

namespace assay {
namespace {

using Rng = std::mt19937_64;
size_t pick(Rng& rng, size_t n) {
  return size_t(rng() % n);
}

/// A node that `fits`, at random; null: there is none.
Node* any_node(Engine& e, Rng& rng, const std::function<bool(const Node&)>& fits) {
  std::vector<Node*> all;
  for (Node& n : e.plantable_program().nodes)
    if (fits(n)) all.push_back(&n);
  return all.empty() ? nullptr : all[pick(rng, all.size())];
}

/// Gives a node another body; `own` runs what it was.
void rebody(Engine& e, Node& n, std::function<void(NodeContext&, const std::function<void(NodeContext&)>& own)> body) {
  CpuBackend* backend = &e.plantable_backend();
  std::function<void(NodeContext&)> own =
      n.replacement ? n.replacement : [backend](NodeContext& c) { backend->run(c); };
  n.replacement = [body = std::move(body), own = std::move(own)](NodeContext& c) { body(c, own); };
  n.variant = "mutant";
}

/// The reason of a mutation of values: while it ran, every value that it changed was the one that it put there.
struct Effect {
  int64_t touched = 0, moved = 0;
  void put(float& place, float value) {
    touched++;
    moved += std::memcmp(&place, &value, sizeof value) != 0;
    place = value;
  }
};
std::function<std::string()> no_effect(std::shared_ptr<Effect> effect, std::string what) {
  return [effect, what] {
    if (effect->moved) return std::string();
    return effect->touched ? fmt::format("{}: all {} values were that already", what, effect->touched)
                           : what + ": no value lies there in this run";
  };
}

/// What an op writes, changed in place after it ran.
std::optional<Mutant> change_output(
    Engine& e, Rng& rng, const char* what, const char* equal,
    const std::function<void(float* row, int64_t columns, int64_t at, Effect&)>& change) {
  Node* n = any_node(e, rng, [&](const Node& node) {
    return node.output != kNoValue && e.program().values[size_t(node.output)].columns > 1;
  });
  const int64_t columns = e.program().values[size_t(n->output)].columns, at = int64_t(pick(rng, size_t(columns - 1)));
  const auto effect = std::make_shared<Effect>();
  rebody(e, *n, [=](NodeContext& c, const auto& own) {
    own(c);
    for (int64_t r = 0; r < c.rows; r++) change(c.output + r * c.columns, c.columns, at, *effect);
  });
  return Mutant{fmt::format("{}: column {} {}", n->name(), at, what), no_effect(effect, equal)};
}

std::optional<Mutant> column_zeroed(Engine& e, Rng& rng) {
  return change_output(e, rng, "zeroed", "zeros",
                       [](float* row, int64_t, int64_t at, Effect& f) { f.put(row[at], 0); });
}
std::optional<Mutant> sign_flipped(Engine& e, Rng& rng) {
  return change_output(e, rng, "negated", "negated",
                       [](float* row, int64_t, int64_t at, Effect& f) { f.put(row[at], -row[at]); });
}
std::optional<Mutant> pair_exchanged(Engine& e, Rng& rng) {
  return change_output(e, rng, "exchanged with the next", "equal neighbours",
                       [](float* row, int64_t, int64_t at, Effect& f) {
                         const float a = row[at];
                         f.put(row[at], row[at + 1]);
                         f.put(row[at + 1], a);
                       });
}
std::optional<Mutant> stale_column(Engine& e, Rng& rng) {
  return change_output(e, rng, "takes the value of the next", "equal neighbours",
                       [](float* row, int64_t, int64_t at, Effect& f) { f.put(row[at], row[at + 1]); });
}
std::optional<Mutant> rounded_bf16(Engine& e, Rng& rng) {
  Node* n = any_node(e, rng, [](const Node& node) { return node.output != kNoValue; });
  const auto effect = std::make_shared<Effect>();
  rebody(e, *n, [=](NodeContext& c, const auto& own) {
    own(c);
    for (int64_t i = 0; i < c.rows * c.columns; i++) effect->put(c.output[i], f32_of_bf16(bf16_of_f32(c.output[i])));
  });
  return Mutant{n->name() + " rounded through bf16", no_effect(effect, "values of bf16 already")};
}

/// An op is left out: its output is its first input, or for ops of two inputs one of them.
std::optional<Mutant> op_dropped(Engine& e, Rng& rng) {
  const Program& p = e.program();
  Node* n = any_node(e, rng, [&](const Node& node) {
    return node.output != kNoValue && !node.inputs.empty() && !node.requested_rows_only &&
           p.values[size_t(node.inputs[0])].columns == p.values[size_t(node.output)].columns;
  });
  const size_t kept = pick(rng, n->inputs.size());
  const auto effect = std::make_shared<Effect>();
  rebody(e, *n, [=](NodeContext& c, const auto& own) {
    own(c);
    for (int64_t i = 0; i < c.rows * c.columns; i++) effect->put(c.output[i], c.inputs[kept][i]);
  });
  return Mutant{fmt::format("{} dropped: its output is input {}", n->name(), kept),
                no_effect(effect, "the op changes nothing here")};
}

/// An input is another value of the same width, from anywhere earlier in the pass: residuals from the wrong place,
/// layers that read each other, k for v.
std::optional<Mutant> input_swapped(Engine& e, Rng& rng) {
  Program& p = e.plantable_program();
  Node* n = any_node(e, rng, [](const Node& node) { return !node.inputs.empty() && !node.requested_rows_only; });
  const size_t input = pick(rng, n->inputs.size());
  const ValueId old = n->inputs[input];
  std::vector<Node*> sources;
  for (Node& s : p.nodes) {
    if (&s == n) break;
    if (s.output != kNoValue && s.output != old && p.values[size_t(s.output)].columns == p.values[size_t(old)].columns)
      sources.push_back(&s);
  }
  if (sources.empty()) return std::nullopt;
  Node* source = sources[pick(rng, sources.size())];
  const auto kept = std::make_shared<std::vector<float>>();  // its buffer may be another value's by then
  rebody(e, *source, [kept](NodeContext& c, const auto& own) {
    own(c);
    kept->assign(c.output, c.output + c.rows * c.columns);
  });
  const auto differ = std::make_shared<bool>(false);
  rebody(e, *n, [=](NodeContext& c, const auto& own) {
    *differ = *differ || std::memcmp(c.inputs[input], kept->data(), kept->size() * sizeof(float)) != 0;
    c.inputs[input] = kept->data();
    own(c);
  });
  const Value& v = p.values[size_t(old)];
  return Mutant{fmt::format("{} reads {} instead of {}{}", n->name(), source->name(),
                            v.layer < 0 ? "" : fmt::format("layer.{}/", v.layer), v.phase),
                [differ] { return std::string(*differ ? "" : "the two values are equal in every pass"); }};
}

std::optional<Mutant> other_weight(Engine& e, Rng& rng) {
  Node* n = any_node(e, rng, [](const Node& node) { return node.weight && node.layer >= 0; });
  std::vector<const Node*> others;
  for (const Node& o : e.program().nodes)
    if (&o != n && o.weight && o.weight != n->weight && o.weight->rows == n->weight->rows &&
        o.weight->columns == n->weight->columns && o.weight->type == n->weight->type)
      others.push_back(&o);
  if (others.empty()) return std::nullopt;
  const Node* from = others[pick(rng, others.size())];
  const bool equal = std::memcmp(n->weight->data, from->weight->data, n->weight->bytes()) == 0;
  n->weight = from->weight;
  n->variant = "mutant";
  return Mutant{fmt::format("{} multiplies by the weight of {}", n->name(), from->name()),
                [equal] { return std::string(equal ? "the two weights hold the same bytes" : ""); }};
}

std::optional<Mutant> other_vector(Engine& e, Rng& rng) {
  Node* n = any_node(e, rng, [](const Node& node) { return node.vector != nullptr; });
  std::vector<const Node*> others;
  for (const Node& o : e.program().nodes)
    if (o.vector && o.vector != n->vector && o.vector->size() == n->vector->size()) others.push_back(&o);
  if (others.empty()) return std::nullopt;
  const Node* from = others[pick(rng, others.size())];
  const bool equal = std::memcmp(n->vector->data(), from->vector->data(), n->vector->size() * sizeof(float)) == 0;
  n->vector = from->vector;
  return Mutant{
      fmt::format("{} has the {} of {}", n->name(), n->op == OpKind::linear ? "bias" : "norm weight", from->name()),
      [equal] { return std::string(equal ? "the two vectors hold the same bytes" : ""); }};
}

std::optional<Mutant> bias_dropped(Engine& e, Rng& rng) {
  Node* n = any_node(e, rng, [](const Node& node) { return node.op == OpKind::linear && node.vector; });
  if (!n) return std::nullopt;
  const bool zero = std::all_of(n->vector->begin(), n->vector->end(), [](float x) { return x == 0; });
  n->vector = nullptr;
  return Mutant{n->name() + " without its bias", [zero] { return std::string(zero ? "the bias is zero" : ""); }};
}

std::optional<Mutant> eps_moved(Engine& e, Rng& rng) {
  Node* n = any_node(e, rng, [](const Node& node) { return node.eps > 0; });
  const double factors[] = {0, 0.1, 10, 100};
  const double factor = factors[pick(rng, 4)];
  n->eps *= factor;
  // (mean of squares + eps) in f32 is the same number for either where the mean is 2^24 times larger.
  const auto least = std::make_shared<double>(INFINITY);
  rebody(e, *n, [=](NodeContext& c, const auto& own) {
    const int64_t width = c.node.op == OpKind::head_norm ? c.node.head_dim : c.columns;
    for (int64_t g = 0; g < c.rows * c.columns / width; g++) {
      double sum = 0;
      for (int64_t k = 0; k < width; k++) sum += double(c.inputs[0][g * width + k]) * c.inputs[0][g * width + k];
      *least = std::min(*least, sum / double(width));
    }
    own(c);
  });
  const double eps = e.model().config.rms_eps, larger = std::max(eps, eps * factor);
  return Mutant{fmt::format("{} adds {:.0e} instead of {:.0e}", n->name(), n->eps, eps), [least, larger] {
                  return *least > larger * 0x1p24
                             ? fmt::format("the least mean of squares, {:.1e}, swallows either in f32", *least)
                             : std::string();
                }};
}

std::optional<Mutant> scale_moved(Engine& e, Rng& rng) {
  Node* n = any_node(e, rng, [](const Node& node) { return node.op == OpKind::attention; });
  const double factors[] = {0.5, 2.0, std::sqrt(2.0), 1 / std::sqrt(2.0)};
  const float factor = float(factors[pick(rng, 4)]);
  rebody(e, *n, [factor](NodeContext& c, const auto& own) {
    std::vector<float> q(c.inputs[0], c.inputs[0] + c.rows * c.columns);
    for (float& x : q) x *= factor;
    c.inputs[0] = q.data();
    own(c);
  });
  return Mutant{fmt::format("{}: scores are scaled by {:.3g} times what they should", n->name(), factor)};
}

std::optional<Mutant> theta_moved(Engine& e, Rng& rng) {
  Node* n = any_node(e, rng, [](const Node& node) { return node.op == OpKind::rope; });
  RopeConfig config = e.model().config.rope;
  const double factors[] = {0.5, 2, 10};
  config.theta *= factors[pick(rng, 3)];
  const auto table = std::make_shared<RopeTable>(make_rope_table(config, e.options().context));
  rebody(e, *n, [table](NodeContext& c, const auto& own) {
    c.rope = table.get();
    own(c);
  });
  return Mutant{fmt::format("{} turns with theta {:g}", n->name(), config.theta)};
}

std::optional<Mutant> position_moved(Engine& e, Rng& rng) {
  Node* n = any_node(e, rng, [](const Node& node) { return node.op == OpKind::rope; });
  const int64_t by = rng() % 2 ? 1 : -1, context = e.options().context;
  rebody(e, *n, [=](NodeContext& c, const auto& own) {
    std::vector<int64_t> positions(c.positions.begin(), c.positions.end());
    for (int64_t& p : positions) p = std::clamp<int64_t>(p + by, 0, context - 1);
    c.positions = positions;
    own(c);
  });
  return Mutant{fmt::format("{} turns by positions {:+}", n->name(), by)};
}

/// Attention over one position more (where it was written), or one less.
std::optional<Mutant> length_moved(Engine& e, Rng& rng) {
  Node* n = any_node(e, rng, [](const Node& node) { return node.op == OpKind::attention; });
  const int64_t by = rng() % 2 ? 1 : -1;
  const auto moved = std::make_shared<int64_t>(0);
  rebody(e, *n, [=](NodeContext& c, const auto& own) {
    std::vector<RowPlace> places(c.places.begin(), c.places.end());
    const int64_t last = c.positions.back();
    for (RowPlace& p : places) {
      const int64_t to = std::clamp<int64_t>(p.position + by, 0, last);
      *moved += to != p.position;
      p.position = to;
    }
    c.places = places;
    own(c);
  });
  return Mutant{fmt::format("{} sees positions up to its own {:+}", n->name(), by),
                [moved] { return std::string(*moved ? "" : "no row had another position to see"); }};
}

std::optional<Mutant> kv_head_moved(Engine& e, Rng& rng) {
  const Config& m = e.model().config;
  if (m.kv_heads < 2) return std::nullopt;
  Node* n = any_node(e, rng, [](const Node& node) { return node.op == OpKind::attention; });
  rebody(e, *n, [](NodeContext& c, const auto& own) {  // query heads move by one group, and back
    const int64_t shift = c.node.heads / c.config.kv_heads * c.node.head_dim;
    std::vector<float> q(size_t(c.rows * c.columns)), row(size_t(c.columns), 0);
    for (int64_t r = 0; r < c.rows; r++)
      for (int64_t k = 0; k < c.columns; k++)
        q[size_t(r * c.columns + k)] = c.inputs[0][r * c.columns + (k + shift) % c.columns];
    c.inputs[0] = q.data();
    own(c);
    for (int64_t r = 0; r < c.rows; r++) {
      float* y = c.output + r * c.columns;
      std::memcpy(row.data(), y, row.size() * sizeof(float));
      for (int64_t k = 0; k < c.columns; k++) y[(k + shift) % c.columns] = row[size_t(k)];
    }
  });
  return Mutant{n->name() + ": query heads read the kv head beside their own"};
}

/// Rows of the cache after they were stored: one is not stored, or is a copy of the one before, or k and v change
/// places.
std::optional<Mutant> cache_row(Engine& e, Rng& rng) {
  Node* n = any_node(e, rng, [](const Node& node) { return node.op == OpKind::kv_store; });
  const int64_t position = int64_t(pick(rng, size_t(e.options().context - 1))) + 1;
  const bool copied = rng() % 2, of_v = rng() % 2;
  const auto met = std::make_shared<std::pair<bool, bool>>(false, false);  // the position ran; a byte moved
  rebody(e, *n, [=](NodeContext& c, const auto& own) {
    const KvLayer& l = *c.cache;
    const size_t bytes = size_t(l.head_dim) * size_of(l.type);
    std::byte* base = of_v ? l.v : l.k;
    const auto row = [&](const RowPlace& p, int64_t h, int64_t at) {
      return base + size_t(l.offset(p.slot, h, at)) * size_of(l.type);
    };
    std::vector<std::byte> before;
    const auto place =
        std::find_if(c.places.begin(), c.places.end(), [&](const RowPlace& p) { return p.position == position; });
    if (place != c.places.end())
      for (int64_t h = 0; h < l.kv_heads; h++)
        before.insert(before.end(), row(*place, h, position), row(*place, h, position) + bytes);
    own(c);
    if (place == c.places.end()) return;
    met->first = true;
    for (int64_t h = 0; h < l.kv_heads; h++) {
      const std::byte* from = copied ? row(*place, h, position - 1) : before.data() + size_t(h) * bytes;
      met->second = met->second || std::memcmp(row(*place, h, position), from, bytes) != 0;
      std::memcpy(row(*place, h, position), from, bytes);
    }
  });
  return Mutant{fmt::format("layer.{}: row {} of the {} cache {}", n->layer, position, of_v ? "V" : "K",
                            copied ? "is a copy of the row before" : "is not stored"),
                [met] {
                  return std::string(!met->first   ? "no pass reaches that position"
                                     : met->second ? ""
                                                   : "the row holds these bytes already");
                }};
}

std::optional<Mutant> ids_moved(Engine& e, Rng& rng) {
  Node* n = any_node(e, rng, [](const Node& node) { return node.op == OpKind::embed; });
  const int64_t vocab = e.model().config.vocab;
  const bool shifted = rng() % 2;
  rebody(e, *n, [=](NodeContext& c, const auto& own) {
    std::vector<int32_t> ids(c.ids.begin(), c.ids.end());
    if (shifted)
      for (int32_t& id : ids) id = int32_t((id + 1) % vocab);
    else
      std::reverse(ids.begin(), ids.end());
    c.ids = ids;
    own(c);
  });
  return Mutant{shifted ? "embed reads the row of id + 1" : "embed reads the ids of a pass from its end"};
}

/// A row of a pass has the values of the row before it.
std::optional<Mutant> row_stale(Engine& e, Rng& rng) {
  Node* n = any_node(e, rng, [](const Node& node) { return node.output != kNoValue && !node.requested_rows_only; });
  const auto effect = std::make_shared<Effect>();
  rebody(e, *n, [=](NodeContext& c, const auto& own) {
    own(c);
    if (c.rows < 2) return;
    for (int64_t k = 0; k < c.columns; k++)
      effect->put(c.output[(c.rows - 1) * c.columns + k], c.output[(c.rows - 2) * c.columns + k]);
  });
  return Mutant{n->name() + ": the last row of a pass is a copy of the row before", no_effect(effect, "equal rows")};
}

}  // namespace

const std::vector<MutantKind>& mutant_kinds() {
  static const std::vector<MutantKind> all = {
      {"input-swapped", input_swapped}, {"op-dropped", op_dropped},         {"other-weight", other_weight},
      {"other-vector", other_vector},   {"bias-dropped", bias_dropped},     {"eps-moved", eps_moved},
      {"scale-moved", scale_moved},     {"theta-moved", theta_moved},       {"position-moved", position_moved},
      {"length-moved", length_moved},   {"kv-head-moved", kv_head_moved},   {"cache-row", cache_row},
      {"ids-moved", ids_moved},         {"row-stale", row_stale},           {"column-zeroed", column_zeroed},
      {"sign-flipped", sign_flipped},   {"pair-exchanged", pair_exchanged}, {"column-stale", stale_column},
      {"rounded-bf16", rounded_bf16},
  };
  return all;
}

}  // namespace assay
