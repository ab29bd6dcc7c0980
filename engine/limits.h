// Physical bounds from the shape of a model alone: what must move and be computed, against what a machine can do.
#pragma once
#include <cstdint>

#include "engine/cost.h"

namespace assay {

struct Limits {
  int64_t context = 0;  // cached positions of the decoded token, itself included
  int64_t prompt = 0;   // tokens of one prefill pass
  NodeCost decode;      // of one token
  NodeCost prefill;     // of the whole prompt, logits of the last row
  int64_t kv_bytes_per_position = 0;

  /// Tokens per second that no implementation can exceed which reads each byte once at `bandwidth` bytes/s.
  double decode_bound(double bandwidth) const { return bandwidth / double(decode.moved()); }
  /// Tokens per second of the prompt, by bytes, and by operations at `rate` per second.
  double prefill_bound_by_bytes(double bandwidth) const { return double(prompt) * bandwidth / double(prefill.moved()); }
  double prefill_bound_by_operations(double rate) const { return double(prompt) * rate / double(prefill.operations); }
};

/// Of a program with `context` positions in use when a token is decoded and a first prefill of `prompt` tokens.
Limits limits_of(const Program& program, int64_t context, int64_t prompt, KvType kv);

}  // namespace assay
