#include "oracle/window.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <unordered_map>

#include "dumps/error.h"
#include "dumps/greedy.h"
#include "dumps/metrics.h"
#include "dumps/rows.h"
#include "dumps/text.h"

namespace assay::oracle {
namespace {

/// What max_rel needs of each row; the scale is known once every pass has run.
struct RowFigures {
  double difference = 0, largest = 0;  // max |value - base|, max |base|
  int64_t column = -1;                 // of the difference
  double base = 0, value = 0;
};

struct Measured {
  std::vector<RowFigures> rows;
  std::vector<std::string> inputs;
  std::string problem;
  int64_t problem_row = -1, problem_column = -1;
  double problem_base = 0, problem_value = 0;
};

/// Where float64 is not finite either, the window was fed a NaN or an Inf and is not to blame (whoever made it is). A
/// finite value in that place did not come from those inputs.
Measured measure(const Matrix64& base, const Matrix64& value) {
  Measured out;
  out.rows.resize(size_t(base.rows));
  for (int64_t r = 0; r < base.rows; r++) {
    RowFigures& f = out.rows[size_t(r)];
    for (int64_t c = 0; c < base.columns; c++) {
      const double b = base.at(r, c), v = value.at(r, c);
      if (!std::isfinite(b) && !std::isfinite(v)) continue;
      if (std::isfinite(b)) f.largest = std::max(f.largest, std::fabs(b));
      if (!std::isfinite(b) || !std::isfinite(v)) {
        if (out.problem.empty()) {
          out.problem = fmt::format("{} where float64 has {:.9g}", v, b);
          out.problem_row = r, out.problem_column = c, out.problem_base = b, out.problem_value = v;
        }
        continue;
      }
      const double d = std::fabs(v - b);
      if (f.column < 0 || d > f.difference) f.difference = d, f.column = c, f.base = b, f.value = v;
    }
  }
  return out;
}

/// Figures of many tensors, and the usual scale of each phase and layer over all of them (dumps/README.md "max_rel").
class Meter {
 public:
  void add(const std::string& name, Measured m) {
    double& usual = usual_[key(name)];
    for (const RowFigures& f : m.rows) usual = std::max(usual, f.largest);
    measured_[name] = std::move(m);
  }
  const Measured* find(const std::string& name) const {
    const auto it = measured_.find(name);
    return it == measured_.end() ? nullptr : &it->second;
  }
  /// max_rel, and its row.
  std::pair<double, int64_t> worst(const std::string& name) const {
    const Measured& m = measured_.at(name);
    const double usual = usual_.at(key(name));
    std::pair<double, int64_t> out{0, m.rows.empty() ? -1 : 0};
    for (size_t r = 0; r < m.rows.size(); r++) {
      const double rel = m.rows[r].difference / row_scale(m.rows[r].largest, usual);
      if (rel > out.first) out = {rel, int64_t(r)};
    }
    return out;
  }

 private:
  static std::string key(const std::string& name) {
    const TensorName n = *parse_tensor_name(name);
    return (n.is_state() ? "state/" : "") + n.layer + "/" + (n.phase == "logits_last" ? "logits" : n.phase);
  }
  std::unordered_map<std::string, Measured> measured_;
  std::unordered_map<std::string, double> usual_;
};

std::optional<KvType> cache_type(const Dump& d) {
  const auto& m = d.manifest();
  if (!m.contains("options") || !m["options"].is_object() || !m["options"].contains("kv")) return std::nullopt;
  for (KvType t : {KvType::f32, KvType::f16, KvType::bf16})
    if (m["options"]["kv"] == std::string(name_of(t))) return t;
  return std::nullopt;
}

/// Compares what the subject has and, in window mode, goes on with it.
class Judge final : public Tap {
 public:
  Judge(const Dump& subject, bool replace, int64_t experts)
      : subject_(subject), replace_(replace), experts_(experts), kv_(cache_type(subject)) {}
  Meter meter;

