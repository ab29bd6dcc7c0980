// What follows a verdict of the replayer: float64 for both sides, a case cut down, and what a wrongly wired node reads.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "conformance/drill/at.h"
#include "dumps/error.h"
#include "dumps/text.h"

namespace assay {
namespace {

constexpr double kMostOperations = 4e9;  // multiplications that one question may cost

double operations_of(const NodeCase& c) {
  const double rows = double(c.rows), columns = double(c.columns);
  if (c.node.op == OpKind::linear) return rows * columns * double(c.weight.columns);
  if (c.node.op == OpKind::attention) return 2 * rows * columns * double(c.positions());
  return rows * columns;
}

bool same_bytes(std::vector<float> a, std::vector<float> b) {
  canonicalise(DType::f32, a.data(), int64_t(a.size()));
  canonicalise(DType::f32, b.data(), int64_t(b.size()));
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Error of f32 values against float64, as dumps/README.md measures it.
double error_of(const std::vector<double>& exact, const float* x, int64_t rows, int64_t columns) {
  DumpTensor want, got;
  want.dtype = DType::f64;
  want.shape = got.shape = {rows, columns};
  want.data = reinterpret_cast<const std::byte*>(exact.data());
  got.dtype = DType::f32;
  got.data = reinterpret_cast<const std::byte*>(x);
  double scale = 0;
  for (double v : exact)
    if (std::isfinite(v)) scale = std::max(scale, std::fabs(v));
  const TensorMetrics m = measure(want, got, scale);
  return m.non_finite_mismatch > 0 ? INFINITY : m.max_rel;
}

}  // namespace

std::optional<TwoSided> EngineReplayer::exact(const std::string& name) {
  const auto at = place(name);
  if (!at) return std::nullopt;
  const std::string own = at->last_only ? at->prefix + "logits" : name;
  const Values *b = value(Side::base, *at, name), *t = value(Side::target, *at, name);
  if (!b) b = value(Side::base, *at, own);
  if (!t) t = value(Side::target, *at, own);
  if (!b || !t || b->rows != t->rows || b->columns != t->columns) return std::nullopt;
  // All rows where that is cheap, else from the first that differs on.
  int64_t first = 0, rows = b->rows;
  const auto all = make_case(*at, Side::base, 0, rows, options_of(Side::base));
  if (!all) return std::nullopt;
  if (operations_of(*all) > kMostOperations / 2) {
    while (first + 1 < rows && same_bytes({b->x.begin() + first * b->columns, b->x.begin() + (first + 1) * b->columns},
                                          {t->x.begin() + first * t->columns, t->x.begin() + (first + 1) * t->columns}))
      first++;
    rows = 1;
  }
  TwoSided out;
  for (const auto& [side, v, error] : {std::tuple{Side::base, b, &out.base}, {Side::target, t, &out.target}}) {
    const auto c = make_case(*at, side, first, rows, options_of(side));
    if (!c) return std::nullopt;
    *error = error_of(exact_value(*c), &v->x[size_t(first * v->columns)], rows, v->columns);
  }
  out.text =
      fmt::format("max_rel of each side's value against {} in float64 on that side's own inputs, {}",
                  name_of(at->node->op), rows == b->rows ? fmt::format("{} rows", rows) : fmt::format("row {}", first));
  return out;
}

std::string EngineReplayer::find_wiring(const std::string& name) {
  const auto at = place(name);
  const Values* got = at ? value(Side::target, *at, at->last_only ? at->prefix + "logits" : name) : nullptr;
  if (!got || at->last_only) return "";
  const int64_t row = at->rows - 1;  // positions far from 0 tell more
  EngineOptions reference = options_of(Side::target);
  reference.device = {};
  auto c = make_case(*at, Side::target, row, 1, reference);
  if (!c || got->rows != at->rows) return "";
  const float* want = &got->x[size_t(row * got->columns)];
  double spent = 0;
  for (size_t i = 0; i < c->inputs.size(); i++) {
    const std::vector<float> own = c->inputs[i];
    const Value& belongs = clean_.values[size_t(at->node->inputs[i])];
    for (const DumpTensor& t : target_.dump.tensors()) {
      if (!t.name.starts_with(at->prefix) || t.columns() != int64_t(own.size()) || t.rows() != at->rows ||
          t.name == name)
        continue;
      const Values* x = value(Side::target, *at, t.name);
      if (!x || (spent += operations_of(*c)) > kMostOperations) continue;
      c->inputs[i].assign(x->x.begin() + row * x->columns, x->x.begin() + (row + 1) * x->columns);
      if (same_bytes(c->inputs[i], own)) continue;
      const std::vector<float> y = run_case(*c).value;
      const std::vector<double> as_wanted(y.begin(), y.end());
      if (error_of(as_wanted, want, 1, c->columns) > presets().at("f32").fixed) continue;
      return fmt::format("reads {} where {} belongs: on that value the reference kernel gives the target's",
                         t.name.substr(at->prefix.size()),
                         belongs.layer < 0 ? belongs.phase : fmt::format("layer.{}/{}", belongs.layer, belongs.phase));
    }
    c->inputs[i] = own;
  }
  return "";
}

std::optional<Reproducer> EngineReplayer::reproduce(const std::string& name, const std::filesystem::path& dir) {
  const auto at = place(name);
  if (!at || !target_.origin.ours) return std::nullopt;
  const auto whole = replay(name, Side::base);
  if (!whole) return std::nullopt;
  // The expected bytes of a smaller case come from the scalar kernels without a fault, with the target's own settings;
  // where these settings are the fault, with the base's.
  const Rewrite planted = target_plant();
  EngineOptions reference = options_of(Side::target);
  reference.isa = Isa::scalar;
  reference.threads = 1;
  const auto fails = [&](const NodeCase& c) {
    try {
      NodeCase r = c;
      r.options.isa = reference.isa;
      r.options.activations = reference.activations;
      r.options.threads = 1;
      r.options.device = {};
      return !same_bytes(run_case(c, planted).value, run_case(r).value);
    } catch (const Error&) {
      return false;  // the fault has no place in so small a case
    }
  };
  // The first row that differs, alone if it still does.
  const auto* expected = reinterpret_cast<const float*>(whole->expected.data());
  int64_t row = 0;
  while (row + 1 < whole->rows &&
         std::memcmp(expected + row * whole->columns, &whole->got[size_t(row * whole->columns)],
                     size_t(whole->columns) * 4) == 0)
    row++;
  EngineOptions small = options_of(Side::target);
  small.threads = 1;
  std::optional<NodeCase> c;
  for (const Activations kind : {small.activations, options_of(Side::base).activations}) {
    reference.activations = kind;
    for (const auto& [first, rows] : {std::pair{row, int64_t(1)}, {int64_t(0), at->rows}}) {
      c = make_case(*at, Side::base, first, rows, small);
      if (!c) return std::nullopt;
      if (at->last_only && first > 0) continue;
      if (fails(*c)) break;
      c.reset();
    }
    if (c) break;
  }
  if (!c) return std::nullopt;
  const int64_t rows = at->rows, columns = c->columns, summed = c->node.op == OpKind::linear ? c->weight.columns : 0,
                positions = c->positions();
  ReproFile r;
  r.c = shrink(std::move(*c), fails);
  NodeCase clean = r.c;
  clean.options.isa = reference.isa;
  clean.options.activations = reference.activations;
  clean.options.device = {};
  r.expected = run_case(clean).value;
  r.got = run_case(r.c, planted).value;
  r.plants = target_.origin.plants;
  r.origin = name;
  write_repro(dir, r);
  uint64_t bytes = 0;
  for (const auto& f : std::filesystem::recursive_directory_iterator(dir))
    if (f.is_regular_file()) bytes += f.file_size();
  Reproducer out{dir, ""};
  out.text = fmt::format("{} of {} rows, {} of {} columns", r.c.rows, rows, r.c.columns, columns);
  if (summed) out.text += fmt::format(", {} of {} summed", r.c.weight.columns, summed);
  if (!r.c.k.empty()) out.text += fmt::format(", {} of {} positions", r.c.positions(), positions);
  out.text += ", " + bytes_text(bytes);
  return out;
}

}  // namespace assay
