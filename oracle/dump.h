// The oracle's run of a model as an Assay dump in F64: what the right values are, for any checkpoint that the readers
// know. Memory: the values that a layer holds at a time, K and V of one prompt, and a few rows of a weight per thread.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "dumps/writer.h"
#include "engine/capture.h"
#include "engine/session.h"
#include "oracle/dense.h"

namespace assay::oracle {

struct DumpOptions : DumpFolder {
  int threads = 0;  // 0: all cores
  /// Test support: called for every value before it is recorded and used, so that a fault can be planted.
  std::function<void(const PassInput&, int layer, std::string_view phase, Matrix64&)> alter;
};

/// What became of one prompt.
struct Generated64 {
  std::vector<int32_t> greedy;  // decode + 1 ids
  std::vector<int32_t> fed;     // what each decode pass consumed: forced or greedy ids
};

/// Called after every pass of generate(), with the cache as the pass left it.
using AfterPass = std::function<void(const PassInput&, Cache64&)>;

/// prefill/0 of the request's ids, then its decode passes at the following positions, fed with request.forced as far as
/// it goes, then with the largest logit's id (ties to the lower); never stopping at EOS. `all_logits`: of every prefill
/// row, else of the last. Throws Error{numeric} where a NaN leaves no id to choose and none is forced.
Generated64 generate(const Weights64& weights, int32_t prompt, const Request& request, bool all_logits, Tap& tap,
                     const AfterPass& after, int threads = 0);

/// Runs the requests one after another and writes the dump: names of goldens/official/README.md, all phases of
/// prefill/0 and decode/<s>, `logits` and `logits_last`, ids and greedy ids, and where asked k and v after prefill and
/// after the last decode pass. Throws Error{usage} for an empty prompt, ids outside the vocabulary, more forced ids
/// than passes, a context that the model does not have, a filter that matches no phase; what DumpWriter throws.
std::vector<Generated64> write_dump(const Weights64& weights, const std::vector<Request>& requests,
                                    const DumpOptions& options);

}  // namespace assay::oracle
