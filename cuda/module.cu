// The table of engine/abi.h: opening a device, its memory, its queue, graphs, and one entry per op (the ops' own files do the
// work). No exception leaves an entry; every failure sets the device's words.
#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device.h"

#if __has_include("cuda/sources.h")
#include "cuda/sources.h"  // the build's: a hash over all that this is built from
#else
#define ASSAY_CUDA_SOURCES ""
#endif

namespace assay {
namespace {

thread_local std::string error_without_device;

/// What capture_end hands out.
struct Graph {
  cudaGraphExec_t executable = nullptr;
  AssayCounters recorded{};
};

/// What may not be done while a capture goes on waits for its end.
struct ModuleDevice : AssayDevice {
  AssayCounters before_capture{};
  std::vector<void*> released, released_host;
  std::vector<cudaEvent_t> marks;
};
ModuleDevice& of(AssayDevice* d) { return *static_cast<ModuleDevice*>(d); }

/// Runs `body` with the device's context current. `op`: forgets the variant of the op before.
template <class F>
int guarded(AssayDevice* device, F&& body, bool op = false) noexcept {
  try {
    if (!device) {
      error_without_device = "no device";
      return ASSAY_ERROR;
    }
    ModuleDevice& d = of(device);
    if (op) d.variant.clear();
    CUDA_TRY(d, cudaSetDevice(d.ordinal));
    return body(d);
  } catch (const std::bad_alloc&) {
    try {
      (device ? device->error : error_without_device) = "out of host memory";
    } catch (...) {
    }
    return ASSAY_OUT_OF_MEMORY;
  } catch (const std::exception& e) {
    try {
      (device ? device->error : error_without_device) = e.what();
    } catch (...) {
    }
    return ASSAY_ERROR;
  } catch (...) {
    return ASSAY_ERROR;
  }
}
template <class Args, int (*op)(AssayDevice&, const Args&)>
int entry(AssayDevice* device, const Args* args) noexcept {
  return guarded(
      device, [&](ModuleDevice& d) { return args ? op(d, *args) : failed(d, ASSAY_ERROR, "no arguments"); }, true);
}

int while_capturing(AssayDevice& d, const char* what) { return failed(d, ASSAY_ERROR, "%s while a capture goes on", what); }

int synchronise(AssayDevice& d) {
  d.counters.syncs++;
  CUDA_TRY(d, cudaStreamSynchronize(d.stream));
  return ASSAY_DONE;
}

// ---- the device

const char* error(const AssayDevice* d) noexcept { return d ? d->error.c_str() : error_without_device.c_str(); }

int start(ModuleDevice& d, int32_t ordinal) {
  int count = 0;
  CUDA_TRY(d, cudaGetDeviceCount(&count));
  if (ordinal < 0 || ordinal >= count) return failed(d, ASSAY_ERROR, "device %d: there are %d", ordinal, count);
  d.ordinal = ordinal;
  CUDA_TRY(d, cudaSetDevice(ordinal));
  cudaDeviceProp properties;
  CUDA_TRY(d, cudaGetDeviceProperties(&properties, ordinal));
  d.processors = properties.multiProcessorCount;
  d.architecture = properties.major * 10 + properties.minor;
  d.shared_limit = properties.sharedMemPerBlockOptin;
  if (d.architecture < 80)
    return failed(d, ASSAY_ERROR, "%s is sm_%d: sm_80 or newer is needed", properties.name, d.architecture);
  CUDA_TRY(d, cudaStreamCreateWithFlags(&d.stream, cudaStreamNonBlocking));
  return ASSAY_DONE;
}
void close(AssayDevice* device) noexcept {
  if (!device) return;
  std::unique_ptr<ModuleDevice> d(&of(device));
  if (cudaSetDevice(d->ordinal) != cudaSuccess) return;
  if (d->capturing) {
    cudaGraph_t graph = nullptr;
    if (cudaStreamEndCapture(d->stream, &graph) == cudaSuccess) cudaGraphDestroy(graph);
  }
  if (d->stream) cudaStreamSynchronize(d->stream);
  for (void* memory : d->released) cudaFree(memory);
  for (void* memory : d->released_host) cudaFreeHost(memory);
  cudaFree(d->quantised.memory);
  cudaFree(d->attention.memory);
  cudaFree(d->experts.memory);
  for (cudaEvent_t e : d->marks)
    if (e) cudaEventDestroy(e);
  if (d->stream) cudaStreamDestroy(d->stream);
}
int open(int32_t ordinal, AssayDevice** device) noexcept {
  if (!device) return ASSAY_ERROR;
  *device = nullptr;
  ModuleDevice* made = nullptr;
  int result = ASSAY_ERROR;
  try {
    made = new ModuleDevice;
    result = start(*made, ordinal);
    if (result == ASSAY_DONE) {
      *device = made;
      return result;
    }
    error_without_device = made->error;
  } catch (...) {
  }
  close(made);
  return result;
}

int info(AssayDevice* device, AssayDeviceInfo* out) noexcept {
  return guarded(device, [&](ModuleDevice& d) {
    *out = {};
    cudaDeviceProp properties;
    CUDA_TRY(d, cudaGetDeviceProperties(&properties, d.ordinal));
    int driver = 0, runtime = 0;
    CUDA_TRY(d, cudaDriverGetVersion(&driver));
    CUDA_TRY(d, cudaRuntimeGetVersion(&runtime));
    size_t free_bytes = 0, all_bytes = 0;
    CUDA_TRY(d, cudaMemGetInfo(&free_bytes, &all_bytes));
    snprintf(out->name, sizeof out->name, "%.127s", properties.name);
    out->processors = d.processors;
    out->memory_bytes = all_bytes;
    out->free_bytes = free_bytes;
#ifdef ASSAY_SIMT
    out->emulated = 1;
    snprintf(out->architecture, sizeof out->architecture, "simt");
    snprintf(out->driver, sizeof out->driver, "simt, compiler %.40s", __VERSION__);
#else
    snprintf(out->architecture, sizeof out->architecture, "sm_%d", d.architecture);
    snprintf(out->driver, sizeof out->driver, "driver %d.%d, runtime %d.%d, nvcc %d.%d.%d", driver / 1000, driver % 100 / 10,
             runtime / 1000, runtime % 100 / 10, __CUDACC_VER_MAJOR__, __CUDACC_VER_MINOR__, __CUDACC_VER_BUILD__);
#endif
    return int(ASSAY_DONE);
  });
}
void counters(const AssayDevice* d, AssayCounters* out) noexcept {
  if (d && out) *out = d->counters;
}
const char* variant(const AssayDevice* d) noexcept { return d ? d->variant.c_str() : ""; }

// ---- memory

int allocate(AssayDevice* device, uint64_t bytes, void** memory) noexcept {
  return guarded(device, [&](ModuleDevice& d) {
    *memory = nullptr;
    if (d.capturing) return while_capturing(d, "allocate");
    const cudaError_t result = cudaMalloc(memory, std::max<uint64_t>(bytes, 1));
    if (result == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // this one is told here and spoils nothing
      return failed(d, ASSAY_OUT_OF_MEMORY, "%llu bytes of device memory: %s", static_cast<unsigned long long>(bytes),
                    cudaGetErrorString(result));
    }
    CUDA_TRY(d, result);
    d.counters.allocations++;
    return int(ASSAY_DONE);
  });
}
void release(AssayDevice* device, void* memory) noexcept {
  if (!memory) return;
  guarded(device, [&](ModuleDevice& d) {
    d.counters.frees++;
    if (d.capturing) {
      d.released.push_back(memory);
      return int(ASSAY_DONE);
    }
    CUDA_TRY(d, cudaFree(memory));
    return int(ASSAY_DONE);
  });
}
int allocate_host(AssayDevice* device, uint64_t bytes, void** memory) noexcept {
  return guarded(device, [&](ModuleDevice& d) {
    *memory = nullptr;
    if (d.capturing) return while_capturing(d, "allocate_host");
    CUDA_TRY(d, cudaMallocHost(memory, std::max<uint64_t>(bytes, 1)));
    return int(ASSAY_DONE);
  });
}
void release_host(AssayDevice* device, void* memory) noexcept {
  if (!memory) return;
  guarded(device, [&](ModuleDevice& d) {
    if (d.capturing) {
      d.released_host.push_back(memory);
      return int(ASSAY_DONE);
    }
    CUDA_TRY(d, cudaFreeHost(memory));
    return int(ASSAY_DONE);
  });
}
int upload(AssayDevice* device, void* to, const void* from, uint64_t bytes) noexcept {
  return guarded(device, [&](ModuleDevice& d) {
    if (bytes) CUDA_TRY(d, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, d.stream));
    d.counters.uploads++;
    d.counters.upload_bytes += bytes;
    return int(ASSAY_DONE);
  });
}
int download(AssayDevice* device, void* to, const void* from, uint64_t bytes) noexcept {
  return guarded(device, [&](ModuleDevice& d) {
    if (bytes) CUDA_TRY(d, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, d.stream));
    d.counters.downloads++;
    d.counters.download_bytes += bytes;
    return int(ASSAY_DONE);
  });
}
int fill(AssayDevice* device, void* memory, int32_t byte, uint64_t bytes) noexcept {
  return guarded(device, [&](ModuleDevice& d) {
    if (bytes) CUDA_TRY(d, cudaMemsetAsync(memory, byte, bytes, d.stream));
    return int(ASSAY_DONE);
  });
}
int copy(AssayDevice* device, void* to, const void* from, uint64_t bytes) noexcept {
  return guarded(device, [&](ModuleDevice& d) {
    if (bytes) CUDA_TRY(d, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, d.stream));
    return int(ASSAY_DONE);
  });
}
int mark(AssayDevice* device, int32_t place) noexcept {
  return guarded(device, [&](ModuleDevice& d) {
    if (place < 0 || place > 4095) return failed(d, ASSAY_ERROR, "mark %d is outside of 0 to 4095", place);
    while (int32_t(d.marks.size()) <= place) {
      d.marks.push_back(nullptr);
      CUDA_TRY(d, cudaEventCreate(&d.marks.back()));
    }
    CUDA_TRY(d, cudaEventRecord(d.marks[size_t(place)], d.stream));
    return int(ASSAY_DONE);
  });
}
int elapsed(AssayDevice* device, int32_t from, int32_t to, double* seconds) noexcept {
  return guarded(device, [&](ModuleDevice& d) {
    if (from < 0 || to < 0 || std::max(from, to) >= int32_t(d.marks.size())) return failed(d, ASSAY_ERROR, "no such mark");
    float milliseconds = 0;
    CUDA_TRY(d, cudaEventElapsedTime(&milliseconds, d.marks[size_t(from)], d.marks[size_t(to)]));
    *seconds = double(milliseconds) / 1000;
    return int(ASSAY_DONE);
  });
}
int finish(AssayDevice* device) noexcept {
  return guarded(device, [&](ModuleDevice& d) { return d.capturing ? while_capturing(d, "finish") : synchronise(d); });
}

