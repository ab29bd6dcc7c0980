// What an op of the module sees of its device: the queue, scratch, counters, and how a kernel is launched.
#pragma once
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda/prim.cuh"
#include "engine/abi.h"
#ifdef ASSAY_SIMT
#include "cuda/simt/runtime.h"
#else
#include <cuda_runtime.h>
#endif

struct AssayDevice {
  int ordinal = 0;
  cudaStream_t stream = nullptr;
  int processors = 1;              // multiprocessors
  int architecture = 0;            // 90 for sm_90
  size_t shared_limit = 48 << 10;  // bytes of shared memory that a block may have
  std::string error, variant;
  AssayCounters counters{};
  AssayLimits limits{};            // what scratch holds (reserve)
  bool capturing = false;
  bool weights_written = false;    // by the kernel before: the next one may not start early, since it would read them then
  std::unordered_map<const void*, size_t> raised;  // by kernel: bytes of shared memory that it was allowed, above 48 KiB
  std::map<std::tuple<const void*, int, int, size_t>, int> clusters;  // by kernel, cluster, threads, shared: clusters_at_once
  struct Scratch {                 // of reserve(), by purpose; an op fails where it is too small
    std::byte* memory = nullptr;
    size_t bytes = 0;
  };
  Scratch quantised;               // activations as integers (quantise.cuh)
  Scratch attention;               // scores and partial sums (attention.cu)
  Scratch experts;                 // pairs sorted by expert (expert_linear.cu)
};

namespace assay {

/// Remembers the words and returns `code`.
[[gnu::format(printf, 3, 4)]] inline int failed(AssayDevice& d, int code, const char* format, ...) {
  char text[512];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  d.error = text;
  return code;
}

/// Every CUDA call of host code goes through here: file, line, call and what CUDA said.
#define CUDA_TRY(d, call)                                                                                                       \
  do {                                                                                                                          \
    const cudaError_t assay_result = (call);                                                                                    \
    if (assay_result != cudaSuccess)                                                                                            \
      return ::assay::failed(d, assay_result == cudaErrorMemoryAllocation ? ASSAY_OUT_OF_MEMORY : ASSAY_ERROR, "%s:%d: %s: %s", \
                             __FILE__, __LINE__, #call, cudaGetErrorString(assay_result));                                      \
  } while (0)

/// Whether a kernel may start before the one before it has ended (prim.cuh, wait_for_previous).
enum class Overlap : uint8_t { no, yes };

#ifndef ASSAY_SIMT
/// Lets a kernel have so much shared memory.
template <class... P>
int raise_shared(AssayDevice& d, void (*kernel)(P...), size_t shared) {
  const auto [raised, first] = d.raised.try_emplace(reinterpret_cast<const void*>(kernel), size_t(48 << 10));
  // Kernels with other splits of cache and shared memory can't be on a multiprocessor together: one split for all, so that the
  // next kernel's blocks move in while this one's end.
  if (first) CUDA_TRY(d, cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
  if (raised->second < shared) {
    CUDA_TRY(d, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared)));
    raised->second = shared;
  }
  return ASSAY_DONE;
}
#endif

/// Clusters of a kernel that run at the same time; 0: the device has none of that size.
template <class... P>
int clusters_at_once(AssayDevice& d, void (*kernel)(P...), int cluster, int threads, size_t shared) {
  if (d.architecture < 90) return 0;
#ifdef ASSAY_SIMT
  (void)kernel, (void)cluster, (void)threads, (void)shared;
  return simt::clusters_at_once();
#else
  const auto [known, is_new] = d.clusters.try_emplace({reinterpret_cast<const void*>(kernel), cluster, threads, shared}, 0);
  if (!is_new) return known->second;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(unsigned(cluster));
  config.blockDim = dim3(unsigned(threads));
  config.dynamicSmemBytes = shared;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {unsigned(cluster), 1, 1};
  config.attrs = &attribute;
  config.numAttrs = 1;
  int count = 0;
  if (raise_shared(d, kernel, shared) != ASSAY_DONE ||
      cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) != cudaSuccess ||
      cudaOccupancyMaxActiveClusters(&count, kernel, &config) != cudaSuccess) {
    cudaGetLastError();
    count = 0;
  }
  return known->second = count;
#endif
}

