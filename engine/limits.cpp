#include "engine/limits.h"

namespace assay {

Limits limits_of(const Program& program, int64_t context, int64_t prompt, KvType kv) {
  Limits l;
  l.context = context;
  l.prompt = prompt;
  l.decode = cost_of(program, PassLoad::of_sequence(context - 1, 1, kv));
  l.prefill = cost_of(program, PassLoad::of_sequence(0, prompt, kv));
  l.kv_bytes_per_position = l.decode.state_written;
  return l;
}

}  // namespace assay