/// The new memory is there before the old goes: after a failure everything is as it was.
int grow(ModuleDevice& d, AssayDevice::Scratch& scratch, size_t bytes) {
  if (bytes <= scratch.bytes) return ASSAY_DONE;
  void* memory = nullptr;
  if (const int result = allocate(&d, bytes, &memory); result != ASSAY_DONE) return result;
  release(&d, scratch.memory);
  scratch = {static_cast<std::byte*>(memory), bytes};
  return ASSAY_DONE;
}
int reserve(AssayDevice* device, const AssayLimits* limits) noexcept {
  return guarded(device, [&](ModuleDevice& d) {
    if (d.capturing) return while_capturing(d, "reserve");
    const AssayLimits &a = d.limits, &b = *limits;
    const AssayLimits all = {std::max(a.rows, b.rows), std::max(a.columns, b.columns), std::max(a.heads, b.heads),
                             std::max(a.head_dim, b.head_dim), std::max(a.context, b.context),
                             std::max(a.experts, b.experts), std::max(a.chosen, b.chosen)};
    const size_t quantised = quantised_scratch_bytes(all), attention = attention_scratch_bytes(d, all), experts = expert_scratch_bytes(all);
    if (quantised > d.quantised.bytes || attention > d.attention.bytes || experts > d.experts.bytes) {
      if (const int result = synchronise(d); result != ASSAY_DONE) return result;
      if (const int result = grow(d, d.quantised, quantised); result != ASSAY_DONE) return result;
      if (const int result = grow(d, d.attention, attention); result != ASSAY_DONE) return result;
      if (const int result = grow(d, d.experts, experts); result != ASSAY_DONE) return result;
    }
    d.limits = all;
    return int(ASSAY_DONE);
  });
}

