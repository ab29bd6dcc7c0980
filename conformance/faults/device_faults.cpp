// Faults of running on a device: what a module, its loader, its weights or its graphs did wrong. Planted into the emulated
// module, whose table is handed to the loader with some members replaced, so that no GPU is needed; with --module they are
// planted into that module instead. Checks are "device/<way of running>/<what is looked at>", on the official case qwen2-bias:
//   bytes      every value and state against the CPU's dump of the same run (byte_exact)
//   answers    ids, last logits and state with nothing captured, against the CPU's
//   state      caches of two sequences whose passes interleave, against the CPU's
//   layers     no two layers of one dump have the same bytes (needs no baseline)
//   executors  which nodes ran where
//   traffic    uploads of every pass; allocations, frees, waits and replays of steady decode passes
//   residency  all weights are resident, or a notice says how many are
//   load       what the loader and the planner of memory say before anything runs
// and "kernel/..." of the registry, at the planted module.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "conformance/check.h"
#include "conformance/faults/plants.h"
#include "conformance/integration/quantised.h"
#include "engine/device_backend.h"

namespace assay {
namespace {

namespace fs = std::filesystem;

// ---- a module that misbehaves

/// What the replaced members of a table know of each other. They are C functions: one module is planted at a time per thread.
struct ModuleMemory {
  const AssayModule* real = nullptr;
  uint64_t uploads = 0, allocations = 0, allocated = 0;
  std::map<const void*, uint64_t> inputs;             // host memory of steps: what comes from there are a pass's inputs
  std::vector<AssayPlace> places;                     // of the last upload of inputs
  void* places_at = nullptr;
  std::map<void*, std::pair<void*, std::vector<AssayPlace>>> frozen;   // by graph: where its inputs lie, and what they were
  std::map<void*, uint64_t> longest_upload;           // of inputs, by where they go
  std::vector<void*> stash;                           // memory to free in a step
  std::map<void*, std::pair<uint64_t, int>> handed_out;                // size and users of memory that a pool gave away
};
thread_local ModuleMemory now;

bool is_input(const void* host) {
  const auto after = now.inputs.upper_bound(host);
  if (after == now.inputs.begin()) return false;
  const auto& [begin, bytes] = *std::prev(after);
  return static_cast<const std::byte*>(host) < static_cast<const std::byte*>(begin) + bytes;
}
/// The places with which the inputs of a pass begin. Ids follow: as a place they would have a `reserved` that isn't 0.
size_t places_in(const void* host, uint64_t bytes) {
  size_t n = 0;
  for (AssayPlace p; (n + 1) * sizeof p <= bytes; n++) {
    std::memcpy(&p, static_cast<const std::byte*>(host) + n * sizeof p, sizeof p);
    if (p.reserved != 0 || p.slot < 0 || p.slot > 1 || p.position < 0 || p.position > 4096) break;
  }
  return n;
}

using AlterTable = void (*)(AssayModule&);

/// While it lives, `name` loads as the real module with a table as `alter` makes it.
class PlantedModule {
 public:
  PlantedModule(const fs::path& real, fs::path name, AlterTable alter)
      : real_(DeviceModule::load(real)), table_(real_->table()), name_(std::move(name)) {
    now = {};
    now.real = &real_->table();
    table_.allocate_host = [](AssayDevice* d, uint64_t bytes, void** memory) {
      const int result = now.real->allocate_host(d, bytes, memory);
      if (result == ASSAY_DONE) now.inputs[*memory] = bytes;
      return result;
    };
    table_.release_host = [](AssayDevice* d, void* memory) {
      now.inputs.erase(memory);
      now.real->release_host(d, memory);
    };
    table_.allocate = [](AssayDevice* d, uint64_t bytes, void** memory) {
      now.allocations++;
      return now.real->allocate(d, bytes, memory);
    };
    table_.upload = [](AssayDevice* d, void* to, const void* host, uint64_t bytes) {
      now.uploads++;
      return now.real->upload(d, to, host, bytes);
    };
    table_.close = [](AssayDevice* d) {
      for (void* memory : std::exchange(now.stash, {})) now.real->release(d, memory);
      now.real->close(d);
    };
    if (alter) alter(table_);
    DeviceModule::plant(name_, &table_);
  }
  ~PlantedModule() {
    DeviceModule::plant(name_, nullptr);
    now = {};
  }
  PlantedModule(const PlantedModule&) = delete;

