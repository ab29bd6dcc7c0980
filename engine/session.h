// The public API. Engine: a model's weights, its program and the state of all slots. Session: one timeline in one slot.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/backend.h"
#include "engine/device_options.h"
#include "engine/model.h"
#include "engine/program.h"

namespace assay {

class DeviceBackend;

struct EngineOptions {
  Isa isa = best_isa();
  int threads = 0;            // 0: all cores
  KvType kv = KvType::f16;
  Activations activations = Activations::s16;   // of quantised weights; without any it has no effect
  int slots = 1;
  int64_t context = 0;        // positions per slot; 0: the model's own maximum
  DeviceOptions device = {};  // module empty: the CPU alone
  bool poison = false;        // fill unwritten state and every output with NaN before it is written (checks)
};

/// What an engine holds beside its model, in bytes.
struct EngineMemory {
  size_t panels = 0;       // quantised weights repacked for SIMD (ops/panel.h)
  size_t kv = 0;           // caches of all slots and layers, used or not
  size_t gdn = 0;          // states of gated DeltaNet layers, all slots, and what verify passes keep of them
  size_t rope = 0;         // cos and sin of every position
  size_t values = 0;       // buffers of node values, f32
  size_t quantised = 0;    // activations as integers
  size_t scratch = 0;      // of attention, all workers
  size_t experts = 0;      // rows gathered by expert
  size_t total() const { return panels + kv + gdn + rope + values + quantised + scratch + experts; }
};

/// Fills in the context where it is 0. Throws Error{usage} for what no engine can have.
void check_options(EngineOptions& options, const Config& config);
/// A layer's cache without memory, of state layer i (Config::state_layers): no kv heads where the layer does not attend.
KvLayer kv_layer_of(const Config& config, int64_t layer, const EngineOptions& options);
/// A layer's recurrent state without memory; state_floats() 0: the layer attends.
GdnLayer gdn_layer_of(const Config& config, int64_t layer, const EngineOptions& options);
/// Which free buffer a value of `floats` gets: the smallest that is large enough, else the largest (which then grows); -1: none is free.
int choose_buffer(const std::vector<int64_t>& sizes, const std::vector<bool>& used, int64_t floats);

/// Sees every value right after its node ran. `rows` are the batch rows that `data` holds, one after the other.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void value(const Batch& batch, const Node& node, const float* data, std::span<const int64_t> rows, int64_t columns) = 0;
};

class Engine : private HostSide {
 public:
  Engine(std::shared_ptr<const Model> model, EngineOptions options);
  /// A program that is not (only) the family's: one node of it (replay.h), a mutation. Its nodes may read the model's weights.
  Engine(std::shared_ptr<const Model> model, Program program, EngineOptions options);
  ~Engine();

  /// Runs one physical pass. Segments must start at their slot's length and fit its context (Error{usage} with wanted and found).
  /// Returns the logits of batch.logit_rows, [n, vocab], valid until the next call; null where the batch wants ids only and a
  /// device chose them.
  const float* forward(const Batch& batch, Observer* observer = nullptr, Trace* trace = nullptr);

  const Model& model() const { return *model_; }
  const EngineOptions& options() const { return options_; }
  const CpuBackend& backend() const { return *backend_; }
  const Program& program() const { return program_; }
  Program& plantable_program();                       // for planted faults: what runs is what was rewritten
  CpuBackend& plantable_backend() { return *backend_; }
  void plantable_keeps_rejected() { keeps_rejected_ = true; }   // a planted fault: states are not taken back

  int64_t length(int slot) const { return lengths_.at(slot); }
  int64_t mtp_length(int slot) const { return mtp_lengths_.at(slot); }   // rows of the MTP head's cache
  /// Forgets positions >= length (poisoned where asked), those of the MTP head's cache too. Where layers have a recurrent state
  /// the slot goes back to 0, stays as it is, or goes back into its last verify pass, whose rows up to `length` are then all that
  /// the state has seen, byte for byte; else Error{usage}.
  void truncate(int slot, int64_t length);
  void truncate_mtp(int slot, int64_t length);        // the MTP head's cache alone
  /// Slot `to` becomes what slot `from` is: caches, recurrent states, lengths. What a verify pass kept is not copied.
  void copy_slot(int from, int to);
  /// Of state layer i, on the host, brought up to date where a device holds the newer copy.
  const KvLayer& kv(int layer) const;
  const GdnLayer& gdn(int layer) const;
  /// What the MTP head reads of the last pass: final_norm of its rows, of a pass of the head mtp_norm; [rows, hidden], valid until
  /// the next pass. Empty: the model has no head.
  std::span<const float> hidden() const { return hidden_; }
  bool has_mtp() const { return program_.hidden != kNoValue; }
  const RopeTable& rope() const { return *rope_; }
  EngineMemory memory() const;
  /// The device that passes run on; null: none was asked for, or none could be had (device_problem says why).
  DeviceBackend* device() const { return device_.get(); }
  const std::string& device_problem() const { return device_problem_; }
  /// Whether a pass of this batch writes the value; false: a fused device step keeps it inside.
  bool materialises(const Batch& batch, ValueId value) const;
  /// The greedy id of one of the last pass's logit rows (0: its first), ties to the lower id; -1 where the row holds a NaN.
  int32_t greedy(int64_t logit_row) const;
  /// XXH3-128 over all layers' valid K and V and recurrent states of a slot, 32 hex digits: equal states have equal hashes.
  std::string state_hash(int slot) const;

