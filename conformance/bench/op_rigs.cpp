// OpRig: the op on the CPU's kernels, each run timed by the clock; and on a device, each round one graph of launches
// timed by the device's own marks.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "conformance/bench/op_bench.h"
#include "dumps/error.h"
#include "engine/ops/common/rope_table.h"

namespace assay {
namespace {

double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class CpuRig : public OpRig {
 public:
  CpuRig(const OpCase& c, const OpBenchSpec& spec)
      : c_(c), spec_(spec), backend_(spec.engine.isa, spec.engine.threads) {
    backend_.prepare(c.program, spec.engine.activations);
    if (c.shape.op == OpKind::rope) rope_ = make_rope_table(c.config.rope, c.context);
    if (c.program.nodes[0].output != kNoValue)
      output_.resize(size_t(c.most_rows * c.program.values[size_t(c.program.nodes[0].output)].columns));
  }

  void measure(OpResult& r, int repetitions) override {
    const std::vector<RowPlace> places = c_.places(r.op_rows, spec_.depth, spec_.prefill);
    std::vector<int64_t> positions;
    for (const RowPlace& p : places) positions.push_back(p.position);
    Batch batch;
    batch.ids = c_.ids;
    for (int round = 0; round <= repetitions; round++)
      for (int i = 0; i < c_.copies; i++) {
        const Node& n = c_.program.nodes[size_t(i)];
        NodeContext ctx{n,
                        c_.program,
                        c_.config,
                        batch,
                        r.op_rows,
                        {},
                        output_.data(),
                        n.output == kNoValue ? 0 : c_.program.values[size_t(n.output)].columns,
                        batch.ids,
                        places,
                        positions,
                        c_.caches.empty() ? nullptr : &c_.caches[size_t(i)],
                        &rope_};
        for (const auto& x : c_.inputs) ctx.inputs.push_back(x.data());
        backend_.begin_pass();  // activations are quantised anew
        const double start = clock_seconds();
        backend_.run(ctx);
        if (round > 0) r.all_seconds.push_back(clock_seconds() - start);
      }
    r.variant = backend_.variant(c_.program.nodes[0]);
  }

 private:
  const OpCase& c_;
  const OpBenchSpec& spec_;
  CpuBackend backend_;
  RopeTable rope_;
  std::vector<float> output_;
};

class DeviceRig : public OpRig {
 public:
  DeviceRig(const OpCase& c, const OpBenchSpec& spec, Device& device)
      : c_(c), spec_(spec), d_(device), t_(device.table()) {
    if (!t_.mark || !t_.elapsed)
      throw Error(ErrorKind::usage, "--module", "the module has no clock (mark, elapsed)", "one with both",
                  d_.module().path().string());
    const OpShape& s = c.shape;
    AssayLimits limits{c.most_rows, s.op == OpKind::linear ? s.columns : 0, s.heads, s.head_dim,
                       s.op == OpKind::attention ? c.context : 0, 0, 0};
    if (t_.reserve) d_.done(t_.reserve(d_.handle(), &limits), "reserve");
    pack();
    for (const auto& x : c.inputs) inputs_.push_back(up(x.data(), x.size()));
    if (!c.vector.empty()) vector_ = up(c.vector.data(), c.vector.size());
    if (!c.ids.empty()) ids_ = up(c.ids.data(), c.ids.size());
    if (s.op == OpKind::rope) {
      const RopeTable rope = make_rope_table(c.config.rope, c.context);
      cos_ = up(rope.cos.data(), rope.cos.size());
      sin_ = up(rope.sin.data(), rope.sin.size());
    }
    if (c.program.nodes[0].output != kNoValue)
      output_ = room<float>(size_t(c.most_rows * c.program.values[size_t(c.program.nodes[0].output)].columns + 3 * 64));
    places_ = room<AssayPlace>(size_t(c.most_rows));
    overflow_ = room<int64_t>(1);
    for (const KvLayer& k : c.caches) {
      const size_t bytes = size_t(k.slots * k.kv_heads * k.context * k.head_dim) * size_of(k.type);
      caches_.push_back(
          {int32_t(k.type), 0, k.slots, k.kv_heads, k.context, k.head_dim, up(k.k, bytes), up(k.v, bytes)});
    }
    d_.finish();
  }

