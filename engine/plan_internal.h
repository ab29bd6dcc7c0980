// What plan.cpp and plan_device.cpp share and nobody else sees.
#pragma once
#include <vector>

#include "engine/plan.h"

namespace assay {

/// The host side of passes whose values are not there: sizes of the buffers that they leave behind, and which nodes
/// ran.
class CountingHost : public HostSide {
 public:
  explicit CountingHost(const Program& program);
  void begin(int64_t rows, int64_t logit_rows);  // a pass
  float* make(ValueId value, int64_t floats) override;
  const float* value(ValueId value) const override;
  void drop(ValueId value) override;
  void run(size_t node) override;
  bool ran(size_t node) const { return ran_[node]; }  // in any pass
  size_t bytes() const;

 private:
  const Program& program_;
  std::vector<int> buffer_of_;
  std::vector<int64_t> sizes_;  // floats
  std::vector<bool> ran_;
  int64_t rows_ = 0, logit_rows_ = 0;
};

/// `options` are checked; `host` belongs to a program of this model; `pinned` gets the device's own host memory.
DevicePlan plan_device(const Model& model, const EngineOptions& options, int64_t rows, const PlanDevice& device,
                       CountingHost& host, size_t& pinned);

}  // namespace assay