  void value(const PassInput& pass, int layer, std::string_view phase, Value& v) override {
    const std::string name = tensor_name(pass.prompt, pass.pass, pass.step, layer, phase);
    if (is_ids(phase)) {
      choice(name, v);
      v.from = {value_name(layer, phase)};
      return;
    }
    if (const DumpTensor* t = observed(name)) {
      const std::string problem = problem_of(*t, v.m);
      if (problem.empty()) {
        Matrix64 theirs = matrix_of(*t);
        judge(name, v.m, theirs, v.from);
        if (replace_) v.m = std::move(theirs);
        v.from = {value_name(layer, phase)};
      } else {
        wrong_shape(name, problem, v.from);
      }
    }
    if (phase != "logits" || v.m.rows == 0) return;
    const std::string last = tensor_name(pass.prompt, pass.pass, pass.step, -1, "logits_last");
    if (const DumpTensor* t = observed(last)) {
      Matrix64 row(1, v.m.columns);
      std::copy_n(v.m.row(v.m.rows - 1), v.m.columns, row.row(0));
      const std::string problem = problem_of(*t, row);
      problem.empty() ? judge(last, row, matrix_of(*t), v.from) : wrong_shape(last, problem, v.from);
    }
  }

  void store(const PassInput&, int, Matrix64& k, Matrix64& v) override {
    if (!replace_ || !kv_) return;
    for (Matrix64* m : {&k, &v})
      for (double& x : m->v) x = round_to(*kv_, x);
  }

  /// State tensors against the cache that the passes built; in window mode they take its place.
  void state(int32_t prompt, const char* when, Cache64& cache) {
    for (size_t l = 0; l < cache.k.size(); l++)
      for (const char* half : {"k", "v"}) {
        const std::string layer = fmt::format("layer.{}", l), name = state_name(prompt, when, layer, half);
        const DumpTensor* t = observed(name);
        if (!t) continue;
        Matrix64& rows = *half == 'k' ? cache.k[l] : cache.v[l];
        const std::vector<std::string> from = {layer + (*half == 'k' ? "/k_rope" : "/v_proj")};
        if (!is_float(t->dtype) || t->shape.size() != 3 || t->shape[1] != rows.rows || t->shape[0] * t->shape[2] != rows.columns) {
          wrong_shape(
              name,
              fmt::format("{} of shape {}, wanted floats for {} positions of {} values", name_of(t->dtype),
                          shape_text(t->shape), rows.rows, rows.columns),
              from);
          continue;
        }
        Matrix64 theirs = cached_rows(*t);
        // Rows of the tensor are (head, position); a place is told in these.
        judge(name, by_head(rows, t->shape[2]), by_head(theirs, t->shape[2]), from);
        if (replace_) rows = std::move(theirs);
      }
  }