  void measure(OpResult& r, int repetitions) override {
    std::vector<AssayPlace> places;
    for (const RowPlace& p : c_.places(r.op_rows, spec_.depth, spec_.prefill))
      places.push_back({p.slot, 0, p.position});
    d_.upload(places_, places.data(), places.size() * sizeof(AssayPlace));
    d_.fill(overflow_, 0x7f, sizeof(int64_t));
    d_.finish();
    const bool packed =
        std::all_of(weights_.begin(), weights_.end(), [](const AssayWeight& w) { return w.data != nullptr; });
    if (!packed || !launch(r.op_rows, 0)) {  // this first launch loads what the module loads late
      r.refused = true;
      return;
    }
    r.variant = t_.variant(d_.handle());
    d_.finish();
    void* graph = nullptr;
    if (t_.capture_begin && t_.capture_end && t_.replay && t_.release_graph) {
      d_.done(t_.capture_begin(d_.handle()), "capture");
      bool whole = true;
      for (int i = 0; i < c_.copies && whole; i++) whole = launch(r.op_rows, i);
      d_.done(t_.capture_end(d_.handle(), &graph), "capture");
      if (!whole) throw Error(ErrorKind::io, c_.shape.name, "the module refuses under capture what it did before");
    }
    const struct Release {
      const AssayModule& t;
      Device& d;
      void* graph;
      ~Release() {
        if (graph) t.release_graph(d.handle(), graph);
      }
    } release{t_, d_, graph};
    for (int round = 0; round <= repetitions; round++) {
      d_.done(t_.mark(d_.handle(), 0), "mark");
      if (graph)
        d_.done(t_.replay(d_.handle(), graph), "replay");
      else
        for (int i = 0; i < c_.copies; i++) launch(r.op_rows, i);
      d_.done(t_.mark(d_.handle(), 1), "mark");
      d_.finish();
      double seconds = 0;
      d_.done(t_.elapsed(d_.handle(), 0, 1, &seconds), "elapsed");
      if (round > 0) r.all_seconds.push_back(seconds / c_.copies);
    }
  }

