#include "cuda/simt/runtime.h"

#include <algorithm>
#include <atomic>
#include <chrono>
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
#include "cuda/simt/environment.h"
#include "cuda/simt/failures.h"
#include "cuda/simt/fibers.h"

namespace simt {

/// An event's time is when the queue came to it: of no meaning but its order.
struct Event {
  std::chrono::steady_clock::time_point reached;
};

/// One thing queued: a kernel, an event, or a copy or fill of device memory.
struct Work {
  Launch kernel;                    // where it has threads
  Event* event = nullptr;
  void* device = nullptr;           // written; read where `to` is
  std::byte* to = nullptr;          // host memory
  const std::byte* from = nullptr;  // host memory
  const void* source = nullptr;     // device memory
  int byte = 0;                     // where there is none of the three
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

std::mutex& lock() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
using Lock = std::lock_guard<std::mutex>;

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

/// What the emulated device is like.
unsigned architecture() { return unsigned(number_from("ASSAY_SIMT_ARCHITECTURE", 90)); }
size_t shared_limit() { return std::min<size_t>(number_from("ASSAY_SIMT_SHARED", kSharedLimit), kSharedLimit); }
constexpr unsigned kFirstWithClusters = 90;  // and with launches that start early

bool pinned(const void* p) {
  const auto& all = host().pinned;
  auto at = all.upper_bound(static_cast<const std::byte*>(p));
  if (at == all.begin()) return false;
  --at;
  return p < at->first + at->second;
}
std::atomic<int> calls_to_failure = 0;  // 0: none is planned
std::atomic<cudaError_t> planned_error = cudaSuccess;
/// Counts a call; what it has to fail with, or success.
cudaError_t planned() { return calls_to_failure != 0 && --calls_to_failure == 0 ? planned_error.load() : cudaSuccess; }

cudaError_t sticky(const Stream& s) {
  if (s.error != cudaSuccess) last_words = s.words;
  return s.error;
}
void fail(Stream& s, cudaError_t error, const std::string& words) {
  if (s.error != cudaSuccess) return;
  s.error = error;
  s.words = words + " (ASSAY_SIMT_SEED=" + std::to_string(number_from("ASSAY_SIMT_SEED", 1)) + ")";
}

/// Words of what is wrong with it, or "".
std::string copy(const Work& w) {
  for (const void* memory : {static_cast<const void*>(w.device), w.source}) {
    if (!memory || arena::holds(memory, w.bytes)) continue;
    char text[128];
    arena::describe(memory, text, sizeof text);
    return std::string(w.to || w.from || w.source ? "a copy" : "a fill") + " of " + std::to_string(w.bytes) +
           " bytes outside of an allocation: " + (*text ? text : "host memory?");
  }
  if (w.source) {
    const arena::Open open;
    memmove(w.device, w.source, w.bytes);
    return {};
  }
  const arena::Open open(w.device, w.bytes);
  if (w.to)
    memcpy(w.to, w.device, w.bytes);
  else if (w.from)
    memcpy(w.device, w.from, w.bytes);
  else
    memset(w.device, w.byte, w.bytes);
  return {};
}
/// Kernels that follow each other. One that may overlap runs up to wait_for_previous() before the one before it runs.
void run_kernels(Stream& s, const std::shared_ptr<const Work>* first, const std::shared_ptr<const Work>* end) {
  const uint64_t seed = number_from("ASSAY_SIMT_SEED", 1);
  const bool overlap = architecture() >= kFirstWithClusters && number_from("ASSAY_SIMT_OVERLAP", 1) != 0;
  const auto next_seed = [&] { return seed * 1000003 + ++s.launched; };
  const arena::Open open;
  StartedPointer early;
  for (auto work = first; work != end && s.error == cudaSuccess; ++work) {
    const Launch& kernel = (*work)->kernel;
    const StartedPointer started = std::move(early);
    if (overlap && work + 1 != end && may_start_early(work[1]->kernel)) early = start(work[1]->kernel, next_seed());
    std::string words = started ? finish(*started) : run(kernel, next_seed());
    if (!words.empty()) fail(s, cudaErrorLaunchFailure, words);
    words = arena::damage();
    if (!words.empty()) fail(s, cudaErrorIllegalAddress, words + ", found after kernel " + kernel.name);
  }
}
/// Runs all that is queued.
void drain(Stream& s) {
  const auto queue = std::exchange(s.queue, {});
  for (size_t i = 0; i < queue.size() && s.error == cudaSuccess;) {
    size_t kernels = 0;
    while (i + kernels < queue.size() && queue[i + kernels]->kernel.threads) kernels++;
    if (kernels) {
      run_kernels(s, &queue[i], &queue[i] + kernels);
    } else if (queue[i]->event) {
      queue[i]->event->reached = std::chrono::steady_clock::now();
    } else if (const std::string words = copy(*queue[i]); !words.empty()) {
      fail(s, cudaErrorIllegalAddress, words);
    }
    i += std::max<size_t>(kernels, 1);
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
                     [&](const auto& w) { return w->from && p < w->from + w->bytes && w->from < p + bytes; });
}
/// A call that may not be made while this thread captures.
bool spoils_capture() {
  if (!capturing) return false;
  capturing->capture_spoilt = true;
  return true;
}

}  // namespace

cudaError_t enqueue(cudaStream_t stream, const char* name, dim3 grid, unsigned threads, size_t shared, bool overlap,
                    std::function<void()> body, unsigned cluster) {
  if (const cudaError_t error = planned(); error != cudaSuccess) return error;
  const Lock guard(lock());
  if (threads == 0 || threads > kThreadLimit || threads % 32 || shared > shared_limit() || grid.y > 65535 || grid.z > 65535 ||
      grid.x > 0x7fffffff || !grid.x || !grid.y || !grid.z || cluster < 1 || cluster > kClusterLimit || grid.x % cluster ||
      (cluster > 1 && clusters_at_once() == 0))
    return cudaErrorInvalidConfiguration;
  Work work;
  work.kernel = {name, grid, threads, shared, overlap, std::move(body), cluster};
  return submit(*stream, std::move(work), false);
}
int fail_call(int n, cudaError_t error) {
  if (n > 0) planned_error = error;
  return calls_to_failure.exchange(n);
}
int clusters_at_once() { return architecture() < kFirstWithClusters ? 0 : int(number_from("ASSAY_SIMT_CLUSTERS", 8)); }

}  // namespace simt

