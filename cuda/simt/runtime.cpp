#include "cuda/simt/runtime.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cuda/simt/arena.h"
#include "cuda/simt/fibers.h"

namespace simt {

/// One thing queued: a kernel or, where it has no name, a copy or fill.
struct Work {
  Launch kernel;
  std::function<std::string()> copy;  // words of what is wrong with it, or ""
  const std::byte* reads = nullptr;   // host memory that the copy reads
  size_t bytes = 0;
};

struct Graph {
  std::vector<Work> work;
};

struct Stream {
  std::vector<std::shared_ptr<const Work>> queue;  // not yet run
  std::unique_ptr<Graph> captured;                 // while a capture goes on
  bool capture_spoilt = false;
  uint64_t launched = 0;  // for seeds
  cudaError_t error = cudaSuccess;
  std::string words;  // of the error
};

namespace {

std::recursive_mutex& lock() {
  static auto* mutex = new std::recursive_mutex;
  return *mutex;
}
using Lock = std::lock_guard<std::recursive_mutex>;

struct Host {
  std::map<const std::byte*, size_t> pinned;
  std::vector<Stream*> streams;
};
Host& host() {
  static auto* h = new Host;
  return *h;
}
thread_local Stream* capturing = nullptr;  // the stream that this thread captures
thread_local std::string last_words;       // of the fault that a call of this thread returned last

uint64_t number_from(const char* name, uint64_t otherwise) {
  const char* text = getenv(name);
  return text && *text ? strtoull(text, nullptr, 10) : otherwise;
}
bool pinned(const void* p) {
  const auto& all = host().pinned;
  auto at = all.upper_bound(static_cast<const std::byte*>(p));
  if (at == all.begin()) return false;
  --at;
  return p < at->first + at->second;
}
cudaError_t sticky(const Stream& s) {
  if (s.error != cudaSuccess) last_words = s.words;
  return s.error;
}
void fail(Stream& s, cudaError_t error, const std::string& words, uint64_t seed) {
  if (s.error != cudaSuccess) return;
  s.error = error;
  s.words = words + " (ASSAY_SIMT_SEED=" + std::to_string(seed) + ")";
}

/// Runs all that is queued. A kernel that may overlap runs up to wait_for_previous() before the one queued before it runs.
void drain(Stream& s) {
  if (s.queue.empty()) return;
  const auto queue = std::exchange(s.queue, {});
  if (s.error != cudaSuccess) return;
  const uint64_t seed = number_from("ASSAY_SIMT_SEED", 1);
  const bool overlap = number_from("ASSAY_SIMT_OVERLAP", 1) != 0;
  arena::Open open;
  StartedPointer early;
  for (size_t i = 0; i < queue.size() && s.error == cudaSuccess; i++) {
    const Work& work = *queue[i];
    StartedPointer now = std::move(early);
    if (!now) s.launched++;
    const bool kernels = !work.copy && i + 1 < queue.size() && !queue[i + 1]->copy;
    std::string words;
    const uint64_t of_this = seed * 1000003 + s.launched;
    if (kernels && overlap && may_start_early(queue[i + 1]->kernel)) {
      s.launched++;
      early = start(queue[i + 1]->kernel, seed * 1000003 + s.launched);
    }
    words = work.copy ? work.copy() : now ? finish(*now) : run(work.kernel, of_this);
    if (!words.empty()) fail(s, work.copy ? cudaErrorIllegalAddress : cudaErrorLaunchFailure, words, seed);
    words = arena::damage();
    if (!words.empty())
      fail(s, cudaErrorIllegalAddress, words + (work.copy ? " by a copy or fill" : ", found after kernel " + work.kernel.name), seed);
  }
}
void drain_all() {
  for (Stream* s : host().streams) drain(*s);
}

/// Records or queues. Without a capture, work of pageable memory runs at once, as cudaMemcpyAsync does.
cudaError_t submit(Stream& s, Work work, bool at_once) {
  if (s.error != cudaSuccess) return sticky(s);
  if (s.captured) {
    s.captured->work.push_back(std::move(work));
    return cudaSuccess;
  }
  s.queue.push_back(std::make_shared<const Work>(std::move(work)));
  if (at_once) drain(s);
  return sticky(s);
}
/// Whether something queued reads this host memory later.
bool still_read(const Stream& s, const void* memory, size_t bytes) {
  const auto* p = static_cast<const std::byte*>(memory);
  return std::any_of(s.queue.begin(), s.queue.end(),
                     [&](const auto& w) { return w->reads && p < w->reads + w->bytes && w->reads < p + bytes; });
}
std::string outside(const char* what, const void* p, size_t bytes) {
  char text[128];
  arena::describe(p, text, sizeof text);
  return std::string(what) + " of " + std::to_string(bytes) + " bytes outside of an allocation: " + (*text ? text : "host memory?");
}
/// A call that may not be made while this thread captures.
bool spoils_capture() {
  if (!capturing) return false;
  capturing->capture_spoilt = true;
  return true;
}

}  // namespace

cudaError_t enqueue(cudaStream_t stream, const char* name, dim3 grid, unsigned threads, size_t shared, bool overlap,
                    std::function<void()> body) {
  const Lock guard(lock());
  if (threads == 0 || threads > kThreadLimit || threads % 32 || shared > kSharedLimit || grid.y > 65535 || grid.z > 65535 ||
      grid.x > 0x7fffffff || !grid.x || !grid.y || !grid.z)
    return cudaErrorInvalidConfiguration;
  return submit(*stream, {.kernel = {name, grid, threads, shared, overlap, std::move(body)}, .copy = {}}, false);
}

}  // namespace simt

