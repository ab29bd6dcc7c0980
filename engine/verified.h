// What a slot's verify pass can be taken back by: of the nodes that change recurrent states (engine_state.cpp).
#pragma once
#include <vector>

#include "engine/session.h"

namespace assay {

struct Engine::Verified {
  int64_t position = 0, rows = 0;                     // of the pass in this slot
  struct Ran {
    size_t node;
    std::vector<float> before;                        // what it changes: the layer's conv or state
    std::vector<std::vector<float>> inputs;           // each [rows, columns]
  };
  std::vector<Ran> ran;
  size_t floats() const {
    size_t sum = 0;
    for (const Ran& r : ran) {
      sum += r.before.size();
      for (const auto& v : r.inputs) sum += v.size();
    }
    return sum;
  }
};

}  // namespace assay
