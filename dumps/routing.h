// Discrete choices of two dumps: which experts a router sent each row to. A choice is judged by its regret, never by a distance
// between ids, and what lies behind another choice is not compared: rules in dumps/README.md "Routing".
#pragma once
#include <map>
#include <string>
#include <vector>

#include "dumps/compare.h"
#include "dumps/names.h"

namespace assay {

/// Router choices of two dumps, one record per pair of `router_topk_ids`.
class Routing {
 public:
  /// `on` false: nothing is judged by regret (byte_exact), and nothing stands behind another choice.
  Routing(const Dump& base, const Dump& target, const Tolerance& tolerance, bool on);
  std::vector<RoutingRecord> take() { return std::move(records_); }
  const RoutingRecord* find(const std::string& name) const;
  /// Whether a value was made by other experts on the two sides. Choices behind another one are not judged: they follow from it.
  bool behind(const TensorName& n) const;
  /// More choices differ than the tolerance admits, whatever their regret.
  bool too_many() const { return choices_ > 0 && double(flips_) > share_ * double(choices_); }
  int64_t flips() const { return flips_; }
  int64_t choices() const { return choices_; }

 private:
  void judge(const DumpTensor& base, const DumpTensor& target, const Dump& base_dump, const TensorName& n, const Tolerance& t);
  std::vector<RoutingRecord> records_;
  /// Per prompt: where other experts ran: (pass, step, layer), in execution order.
  std::map<std::string, std::vector<ExecutionKey>> parted_;
  int64_t flips_ = 0, choices_ = 0;
  double share_ = 0;
};

}  // namespace assay
