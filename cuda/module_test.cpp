// The table of engine/abi.h (module.cu): what it says of itself, and what it refuses.
#include <functional>

#include "cuda/simt/failures.h"
#include "cuda/simt_support.h"

namespace assay {
namespace {

using namespace test;

__global__ void store_one(float* y) { y[threadIdx.x] = 1.0f; }
TEST(Module, LaunchesThatNoDeviceTakesAreErrors) {
  const Device d;
  const Buffer<float> y(d, kThreads);
  for (const auto& [threads, shared] : {std::pair{48, 0}, {2048, 0}, {32, 300 << 10}}) {
    EXPECT_EQ(launch(of(d), "odd", Overlap::no, store_one, dim3(1), threads, size_t(shared), y.get()), ASSAY_ERROR);
    EXPECT_WORDS(d.error(), "invalid configuration");
  }
  EXPECT_EQ(launch(of(d), "empty", Overlap::no, store_one, dim3(0), 32, 0, y.get()), ASSAY_ERROR);
}
TEST(Module, ReserveThatDoesNotFitChangesNothing) {
  const Setting setting("ASSAY_SIMT_MEMORY", memory_with_room(8000000).c_str());
  const Device d;
  const AssayLimits small{4, 256, 4, 64, 128, 0, 0}, large{4096, 1 << 14, 64, 128, 1 << 15, 0, 0};
  d.reserve(small);
  const AssayCounters before = d.counters();
  EXPECT_EQ(d.module().reserve(d, &large), ASSAY_OUT_OF_MEMORY);
  EXPECT_WORDS(d.error(), "bytes of device memory: out of memory");
  EXPECT_EQ(d.counters().allocations, before.allocations);
  d.reserve(small);
  EXPECT_EQ(of(d).limits.rows, 4);
  d.finish();
}
TEST(Module, SaysWhatItIs) {
  const AssayModule& m = Device::module();
  EXPECT_EQ(m.abi_version, uint32_t(ASSAY_ABI_VERSION));
  EXPECT_EQ(m.struct_size, sizeof(AssayModule));
  AssayDevice* none = nullptr;
  EXPECT_EQ(m.open(99, &none), ASSAY_ERROR);
  EXPECT_EQ(none, nullptr);
  EXPECT_WORDS(std::string(m.error(nullptr)), "device 99: there are 1");
  EXPECT_EQ(m.finish(nullptr), ASSAY_ERROR);
  const Device d;
  EXPECT_EQ(d.info().emulated, 1);
  EXPECT_STREQ(d.info().architecture, "simt");
  EXPECT_EQ(m.weight_bytes(d, -1, 4, 32), 0u);
  EXPECT_EQ(m.weight_bytes(d, ASSAY_TYPES, 4, 32), 0u);
  EXPECT_EQ(m.weight_bytes(d, ASSAY_F32, 0, 32), 0u);
  EXPECT_EQ(m.norm(d, nullptr), ASSAY_ERROR);
}

TEST(Module, ADeviceIsWhatItsPropertiesSay) {
  for (const OtherDevice& other : kOtherDevices) {
    const Emulated emulated(other);
    const Device d;
    EXPECT_EQ(of(d).architecture, atoi(other.architecture));
    EXPECT_EQ(of(d).shared_limit, strtoull(other.shared, nullptr, 10));
    const Buffer<float> y(d, kThreads);
    EXPECT_EQ(launch(of(d), "too much", Overlap::no, store_one, dim3(1), kThreads, of(d).shared_limit + 1, y.get()), ASSAY_ERROR);
    const int in_clusters = launch_in_clusters(of(d), "cluster", Overlap::no, store_one, 2, dim3(2), kThreads, 0, y.get());
    EXPECT_EQ(in_clusters, *other.clusters == '0' ? ASSAY_ERROR : ASSAY_DONE) << other.name;
    EXPECT_EQ(clusters_at_once(of(d), store_one, 2, kThreads, 0), atoi(other.clusters));
  }
  const Setting old("ASSAY_SIMT_ARCHITECTURE", "75");
  AssayDevice* none = nullptr;
  EXPECT_EQ(Device::module().open(0, &none), ASSAY_ERROR);
  EXPECT_EQ(none, nullptr);
  EXPECT_WORDS(std::string(Device::module().error(nullptr)), "is sm_75: sm_80 or newer is needed");
}

TEST(Module, NoDeviceOrNoArgumentsIsAnErrorAndNothingMoreHappens) {
  const AssayModule& m = Device::module();
  AssayDevice* const none = nullptr;
  void* memory = nullptr;
  double seconds = 0;
  AssayDeviceInfo info;
  AssayCounters counters{};
  const AssayLimits limits{1, 32, 1, 32, 32, 0, 0};
  const std::vector<int> results = {
      m.info(none, &info), m.allocate(none, 1, &memory), m.allocate_host(none, 1, &memory), m.upload(none, &info, &info, 1),
      m.download(none, &info, &info, 1), m.fill(none, &info, 0, 1), m.copy(none, &info, &info, 1), m.finish(none), m.mark(none, 0),
      m.elapsed(none, 0, 0, &seconds), m.reserve(none, &limits), m.capture_begin(none), m.capture_end(none, &memory),
      m.replay(none, &info), m.pack_weight(none, ASSAY_F32, 1, 1, &info, &info), m.unpack_weight(none, ASSAY_F32, 1, 1, &info, &info),
      m.embed(none, nullptr), m.norm(none, nullptr), m.linear(none, nullptr), m.rope(none, nullptr), m.kv_store(none, nullptr),
      m.heads(none, nullptr), m.attention(none, nullptr), m.silu_mul(none, nullptr), m.add(none, nullptr), m.gather(none, nullptr),
      m.argmax(none, nullptr)};
  for (size_t i = 0; i < results.size(); i++) EXPECT_EQ(results[i], ASSAY_ERROR) << i;
  EXPECT_STREQ(m.error(none), "no device");
  m.counters(none, &counters);
  EXPECT_STREQ(m.variant(none), "");
  m.release(none, &info);
  m.release_host(none, &info);
  m.release_graph(none, &info);
  m.close(none);
  EXPECT_EQ(m.open(0, nullptr), ASSAY_ERROR);
  AssayDevice* opened = nullptr;
  EXPECT_EQ(m.open(-1, &opened), ASSAY_ERROR);

  const Device d;
  m.release(d, nullptr);
  m.release_host(d, nullptr);
  m.release_graph(d, nullptr);
  m.counters(d, nullptr);
  const std::vector<int> without = {m.embed(d, nullptr), m.norm(d, nullptr), m.linear(d, nullptr), m.rope(d, nullptr),
                                    m.kv_store(d, nullptr), m.heads(d, nullptr), m.attention(d, nullptr), m.silu_mul(d, nullptr),
                                    m.add(d, nullptr), m.gather(d, nullptr), m.argmax(d, nullptr)};
  for (size_t i = 0; i < without.size(); i++) EXPECT_EQ(without[i], ASSAY_ERROR) << i;
  EXPECT_WORDS(d.error(), "no arguments");
  for (const int32_t place : {-1, 4096}) EXPECT_EQ(m.mark(d, place), ASSAY_ERROR);
  for (const auto& [from, to] : {std::pair{-1, 0}, {0, -1}, {5000, 0}}) EXPECT_EQ(m.elapsed(d, from, to, &seconds), ASSAY_ERROR);
  for (const int result : {m.upload(d, nullptr, nullptr, 0), m.download(d, nullptr, nullptr, 0), m.fill(d, nullptr, 0, 0),
                           m.copy(d, nullptr, nullptr, 0)})
    EXPECT_EQ(result, ASSAY_DONE);
  for (const int32_t type : {-1, int32_t(ASSAY_TYPES)}) {
    EXPECT_EQ(m.pack_weight(d, type, 1, 256, &info, &info), ASSAY_REFUSED);
    EXPECT_EQ(m.unpack_weight(d, type, 1, 256, &info, &info), ASSAY_REFUSED);
  }
  EXPECT_EQ(m.weight_bytes(d, ASSAY_Q4_K, 1, 288), 0u);
  EXPECT_EQ(m.weight_bytes(d, ASSAY_F32, int64_t(1) << 30, int64_t(1) << 30), 0u);
  d.ok(m.capture_begin(d));
  EXPECT_EQ(m.allocate_host(d, 1, &memory), ASSAY_ERROR);
  EXPECT_EQ(m.replay(d, &info), ASSAY_ERROR);
  EXPECT_WORDS(d.error(), "replay while a capture goes on");
  void* graph = nullptr;
  d.ok(m.capture_end(d, &graph));
  m.release_graph(d, graph);
  for (const AssayLimits& few : {AssayLimits{0, 1, 1, 1, 1, 0, 0}, {1, 1, 0, 1, 1, 0, 0}, {1, 1, 1, 0, 1, 0, 0}, {1, 1, 1, 1, 0, 0, 0}}) {
    const Device fresh;
    fresh.reserve(few);  // no attention is asked for
  }
  AssayDevice* left = nullptr;
  ASSERT_EQ(m.open(0, &left), ASSAY_DONE);
  d.ok(m.capture_begin(left));
  m.close(left);  // in the midst of a capture
}

// ---- every call of the runtime fails once

/// What goes well in the midst of what is planned to fail.
template <class F>
void unplanned(F&& body, cudaError_t error = cudaErrorInvalidValue) {
  const int left = simt::fail_call(0);
  body();
  simt::fail_call(left, error);
}

/// All that the module is asked for here, in memory of one device.
struct Everything {
  Device d;
  cudaError_t error = cudaErrorInvalidValue;  // that calls are planned to fail with
  Rng rng = seeded(201);
  HostWeight quantised = random_weight(rng, WeightType::q4_k, 40, 512), widened = random_weight(rng, WeightType::bf16, 40, 512);
  PackedWeight q{d, quantised.matrix}, f{d, widened.matrix};
  Buffer<std::byte> raw{d, quantised.bytes};
  Buffer<float> x{d, counting(40 * 512)}, y{d, 3 * 40 * 512}, norm{d, counting(512)};
  Buffer<int32_t> ids{d, std::vector<int32_t>(64, 0)};
  Buffer<int64_t> overflow{d, std::vector<int64_t>{0}};
  Buffer<uint8_t> k{d, size_t(2 * 320 * 320 * 4)}, v{d, size_t(2 * 320 * 320 * 4)};
  Buffer<AssayPlace> places{d, run_of(40)};

