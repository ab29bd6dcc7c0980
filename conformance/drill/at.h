// A node's name taken apart. Inside of EngineReplayer.
#pragma once
#include "conformance/drill/engine_replayer.h"

namespace assay {

struct EngineReplayer::At {
  std::string name, prefix;  // "prompt0/prefill/0/layer.1/q_proj", "prompt0/prefill/0/"
  int32_t prompt = 0;
  Pass pass = Pass::prefill;
  int64_t step = 0;
  bool last_only = false;      // logits_last: the last row of logits
  const Node* node = nullptr;  // of the clean program
  int64_t rows = 0;            // of the tensor
  int64_t first_position = 0;  // of its row 0
};

}  // namespace assay