 private:
  std::shared_ptr<const DeviceModule> real_;
  AssayModule table_;
  fs::path name_;
};

// A1
void other_version(AssayModule& t) { t.abi_version++; }
void other_size(AssayModule& t) { t.struct_size -= uint32_t(sizeof(void*)); }

/// A7: a step of a decode graph does what no steady step may.
void allocates_in_a_step(AssayModule& t) {
  t.replay = [](AssayDevice* d, void* graph) {
    now.stash.emplace_back();
    now.real->allocate(d, 256, &now.stash.back());
    return now.real->replay(d, graph);
  };
}
void frees_in_a_step(AssayModule& t) {
  t.open = [](int32_t ordinal, AssayDevice** d) {
    const int result = now.real->open(ordinal, d);
    for (int i = 0; i < 64 && result == ASSAY_DONE; i++) {
      now.stash.emplace_back();
      now.real->allocate(*d, 256, &now.stash.back());
    }
    return result;
  };
  t.replay = [](AssayDevice* d, void* graph) {
    if (!now.stash.empty()) {
      now.real->release(d, now.stash.back());
      now.stash.pop_back();
    }
    return now.real->replay(d, graph);
  };
}
void waits_in_a_step(AssayModule& t) {
  t.replay = [](AssayDevice* d, void* graph) {
    const int result = now.real->replay(d, graph);
    now.real->finish(d);
    return result;
  };
}
/// A7, the cure: a pool of buffers. It gives a buffer of 16 KiB away while another still uses it.
void pool_hands_out_twice(AssayModule& t) {
  t.allocate = [](AssayDevice* d, uint64_t bytes, void** memory) {
    if (bytes == 16384)
      for (auto& [held, use] : now.handed_out)
        if (use.second == 1) {
          use.second++;
          *memory = held;
          return int(ASSAY_DONE);
        }
    const int result = now.real->allocate(d, bytes, memory);
    if (result == ASSAY_DONE && bytes == 16384) now.handed_out[*memory] = {bytes, 1};
    return result;
  };
  t.release = [](AssayDevice* d, void* memory) {
    if (const auto it = now.handed_out.find(memory); it != now.handed_out.end()) {
      if (--it->second.second > 0) return;
      now.handed_out.erase(it);
    }
    now.real->release(d, memory);
  };
}
/// A7, the cure: what a pass has to find cleared is as the last user left it.
void pool_is_not_cleared(AssayModule& t) {
  t.fill = [](AssayDevice* d, void* memory, int32_t byte, uint64_t bytes) {
    return byte == 0x7f ? int(ASSAY_DONE) : now.real->fill(d, memory, byte, bytes);
  };
}

/// A9: the device has less memory than the host's arithmetic assumed.
void little_memory(AssayModule& t) {
  t.info = [](AssayDevice* d, AssayDeviceInfo* out) {
    const int result = now.real->info(d, out);
    if (result == ASSAY_DONE) out->free_bytes = std::min<uint64_t>(out->free_bytes, 65536);
    return result;
  };
}
/// A9, a device that lies: it says that much is free and gives a tenth of a megabyte.
void allocation_fails(AssayModule& t) {
  t.allocate = [](AssayDevice* d, uint64_t bytes, void** memory) {
    now.allocated += bytes;
    if (now.allocated <= 131072) return now.real->allocate(d, bytes, memory);
    *memory = nullptr;
    return int(ASSAY_OUT_OF_MEMORY);
  };
}

/// A16: there is one cache, whatever slot a row belongs to.
void one_cache(AssayModule& t) {
  t.upload = [](AssayDevice* d, void* to, const void* host, uint64_t bytes) {
    if (is_input(host))
      for (size_t i = places_in(host, bytes); i-- > 0;)   // the host's memory is this pass's own: it may be changed
        std::memset(static_cast<std::byte*>(const_cast<void*>(host)) + i * sizeof(AssayPlace), 0, sizeof(int32_t));
    return now.real->upload(d, to, host, bytes);
  };
}

/// A19: the estimator is fed the type that weights were expanded to.
void expanded_type(AssayModule& t) {
  t.weight_bytes = [](const AssayDevice* d, int32_t type, int64_t rows, int64_t columns) {
    return now.real->weight_bytes(d, type == ASSAY_Q4_0 ? int32_t(ASSAY_Q8_0) : type, rows, columns);
  };
}

/// A26: a graph replays with the places that its rows had when it was captured.
void frozen_position(AssayModule& t) {
  t.upload = [](AssayDevice* d, void* to, const void* host, uint64_t bytes) {
    if (is_input(host)) {
      now.places.resize(places_in(host, bytes));
      std::memcpy(now.places.data(), host, now.places.size() * sizeof(AssayPlace));
      now.places_at = to;
    }
    return now.real->upload(d, to, host, bytes);
  };
  t.capture_end = [](AssayDevice* d, void** graph) {
    const int result = now.real->capture_end(d, graph);
    if (result == ASSAY_DONE) now.frozen[*graph] = {now.places_at, now.places};
    return result;
  };
  t.replay = [](AssayDevice* d, void* graph) {
    const auto& [at, places] = now.frozen.at(graph);
    now.real->upload(d, at, places.data(), places.size() * sizeof(AssayPlace));
    return now.real->replay(d, graph);
  };
}

/// D11: of inputs that are shorter than earlier ones the last word is not refreshed.
void stale_tail(AssayModule& t) {
  t.upload = [](AssayDevice* d, void* to, const void* host, uint64_t bytes) {
    if (!is_input(host)) return now.real->upload(d, to, host, bytes);
    uint64_t& longest = now.longest_upload[to];
    const bool shorter = bytes < longest;
    longest = std::max(longest, bytes);
    return now.real->upload(d, to, host, shorter ? bytes - sizeof(int32_t) : bytes);
  };
}

/// Device memory as floats on the host and back; calls that a capture forbids.
std::vector<float> fetch(AssayDevice* d, const float* from, int64_t n) {
  std::vector<float> out(static_cast<size_t>(n));
  now.real->download(d, out.data(), from, out.size() * sizeof(float));
  now.real->finish(d);
  return out;
}

/// D12: the weighted sum also takes in the position behind the last one, with weight 0.
void zero_times_tail(AssayModule& t) {
  t.attention = [](AssayDevice* d, const AssayAttention* a) {
    const int result = now.real->attention(d, a);
    if (result != ASSAY_DONE || a->rows == 0) return result;
    const AssayCache& c = a->cache;
    const size_t element = c.type == ASSAY_F32 ? 4 : 2, count = size_t(c.slots * c.kv_heads * c.context * c.head_dim);
    std::vector<std::byte> v(count * element);
    std::vector<AssayPlace> places(static_cast<size_t>(a->rows));
    now.real->download(d, v.data(), c.v, v.size());
    now.real->download(d, places.data(), a->places, places.size() * sizeof(AssayPlace));
    std::vector<float> y = fetch(d, a->y, a->rows * a->heads * c.head_dim);
    const auto is_nan = [&](size_t i) {
      uint32_t bits = 0;
      std::memcpy(&bits, v.data() + i * element, element);
      if (c.type == ASSAY_F32) return (bits & 0x7fffffffu) > 0x7f800000u;
      return c.type == ASSAY_F16 ? (bits & 0x7fffu) > 0x7c00u : (bits & 0x7fffu) > 0x7f80u;
    };
    for (int64_t row = 0; row < a->rows; row++) {
      const AssayPlace& p = places[size_t(row)];
      if (p.position + 1 >= c.context) continue;
      for (int64_t h = 0; h < a->heads; h++)
        for (int64_t j = 0; j < c.head_dim; j++) {
          const int64_t kv_head = h / (a->heads / c.kv_heads);
          if (is_nan(size_t(((p.slot * c.kv_heads + kv_head) * c.context + p.position + 1) * c.head_dim + j)))
            y[size_t((row * a->heads + h) * c.head_dim + j)] = std::nanf("");
        }
    }
    now.real->upload(d, a->y, y.data(), y.size() * sizeof(float));
    return now.real->finish(d);
  };
}

/// D13: from 256 rows on a norm rounds otherwise; what another order of the sum would do is done by a nudge of eps.
void norm_by_rows(AssayModule& t) {
  t.norm = [](AssayDevice* d, const AssayNorm* a) {
    AssayNorm other = *a;
    if (a->heads == 0 && a->rows >= 256) other.eps *= 2;
    return now.real->norm(d, &other);
  };
}

/// B10: products of some counts of rows are summed from the other end.
int reversed_sums(AssayDevice* d, const AssayLinear* a) {
  const AssayWeight& w = a->w[0];
  if (a->count != 1 || w.type != ASSAY_F32 || a->norm || a->residual || a->gated) throw NoPlace("B10");
  void* raw = nullptr;
  if (now.real->allocate(d, uint64_t(w.rows * w.columns) * 4, &raw) != ASSAY_DONE) return ASSAY_OUT_OF_MEMORY;
  now.real->unpack_weight(d, w.type, w.rows, w.columns, w.data, raw);
  const std::vector<float> weights = fetch(d, static_cast<const float*>(raw), w.rows * w.columns);
  const std::vector<float> x = fetch(d, a->x, a->rows * w.columns);
  const std::vector<float> bias = a->bias[0] ? fetch(d, a->bias[0], w.rows) : std::vector<float>(size_t(w.rows), 0.0f);
  std::vector<float> y;
  for (int64_t row = 0; row < a->rows; row++)
    for (int64_t n = 0; n < w.rows; n++) {
      float sum = 0;
      for (int64_t k = w.columns; k-- > 0;) sum += weights[size_t(n * w.columns + k)] * x[size_t(row * w.columns + k)];
      y.push_back(a->bias[0] ? sum + bias[size_t(n)] : sum);
    }
  now.real->upload(d, a->y[0], y.data(), y.size() * sizeof(float));
  now.real->finish(d);
  now.real->release(d, raw);
  return ASSAY_DONE;
}
template <bool (*concerned)(int64_t rows)>
void other_order(AssayModule& t) {
  t.linear = [](AssayDevice* d, const AssayLinear* a) {
    return a->rows > 0 && concerned(a->rows) ? reversed_sums(d, a) : now.real->linear(d, a);
  };
}
bool one(int64_t rows) { return rows == 1; }
bool at_most_3(int64_t rows) { return rows <= 3; }
bool multiple_of_4(int64_t rows) { return rows % 4 == 0; }

// ---- ways to run

/// How a fault goes in. Members that are null leave things as they are.
struct Way;
struct Plant {
  AlterTable module = nullptr;
  void (*spec)(DumpSpec&, const Way&) = nullptr;   // after the way has set it up
  void (*engine)(Engine&) = nullptr;
};

struct Way {
  std::shared_ptr<const Model> model;
  DumpSpec spec;
  BudgetRange range = {};                // of the model's weights on the device
  std::vector<int64_t> chunks = {0};
  bool streams = false;                  // a notice that weights stream is part of it
};

bool not_of(const Node& n, OpKind op) { return n.op != op; }

/// Prompts of 5 and 3 ids and 3 decode passes, unless the way says otherwise.
Way way_named(const CheckContext& c, const std::string& name, const fs::path& real) {
  const OfficialCase& oc = official_case("qwen2-bias");
  Way w{shared_model(case_dir(c, oc) / "model"), case_spec(c, oc, false)};
  DumpSpec& s = w.spec;
  const std::vector<Request> all = s.requests;
  s.mode = CaptureMode::hash;
  s.replace = true;
  s.engine.kv = KvType::f16;
  s.requests = {all.at(1), all.at(2)};
  s.requests[1].ids.resize(3);
  for (Request& r : s.requests) r.decode = 3;
  if (name == "least") w.model = quantised_case(c, oc, WeightType::q4_0);
  {
    const Device device(DeviceModule::load(real), 0);
    w.range = budget_range(build_program(*w.model), [&](const Matrix& m) { return device.packed_bytes(m); });
  }
  if (name == "graphs") return w;
  if (name == "one-step") {
    s.requests.resize(1);
    s.requests[0].decode = 1;
  } else if (name == "chunks") {   // attention alone on the device
    s.requests = {all.at(3)};
    s.requests[0].decode = 0;
    w.chunks = {64};   // the kernels' geometry goes by tiles of 64 positions
    s.engine.device.refuse = [](const Node& n) { return not_of(n, OpKind::attention); };
  } else if (name == "rows") {     // products alone
    s.requests = {all.at(3)};
    s.requests[0].ids.resize(20);
    s.requests[0].decode = 0;
    w.chunks = {1, 2, 3, 4, 5};
    s.engine.device.fused = false;
    s.engine.device.refuse = [](const Node& n) { return not_of(n, OpKind::linear); };
  } else if (name == "lengths") {  // norms alone, prompts of 255, 256 and 257 ids
    const Request long_one = all.at(3);
    s.requests.clear();
    for (size_t length : {255, 256, 257}) {
      Request r = long_one;
      r.decode = 0;
      while (r.ids.size() < length) r.ids.push_back(long_one.ids[r.ids.size() % long_one.ids.size()]);
      s.requests.push_back(std::move(r));
    }
    s.engine.device.refuse = [](const Node& n) { return not_of(n, OpKind::rms_norm); };
  } else if (name == "streamed" || name == "least") {
    s.engine.device.budget = name == "least" ? w.range.least : w.range.least + (w.range.all - w.range.least) / 3;
    s.requests.resize(1);   // a later prompt is wrong from its first layer on, and would be named
    w.streams = true;
  } else {
    throw Error(ErrorKind::malformed, "expected.json", "no such way to run on a device", "", name);
  }
  return w;
}

/// One engine with the module, planted or not, and what was said while it was made.
struct DeviceRun {
  PlantedModule module;
  std::vector<std::string> notices;
  DumpSpec spec;
  std::unique_ptr<Engine> engine;