// ---- graphs

int capture_begin(AssayDevice* device) noexcept {
  return guarded(device, [&](ModuleDevice& d) {
    if (d.capturing) return while_capturing(d, "capture_begin");
    CUDA_TRY(d, cudaStreamBeginCapture(d.stream, cudaStreamCaptureModeThreadLocal));
    d.capturing = true;
    d.before_capture = d.counters;
    return int(ASSAY_DONE);
  });
}
// An array of pointers to members by its plain declarator is rewritten by nvcc with parentheses that the host compiler warns of.
constexpr std::array kRecorded = {&AssayCounters::launches, &AssayCounters::uploads, &AssayCounters::upload_bytes,
                                  &AssayCounters::downloads, &AssayCounters::download_bytes};
/// Nothing that was recorded has happened yet: it is counted by each replay.
AssayCounters take_recorded(ModuleDevice& d) {
  AssayCounters recorded{};
  for (auto member : kRecorded) {
    recorded.*member = d.counters.*member - d.before_capture.*member;
    d.counters.*member = d.before_capture.*member;
  }
  return recorded;
}
int capture_end(AssayDevice* device, void** graph) noexcept {
  return guarded(device, [&](ModuleDevice& d) {
    *graph = nullptr;
    if (!d.capturing) return failed(d, ASSAY_ERROR, "capture_end without capture_begin");
    d.capturing = false;
    auto made = std::make_unique<Graph>();
    made->recorded = take_recorded(d);
    cudaGraph_t captured = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(d.stream, &captured);
    for (void* memory : std::exchange(d.released, {})) CUDA_TRY(d, cudaFree(memory));
    for (void* memory : std::exchange(d.released_host, {})) CUDA_TRY(d, cudaFreeHost(memory));
    CUDA_TRY(d, ended);
    const cudaError_t instantiated = cudaGraphInstantiate(&made->executable, captured, 0);
    cudaGraphDestroy(captured);
    CUDA_TRY(d, instantiated);
    *graph = made.release();
    return int(ASSAY_DONE);
  });
}
int replay(AssayDevice* device, void* graph) noexcept {
  return guarded(device, [&](ModuleDevice& d) {
    if (d.capturing) return while_capturing(d, "replay");
    const Graph& g = *static_cast<const Graph*>(graph);
    CUDA_TRY(d, cudaGraphLaunch(g.executable, d.stream));
    for (auto member : kRecorded) d.counters.*member += g.recorded.*member;
    d.counters.replays++;
    return int(ASSAY_DONE);
  });
}
void release_graph(AssayDevice* device, void* graph) noexcept {
  if (!graph) return;
  guarded(device, [&](ModuleDevice& d) {
    const std::unique_ptr<Graph> g(static_cast<Graph*>(graph));
    CUDA_TRY(d, cudaGraphExecDestroy(g->executable));
    return int(ASSAY_DONE);
  });
}

