// How far the predictions of one engine lie from another's over whole texts: KL divergence and NLL, by pass kind.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "conformance/integration/cases.h"

namespace assay {

/// A text that the official model was scored on.
struct ScoredText {
  std::string name;
  std::vector<int32_t> ids;
  double nll;  // official float64, nats per token
};
/// corpus.jsonl of a trained case. Error{malformed}.
std::vector<ScoredText> corpus(const CheckContext& c, const OfficialCase& oc);

/// Logits of every position of `ids`, [ids.size(), vocab]. prefill: one pass; decode: the first id in a prefill pass of
/// its own, each other in a decode pass. Slot 0 is cleared first.
std::vector<float> logits_of(Engine& engine, const std::vector<int32_t>& ids, Pass pass);

/// Over the positions that predict an id of the text.
struct TextDivergence {
  int64_t positions = 0;
  double kl_sum = 0, kl_max = 0;                // KL(softmax(base) || softmax(target)), nats
  double nll_sum_base = 0, nll_sum_target = 0;  // nats
  int64_t same_best = 0;                        // positions whose largest logit is the same id's
  double kl_mean() const { return kl_sum / double(positions); }
  double nll_base() const { return nll_sum_base / double(positions); }
  double nll_target() const { return nll_sum_target / double(positions); }
  /// Adds positions first .. of a text.
  void add(const std::vector<float>& base, const std::vector<float>& target, const std::vector<int32_t>& ids,
           size_t first = 0);
};

}  // namespace assay
