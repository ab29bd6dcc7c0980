// Runs passes of a program on a device: steps (device_plan.h) queued one after another, with what no device op does left to
// the CPU, value by value. Decode passes are captured once as a graph and replayed. The bytes are the CPU's, whatever runs where.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/backend.h"
#include "engine/device.h"
#include "engine/device_options.h"
#include "engine/device_plan.h"
#include "engine/device_states.h"
#include "engine/device_weights.h"

namespace assay {

class DeviceBackend {
 public:
  /// `caches` and `states` are the engine's on the host, of which the device gets a mirror; they, model, program and rope outlive
  /// this.
  DeviceBackend(std::shared_ptr<Device> device, const Model& model, const Program& program, DeviceOptions options,
                Activations activations, const std::vector<KvLayer>& caches, const std::vector<GdnLayer>& states, const RopeTable& rope, bool poison);
  ~DeviceBackend();

  /// One physical pass. Returns the logits of batch.logit_rows on the host, valid until the next call; null if there are none.
  const float* forward(const PassState& pass, HostSide& host);
  /// Greedy ids of the last pass's logit rows, chosen on the device (-1: a NaN); empty where the CPU computed the logits.
  std::span<const int32_t> greedy() const { return greedy_; }

  /// Whether a pass of this batch writes the value at all, or a fused step keeps it inside.
  bool materialises(const Batch& batch, ValueId value);
  /// Host copy of a layer's caches and recurrent states up to date.
  void state_to_host(int layer);
  /// The slot has no positions >= length any more, in the model's layers or in the MTP head's; with poison they are overwritten on the device.
  void truncate(int slot, int64_t length, bool mtp);
  /// The recurrent states of a slot become those behind the first `rows` rows of its last verify pass, as far as the device
  /// computed them.
  void roll_back(int slot, int64_t rows);
  /// Positions [0, length) of a slot, or its recurrent state, were written on the host.
  void state_from_host(int layer, int slot, int64_t length);

  /// Bytes by class that are held now.
  DeviceBytes memory() const;
  Device& device() { return *device_; }
  const Device& device() const { return *device_; }
  DeviceWeights& weights() { return weights_; }
  const DeviceWeights& weights() const { return weights_; }
  const DeviceOptions& options() const { return options_; }
  std::string_view name() const { return device_->info().emulated ? "simt" : "cuda"; }
  /// The program was rewritten: steps are planned anew, graphs are captured anew.
  void replan();

 private:
  struct Values;   // row-sized device buffers of one plan
  struct Graph;
  struct Plan;     // of passes of one decode row, or of others
  struct Run;      // one pass in progress

  std::unique_ptr<Plan> make_plan(bool one_row);
  Plan& plan_of(const Batch& batch);
  void forget_graphs(Plan& plan, std::optional<bool> kept = {});
  void forget_graphs();
  int run_step(Run& r, const DeviceStep& step, bool probe);
  int run_linears(Run& r, const DeviceStep& step, bool probe);
  int run_heads(Run& r, const DeviceStep& step, bool probe);
  int run_attention(Run& r, const Node& node, const AssayHeads* heads, bool probe);
  int run_experts(Run& r, const DeviceStep& step, bool probe);
  int run_recurrence(Run& r, const DeviceStep& step, bool probe);
  int run_router(Run& r, const DeviceStep& step, bool probe);
  int run_added(Run& r, const DeviceStep& step, bool probe);
  int run_expert_sum(Run& r, const Node& n, const float* residual, float* y, bool probe);
  int run_gated_add(Run& r, const Node& n, const float* residual, float* y, bool probe);
  AssayStates states_of(Run& r, int layer, bool probe) const;
  int run_single(Run& r, const Node& node, bool probe);
  bool run_all(Run& r);
  void run_on_cpu(Run& r, int node);
  void recurrent_to_host(Run& r, const Node& n);
  void shadow(Run& r, int node);
  void observe(Run& r, const DeviceStep& step);
  void note(Run& r, const DeviceStep& step, double seconds);
  void prepare(Plan& plan, Values& values, int64_t rows, int64_t logit_rows);
  void upload_inputs(Run& r);
  int64_t bound_of_replays(int64_t longest) const;
  void state_is_on_device(const PassState& pass, int layer);
  void copy_state(int layer, int slot, int64_t from, int64_t to, bool to_device);
  const float* finish_pass(Run& r);
  const float* input(Run& r, ValueId v, bool probe);
  float* output(Run& r, ValueId v);
  AssayWeight weight(const Matrix& m, bool probe);

  std::shared_ptr<Device> device_;
  const Model& model_;
  const Program& program_;
  DeviceOptions options_;
  Activations activations_;
  const std::vector<KvLayer>& host_caches_;
  const std::vector<GdnLayer>& host_states_;
  const RopeTable& rope_;
  bool poison_;
  DeviceWeights weights_;
  std::unique_ptr<Plan> rows_, one_row_;       // of all passes but those of one decode row, and of these; made when first needed

  // state
  std::vector<DeviceMemory> cache_memory_;
  std::vector<AssayCache> caches_;
  DeviceStates states_;
  DeviceMemory cos_, sin_;
  std::vector<std::vector<bool>> device_only_; // [layer][slot]: the host's copy is behind. The device's never is between passes
  std::vector<int64_t> written_, mtp_written_; // [slot] positions that passes have written: of the model, of its MTP head
  std::vector<int64_t>& written_of(int layer) { return layer < model_.config.layers ? written_ : mtp_written_; }

  AssayLimits reserved_{};
  DeviceMemory tail_;                          // int64 overflow of each layer, then greedy ids
  DeviceMemory host_tail_, host_logits_;       // the device's own host memory
  std::vector<int32_t> greedy_;
};

}  // namespace assay