// ---- weights

uint64_t weight_bytes(const AssayDevice*, int32_t type, int64_t rows, int64_t columns) noexcept {
  return type < 0 || type >= ASSAY_TYPES || rows <= 0 || columns <= 0 ? 0 : packed_bytes(type, rows, columns);
}
int pack_weight(AssayDevice* device, int32_t type, int64_t rows, int64_t columns, const void* raw, void* packed) noexcept {
  return guarded(
      device,
      [&](ModuleDevice& d) {
        const int result = weight_bytes(&d, type, rows, columns) ? pack(d, type, rows, columns, raw, packed) : int(ASSAY_REFUSED);
        d.weights_written = true;
        return result;
      },
      true);
}
int unpack_weight(AssayDevice* device, int32_t type, int64_t rows, int64_t columns, const void* packed, void* raw) noexcept {
  return guarded(
      device,
      [&](ModuleDevice& d) {
        return weight_bytes(&d, type, rows, columns) ? unpack(d, type, rows, columns, packed, raw) : int(ASSAY_REFUSED);
      },
      true);
}

#ifdef ASSAY_SIMT
constexpr const char* kName = "assay-simt";
#else
constexpr const char* kName = "assay-cuda";
#endif

constexpr AssayModule kModule = {
    .abi_version = ASSAY_ABI_VERSION,
    .struct_size = sizeof(AssayModule),
    .name = kName,
    .sources = ASSAY_CUDA_SOURCES,
    .error = error,
    .open = open,
    .close = close,
    .info = info,
    .counters = counters,
    .variant = variant,
    .allocate = allocate,
    .release = release,
    .allocate_host = allocate_host,
    .release_host = release_host,
    .upload = upload,
    .download = download,
    .fill = fill,
    .copy = copy,
    .finish = finish,
    .mark = mark,
    .elapsed = elapsed,
    .reserve = reserve,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .replay = replay,
    .release_graph = release_graph,
    .weight_bytes = weight_bytes,
    .pack_weight = pack_weight,
    .unpack_weight = unpack_weight,
    .operands = nullptr,
    .embed = entry<AssayEmbed, embed>,
    .norm = entry<AssayNorm, norm>,
    .linear = entry<AssayLinear, linear>,
    .rope = entry<AssayRope, rope>,
    .kv_store = entry<AssayKvStore, kv_store>,
    .heads = entry<AssayHeads, heads>,
    .attention = entry<AssayAttention, attention>,
    .silu_mul = entry<AssayBinary, silu_mul>,
    .add = entry<AssayBinary, add>,
    .gather = entry<AssayGather, gather>,
    .argmax = entry<AssayArgmax, argmax>,
    .sigmoid_mul = entry<AssayBinary, sigmoid_mul>,
    .sigmoid = entry<AssayUnary, sigmoid>,
    .columns = entry<AssayColumns, columns>,
    .l2_norm = entry<AssayL2Norm, l2_norm>,
    .gated_norm = entry<AssayGatedNorm, gated_norm>,
    .decay = entry<AssayDecay, decay>,
    .conv = entry<AssayConv, conv>,
    .delta_rule = entry<AssayDeltaRule, delta_rule>,
    .topk = entry<AssayRouter, topk>,
    .topk_weights = entry<AssayRouter, topk_weights>,
    .expert_linear = entry<AssayExpertLinear, expert_linear>,
    .expert_sum = entry<AssayExpertSum, expert_sum>,
    .gated_add = entry<AssayGatedAdd, gated_add>,
};

}  // namespace
}  // namespace assay

extern "C" __attribute__((visibility("default"))) const AssayModule* assay_module(void) { return &assay::kModule; }
