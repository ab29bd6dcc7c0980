// The part of the CUDA runtime that module.cu uses, for the emulation. Work is queued and runs, in order, when a stream is
// waited for; argument bytes are those of the call, host memory from cudaMallocHost is read as late as a device might.
// Faults of a kernel come back as cudaErrorLaunchFailure or cudaErrorIllegalAddress from the wait, and from every later call
// on that stream; cudaGetErrorString then has the words. All calls may be made from several threads: one lock serves all.
//
// Environment: ASSAY_SIMT_SEED (orders), ASSAY_SIMT_COPIES=late|early|random, ASSAY_SIMT_OVERLAP=0 (kernels never start before
// the one before them has ended). What the device is like, as it is when it is opened and may not change while it is:
// ASSAY_SIMT_ARCHITECTURE=80 (90 where not set; older ones have no clusters and no early starts), ASSAY_SIMT_SHARED=bytes of a
// block, at most the 227 KiB that sm_90 has, ASSAY_SIMT_CLUSTERS (that run at a time, 0: none), ASSAY_SIMT_PROCESSORS,
// ASSAY_SIMT_MEMORY=bytes. What is no number ends the program (environment.h).
#pragma once
#include <cstddef>
#include <functional>

#include "cuda/simt/prim_simt.h"

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidDevice = 101,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchFailure = 719,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
inline constexpr unsigned cudaStreamNonBlocking = 1;

namespace simt {
struct Stream;
struct Graph;
struct Event;
}  // namespace simt
using cudaEvent_t = simt::Event*;
using cudaStream_t = simt::Stream*;
using cudaGraph_t = simt::Graph*;
using cudaGraphExec_t = const simt::Graph*;

struct cudaDeviceProp {
  char name[256];
  int major, minor, multiProcessorCount;
  size_t totalGlobalMem, sharedMemPerBlockOptin;
};

cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();

cudaError_t cudaMalloc(void** memory, size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaMallocHost(void** memory, size_t bytes);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);

cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to);

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable);

namespace simt {
/// Queues a kernel; `body` is what one thread does and holds copies of the arguments.
cudaError_t enqueue(cudaStream_t stream, const char* name, dim3 grid, unsigned threads, size_t shared, bool overlap,
                    std::function<void()> body, unsigned cluster = 1);
/// Clusters that run at a time: ASSAY_SIMT_CLUSTERS, or 8; 0 before sm_90.
int clusters_at_once();
}  // namespace simt
