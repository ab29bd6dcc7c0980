#include "conformance/drill/operand_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/ops/common/rope_table.h"
#include "engine/ops/panel.h"
#include "engine/replay.h"

namespace assay {
namespace {

std::string value_name(const Program& p, ValueId v) {
  const Value& x = p.values[size_t(v)];
  return (x.layer < 0 ? "" : "layer." + std::to_string(x.layer) + "/") + x.phase;
}

/// First and last byte that differ; {-1, -1}: none.
std::pair<int64_t, int64_t> differing(const std::byte* a, const std::byte* b, int64_t n) {
  if (a == b || std::memcmp(a, b, size_t(n)) == 0) return {-1, -1};
  int64_t first = 0, last = n - 1;
  while (a[first] == b[first]) first++;
  while (a[last] == b[last]) last--;
  return {first, last};
}

std::string bytes_text(int64_t first, int64_t last, int64_t of) {
  return first == last ? fmt::format("byte {} of {}", first, of) : fmt::format("bytes {}-{} of {}", first, last, of);
}

}  // namespace

OperandWatch::OperandWatch(Engine& engine, const Model& source, const Program& clean, Node node, Known known,
                           bool track)
    : engine_(engine), source_(source), clean_(clean), node_(node), known_(std::move(known)), track_(track) {
  assay::Node* n = engine.plantable_program().find(node_.clean.layer, node_.clean.phase);
  if (!n) {
    Operand& o = operand(node_.clean.name(), "wiring");
    o.equal = false;
    o.text = "the target's program has no such node";
    return;
  }
  planted_ = n;
  add_attributes();
  add_residents();
  wrap_node(engine, *n, [this](NodeContext& c, const std::function<void(NodeContext&)>& inner) {
    meet(c);
    inner(c);
  });
}

Operand& OperandWatch::operand(const std::string& name, const std::string& kind) {
  for (Operand& o : out_)
    if (o.name == name && o.kind == kind) return o;
  Operand o;
  o.name = name;
  o.kind = kind;
  out_.push_back(std::move(o));
  return out_.back();
}

void OperandWatch::add_attributes() {
  const assay::Node &c = node_.clean, &t = *planted_;
  const auto attribute = [&](const char* name, auto is, auto want) {
    if (is == want) return;
    Operand& o = operand(c.name() + " " + name, "attribute");
    o.equal = false;
    o.text = fmt::format("is {}, {} belongs", is, want);
  };
  attribute("op", name_of(t.op), name_of(c.op));
  attribute("heads", t.heads, c.heads);
  attribute("head_dim", t.head_dim, c.head_dim);
  attribute("eps", t.eps, c.eps);
  attribute("experts", t.experts, c.experts);
  attribute("chosen", t.chosen, c.chosen);
  attribute("normalised", t.normalised, c.normalised);
  std::string is, want;
  for (ValueId v : t.inputs) is += (is.empty() ? "" : ", ") + value_name(engine_.program(), v);
  for (ValueId v : c.inputs) want += (want.empty() ? "" : ", ") + value_name(clean_, v);
  if (want.empty() && is.empty()) return;
  Operand& o = operand(want, "wiring");
  o.equal = is == want;
  o.text = o.equal ? "read as the family wires it" : fmt::format("reads {} where {} belongs", is, want);
}

/// The panels of `found`, which should be those of `w`: judged by the matrix as the file has it, not by a copy that may be
/// wrong, too.
void OperandWatch::watch_panels(const std::string& name, const Matrix& w, const Matrix& found) {
  if (!engine_.backend().panels(found)) return;
  Resident p{name, "panels", [this, found] { return engine_.backend().panels(found); }, {}, nullptr, int64_t(panel_bytes(w)), true, "", {}};
  p.made.resize(size_t(p.bytes) + 64);
  std::byte* aligned = p.made.data() + (64 - reinterpret_cast<uintptr_t>(p.made.data()) % 64) % 64;
  repack(w, aligned, 0, panels_of(w));
  p.want = aligned;
  const int64_t panel = int64_t(panel_layout(w.type, w.columns).bytes);
  p.place = [panel](int64_t byte) { return fmt::format("panel {} of 16 rows, its byte {}", byte / panel, byte % panel); };
  residents_.push_back(std::move(p));
}

void OperandWatch::add_residents() {
  const WeightPlace want = weight_place(source_.weights, node_.clean),
                    is = weight_place(engine_.model().weights, *planted_);
  if (node_.clean.weight) {
    const Matrix& w = *node_.clean.weight;
    const Matrix* found = planted_->weight;
    const std::string name = want.matrix_name.empty() ? node_.clean.name() + "'s weight" : want.matrix_name;
    if (!found || found->type != w.type || found->rows != w.rows || found->columns != w.columns ||
        (!is.matrix_name.empty() && is.matrix_name != want.matrix_name)) {
      Operand& o = operand(name, "weight");
      o.equal = false;
      o.text = !found ? "the node was given none"
                      : fmt::format("the node was given {} ({} [{}, {}]) in its place",
                                    is.matrix_name.empty() ? "another matrix" : is.matrix_name, name_of(found->type),
                                    found->rows, found->columns);
    } else {
      Resident r{name, "weight", [found] { return found->data; }, {}, w.data, int64_t(w.bytes()), true, "", {}};
      r.place = [w](int64_t byte) {
        const int64_t row = int64_t(row_bytes(w.type, w.columns));
        return fmt::format("row {}, its byte {}", byte / row, byte % row);
      };
      residents_.push_back(std::move(r));
      // Of experts each has panels of its own, where any row has met it.
      const int64_t parts = node_.clean.op == OpKind::expert_linear ? node_.clean.experts : 1;
      for (int64_t e = 0; e < parts; e++) {
        const std::string of = parts == 1 ? "" : fmt::format(", expert {}", e);
        watch_panels(name + of + " repacked", expert_of(w, parts, e), expert_of(*found, parts, e));
      }
    }
  }
  if (node_.clean.vector) {
    const Vector& v = *node_.clean.vector;
    const Vector* found = planted_->vector;
    const std::string name = want.vector_name.empty() ? node_.clean.name() + "'s vector" : want.vector_name;
    if (!found || found->size() != v.size() || (!is.vector_name.empty() && is.vector_name != want.vector_name)) {
      Operand& o = operand(name, "vector");
      o.equal = false;
      o.text = !found ? "the node was given none"
                      : fmt::format("the node was given {} ({} elements) in its place",
                                    is.vector_name.empty() ? "another vector" : is.vector_name, found->size());
    } else {
      Resident r{name,
                 "vector",
                 [found] { return reinterpret_cast<const std::byte*>(found->data()); },
                 {},
                 reinterpret_cast<const std::byte*>(v.data()),
                 int64_t(v.size() * sizeof(float)),
                 true,
                 "",
                 {}};
      r.place = [](int64_t byte) { return fmt::format("element {}", byte / 4); };
      residents_.push_back(std::move(r));
    }
  }
  if (node_.clean.op == OpKind::rope) {
    const RopeTable table = make_rope_table(source_.config.rope, engine_.options().context);
    for (const auto& [name, half, found] : {std::tuple{"rope table, cos", &table.cos, &engine_.rope().cos},
                                            {"rope table, sin", &table.sin, &engine_.rope().sin}}) {
      Resident r{name, "table", [found = found] { return reinterpret_cast<const std::byte*>(found->data()); },
                 {},   nullptr, int64_t(half->size() * sizeof(float)),
                 true, "",      {}};
      r.made.resize(size_t(r.bytes));
      std::memcpy(r.made.data(), half->data(), r.made.size());
      r.place = [pairs = table.pairs](int64_t byte) {
        return fmt::format("position {}, pair {}", byte / 4 / pairs, byte / 4 % pairs);
      };
      residents_.push_back(std::move(r));
    }
  }
  for (Resident& r : residents_) {
    if (!r.want) r.want = r.made.data();
    r.equal_at_start = differing(r.now(), r.want, r.bytes).first < 0;
  }
}

void OperandWatch::after(const assay::Node& n, const Batch& batch) {
  if (!track_) return;
  for (Resident& r : residents_)
    if (r.equal_at_start && r.first_seen.empty() && differing(r.now(), r.want, r.bytes).first >= 0) {
      const Segment& s = batch.segments.at(0);
      r.first_seen = fmt::format("prompt{}/{}/{}/{}", s.prompt, name_of(batch.pass), s.step, n.name());
    }
}

void OperandWatch::meet(const NodeContext& c) {
  if (c.batch.pass != node_.pass) return;
  int64_t row0 = 0;
  for (const Segment& s : c.batch.segments) {
    if (s.prompt == node_.prompt && s.step == node_.step) {
      if (!node_.clean.requested_rows_only) meet_inputs(c, row0, s.rows, s);
      for (const Resident& r : residents_) {
        Operand& o = operand(r.name, r.kind);
        if (!o.equal) continue;
        const std::byte* found = r.now();
        const auto [first, last] = differing(found, r.want, r.bytes);
        o.bytes = r.bytes;
        if (first < 0) {
          o.text = fmt::format("{} bytes as in the source", r.bytes);
          continue;
        }
        o.equal = false;
        o.first_byte = first;
        o.last_byte = last;
        o.first_seen = r.first_seen;
        o.text = fmt::format("{} ({}), {}", bytes_text(first, last, r.bytes), r.place(first),
                             !r.equal_at_start      ? "from the start"
                             : r.first_seen.empty() ? "since the engine ran"
                                                    : "first seen after " + r.first_seen);
      }
      if (node_.clean.op == OpKind::attention) meet_cache(c, s);
    }
    row0 += s.rows;
  }
}

void OperandWatch::meet_inputs(const NodeContext& c, int64_t row0, int64_t rows, const Segment& s) {
  for (size_t i = 0; i < planted_->inputs.size() && i < c.inputs.size(); i++) {
    const ValueId id = planted_->inputs[i];
    const std::string name = value_name(engine_.program(), id);
    const int64_t columns = engine_.program().values[size_t(id)].columns;
    const std::vector<float> wrote = known_.input_rows(name, s.position, rows);
    if (int64_t(wrote.size()) != rows * columns) continue;
    Operand& o = operand(name, "input");
    if (!o.equal) continue;
    const auto* found = reinterpret_cast<const std::byte*>(c.inputs[i] + row0 * columns);
    o.bytes = rows * columns * 4;
    const auto [first, last] = differing(found, reinterpret_cast<const std::byte*>(wrote.data()), o.bytes);
    if (first < 0) {
      o.text = "read as it was written";
      continue;
    }
    o.equal = false;
    o.first_byte = first;
    o.last_byte = last;
    o.text = fmt::format("what the node reads is not what was written: {} (row {}, column {})",
                         bytes_text(first, last, o.bytes), first / 4 / columns, first / 4 % columns);
  }
}

void OperandWatch::meet_cache(const NodeContext& c, const Segment& s) {
  const KvLayer& cache = *c.cache;
  const int64_t positions = s.position + s.rows;
  const std::vector<float> k = known_.cache_rows("k_rope", positions), v = known_.cache_rows("v_proj", positions);
  const int64_t width = cache.kv_heads * cache.head_dim;
  if (int64_t(k.size()) != positions * width || k.size() != v.size()) return;
  std::vector<std::byte> want_k, want_v;
  store_rows(source_.config, cache.type, positions, k.data(), v.data(), want_k, want_v);
  const size_t row = size_t(cache.head_dim) * size_of(cache.type);
  for (const auto& [half, found, want] : {std::tuple{"k", cache.k, &want_k}, {"v", cache.v, &want_v}}) {
    Operand& o = operand(fmt::format("state:layer.{}/{}", node_.clean.layer, half), "state");
    if (!o.equal) continue;
    o.bytes = int64_t(want->size());
    o.text = fmt::format("{} positions as {} wrote them", positions, *half == 'k' ? "k_rope" : "v_proj");
    for (int64_t p = 0; p < positions && o.equal; p++)
      for (int64_t h = 0; h < cache.kv_heads && o.equal; h++) {
        const std::byte* is = found + size_t(cache.offset(s.slot, h, p)) * size_of(cache.type);
        const auto [first, last] = differing(is, want->data() + size_t(h * positions + p) * row, int64_t(row));
        if (first < 0) continue;
        o.equal = false;
        o.first_byte = int64_t(size_t(h * positions + p) * row) + first;
        o.last_byte = int64_t(size_t(h * positions + p) * row) + last;
        o.text = fmt::format("position {}, kv head {} of it is not what {} gave for that row (column {})", p, h,
                             *half == 'k' ? "k_rope" : "v_proj", first / int64_t(size_of(cache.type)));
      }
  }
}

std::vector<Operand> OperandWatch::take() {
  return std::move(out_);
}

bool OperandWatch::wants_tracking() const {
  return std::any_of(residents_.begin(), residents_.end(), [&](const Resident& r) {
    return r.equal_at_start && std::any_of(out_.begin(), out_.end(), [&](const Operand& o) {
             return o.name == r.name && o.kind == r.kind && !o.equal;
           });
  });
}

}  // namespace assay