 private:
  /// Experts that the subject chose: the oracle goes on with them (forced routing), and what the choice was worth is said by
  /// its regret (dumps/routing.h), not by a distance between ids.
  void choice(const std::string& name, Value& v) {
    const DumpTensor* t = observed(name);
    if (!t || t->dtype != DType::i64 || t->rows() != v.m.rows || t->columns() != v.m.columns) {
      if (t)
        wrong_shape(name,
                    fmt::format("{} of shape {}, wanted I64 {}", name_of(t->dtype), shape_text(t->shape),
                                shape_text({v.m.rows, v.m.columns})),
                    v.from);
    } else if (replace_) {
      const Matrix64 theirs = matrix_of(*t);
      const auto bad = std::find_if(theirs.v.begin(), theirs.v.end(),
                                    [&](double id) { return id < -1 || id >= double(experts_); });
      if (bad == theirs.v.end())
        v.m = theirs;
      else
        wrong_shape(name, fmt::format("expert {} of {}", *bad, experts_), v.from);
    }
  }
  const DumpTensor* observed(const std::string& name) const {
    const DumpTensor* t = subject_.find(name);
    return t && t->data ? t : nullptr;
  }
  /// Why a tensor can't be the value that the model computes there; empty: it can.
  static std::string problem_of(const DumpTensor& t, const Matrix64& wanted) {
    if (!is_float(t.dtype)) return fmt::format("holds {}, wanted a float type", name_of(t.dtype));
    if (t.rows() == wanted.rows && t.columns() == wanted.columns) return {};
    return fmt::format("shape {}, wanted {}", shape_text(t.shape), shape_text({wanted.rows, wanted.columns}));
  }
  static Matrix64 by_head(const Matrix64& rows, int64_t head_dim) {
    const int64_t heads = rows.columns / head_dim;
    Matrix64 out(heads * rows.rows, head_dim);
    for (int64_t h = 0; h < heads; h++)
      for (int64_t p = 0; p < rows.rows; p++)
        std::copy_n(rows.row(p) + h * head_dim, head_dim, out.row(h * rows.rows + p));
    return out;
  }
  void judge(const std::string& name, const Matrix64& base, const Matrix64& theirs,
             const std::vector<std::string>& from) {
    Measured m = measure(base, theirs);
    m.inputs = from;
    meter.add(name, std::move(m));
  }
  void wrong_shape(const std::string& name, const std::string& problem, const std::vector<std::string>& from) {
    Measured m;
    m.problem = problem;
    m.inputs = from;
    meter.add(name, std::move(m));
  }

