// Holds everything that one node of a running engine reads against where it comes from, at the moment when the node
// runs.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "dumps/bisect.h"
#include "engine/session.h"

namespace assay {

class OperandWatch {
 public:
  struct Node {                // which node, of which prompt's pass
    const assay::Node& clean;  // as the family wires it, of `source`
    int32_t prompt;
    Pass pass;
    int64_t step;
  };
  /// The run's own value of a phase: rows [0, rows) of a timeline (k_rope, v_proj), or of the node's pass. Empty: not
  /// known.
  struct Known {
    std::function<std::vector<float>(const char* phase, int64_t rows)> cache_rows;
    std::function<std::vector<float>(const std::string& value, int64_t row0, int64_t rows)> input_rows;
  };
  /// Wraps the node of `engine`. `source`: the model loaded anew; `clean`: its program. `track`: look at the resident
  /// operands after every node, to say which one was the first behind which they were wrong. All must outlive this.
  OperandWatch(Engine& engine, const Model& source, const Program& clean, Node node, Known known, bool track);

  /// To be called after every node that gave a value.
  void after(const assay::Node& n, const Batch& batch);
  /// One entry per operand, in the order attributes, wiring, inputs, weights, tables, caches. Those that became wrong
  /// while the engine ran name the node only if they were tracked.
  std::vector<Operand> take();
  /// Whether an operand was right at the start and wrong when the node ran: tracking would say since when.
  bool wants_tracking() const;

 private:
  struct Resident {  // bytes that should never change
    std::string name, kind;
    std::function<const std::byte*()> now;
    std::vector<std::byte> made;      // what they should be, where it had to be made,
    const std::byte* want = nullptr;  // else where it lies
    int64_t bytes = 0;
    bool equal_at_start = true;
    std::string first_seen;
    std::function<std::string(int64_t byte)> place;
  };
  void add_attributes();
  void add_residents();
  void watch_panels(const std::string& name, const Matrix& w, const Matrix& found);
  void meet(const NodeContext& c);
  void meet_inputs(const NodeContext& c, int64_t row0, int64_t rows, const Segment& s);
  void meet_cache(const NodeContext& c, const Segment& s);
  Operand& operand(const std::string& name, const std::string& kind);

  Engine& engine_;
  const Model& source_;
  const Program& clean_;
  Node node_;
  Known known_;
  bool track_;
  const assay::Node* planted_ = nullptr;
  std::vector<Resident> residents_;
  std::vector<Operand> out_;
};

}  // namespace assay