  DeviceRun(const CheckContext& c, const fs::path& real, const Way& w, const Plant* plant)
      : module(real, c.work / "module.so", plant ? plant->module : nullptr), spec(w.spec) {
    spec.engine.device.module = (c.work / "module.so").string();
    spec.engine.device.notice = [this](const std::string& words) { notices.push_back(words); };
    if (plant && plant->spec) plant->spec(spec, w);
  }
  /// Throws what the engine throws.
  Engine& start(const Way& w, const Plant* plant) {
    engine = make_engine(w.model, spec);
    if (plant && plant->engine) {
      if (!engine->device()) throw Error(ErrorKind::internal, "plant", "there is no device: " + engine->device_problem());
      plant->engine(*engine);
    }
    return *engine;
  }
};

// ---- what is looked at

std::string without_folder(std::string text, const fs::path& folder) {
  const std::string prefix = folder.string() + "/";
  for (size_t at; (at = text.find(prefix)) != std::string::npos;) text.erase(at, prefix.size());
  return text;
}

Finding bytes_of(const CheckContext& c, const fs::path& real, const Way& w, const Plant* plant) {
  DumpSpec cpu = w.spec;
  cpu.engine.device = {};
  cpu.out = c.work / "cpu";
  run_dump(w.model, cpu);
  const Dump base = Dump::open(cpu.out);
  CompareOptions options;
  options.level = Level::byte_exact;
  Finding f;
  std::string failing;
  for (const int64_t chunk : w.chunks) {
    DeviceRun run(c, real, w, plant);
    run.spec.generate.chunk = chunk;
    run.spec.out = c.work / "device";
    std::string place;
    try {
      run_dump(run.start(w, plant), run.spec);
      const CompareResult r = compare(base, Dump::open(run.spec.out), options);
      f.note += fmt::format("{}{} of {} tensors differ", f.note.empty() ? "" : ", ", r.failed, r.compared + r.missing);
      if (r.exit_code() == kPass) continue;
      place = r.divergence ? r.divergence->name + (r.divergence->where.empty() ? "" : ", " + r.divergence->where)
                           : "nothing was compared";
    } catch (const NoPlace&) {
      throw;
    } catch (const Error& e) {
      place = e.what();
    }
    failing += fmt::format("{}{}", failing.empty() ? "" : " ", chunk);
    if (f.failed) continue;
    f.failed = true;
    f.place = place;
  }
  if (f.failed && w.chunks.size() > 1) f.place = fmt::format("rows {}: {}", failing, f.place);
  return f;
}

Finding answers_of(const CheckContext& c, const fs::path& real, const Way& w, const Plant* plant) {
  DumpSpec cpu = w.spec;
  cpu.engine.device = {};
  const DumpRun base = run_dump(w.model, cpu);
  DeviceRun run(c, real, w, plant);
  const DumpRun device = run_dump(run.start(w, plant), run.spec);
  Finding f;
  for (size_t i = 0; i < base.generated.size() && !f.failed; i++) {
    const Generated &a = base.generated[i], &b = device.generated[i];
    const char* other = a.greedy != b.greedy ? "ids" : a.last_logits != b.last_logits ? "last logits" : nullptr;
    if (!other && !base.state_hashes[i].empty() && base.state_hashes[i] != device.state_hashes[i]) other = "state";
    f.failed = other != nullptr;
    if (other) f.place = fmt::format("prompt{}: other {}", i, other);
  }
  return f;
}

/// Prefill of A in slot 0, of B in slot 1, then a decode pass of each.
void interleave(Engine& e, const std::vector<Request>& requests) {
  for (const Pass pass : {Pass::prefill, Pass::decode})
    for (int slot = 0; slot < 2; slot++) {
      const std::vector<int32_t>& ids = requests[size_t(slot)].ids;
      Batch b;
      b.pass = pass;
      b.ids = pass == Pass::prefill ? ids : std::vector<int32_t>{7};
      b.segments = {{slot, pass == Pass::prefill ? 0 : int64_t(ids.size()), b.rows(), slot, 0}};
      b.logit_rows = {b.rows() - 1};
      e.forward(b);
    }
}
Finding state_of(const CheckContext& c, const fs::path& real, const Way& w, const Plant* plant) {
  DumpSpec cpu = w.spec;
  cpu.engine.slots = 2;
  cpu.engine.device = {};
  const auto base = make_engine(w.model, cpu);
  interleave(*base, cpu.requests);
  DeviceRun run(c, real, w, plant);
  run.spec.engine.slots = 2;
  Engine& device = run.start(w, plant);
  interleave(device, run.spec.requests);
  Finding f;
  for (int slot = 0; slot < 2; slot++)
    for (int l = 0; l < int(base->model().config.layers); l++) {
      const KvLayer &a = base->kv(l), &b = device.kv(l);
      for (const bool of_k : {true, false})
        for (int64_t position = 0; position < base->length(slot); position++)
          for (int64_t head = 0; head < a.kv_heads; head++) {
            const size_t at = size_t(a.offset(slot, head, position)) * size_of(a.type);
            const size_t bytes = size_t(a.head_dim) * size_of(a.type);
            if (f.failed || std::memcmp((of_k ? a.k : a.v) + at, (of_k ? b.k : b.v) + at, bytes) == 0) continue;
            f.failed = true;
            f.place = fmt::format("sequence {}: layer.{}/{}, position {}, kv head {}", slot, l, of_k ? "k" : "v", position,
                                  head);
          }
    }
  return f;
}

/// C13: a dump whose layers are all the same buffer has equal hashes where a model never has them.
Finding layers_of(const CheckContext& c, const fs::path& real, const Way& w, const Plant* plant) {
  DeviceRun run(c, real, w, plant);
  run.spec.out = c.work / "device";
  run_dump(run.start(w, plant), run.spec);
  const Dump dump = Dump::open(run.spec.out);
  Finding f;
  std::map<std::string, std::pair<std::string, std::string>> seen;   // by the name without its layer: the layer before, its hash
  for (const DumpTensor& t : dump.tensors()) {
    const size_t at = t.name.find("/layer."), end = at == std::string::npos ? at : t.name.find('/', at + 1);
    if (end == std::string::npos) continue;
    const std::string key = t.name.substr(0, at) + t.name.substr(end), layer = t.name.substr(at + 1, end - at - 1);
    auto& [before, hash] = seen[key];
    if (!f.failed && !before.empty() && hash == t.xxh3_128) {
      f.failed = true;
      f.place = fmt::format("{}: {} and {} have the same bytes", key, before, layer);
    }
    before = layer;
    hash = t.xxh3_128;
  }
  f.note = fmt::format("{} names of tensors in layers", seen.size());
  return f;
}

Finding executors_of(const CheckContext& c, const fs::path& real, const Way& w, const Plant* plant) {
  DeviceRun run(c, real, w, plant);
  Engine& e = run.start(w, plant);
  const DumpRun done = run_dump(e, run.spec);
  Finding f;
  std::map<std::string_view, int64_t> ran;
  for (const TraceEntry& t : done.trace.entries) {
    ran[t.backend]++;
    if (f.failed || t.backend != "cpu") continue;
    f.failed = true;
    f.place = fmt::format("{} ran on cpu, wanted {}", e.program().nodes.at(size_t(t.node)).name(),
                          e.device() ? e.device()->name() : "a device");
  }
  for (const auto& [backend, nodes] : ran) f.note += fmt::format("{}{} ran {} nodes", f.note.empty() ? "" : ", ", backend, nodes);
  return f;
}

/// Passes come one prompt after another: a prefill and its decode passes. All but the first decode pass are steady.
Finding traffic_of(const CheckContext& c, const fs::path& real, const Way& w, const Plant* plant) {
  DeviceRun run(c, real, w, plant);
  Engine& e = run.start(w, plant);
  const DumpRun done = run_dump(e, run.spec);
  Finding f;
  if (!e.device()) throw Error(ErrorKind::internal, "traffic", "there is no device: " + e.device_problem());
  uint64_t streamed = 0;
  for (const auto& entry : e.device()->weights().plan().entries) streamed += entry.packed != 0 && !entry.resident;
  bool steady = false;
  for (const PassTraffic& t : done.trace.traffic) {
    const bool decode = t.pass == Pass::decode;
    const auto want = [&](const char* what, uint64_t found, uint64_t wanted) {
      if (f.failed || found == wanted) return;
      f.failed = true;
      f.place = fmt::format("{} pass {}: {} {}, wanted {}", name_of(t.pass), t.physical_pass, found, what, wanted);
    };
    want("uploads", t.uploads, 1 + streamed);   // ids and places, and each weight that streams, once
    if (decode && steady && streamed == 0) {
      want("allocations", t.allocations, 0);
      want("frees", t.frees, 0);
      want("waits", t.syncs, 1);
      want("replays", t.replays, 1);
    }
    steady = steady || decode;
  }
  f.note = fmt::format("{} passes, {} weights stream", done.trace.traffic.size(), streamed);
  return f;
}

Finding residency_of(const CheckContext& c, const fs::path& real, const Way& w, const Plant* plant) {
  DeviceRun run(c, real, w, plant);
  Engine& e = run.start(w, plant);
  Finding f;
  if (!e.device()) throw Error(ErrorKind::internal, "residency", "there is no device: " + e.device_problem());
  DeviceWeights& weights = e.device()->weights();
  int resident = 0, offered = 0;
  for (const auto& entry : weights.plan().entries) {
    offered += weights.offered(*entry.matrix);
    resident += weights.resident(*entry.matrix);
  }
  f.note = fmt::format("{} of {} resident", resident, offered);
  const std::string wanted = fmt::format("only {} of {} weights are resident", resident, offered);
  const auto said = std::find_if(run.notices.begin(), run.notices.end(),
                                 [](const std::string& n) { return n.find("resident") != std::string::npos; });
  const bool right = said != run.notices.end() && said->rfind(wanted, 0) == 0;
  if (w.streams) {   // the way itself streams: it has to be said, and right
    f.failed = !right;
    if (f.failed) f.place = said == run.notices.end() ? "nobody was told: " + wanted : "wrong words: " + *said;
  } else {
    f.failed = resident < offered || said != run.notices.end();
    if (f.failed) f.place = right ? *said : "nobody was told: " + wanted;
  }
  return f;
}

/// Whether the device can be had, in the words of who refused it; before anything was moved there.
Finding load_of(const CheckContext& c, const fs::path& real, const Way& w, const Plant* plant) {
  DeviceRun run(c, real, w, plant);
  Finding f;
  try {
    run.start(w, plant);
    for (const std::string& n : run.notices)
      if (!f.failed && !(w.streams && n.find(" weights are resident ") != std::string::npos)) {
        f.failed = true;
        f.place = without_folder(n, c.work);
      }
  } catch (const NoPlace&) {
    throw;
  } catch (const Error& e) {
    f.failed = true;
    f.place = without_folder(e.what(), c.work);
  }
  if (f.failed && now.uploads) f.place = fmt::format("after {} uploads: {}", now.uploads, f.place);
  f.note = fmt::format("{} uploads, {} allocations", now.uploads, now.allocations);
  return f;
}

/// A check of the registry, one case of it, at the planted module.
Finding registered_kernel(const CheckContext& c, const std::string& id, const fs::path& real, const Plant* plant) {
  const auto& all = registry();
  const auto check = std::find_if(all.begin(), all.end(), [&](const Check& k) { return k.id == id; });
  if (check == all.end()) throw Error(ErrorKind::malformed, "expected.json", "no such check", "", id);
  const PlantedModule module(real, c.work / "module.so", plant ? plant->module : nullptr);
  CheckContext inner = c;
  inner.module = c.work / "module.so";
  inner.kernel.only = 40;   // all cases take half a minute in the emulation
  const CheckOutcome o = check->run(inner);
  Finding f;
  f.not_run = o.not_run;
  f.failed = o.failed != 0;
  if (f.failed) f.place = o.failures.at(0);
  f.note = fmt::format("{} failures in {} comparisons", o.failed, o.compared);
  return f;
}

Finding look(const CheckContext& c, const std::string& id, const Plant* plant) {
  const fs::path real = c.module.empty() ? built_module("simt") : c.module;
  Finding f;
  if (std::error_code ignored; !fs::exists(real, ignored)) {
    f.not_run = "needs the emulated module: " + real.string();
    return f;
  }
  try {
    DeviceModule::load(real);
  } catch (const Error& e) {
    f.not_run = std::string("needs the emulated module: ") + e.what();
    return f;
  }
  fs::create_directories(c.work);
  if (id.rfind("kernel/", 0) == 0) return registered_kernel(c, id, real, plant);
  const size_t a = id.find('/'), b = id.find('/', a + 1);
  static const std::map<std::string, Finding (*)(const CheckContext&, const fs::path&, const Way&, const Plant*)> looks = {
      {"bytes", bytes_of},       {"answers", answers_of},     {"state", state_of},         {"layers", layers_of},
      {"executors", executors_of}, {"traffic", traffic_of},   {"residency", residency_of}, {"load", load_of}};
  const auto it = b == std::string::npos ? looks.end() : looks.find(id.substr(b + 1));
  if (id.rfind("device/", 0) != 0 || it == looks.end())
    throw Error(ErrorKind::malformed, "expected.json", "is no check of a device", "device/WAY/WHAT", id);
  return it->second(c, real, way_named(c, id.substr(a + 1, b - a - 1), real), plant);
}

/// What a check says without a fault is the same for all faults: looked at once per process.
Finding judged(const CheckContext& c, const std::string& id, const Plant* plant) {
  if (!plant) {
    static std::map<std::string, Finding> clean;
    const auto it = clean.find(id);
    return it != clean.end() ? it->second : clean[id] = look(c, id, nullptr);
  }
  Finding f = look(c, id, plant);
  f.changed = f.failed;   // all that is looked at is held against what it is without the fault
  return f;
}

}  // namespace

void add_device_faults(std::vector<Fault>& out) {
  const auto add = [&](const char* id, const char* what, How how, Plant plant, const char* note = "") {
    Fault f{id, what, how, note};
    f.own = [plant](const CheckContext& c, const std::string& check, bool planted) {
      return judged(c, check, planted ? &plant : nullptr);
    };
    out.push_back(std::move(f));
  };
  const auto with_module = [](AlterTable alter) { return Plant{alter, nullptr, nullptr}; };
  const auto with_spec = [](void (*spec)(DumpSpec&, const Way&)) { return Plant{nullptr, spec, nullptr}; };
  const auto with_engine = [](void (*engine)(Engine&)) { return Plant{nullptr, nullptr, engine}; };

  add("A1/module-removed", "the device module is not there", How::artifact,
      with_spec([](DumpSpec& s, const Way&) {
        s.engine.device.module = fs::path(s.engine.device.module).replace_filename("gone.so").string();
      }));
  add("A1/other-abi-version", "the device module speaks the next version of the ABI", How::artifact, with_module(other_version));
  add("A1/other-table-size", "the device module's table is one function shorter", How::artifact, with_module(other_size));
  add("A3/lm-head-not-hooked", "lm_head never runs on the device", How::option,
      with_spec([](DumpSpec& s, const Way&) {
        s.engine.device.refuse = [](const Node& n) { return n.requested_rows_only; };
      }),
      "every byte is right without it: only the trace says who computed them");
  add("A4/no-preload", "weights are uploaded when first needed", How::option,
      with_spec([](DumpSpec& s, const Way&) { s.engine.device.preload = false; }));
  add("A5/one-weight-short", "the budget of device memory is one byte short of all weights", How::option,
      with_spec([](DumpSpec& s, const Way& w) { s.engine.device.budget = w.range.all - 1; }));
  add("A5/nobody-told", "weights stream in every pass and nobody is told", How::option,
      with_spec([](DumpSpec& s, const Way&) { s.engine.device.notice = nullptr; }));
  add("A6/stale-window", "the window of streamed weights marks a matrix as there and does not load it", How::state,
      with_engine([](Engine& e) { e.device()->weights().plant_stale_window = true; }));
  add("A7/allocation-in-a-step", "a steady decode step allocates device memory", How::state, with_module(allocates_in_a_step));
  add("A7/free-in-a-step", "a steady decode step frees device memory", How::state, with_module(frees_in_a_step));
  add("A7/wait-in-a-step", "a steady decode step waits for the device once more", How::state, with_module(waits_in_a_step));
  add("A7/pool-hands-out-twice", "a pool gives a buffer away that another still uses", How::state,
      with_module(pool_hands_out_twice));
  add("A7/pool-not-cleared", "a pooled buffer is not cleared before its next use", How::state,
      with_module(pool_is_not_cleared));
  add("A9/device-budget-low", "the budget is right on the host, the device has 64 KiB", How::option, with_module(little_memory));
  add("A9/allocation-fails", "the device says that its memory is free, and gives 128 KiB", How::option,
      with_module(allocation_fails));
  add("A16/one-cache", "two slots share one cache on the device", How::state, with_module(one_cache));
  add("A19/expanded-type", "the planner of device memory is fed the type that weights would be expanded to", How::option,
      with_module(expanded_type));
  add("A26/frozen-position", "the captured graph holds the position of the step that it was captured in", How::state,
      with_module(frozen_position), "one step from one start shows nothing: three steps and two starts do");
  add("B10/batch-1", "products of one row are summed in another order on the device", How::kernel, with_module(other_order<one>));
  add("B10/batch-3", "products of up to three rows are summed in another order on the device", How::kernel,
      with_module(other_order<at_most_3>));
  add("B10/multiple-of-4", "products of 4, 8, 12 ... rows are summed in another order on the device", How::kernel,
      with_module(other_order<multiple_of_4>));
  add("C13/shared-capture", "a dump under graph replay shows buffers that later layers have reused", How::value,
      with_engine([](Engine& e) { e.device()->device().plant_shared_capture = true; }));
  add("D11/stale-tail", "the tail of a static buffer is not refreshed when a run is shorter than the one before", How::state,
      with_module(stale_tail));
  add("D12/zero-times-tail", "attention adds 0 times the V row behind the last position", How::kernel,
      with_module(zero_times_tail));
  add("D13/norm-by-rows", "a norm rounds otherwise from 256 rows on", How::kernel, with_module(norm_by_rows));
}

}  // namespace assay
