// One node of a program run alone. A NodeCase holds everything that the node reads, so that it can be run on values of
// another run, cut down while it still fails, written into a folder, and run there on its own.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/session.h"

namespace assay {

/// A node and its operands, of one pass of one prompt. Rows are consecutive positions.
struct NodeCase {
  Config config;          // of the model
  EngineOptions options;  // isa, threads, activations, kv; the rest follows from the case
  Node node;              // op and attributes; weight, vector, inputs and output are set when it runs
  Pass pass = Pass::prefill;
  int64_t step = 0;
  int64_t first_position = 0, rows = 0;
  int64_t columns = 0;                     // of the output
  std::vector<int32_t> ids;                // [rows]
  std::vector<std::vector<float>> inputs;  // each [rows, columns of that value]
  Matrix weight;                           // linear, embed; empty otherwise
  Vector vector;                           // norms, bias
  std::vector<float> cos, sin;             // rope: [rows, rotary/2], of the positions
  std::vector<float> conv_state;           // conv: [conv_width, channels], of before the rows
  std::vector<float> recurrent_state;      // delta_rule: [v_heads, k_dim, v_dim], of before the rows
  std::vector<std::byte> k, v;             // attention: [kv_heads, first_position + rows, head_dim] of options.kv
  std::vector<std::shared_ptr<const void>> storage;  // what `weight` points into

  int64_t positions() const { return first_position + rows; }
};

/// Rewrites the engine before the node runs, as a planted fault does; may be empty.
using Rewrite = std::function<void(Engine&)>;

struct NodeRun {
  std::vector<float> value;  // [rows, columns]
  std::string variant;       // as the trace calls it
};
/// Runs the node in an engine that has this one node; on a device where c.options names a module (replay_device.h), and then
/// without `plant`. Throws what `plant` throws.
NodeRun run_case(const NodeCase& c, const Rewrite& plant = {});

/// Where a node's weight and vector lie in Weights, with their names: "layer.5/w.q", "lm_head"; "" if it has none.
struct WeightPlace {
  std::string matrix_name, vector_name;
};
WeightPlace weight_place(const Weights& weights, const Node& node);

/// Rounds rows into a cache as the engine does. k, v: [rows, kv_heads*head_dim], of positions 0 on. The caches come
/// back as [kv_heads, rows, head_dim]. Throws Error{numeric} where a finite value overflows the type.
void store_rows(const Config& config, KvType type, int64_t rows, const float* k, const float* v,
                std::vector<std::byte>& k_out, std::vector<std::byte>& v_out);

/// Gives a node a body around what it runs now (kernel or planted fault): `body(context, inner)`. The trace's name
/// stays.
void wrap_node(Engine& engine, Node& node,
               std::function<void(NodeContext&, const std::function<void(NodeContext&)>& inner)> body);

/// Whether a case still shows the fault. Called with ever smaller cases.
using Fails = std::function<bool(const NodeCase&)>;
/// Cuts rows, positions, output columns or heads, and whole groups of the summed dimension, as far as `fails` holds.
/// Precondition: fails(c).
NodeCase shrink(NodeCase c, const Fails& fails);

/// A reproducer's folder (dumps/FORMAT.md; tensors "inputs/0", "weight", "state/k", "expected", ...; the block "repro"
/// of the manifest says the rest). `got` is what the faulty variant gave, `plants` the planted faults by name.
struct ReproFile {
  NodeCase c;
  std::vector<std::string> plants;
  std::vector<float> expected, got;  // [rows, columns]
  std::string origin;                // the tensor's full name where the fault was found
};
void write_repro(const std::filesystem::path& dir, const ReproFile& r);
/// Throws Error{malformed} for a folder that is no reproducer or contradicts itself.
ReproFile read_repro(const std::filesystem::path& dir);

}  // namespace assay