  static std::vector<AssayPlace> run_of(int64_t rows) {
    std::vector<AssayPlace> out;
    for (int64_t r = 0; r < rows; r++) out.push_back({0, 0, r});
    return out;
  }
  Everything() {
    d.reserve({40, 512, 8, 320, 320, 0, 0});
    d.finish();
  }
  AssayCache cache(int32_t type, int64_t dim) const { return {type, 0, 1, 1, 64, dim, k.get(), v.get()}; }
  AssayLinear linear(const PackedWeight& w, int64_t rows, int count) const {
    AssayLinear a{};
    a.activations = ASSAY_ACTIVATIONS_S16;
    a.count = count;
    for (int i = 0; i < count; i++) a.w[i] = w.get(), a.y[i] = y.get() + i * 40 * 512;
    a.x = x.get();
    a.rows = rows;
    return a;
  }
  AssayHeads heads(int32_t type, int64_t dim, int64_t rows) const {
    return {x.get(), x.get(), x.get(), nullptr, nullptr, y.get(), places.get(), x.get(), x.get(), cache(type, dim), rows, 1, 16, 1e-6f,
            0, overflow.get()};
  }
};

/// Whatever becomes of it.
void end_capture(const Device& d) {
  void* graph = nullptr;
  d.module().capture_end(d, &graph);
  d.module().release_graph(d, graph);
}

using Action = std::function<int(Everything&)>;
/// Fails the first call that the action makes, then the second one of another device, and so on, until none is left to fail.
/// `goes_on`: some of its calls may fail, as those that release memory.
void expect_errors(const char* what, const Action& action, bool goes_on = false, bool is_op = false) {
  for (const cudaError_t error : {cudaErrorInvalidValue, cudaErrorMemoryAllocation}) {
    if (is_op && error == cudaErrorMemoryAllocation) continue;  // no op allocates
    for (int n = 1;; n++) {
      Everything e;
      e.error = error;
      simt::fail_call(n, error);
      const int result = action(e);
      if (simt::fail_call(0) > 0) {
        EXPECT_GT(n, 1) << what << " makes no call";
        EXPECT_EQ(result, ASSAY_DONE) << what << ": " << e.d.error();
        break;
      }
      EXPECT_NE(e.d.error(), "") << what << ", call " << n;
      if (goes_on && result == ASSAY_DONE) continue;
      EXPECT_EQ(result, error == cudaErrorMemoryAllocation ? ASSAY_OUT_OF_MEMORY : ASSAY_ERROR) << what << ", call " << n;
      ASSERT_LT(n, 40) << what;
    }
  }
}
void expect_errors_of_op(const char* what, const Action& action) { expect_errors(what, action, false, true); }

TEST(Module, EveryCallThatFailsIsAnErrorWithWords) {
  const AssayModule& m = Device::module();
  void* memory = nullptr;
  float host[4] = {};
  AssayDeviceInfo info;
  const AssayLimits more{80, 1024, 16, 320, 640, 0, 0};
  expect_errors("info", [&](Everything& e) { return m.info(e.d, &info); });
  expect_errors("allocate", [&](Everything& e) {
    const int result = m.allocate(e.d, 16, &memory);
    if (result == ASSAY_DONE) unplanned([&] { m.release(e.d, memory); }, e.error);
    return result;
  });
  expect_errors("allocate_host", [&](Everything& e) {
    const int result = m.allocate_host(e.d, 16, &memory);
    if (result == ASSAY_DONE) unplanned([&] { m.release_host(e.d, memory); }, e.error);
    return result;
  });
  expect_errors("upload", [&](Everything& e) { return m.upload(e.d, e.y.get(), host, sizeof host); });
  expect_errors("download", [&](Everything& e) { return m.download(e.d, host, e.x.get(), sizeof host); });
  expect_errors("fill", [&](Everything& e) { return m.fill(e.d, e.y.get(), 0, 16); });
  expect_errors("copy", [&](Everything& e) { return m.copy(e.d, e.y.get(), e.x.get(), 16); });
  expect_errors("finish", [&](Everything& e) { return m.finish(e.d); });
  expect_errors("mark", [&](Everything& e) { return m.mark(e.d, 1); });
  expect_errors("elapsed", [&](Everything& e) {
    unplanned([&] { e.d.ok(m.mark(e.d, 1)); }, e.error);
    double seconds = 0;
    return m.elapsed(e.d, 0, 1, &seconds);
  });
  expect_errors("reserve", [&](Everything& e) { return m.reserve(e.d, &more); }, true);
  expect_errors("capture_begin", [&](Everything& e) {
    const int result = m.capture_begin(e.d);
    if (result == ASSAY_DONE) unplanned([&] { end_capture(e.d); }, e.error);
    return result;
  });
  expect_errors("pack_weight", [&](Everything& e) { return m.pack_weight(e.d, ASSAY_Q4_K, 40, 512, e.raw.get(), e.y.get()); });
  expect_errors("unpack_weight", [&](Everything& e) { return m.unpack_weight(e.d, ASSAY_Q4_K, 40, 512, e.q.get().data, e.y.get()); });
}

TEST(Module, ACaptureOrReplayThatFailsIsAnErrorWithWords) {
  const AssayModule& m = Device::module();
  for (const int step : {0, 1, 2})
    for (int n = 1; n < 10; n++) {
      Everything e;
      void *graph = nullptr, *pinned = nullptr, *memory = nullptr;
      e.d.ok(m.allocate_host(e.d, 16, &pinned));
      e.d.ok(m.allocate(e.d, 16, &memory));
      simt::fail_call(n);
      int result = ASSAY_DONE;
      unplanned([&] {
        e.d.ok(m.capture_begin(e.d));
        e.d.ok(m.fill(e.d, e.y.get(), 0, 16));
        m.release(e.d, memory);  // both wait for the end of the capture
        m.release_host(e.d, pinned);
      });
      if (step == 0) result = m.capture_end(e.d, &graph);
      if (step != 0) unplanned([&] { e.d.ok(m.capture_end(e.d, &graph)); });
      if (step == 1) result = m.replay(e.d, graph);
      if (step == 2) m.release_graph(e.d, graph);
      const bool reached = simt::fail_call(0) == 0;
      if (step != 2) {
        EXPECT_EQ(result, reached ? ASSAY_ERROR : ASSAY_DONE) << step << ", call " << n;
      }
      if (reached) {
        EXPECT_NE(e.d.error(), "") << step << ", call " << n;
      }
      if (step != 2) m.release_graph(e.d, graph);
      end_capture(e.d);  // where none goes on any more, it is refused
      if (!reached) break;
    }
}

TEST(Module, ADeviceThatDoesNotOpenSaysWhy) {
  for (int n = 1;; n++) {
    AssayDevice* device = nullptr;
    simt::fail_call(n);
    const int result = Device::module().open(0, &device);
    if (simt::fail_call(0) > 0) {
      EXPECT_EQ(result, ASSAY_DONE);
      simt::fail_call(1);
      Device::module().close(device);  // leaves what it can't reach
      simt::fail_call(0);
      EXPECT_GT(n, 3);
      break;
    }
    EXPECT_EQ(result, ASSAY_ERROR);
    EXPECT_EQ(device, nullptr);
    EXPECT_WORDS(std::string(Device::module().error(nullptr)), "invalid argument");
    ASSERT_LT(n, 20);
  }
}

TEST(Module, ALaunchThatFailsEndsItsOp) {
  const AssayModule& m = Device::module();
  for (const int64_t rows : {1, 3, 40})
    for (const int count : {1, 2}) {
      expect_errors_of_op("linear", [&](Everything& e) {
        AssayLinear a = e.linear(e.q, rows, count);
        return m.linear(e.d, &a);
      });
      expect_errors_of_op("linear of floats", [&](Everything& e) {
        AssayLinear a = e.linear(e.f, rows, count);
        return m.linear(e.d, &a);
      });
    }
  expect_errors_of_op("argmax", [&](Everything& e) {
    const AssayArgmax a{e.x.get(), e.ids.get(), 1, 20000};
    return m.argmax(e.d, &a);
  });
  for (const int32_t type : {ASSAY_F32, ASSAY_F16, ASSAY_BF16})
    for (const int64_t dim : {64, 288})
      for (const int64_t group : {1, 3, 8})
        for (const int64_t rows : {1, 12}) {
          if (rows == 12 && (dim == 288 || group > 1)) continue;
          expect_errors_of_op("attention", [&](Everything& e) {
            const AssayAttention a{e.x.get(), e.y.get(), e.places.get(), e.cache(type, dim), rows, group, rows, 0.125f, 0, nullptr};
            return m.attention(e.d, &a);
          });
        }
  for (const int64_t dim : {64, 40})
    expect_errors_of_op("attention with heads", [&](Everything& e) {
      const AssayHeads h = e.heads(ASSAY_F16, dim, 1);
      const AssayAttention a{h.q_out, e.y.get() + 40 * 512, h.places, h.cache, 1, 1, 1, 0.125f, 0, &h};
      return m.attention(e.d, &a);
    });
}

}  // namespace
}  // namespace assay