 private:
  template <class T>
  T* room(size_t n) {
    memory_.push_back(d_.allocate(n * sizeof(T), c_.shape.name));
    return memory_.back().as<T>();
  }
  template <class T>
  T* up(const T* host, size_t n) {
    T* to = room<T>(n);
    d_.upload(to, host, n * sizeof(T));
    return to;
  }
  /// Packed copies of the weights; without data where the module refuses one.
  void pack() {
    for (const Matrix& m : c_.weights) weights_.push_back({int32_t(m.type), 0, m.rows, m.columns, nullptr});
    const size_t of_copy = size_t(c_.shape.matrices());
    for (size_t k = 0; k < of_copy && !c_.weights.empty(); k++) {  // all copies have the same bytes
      const Matrix& m = c_.weights[k];
      const uint64_t bytes = d_.packed_bytes(m);
      if (bytes == 0) return;
      const DeviceMemory raw = d_.allocate(m.bytes(), "staging of weights");
      d_.upload(raw.data(), m.data, m.bytes());
      for (size_t i = k; i < weights_.size(); i += of_copy) {
        AssayWeight& w = weights_[i];
        std::byte* to = room<std::byte>(bytes);
        if (!d_.done(t_.pack_weight(d_.handle(), w.type, w.rows, w.columns, raw.data(), to), "pack_weight"))
          throw Error(ErrorKind::internal, d_.module().path().string(), "refuses to pack a matrix whose size it gave");
        w.data = to;
      }
      d_.finish();
    }
  }
  /// Queues copy i; false: refused, or not offered.
  bool launch(int64_t rows, int i) {
    const OpShape& s = c_.shape;
    const auto queue = [&](auto* op, auto args) { return op && d_.done(op(d_.handle(), &args), s.name); };
    const size_t at = size_t(i);
    switch (s.op) {
      case OpKind::embed:
        return queue(t_.embed, AssayEmbed{weights_[at], ids_, output_, rows});
      case OpKind::rms_norm:
      case OpKind::head_norm:
        return queue(t_.norm,
                     AssayNorm{inputs_[0], vector_, output_, rows, s.columns, s.op == OpKind::head_norm ? s.heads : 0,
                               s.head_dim, float(c_.program.nodes[0].eps), 0});
      case OpKind::linear: {
        AssayLinear a{};
        a.activations = int32_t(is_quantised(s.type) ? spec_.engine.activations : Activations::f32);
        a.count = int32_t(s.matrices());
        a.x = inputs_[0];
        a.rows = rows;
        float* y = output_;
        for (int64_t m = 0; m < s.matrices(); m++) {
          a.w[m] = weights_[at * size_t(s.matrices()) + size_t(m)];
          a.y[m] = s.gated && m > 0 ? nullptr : y;
          y += (c_.most_rows * s.rows_of(m) + 63) / 64 * 64;  // kernels want aligned rows
        }
        a.norm = s.norm ? vector_ : nullptr;
        a.eps = s.norm ? 1e-6f : 0.0f;
        a.gated = s.gated;
        a.residual = s.residual ? inputs_[1] : nullptr;
        return queue(t_.linear, a);
      }
      case OpKind::rope:
        return queue(t_.rope, AssayRope{inputs_[0], output_, places_, cos_, sin_, rows, s.heads, s.head_dim, s.rotary});
      case OpKind::kv_store:
        return queue(t_.kv_store, AssayKvStore{inputs_[0], inputs_[1], places_, caches_[at], rows, overflow_});
      case OpKind::attention: {
        AssayAttention a{};
        a.q = inputs_[0];
        a.y = output_;
        a.places = places_;
        a.cache = caches_[at];
        a.rows = rows;
        a.heads = s.heads;
        a.longest = c_.context;
        a.scale = float(1.0 / std::sqrt(double(s.head_dim)));
        return queue(t_.attention, a);
      }
      case OpKind::silu_mul:
        return queue(t_.silu_mul, AssayBinary{inputs_[0], inputs_[1], output_, rows, s.columns});
      case OpKind::add:
        return queue(t_.add, AssayBinary{inputs_[0], inputs_[1], output_, rows, s.columns});
      case OpKind::sigmoid_mul:
      case OpKind::sigmoid:
      case OpKind::l2_norm:
      case OpKind::gated_norm:
      case OpKind::decay:
      case OpKind::conv:
      case OpKind::delta_rule:
      case OpKind::columns:
      case OpKind::hidden:
      case OpKind::topk:
      case OpKind::topk_weights:
      case OpKind::expert_linear:
      case OpKind::expert_sum:
      case OpKind::gated_add:
        return false;  // op_bench.cpp offers none of them
    }
    return false;
  }

  const OpCase& c_;
  const OpBenchSpec& spec_;
  Device& d_;
  const AssayModule& t_;
  std::vector<DeviceMemory> memory_;
  std::vector<AssayWeight> weights_;
  std::vector<AssayCache> caches_;
  std::vector<float*> inputs_;
  float *vector_ = nullptr, *output_ = nullptr, *cos_ = nullptr, *sin_ = nullptr;
  int32_t* ids_ = nullptr;
  AssayPlace* places_ = nullptr;
  int64_t* overflow_ = nullptr;
};

}  // namespace

std::unique_ptr<OpRig> cpu_rig(const OpCase& c, const OpBenchSpec& spec) {
  return std::make_unique<CpuRig>(c, spec);
}
std::unique_ptr<OpRig> device_rig(const OpCase& c, const OpBenchSpec& spec, Device& device) {
  return std::make_unique<DeviceRig>(c, spec, device);
}

}  // namespace assay