  const Dump& subject_;
  const bool replace_;
  const int64_t experts_;
  const std::optional<KvType> kv_;
};

std::vector<int32_t> checked_ids(const std::vector<int64_t>& ids, const std::string& prompt, int64_t vocab) {
  for (int64_t id : ids)
    if (id < 0 || id >= vocab)
      throw Error(ErrorKind::malformed, prompt, "a token id outside the model's vocabulary",
                  fmt::format("0 to {}", vocab - 1), std::to_string(id), "The dump may be of another model.");
  return {ids.begin(), ids.end()};
}

/// The prompts of a dump and how many decode passes it has values of.
std::map<int32_t, int64_t> decode_passes(const Dump& d) {
  std::map<int32_t, int64_t> out;
  for (const DumpTensor& t : d.tensors()) {
    const auto n = parse_tensor_name(t.name);
    if (!n || !t.data || !is_float(t.dtype) || !n->prompt.starts_with("prompt")) continue;
    int64_t& passes = out[n->prompt_number()];
    if (n->pass == "decode") passes = std::max(passes, n->step_number() + 1);
  }
  return out;
}

}  // namespace

Matrix64 matrix_of(const DumpTensor& t) {
  if (!t.data) throw Error(ErrorKind::usage, t.name, "has no values", "a dump of mode full");
  Matrix64 out(t.rows(), t.columns());
  for (int64_t i = 0; i < t.elements(); i++) out.v[size_t(i)] = value_at(t.dtype, t.data, i);
  return out;
}

Matrix64 cached_rows(const DumpTensor& t) {
  if (t.shape.size() != 3)
    throw Error(ErrorKind::malformed, t.name, "is no cache", "[kv_head, position, head_dim]", shape_text(t.shape));
  const Matrix64 by_head = matrix_of(t);
  const int64_t heads = t.shape[0], positions = t.shape[1], head_dim = t.shape[2];
  Matrix64 out(positions, heads * head_dim);
  for (int64_t h = 0; h < heads; h++)
    for (int64_t p = 0; p < positions; p++)
      std::copy_n(by_head.row(h * positions + p), head_dim, out.row(p) + h * head_dim);
  return out;
}

std::vector<NodeError> window_errors(const Weights64& weights, const Dump& unaligned, const WindowOptions& o) {
  const Dump subject = align_rows(unaligned);
  const std::map<int32_t, int64_t> prompts = decode_passes(subject);
  if (prompts.empty())
    throw Error(ErrorKind::usage, subject.path().string(), "holds no values of any pass",
                "a dump of mode full with names like prompt0/prefill/0/layer.0/q_proj", "",
                "Names of another engine are mapped first: --map.");
  const Config& c = weights.config();
  Judge window(subject, true, c.experts), free(subject, false, c.experts);
  for (const auto& [prompt, passes] : prompts) {
    const std::string name = fmt::format("prompt{}", prompt);
    const auto tokens = prompt_tokens(subject, name);
    if (!tokens || tokens->ids.empty())
      throw Error(ErrorKind::usage, subject.path().string(), "does not say the ids of " + name,
                  "prompts[].ids in its manifest, or a tensor " + name + "/ids");
    if (int64_t(tokens->fed.size()) < passes)
      throw Error(ErrorKind::usage, subject.path().string(),
                  "does not say what every decode pass of " + name + " was fed",
                  fmt::format("{} ids (fed_ids or greedy_ids)", passes), std::to_string(tokens->fed.size()));
    const std::vector<int32_t> ids = checked_ids(tokens->ids, name, c.vocab),
                               fed = checked_ids(tokens->fed, name, c.vocab);

    Cache64 own, ideal;
    PassInput pass;
    pass.prompt = prompt;
    pass.ids = ids;
    const bool every_row = subject.find(name + "/prefill/0/logits") != nullptr;
    for (int64_t r = every_row ? 0 : int64_t(ids.size()) - 1; r < int64_t(ids.size()); r++)
      pass.logit_rows.push_back(r);
    for (int64_t step = 0; step <= passes; step++) {
      if (step > 0) {
        pass.pass = Pass::decode;
        pass.step = step - 1;
        pass.position = own.length();
        pass.ids = {fed[size_t(step - 1)]};
        pass.logit_rows = {0};
      }
      if (o.progress) o.progress(fmt::format("{}/{}/{}", name, name_of(pass.pass), pass.step));
      forward(weights, pass, own, window, o.threads);
      if (o.accumulated && !o.oracle_dump) forward(weights, pass, ideal, free, o.threads);
      if (step == 0) {
        window.state(prompt, "after_prefill", own);
        if (o.accumulated && !o.oracle_dump) free.state(prompt, "after_prefill", ideal);
      }
    }
    if (passes > 0) {
      window.state(prompt, "after_decode", own);
      if (o.accumulated && !o.oracle_dump) free.state(prompt, "after_decode", ideal);
    }
  }
  if (o.oracle_dump)
    for (const DumpTensor& t : subject.tensors()) {
      const DumpTensor* ideal = o.oracle_dump->find(t.name);
      if (window.meter.find(t.name) && ideal && ideal->data && ideal->shape == t.shape)
        free.meter.add(t.name, measure(matrix_of(*ideal), matrix_of(t)));
    }

  std::vector<NodeError> out;
  for (const DumpTensor& t : subject.tensors()) {
    const Measured* m = window.meter.find(t.name);
    if (!m) continue;
    NodeError e;
    e.name = t.name;
    e.order = t.order;
    e.inputs = m->inputs;
    const auto [rel, row] = window.meter.worst(t.name);
    e.added = rel;
    e.row = row;
    if (row >= 0) {
      const RowFigures& f = m->rows[size_t(row)];
      e.column = f.column, e.oracle = f.base, e.value = f.value;
    }
    if (!m->problem.empty()) {
      e.problem = m->problem;
      e.added = std::numeric_limits<double>::infinity();
      e.row = m->problem_row, e.column = m->problem_column, e.oracle = m->problem_base, e.value = m->problem_value;
    }
    if (const Measured* f = free.meter.find(t.name))
      e.accumulated = f->problem.empty() ? free.meter.worst(t.name).first : std::numeric_limits<double>::infinity();
    out.push_back(std::move(e));
  }
  return out;
}

std::vector<NodeError> window_errors(const std::filesystem::path& model, const Dump& subject,
                                     const WindowOptions& options) {
  return window_errors(Weights64::open(model), subject, options);
}

}  // namespace assay::oracle
