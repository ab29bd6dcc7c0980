// What bisect asks of an engine, answered by ours: the dumps' own runs made again, operands held against a model loaded
// anew, single nodes replayed (engine/replay.h) and computed in float64 (oracle/).
#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "conformance/runner.h"
#include "dumps/bisect.h"
#include "engine/replay.h"

namespace assay {

/// How a side was made, as its manifest tells it.
struct DumpOrigin {
  bool ours = false;                // this engine and this model: it can be run again
  std::string why_not;              // for people
  DumpSpec spec;                    // requests (fed as they were), options, chunk, batch, slot
  std::vector<std::string> plants;  // planted faults by name
  std::string on;                   // the device and its module, for people; empty: the CPU
};
/// Where an engine's kernels come from: "avx2", or the device module's file.
std::string kernels_of(const EngineOptions& o);
/// `model_hash`: of the model at hand.
DumpOrigin origin_of(const Dump& dump, const std::string& model_hash);

/// Plants faults by name, one after the other.
Rewrite plant_all(std::vector<std::string> names);

class EngineReplayer : public Replayer {
 public:
  struct Options {
    std::filesystem::path model;
    std::optional<EngineOptions> engine;  // for sides that are not ours; absent: defaults with an f32 cache
    std::optional<Isa> isa;               // of the target's kernels, in place of its manifest's
    int threads = 0;
    std::filesystem::path module;         // of dumps made on a device, in place of what their manifests name
    Rewrite plant;  // in place of the faults that the target's manifest names
  };
  /// Both dumps must outlive this. Throws what load_model() throws.
  EngineReplayer(const Dump& base, const Dump& target, Options options);
  ~EngineReplayer() override;

  std::string about() const override;
  bool can_rerun(Side side) const override { return side_of(side).origin.ours; }
  std::optional<std::vector<std::string>> inputs(const std::string& node) const override;
  std::vector<Operand> operands(const std::string& node) override;
  std::string not_reproducible(const std::string& node) override;
  std::optional<Replay> replay(const std::string& node, Side inputs) override;
  std::optional<TwoSided> exact(const std::string& node) override;
  std::optional<Reproducer> reproduce(const std::string& node, const std::filesystem::path& dir) override;
  std::string find_wiring(const std::string& node) override;

  const Model& model() const { return *model_; }
  const DumpOrigin& origin(Side side) const { return side_of(side).origin; }
  Rewrite target_plant() const;
  /// The engine of a side as it was; the target's with its faults.
  std::unique_ptr<Engine> engine_of(Side side) const;
  /// A node's value in the base, [rows, columns] in f32; nullopt: neither dumped nor to be had by running it again.
  std::optional<std::vector<float>> base_value(const std::string& node);

 private:
  /// A value of one side, widened or rounded to f32.
  struct Values {
    int64_t rows = 0, columns = 0;
    std::vector<float> x;
  };
  struct SideState {
    const Dump& dump;
    DumpOrigin origin;
    std::map<std::string, Values> read;  // of the dump
    std::map<std::string, Values> kept;  // of a run made again, for node `run_for`
    std::string run_for;
  };
  struct At;  // a node's name taken apart
  const SideState& side_of(Side s) const { return s == Side::base ? base_ : target_; }
  SideState& side_of(Side s) { return s == Side::base ? base_ : target_; }
  std::optional<At> place(const std::string& node) const;
  const Values* value(Side side, const At& at, const std::string& name);
  void run_again(Side side, const At& at);
  bool run_once(Side side, const At& at, bool watched, bool track);
  void find_device(DumpOrigin& origin) const;
  std::optional<NodeCase> make_case(const At& at, Side values, int64_t first, int64_t rows,
                                    const EngineOptions& options);
  EngineOptions options_of(Side side) const;
  std::optional<Replay> replay_rows(const At& at, Side inputs, int64_t first, int64_t rows);

  std::shared_ptr<const Model> model_;  // never given to an engine with faults: those load their own
  Options options_;
  Program clean_;  // of model_
  SideState base_, target_;
  std::vector<Operand> operands_;  // of the target's last run
};

/// What a case should give, in float64 from its operands (oracle/ops.h). [rows, columns].
std::vector<double> exact_value(const NodeCase& c);

}  // namespace assay
