// Drilling a difference of two dumps down to the first divergent node, and saying what is wrong there: the node's
// kernel, one of its operands, its wiring or the state it reads. Works on dumps alone; what it needs of an engine
// beyond them comes through a Replayer. Method and words: dumps/README.md "Bisecting".
#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dumps/compare.h"

namespace assay {

enum class Side : uint8_t { base, target };
std::string_view name_of(Side s);

/// One thing that a node reads, held against where it comes from.
struct Operand {
  std::string name;  // "layer.5/w.q", "layer.5/attn_norm", "state:layer.5/k", "rope table"
  std::string kind;  // "input", "weight", "panels", "vector", "table", "state", "attribute"
  bool equal = true;
  std::string text;  // what was compared, or how it differs: "bytes 4096-4099 of 589824, first seen after ..."
  int64_t first_byte = -1, last_byte = -1, bytes = 0;  // of the difference, both included; of the operand
  std::string first_seen;  // the node after which the operand was no longer what it should be; empty: from the start
};

/// A node run alone. `expected`: what the other side has, `got`: what the run gave; both [rows, columns].
struct Replay {
  std::string variant;    // the code that ran: "avx512vnni+s16", "rope-pairs"
  std::string isa;        // "avx512vnni"
  int64_t first_row = 0;  // of the node's tensor: row 0 of the values
  int64_t rows = 0, columns = 0;
  DType dtype = DType::f32;  // of expected; got is always f32
  std::vector<std::byte> expected;
  std::vector<float> got;
};

/// Errors of both sides' values against float64 on that side's own inputs (max_rel of dumps/README.md).
struct TwoSided {
  double base = 0, target = 0;
  std::string text;  // what was computed
};

/// A case that shows the fault alone, written into a folder.
struct Reproducer {
  std::filesystem::path path;
  std::string text;  // "2 rows of 5, 1 head of 8: 3 kB"
};

/// What bisect asks of an engine that has the model. `node` is a tensor's full name,
/// "prompt0/prefill/0/layer.3/q_rope". Calls may run the model again and throw its errors.
class Replayer {
 public:
  virtual ~Replayer() = default;
  /// For people: "assay, qwen3 BF16, cpu avx2".
  virtual std::string about() const = 0;
  /// Whether that side was made by this engine and model, so that it can be run again bit for bit.
  virtual bool can_rerun(Side side) const = 0;
  /// Full names of what the node is computed from, as the model's family wires it; "state:..." for caches. Nullopt: the
  /// family has no such node.
  virtual std::optional<std::vector<std::string>> inputs(const std::string& node) const = 0;
  /// Runs the target again up to the node and holds everything that the node reads against its source: inputs against
  /// the baseline's, weights and tables as resident against the file's, caches against the rows that were written to
  /// them. What differs comes with its bytes. Precondition: can_rerun(target).
  virtual std::vector<Operand> operands(const std::string& node) = 0;
  /// Why the target's value of the node is not what running it again gives; empty: it is. Precondition:
  /// can_rerun(target).
  virtual std::string not_reproducible(const std::string& node) = 0;
  /// The node alone with `inputs`'s values and state, clean weights. Inputs of the base: the target's variant of the
  /// kernel runs, expected is the base's value. Inputs of the target: the reference kernel runs, expected is the
  /// target's value. Nullopt: an input's values are not to be had.
  virtual std::optional<Replay> replay(const std::string& node, Side inputs) = 0;
  /// Float64 on both sides' own inputs; nullopt: not to be had.
  virtual std::optional<TwoSided> exact(const std::string& node) = 0;
  /// Of a node whose replay on the base's inputs gave another value than the base: shrinks it while the same variant
  /// still fails, and writes it to `dir`.
  virtual std::optional<Reproducer> reproduce(const std::string& node, const std::filesystem::path& dir) = 0;
  /// Values of the target's pass that, put in the place of the node's input, make the reference kernel give the
  /// target's value: "reads layer.3/ffn_norm where layer.3/attn_norm belongs". Empty: none does.
  virtual std::string find_wiring(const std::string& node) = 0;
};

struct BisectOptions {
  CompareOptions compare;
  std::filesystem::path repro;  // folder for a reproducer; empty: none is written
};

/// verdict: what is wrong.
///   equal             no tensor differs at the level
///   nothing           no tensor differs and still it is no pass: nothing was compared, or more near ties than allowed
///   other_prompts     the sides were given other ids
///   missing, shape    the target lacks the tensor, or has another shape or (byte_exact) type
///   first_divergence  where they part; not enough was dumped to say more
///   node              all inputs agree: the node's kernel, weights or tables (dumps alone)
///   input             an input differs already, or differs within the tolerance and the kernel is right on it
///   state             the rows agree, the cache that they were written to does not
///   wiring            the node reads another value than it should
///   operand           a weight or table is not what its source says
///   kernel            on clean operands the kernel gives another value
///   not_reproducible  running the target again gives another value than its dump holds
struct BisectResult {
  std::string verdict, name, text;  // the suspect's full name; one sentence
  std::string where;                // "row 1 (position 1), column 196: base -0.7, target 0.9"
  CompareResult compared;
  struct Line {  // a tensor of the suspect's prompt, in execution order
    std::string name;
    // "equal", "within", "differs", "missing", "not compared", "not dumped"; of a cache that was not dumped "rows
    // equal": all rows that were written to it agree
    std::string status;
    std::optional<double> max_rel;
  };
  std::vector<Line> trail;   // the last that agree, the suspect, what follows
  std::vector<Line> inputs;  // of the suspect; names as the manifest gives them
  std::vector<Operand> operands;
  std::optional<Replay> replay;
  std::optional<TensorMetrics> replay_metrics;  // expected against got
  std::string replayer;                         // Replayer::about()
  bool rerun = false;                           // the replayer can run the target again
  std::optional<TwoSided> exact;
  std::optional<Reproducer> repro;
  std::vector<std::string> notes;  // what could not be done, and why
  int exit_code() const;           // 0: equal; else 1
};

/// Both dumps in logical rows (align_rows). `replayer` may be null. Throws what compare() and the replayer throw.
BisectResult bisect(const Dump& base, const Dump& target, const BisectOptions& options, Replayer* replayer);

/// One record (schemas/record.schema.json "bisect"); text for people is rendered from it alone. `arguments`: of the command,
/// so that the one which the text ends with judges alike (" --tol 0.1").
nlohmann::ordered_json to_record(const BisectResult& r, const Dump& base, const Dump& target,
                                 const std::string& arguments = {});
std::string render_bisect_text(const nlohmann::ordered_json& record, bool color);

}  // namespace assay