/// Queues a kernel and counts it; `cluster` blocks in a row of the grid run at the same time (prim.cuh), which takes
/// clusters_at_once() > 0. `variant` names it in traces; the names of an op's kernels are joined by "+".
template <class... P, class... A>
int launch_in_clusters(AssayDevice& d, const char* variant, Overlap overlap, void (*kernel)(P...), int cluster, dim3 grid,
                       int threads, size_t shared, A... args) {
  if (!d.variant.empty()) d.variant += "+";
  d.variant += variant;
  d.counters.launches++;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return failed(d, ASSAY_ERROR, "%s: empty grid", variant);
  const bool early = overlap == Overlap::yes && !std::exchange(d.weights_written, false);
#ifdef ASSAY_SIMT
  CUDA_TRY(d, simt::enqueue(d.stream, variant, grid, unsigned(threads), shared, early,
                            [=] { kernel(static_cast<P>(args)...); }, unsigned(cluster)));
  return ASSAY_DONE;
#else
  if (const int result = raise_shared(d, kernel, shared); result != ASSAY_DONE) return result;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(unsigned(threads));
  config.dynamicSmemBytes = shared;
  config.stream = d.stream;
  cudaLaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  if (early && d.architecture >= 90) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {unsigned(cluster), 1, 1};
  }
  CUDA_TRY(d, cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...));
  return ASSAY_DONE;
#endif
}
template <class... P, class... A>
int launch(AssayDevice& d, const char* variant, Overlap overlap, void (*kernel)(P...), dim3 grid, int threads, size_t shared,
           A... args) {
  return launch_in_clusters(d, variant, overlap, kernel, 1, grid, threads, shared, args...);
}

// ---- the ops, one file each; module.cu collects them. Preconditions are those of engine/abi.h; each checks what it can't do
// and returns ASSAY_REFUSED before anything is written.
int embed(AssayDevice&, const AssayEmbed&);          // embed.cu
int norm(AssayDevice&, const AssayNorm&);            // norm.cu
int linear(AssayDevice&, const AssayLinear&);        // linear.cu: picks one of the following by type, kind and rows
int float_linear(AssayDevice&, const AssayLinear&);  // float_linear.cu: the float rule; quantised weights are widened
int quant_gemv(AssayDevice&, const AssayLinear&);    // quant_gemv.cu: one token row, all fused forms
bool gemv_takes(const AssayLinear&);                 // quant_gemv.cu: whether it would (a row too wide aside)
int quant_few(AssayDevice&, const AssayLinear&);     // quant_few.cu: 2 to 8 token rows
int quant_gemm(AssayDevice&, const AssayLinear&);    // quant_gemm.cu: any number
int rope(AssayDevice&, const AssayRope&);            // rope.cu
int kv_store(AssayDevice&, const AssayKvStore&);     // kv_store.cu
int heads(AssayDevice&, const AssayHeads&);          // heads.cu
int attention(AssayDevice&, const AssayAttention&);  // attention.cu: picks decode or prefill
int silu_mul(AssayDevice&, const AssayBinary&);      // pointwise.cu
int add(AssayDevice&, const AssayBinary&);           // pointwise.cu
int sigmoid_mul(AssayDevice&, const AssayBinary&);   // pointwise.cu
int sigmoid(AssayDevice&, const AssayUnary&);        // pointwise.cu
int decay(AssayDevice&, const AssayDecay&);          // pointwise.cu
int columns(AssayDevice&, const AssayColumns&);      // columns.cu
int l2_norm(AssayDevice&, const AssayL2Norm&);       // norm.cu
int gated_norm(AssayDevice&, const AssayGatedNorm&); // norm.cu
int conv(AssayDevice&, const AssayConv&);            // conv.cu
int delta_rule(AssayDevice&, const AssayDeltaRule&); // delta_rule.cu
int topk(AssayDevice&, const AssayRouter&);          // router.cu
int topk_weights(AssayDevice&, const AssayRouter&);  // router.cu
int expert_linear(AssayDevice&, const AssayExpertLinear&);  // expert_linear.cu
int expert_sum(AssayDevice&, const AssayExpertSum&);        // moe.cu
int gated_add(AssayDevice&, const AssayGatedAdd&);          // moe.cu
int gather(AssayDevice&, const AssayGather&);        // gather.cu
int argmax(AssayDevice&, const AssayArgmax&);        // argmax.cu

// ---- weights: layout.cuh says how a packed matrix lies
uint64_t packed_bytes(int32_t type, int64_t rows, int64_t columns);                                                     // pack.cu
int pack(AssayDevice&, int32_t type, int64_t rows, int64_t columns, const void* raw, void* packed);                     // pack.cu
int unpack(AssayDevice&, int32_t type, int64_t rows, int64_t columns, const void* packed, void* raw);                   // pack.cu

// ---- bytes of scratch, for reserve()
size_t quantised_scratch_bytes(const AssayLimits&);  // quantise.cu
size_t attention_scratch_bytes(const AssayDevice&, const AssayLimits&);  // attention.cu
size_t expert_scratch_bytes(const AssayLimits&);     // expert_linear.cu

}  // namespace assay