using namespace simt;

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device != 0) return cudaErrorInvalidDevice;
  *properties = {};
  snprintf(properties->name, sizeof properties->name, "emulation on the CPU");
  properties->major = 9;
  properties->multiProcessorCount = int(number_from("ASSAY_SIMT_PROCESSORS", 4));
  properties->totalGlobalMem = arena::total_bytes();
  properties->sharedMemPerBlockOptin = kSharedLimit;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  const Lock guard(lock());
  *total_bytes = arena::total_bytes();
  *free_bytes = *total_bytes - std::min(*total_bytes, size_t(arena::used_bytes()));
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 0;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 0;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument (threads are whole warps, 32 to 1024)";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure: return last_words.c_str();
  }
  return "unknown error";
}
cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  const Lock guard(lock());
  if (spoils_capture()) return cudaErrorStreamCaptureUnsupported;
  *memory = arena::allocate(bytes);
  return *memory ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void* memory) {
  const Lock guard(lock());
  if (spoils_capture()) return cudaErrorStreamCaptureUnsupported;
  drain_all();  // as a device does
  return arena::release(memory) ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  const Lock guard(lock());
  if (spoils_capture()) return cudaErrorStreamCaptureUnsupported;
  *memory = malloc(std::max<size_t>(bytes, 1));
  if (!*memory) return cudaErrorMemoryAllocation;
  memset(*memory, 0xff, bytes);
  host().pinned[static_cast<std::byte*>(*memory)] = std::max<size_t>(bytes, 1);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  const Lock guard(lock());
  if (spoils_capture()) return cudaErrorStreamCaptureUnsupported;
  if (!memory) return cudaSuccess;
  drain_all();
  if (!host().pinned.erase(static_cast<std::byte*>(memory))) return cudaErrorInvalidValue;
  free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  const Lock guard(lock());
  Work work;
  work.copy = [=]() -> std::string {
    if (kind == cudaMemcpyDeviceToHost && !arena::holds(from, bytes)) return outside("a copy", from, bytes);
    if (kind == cudaMemcpyHostToDevice && !arena::holds(to, bytes)) return outside("a copy", to, bytes);
    memmove(to, from, bytes);
    return {};
  };
  if (kind == cudaMemcpyHostToDevice) work.reads = static_cast<const std::byte*>(from), work.bytes = bytes;
  if (kind == cudaMemcpyDeviceToHost && !stream->captured && stream->error == cudaSuccess && !still_read(*stream, to, bytes))
    memset(to, 0xff, bytes);  // until the copy is waited for
  return submit(*stream, std::move(work), kind == cudaMemcpyHostToDevice && !pinned(from));
}
cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream) {
  const Lock guard(lock());
  Work work;
  work.copy = [=]() -> std::string {
    if (!arena::holds(to, bytes)) return outside("a fill", to, bytes);
    memset(to, byte, bytes);
    return {};
  };
  return submit(*stream, std::move(work), false);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const Lock guard(lock());
  *stream = new Stream;
  host().streams.push_back(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock guard(lock());
  if (!stream) return cudaErrorInvalidValue;
  drain(*stream);
  if (capturing == stream) capturing = nullptr;
  std::erase(host().streams, stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Lock guard(lock());
  if (stream->captured) {
    stream->capture_spoilt = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  drain(*stream);
  if (stream->error == cudaSuccess) {
    const arena::Open open;
    const std::string words = arena::damage();  // of what was freed meanwhile
    if (!words.empty()) fail(*stream, cudaErrorIllegalAddress, words, number_from("ASSAY_SIMT_SEED", 1));
  }
  return sticky(*stream);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const Lock guard(lock());
  if (stream->captured || capturing) return cudaErrorStreamCaptureUnsupported;
  if (stream->error != cudaSuccess) return sticky(*stream);
  stream->captured = std::make_unique<Graph>();
  stream->capture_spoilt = false;
  capturing = stream;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Lock guard(lock());
  *graph = nullptr;
  if (!stream->captured || capturing != stream) return cudaErrorInvalidValue;
  capturing = nullptr;
  const auto captured = std::exchange(stream->captured, nullptr);
  if (stream->capture_spoilt) return cudaErrorStreamCaptureInvalidated;
  *graph = new Graph(*captured);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = new Graph(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  const Lock guard(lock());
  if (stream->captured) return cudaErrorStreamCaptureUnsupported;
  for (const Work& work : executable->work)
    if (const cudaError_t error = submit(*stream, work, false); error != cudaSuccess) return error;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}
