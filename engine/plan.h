// Host memory of a model and its engine, before anything is loaded. Engine::memory() counts the same classes in a
// running engine; plan_test.cpp holds the two against each other, and their sum against what the process has.
#pragma once
#include <cstddef>
#include <cstdint>

#include "engine/formats/loader.h"
#include "engine/session.h"

namespace assay {

struct MemoryPlan {
  size_t mapped = 0;   // files, mapped read-only: the system may drop these pages and read them again
  size_t copies = 0;   // matrices in memory of their own: synthetic, permuted or badly aligned ones
  size_t vectors = 0;  // norms and biases, widened to f32
  EngineMemory engine;
  size_t packing = 0;  // what the workers of float linears pack tokens and weights into: at most
  size_t total() const { return mapped + copies + vectors + engine.total() + packing; }
};

/// Of passes with up to `rows` token rows, the logits of the last row, and `options.context` positions in use
/// (0: the model's maximum). Errors as of Engine's constructor.
MemoryPlan plan_memory(const ModelOutline& model, const EngineOptions& options, int64_t rows);

/// Bytes of memory that this process could get now without swapping (MemAvailable of /proc/meminfo, bounded by the
/// control group's limit); 0: unknown.
size_t available_memory();

}  // namespace assay
