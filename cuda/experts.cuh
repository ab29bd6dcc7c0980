// Token rows by expert: what the kernels of expert_linear.cu and quant_few.cu share. A pair is a row and a rank, row * chosen + rank.
#pragma once
#include "cuda/layout.cuh"
#include "cuda/quantise.cuh"

struct AssayDevice;

namespace assay {

constexpr int kChunkPairs = 8;
constexpr int32_t kNoExpert = -1, kNoChunk = -2;

/// Pairs sorted by expert, rising within one, in chunks of eight; an expert's last chunk may have fewer, and so do the pairs of no
/// expert, which come last. In device memory, for what is known before the ids are: `count` is the most that there may be.
struct ExpertChunks {
  int32_t* expert;  // [count]: kNoExpert: its products are NaN; kNoChunk: there is no such chunk
  int32_t* pairs;   // [count][8]; -1: none
  int32_t count;
};
/// The largest number of chunks that `pairs` pairs of `experts` experts may make.
constexpr int64_t most_chunks(int64_t pairs, int64_t experts) {
  const int64_t classes = experts + 1 < pairs ? experts + 1 : pairs;
  return (pairs + classes * (kChunkPairs - 1)) / kChunkPairs;
}

// ---- host
/// Whether the arguments have a meaning at all, whatever the kernels can do.
bool experts_possible(const AssayExpertLinear& a);
/// Queues the sorting into device.experts.
int sort_by_expert(AssayDevice& d, const AssayExpertLinear& a, ExpertChunks& out);
/// Integer products of up to so many rows, each pair by itself; with `gated` too. expert_gemv.cu. Precondition as the next one's.
constexpr int64_t kGemvRows = 4;
int gemv_by_expert(AssayDevice& d, const AssayExpertLinear& a);
/// Integer products of any number of rows, quant_few.cu. Precondition: a quantised type, activations s16 or s8.
int few_by_expert(AssayDevice& d, const AssayExpertLinear& a);
size_t expert_scratch_bytes(const AssayLimits& limits);

}  // namespace assay
