// Every linear node of a running model, on its own inputs, against the exact product in float64: within the bound of
// NUMERICS.md for its activations, with the used share and the node that used most of it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "conformance/integration/quantised.h"
#include "conformance/kernel/exact_product.h"
#include "conformance/quality/smollm2.h"

namespace assay {
namespace {

/// Keeps the values that linear nodes read, and judges a sample of what they write.
class BoundObserver : public GenerateObserver {
 public:
  BoundObserver(const Engine& engine, CheckOutcome& out, int64_t outputs)
      : engine_(engine), out_(out), outputs_(outputs) {
    for (const Node& n : engine.program().nodes)
      if (quantised(n))
        for (ValueId v : n.inputs) inputs_[v];
  }

  void value(const Batch& batch, const Node& node, const float* data, std::span<const int64_t> rows,
             int64_t columns) override {
    if (quantised(node)) judge(batch, node, data, rows, columns);
    if (auto it = inputs_.find(node.output); it != inputs_.end())
      it->second.assign(data, data + int64_t(rows.size()) * columns);
  }

  double worst = 0;
  std::string worst_at;
  int64_t nodes = 0;

 private:
  static bool quantised(const Node& n) { return (n.op == OpKind::linear || n.op == OpKind::expert_linear) && is_quantised(n.weight->type);
  }

  /// First, last and middle row of tokens, and outputs evenly spread, the last one (the tail of the last panel)
  /// included.
  void judge(const Batch& batch, const Node& node, const float* y, std::span<const int64_t> rows, int64_t columns) {
    const Matrix& w = *node.weight;
    const std::vector<float>& x = inputs_.at(node.inputs[0]);
    const int64_t count = int64_t(rows.size()), step = std::max<int64_t>(1, w.rows / outputs_);
    nodes++;
    if (node.op == OpKind::expert_linear) return judge_experts(batch, node, y, count);
    for (int64_t offset = w.rows - 1; offset >= 0; offset -= step) {
      const ExactRow exact = decode_exactly(w.type, w.row(offset), w.columns);
      for (int64_t r : {int64_t(0), count / 2, count - 1}) {
        const ExactProduct want =
            exact_product(w.type, exact, &x[size_t(rows[size_t(r)] * w.columns)], engine_.options().activations,
                          node.vector ? &(*node.vector)[size_t(offset)] : nullptr);
        hold(batch, node, r, offset, y[r * columns + offset], want);
      }
    }
  }

  /// First, last and middle row of tokens with each of their experts, outputs evenly spread.
  void judge_experts(const Batch& batch, const Node& node, const float* y, int64_t count) {
    const Matrix& all = *node.weight;
    const std::vector<float>&x = inputs_.at(node.inputs[0]), &ids = inputs_.at(node.inputs[1]);
    const int64_t outputs = all.rows / node.experts, step = std::max<int64_t>(1, outputs / std::max<int64_t>(1, outputs_ / node.chosen));
    const int64_t parts = int64_t(x.size()) / (count * all.columns);
    for (int64_t r : {int64_t(0), count / 2, count - 1})
      for (int64_t k = 0; k < node.chosen; k++) {
        const int64_t pair = r * node.chosen + k;
        const Matrix own = expert_of(all, node.experts, int64_t(ids[size_t(pair)]));
        const float* row = &x[size_t((parts == 1 ? r : pair) * all.columns)];
        for (int64_t o = outputs - 1; o >= 0; o -= step) {
          const ExactRow exact = decode_exactly(own.type, own.row(o), own.columns);
          hold(batch, node, r, k * outputs + o, y[pair * outputs + o],
               exact_product(own.type, exact, row, engine_.options().activations, nullptr));
        }
      }
  }

  void hold(const Batch& batch, const Node& node, int64_t row, int64_t column, double got, const ExactProduct& want) {
    const double share = std::fabs(got - want.value) / want.bound;
    out_.compared++;
    const auto where = [&] {
      return fmt::format("prompt{}/{}/{}/{}, row {}, column {}", batch.segments.at(0).prompt, name_of(batch.pass),
                         batch.segments.at(0).step, node.name(), row, column);
    };
    if (share > worst) {
      worst = share;
      worst_at = where();
    }
    if (!(share <= 1))
      out_.fail(fmt::format("{}: {:.9g}, float64 {:.9g}: {:.2f} times its bound", where(), got, want.value, share));
  }

  const Engine& engine_;
  CheckOutcome& out_;
  const int64_t outputs_;                         // per node, about
  std::map<ValueId, std::vector<float>> inputs_;  // by value, of the running pass
};

void run_bounds(CheckOutcome& out, std::shared_ptr<const Model> model, DumpSpec spec, Activations kind, int64_t outputs,
                const std::string& what) {
  spec.engine.activations = kind;
  const auto engine = make_engine(std::move(model), spec);
  BoundObserver observer(*engine, out, outputs);
  GenerateOptions options;
  options.all_logits = true;
  generate(*engine, spec.requests, options, &observer);
  if (observer.nodes == 0) out.fail(what + ": no node has quantised weights");
  out.notes.push_back(fmt::format("{} {}: {} nodes run, {:.1f}% of the bound used, at {}", what, name_of(kind),
                                  observer.nodes, 100 * observer.worst, observer.worst_at));
}

CheckOutcome case_bounds(const CheckContext& c, const OfficialCase& oc) {
  CheckOutcome out;
  DumpSpec spec = case_spec(c, oc, true);
  for (Request& r : spec.requests) {
    r.decode = std::min<int64_t>(r.decode, 2);
    r.forced.resize(std::min<size_t>(r.forced.size(), size_t(r.decode)));
  }
  for (WeightType type : quantised_types(oc))
    for (Activations kind : {Activations::s16, Activations::s8, Activations::f32})
      run_bounds(out, quantised_case(c, oc, type), spec, kind, 12, id_of(type));
  return out;
}

CheckOutcome smollm2_bounds(const CheckContext& c) {
  CheckOutcome out;
  if (!smollm2_present(c)) {
    out.not_run = smollm2_how();
    return out;
  }
  DumpSpec spec = smollm2_spec(c, 1, 1);
  for (Activations kind : {Activations::s16, Activations::s8, Activations::f32})
    run_bounds(out, smollm2_model(c), spec, kind, 8, "Q4_1");
  return out;
}

}  // namespace

void add_bound_checks(std::vector<Check>& out) {
  Check k;
  k.level = Level::max_rel;
  k.baseline = "each linear node's product in float64, from the file's blocks and the node's own input";
  k.target = "the node's output with s16, s8 and f32 activations, within the bound of NUMERICS.md";
  for (const OfficialCase& oc : official_cases()) {
    if (!oc.gguf) continue;
    k.id = fmt::format("integration/{}/bounds", oc.name);
    k.family = oc.family;
    k.cost = oc.trained ? Cost::slow : Cost::fast;
    k.expected = 10000;
    k.run = [&oc](const CheckContext& c) { return case_bounds(c, oc); };
    out.push_back(k);
  }
  k.id = "integration/smollm2/bounds";
  k.family = "llama";
  k.cost = Cost::slow;
  k.expected = 10000;
  k.run = smollm2_bounds;
  out.push_back(k);
}

}  // namespace assay