 private:
  void check(const Batch& batch) const;
  void allocate_state();
  void begin_state(const Batch& batch);
  void keep_inputs(size_t node, const NodeContext& c);
  void roll_back(int slot, int64_t length);
  float* make(ValueId value, int64_t floats) override;
  const float* value(ValueId value) const override;
  void drop(ValueId value) override;
  void run(size_t node) override;
  std::shared_ptr<const Model> model_;
  EngineOptions options_;
  Program program_;
  std::unique_ptr<CpuBackend> backend_;
  std::unique_ptr<RopeTable> rope_;
  std::vector<int64_t> lengths_, mtp_lengths_;
  std::vector<KvLayer> caches_;                       // per state layer
  std::vector<GdnLayer> gdn_;                         // per state layer
  std::vector<std::unique_ptr<std::byte[]>> cache_storage_;
  std::vector<std::vector<float>> gdn_storage_;
  struct Verified;                                    // engine_state.cpp
  std::vector<std::unique_ptr<Verified>> verified_;   // [slot]: what its last pass, if that was a verify pass, can be taken back by
  bool keeps_rejected_ = false;
  std::vector<float> hidden_;
  std::vector<int> last_use_;                         // per value: index of the last node that reads it
  std::vector<std::vector<float>> buffers_;           // reused between values whose lives don't overlap
  std::vector<int> buffer_of_;                        // per value, -1: not alive
  std::vector<float> gathered_;                       // input rows of logits
  const PassState* pass_ = nullptr;                   // in progress
  const float* logits_ = nullptr;                     // of the last pass
  std::unique_ptr<DeviceBackend> device_;
  std::string device_problem_;
};

/// What generate() does for one prompt.
struct Request {
  std::vector<int32_t> ids;             // at least one
  int64_t decode = 0;                   // decode passes: decode + 1 greedy ids
  std::vector<int32_t> forced;          // fed instead of the greedy ids, as far as they go
  std::shared_ptr<const ForcedExperts> experts = {};   // taken instead of the routers' choice, as far as they go
};
struct GenerateOptions {
  int64_t chunk = 0;                    // prefill rows per pass and prompt; 0: the whole prompt
  bool batch = false;                   // all prompts together, a slot each; else one after another in `slot`
  int slot = 0;
  bool mtp = false;                     // the passes of an MTP head too, as dumps have them (mtp.h)
  bool all_logits = false;              // logits of every row (dumps, NLL), not only of the last
};

/// The first value that is not finite, in execution order.
struct NonFinite {
  Pass pass;
  int32_t prompt;
  int64_t step;
  int layer;
  std::string phase;
  int64_t position, column;
  float value;
  std::string text() const;             // "prompt0/decode/3/layer.2/attn_context, position 12, column 7: nan"
};

struct Generated {
  std::vector<int32_t> greedy;          // decode + 1 ids; fewer when stopped by a NaN
  std::vector<int32_t> fed;             // what each decode pass consumed: greedy or forced ids
  std::vector<float> last_logits;       // [vocab], of the last pass
  std::vector<int32_t> mtp_drafts;      // what the head drafts behind the prompt's first greedy id: at most 3, fewer where the context ends
  std::vector<int32_t> mtp_ids;         // its greedy id behind each decode pass
  std::optional<NonFinite> non_finite;  // why it stopped, or what was seen where ids were forced
};

/// Called around logical events, so that a capture can take state and ids at the right moment.
class GenerateObserver : public Observer {
 public:
  virtual void after_prefill(const Engine&, int32_t /*prompt*/, int /*slot*/) {}
  virtual void after_decode(const Engine&, int32_t /*prompt*/, int /*slot*/, const Generated&) {}
};

/// What generate() would refuse, before anything runs: empty prompts, ids outside the vocabulary, too few slots, context
/// overflow, more forced ids than passes. Error{usage}.
void check_requests(const Engine& engine, std::span<const Request> requests, const GenerateOptions& options);

/// Greedy generation of several prompts: prefill/0, then decode/0..decode-1, never stopping at EOS. Ties go to the lower id.
std::vector<Generated> generate(Engine& engine, std::span<const Request> requests, const GenerateOptions& options,
                                GenerateObserver* observer = nullptr, Trace* trace = nullptr);

/// The largest logit's id, ties to the lower id; nullopt if the row holds a NaN.
std::optional<int32_t> argmax(std::span<const float> logits);

}  // namespace assay