using namespace simt;

cudaError_t cudaGetDeviceCount(int* count) {
  if (const cudaError_t error = planned(); error != cudaSuccess) return error;
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (const cudaError_t error = planned(); error != cudaSuccess) return error;
  if (device != 0) return cudaErrorInvalidDevice;
  *properties = {};
  snprintf(properties->name, sizeof properties->name, "emulation on the CPU");
  properties->major = int(architecture() / 10);
  properties->minor = int(architecture() % 10);
  properties->multiProcessorCount = int(number_from("ASSAY_SIMT_PROCESSORS", 4));
  properties->totalGlobalMem = arena::total_bytes();
  properties->sharedMemPerBlockOptin = shared_limit();
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (const cudaError_t error = planned(); error != cudaSuccess) return error;
  return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  if (const cudaError_t error = planned(); error != cudaSuccess) return error;
  const Lock guard(lock());
  *total_bytes = arena::total_bytes();
  *free_bytes = *total_bytes - std::min(*total_bytes, size_t(arena::used_bytes()));
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  if (const cudaError_t error = planned(); error != cudaSuccess) return error;
  *version = 0;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  if (const cudaError_t error = planned(); error != cudaSuccess) return error;
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
  if (const cudaError_t error = planned(); error != cudaSuccess) return error;
  const Lock guard(lock());
  if (spoils_capture()) return cudaErrorStreamCaptureUnsupported;
  *memory = arena::allocate(bytes);
  return *memory ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void* memory) {
  const Lock guard(lock());
  if (spoils_capture()) return cudaErrorStreamCaptureUnsupported;
  drain_all();  // as a device does
  return arena::release(memory) ? planned() : cudaErrorInvalidValue;
}
cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  if (const cudaError_t error = planned(); error != cudaSuccess) return error;
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
  return planned();
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (const cudaError_t error = planned(); error != cudaSuccess) return error;
  const Lock guard(lock());
  Work work;
  work.bytes = bytes;
  if (kind == cudaMemcpyHostToDevice) {
    work.device = to;
    work.from = static_cast<const std::byte*>(from);
    return submit(*stream, std::move(work), !pinned(from));
  }
  if (kind == cudaMemcpyDeviceToDevice) {
    work.device = to;
    work.source = from;
    return submit(*stream, std::move(work), false);
  }
  work.device = const_cast<void*>(from);
  work.to = static_cast<std::byte*>(to);
  if (!stream->captured && stream->error == cudaSuccess && !still_read(*stream, to, bytes))
    memset(to, 0xff, bytes);  // until then
  return submit(*stream, std::move(work), false);
}
cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream) {
  if (const cudaError_t error = planned(); error != cudaSuccess) return error;
  const Lock guard(lock());
  Work work;
  work.device = to;
  work.byte = byte;
  work.bytes = bytes;
  return submit(*stream, std::move(work), false);
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  if (const cudaError_t error = planned(); error != cudaSuccess) return error;
  *event = new Event;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const cudaError_t error = planned(); error != cudaSuccess) return error;
  const Lock guard(lock());
  Work work;
  work.event = event;
  return submit(*stream, std::move(work), false);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  if (const cudaError_t error = planned(); error != cudaSuccess) return error;
  *milliseconds = std::chrono::duration<float, std::milli>(to->reached - from->reached).count();
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  if (const cudaError_t error = planned(); error != cudaSuccess) return error;
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
  if (const cudaError_t error = planned(); error != cudaSuccess) return error;
  const Lock guard(lock());
  if (stream->captured) {
    stream->capture_spoilt = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  drain(*stream);
  const std::string words = arena::earlier_damage();
  if (!words.empty()) fail(*stream, cudaErrorIllegalAddress, words);
  return sticky(*stream);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (const cudaError_t error = planned(); error != cudaSuccess) return error;
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
  if (const cudaError_t error = planned(); error != cudaSuccess) return error;
  if (stream->capture_spoilt) return cudaErrorStreamCaptureInvalidated;
  *graph = new Graph(*captured);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  if (const cudaError_t error = planned(); error != cudaSuccess) return error;
  *executable = new Graph(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  if (const cudaError_t error = planned(); error != cudaSuccess) return error;
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
  return planned();
}
