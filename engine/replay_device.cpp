// A NodeCase on a device: an engine of the node and of sources that give its operands. Sources have no kernel on any device, so that
// the engine's own ways bring what they give to it.
#include <algorithm>
#include <cstring>
#include <limits>

#include "dumps/error.h"
#include "engine/ops/common/rope_table.h"
#include "engine/replay_device.h"

namespace assay {
namespace {

/// Keeps what one node wrote.
class Keep : public Observer {
 public:
  explicit Keep(const std::string& phase, std::vector<float>& value) : phase_(phase), value_(value) {}
  void value(const Batch&, const Node& node, const float* data, std::span<const int64_t> rows, int64_t columns) override {
    if (node.phase == phase_) value_.assign(data, data + int64_t(rows.size()) * columns);
  }

 private:
  const std::string phase_;
  std::vector<float>& value_;
};

}  // namespace

NodeRun run_case_on_device(const NodeCase& c) {
  auto model = std::make_shared<Model>();
  model->config = c.config;
  model->config.vocab = c.node.requested_rows_only ? c.columns : std::max<int64_t>(c.weight.rows, 1);   // of what ids there are
  model->weights.layers.resize(size_t(c.config.layers));
  model->weights.storage = c.storage;
  Program program;
  Node node = c.node;
  node.inputs.clear();
  node.replacement = nullptr;
  node.weight = c.weight.empty() ? nullptr : &c.weight;
  node.vector = c.vector.empty() ? nullptr : &c.vector;
  for (size_t i = 0; i < c.inputs.size(); i++) {
    Node source;
    source.op = OpKind::add;
    source.phase = "input" + std::to_string(i);
    source.output = ValueId(i);
    source.variant = "source";
    source.replacement = [&x = c.inputs[i]](NodeContext& to) { std::copy(x.begin(), x.end(), to.output); };
    program.values.push_back({source.phase, -1, int64_t(c.inputs[i].size()) / c.rows, ""});
    program.nodes.push_back(std::move(source));
    node.inputs.push_back(ValueId(i));
  }
  if (!c.k.empty()) {
    Node source;
    source.op = OpKind::kv_store;
    source.layer = node.layer;
    source.phase = "cache";
    source.variant = "source";
    source.replacement = [&c](NodeContext& to) {
      std::memcpy(to.cache->k, c.k.data(), c.k.size());
      std::memcpy(to.cache->v, c.v.data(), c.v.size());
    };
    program.nodes.push_back(std::move(source));
  }
  node.output = ValueId(program.values.size());
  program.values.push_back({node.phase, node.layer, c.columns, ""});
  const int index = int(program.nodes.size());
  program.nodes.push_back(node);

  EngineOptions options = c.options;
  options.slots = 1;
  options.context = c.positions();
  options.device.required = true;
  options.device.graph = false;
  options.device.fused = false;
  options.device.budget = 0;
  Engine engine(model, std::move(program), options);
  engine.plant_length(0, c.first_position);
  const RopeTable& table = engine.rope();   // which is what the device has
  if (!c.cos.empty() && (table.pairs * c.rows != int64_t(c.cos.size()) ||
                         !std::equal(c.cos.begin(), c.cos.end(), table.cos.begin() + c.first_position * table.pairs) ||
                         !std::equal(c.sin.begin(), c.sin.end(), table.sin.begin() + c.first_position * table.pairs)))
    throw Error(ErrorKind::usage, c.node.name(), "rows of its rope table are not those that its config gives, and a device has no others",
                "a table of theta and rotary alone", "another one (llama3 scaling)", "--backend cpu runs the case.");

  Batch batch;
  batch.pass = c.pass;
  batch.ids = c.ids;
  batch.ids.resize(size_t(c.rows));
  batch.segments = {{0, c.first_position, c.rows, 0, c.step}};
  if (node.requested_rows_only)
    for (int64_t r = 0; r < c.rows; r++) batch.logit_rows.push_back(r);
  NodeRun out;
  out.value.assign(size_t(c.rows * c.columns), std::numeric_limits<float>::quiet_NaN());
  Keep keep(node.phase, out.value);
  Trace trace;
  engine.forward(batch, &keep, &trace);
  for (const TraceEntry& e : trace.entries)
    if (e.node == index) out.variant = e.backend == "cpu" ? "refused, the CPU's " + e.variant : e.variant;
  return out;
}

}  // namespace assay
