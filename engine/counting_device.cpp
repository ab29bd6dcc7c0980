#include "engine/counting_device.h"

#include <cstring>
#include <map>
#include <vector>

namespace assay {

struct CountingDevice::State {
  std::shared_ptr<Device> real;
  AssayModule table{};
  uint64_t free_bytes = 0;
  uint64_t free_before_reserve = 0, scratch = 0;
  uint64_t next = uint64_t(1) << 44;             // addresses that are given out: nothing lies there
  std::map<void*, std::vector<std::byte>> host;  // which is real: passes write their inputs there
  AssayCounters counters{};
};

namespace {

using State = CountingDevice::State;
thread_local State* opening = nullptr;  // open() has no other way to know whose device it opens

State& of(const AssayDevice* d) {
  return *reinterpret_cast<State*>(const_cast<AssayDevice*>(d));
}
AssayDevice* real_handle(const AssayDevice* d) {
  return of(d).real->handle();
}
const AssayModule& real_table(const AssayDevice* d) {
  return of(d).real->table();
}

/// Whether the real module would do it: the same arguments, no rows.
template <auto op, class Args>
int asked(AssayDevice* d, const Args* args) {
  Args none = *args;
  none.rows = 0;
  of(d).counters.launches++;
  return (real_table(d).*op)(real_handle(d), &none);
}

int attention_asked(AssayDevice* d, const AssayAttention* args) {
  AssayAttention none = *args;
  AssayHeads heads{};
  if (args->heads_of) {
    heads = *args->heads_of;
    heads.rows = 0;
    none.heads_of = &heads;
  }
  return asked<&AssayModule::attention>(d, &none);
}

int reserve(AssayDevice* d, const AssayLimits* limits) {
  State& s = of(d);
  const int result = real_table(d).reserve(real_handle(d), limits);
  if (result != ASSAY_DONE) return result;
  const uint64_t free = s.real->free_bytes();
  s.scratch = s.free_before_reserve > free ? s.free_before_reserve - free : 0;
  return result;
}

/// The table of `real` with every member replaced that would touch memory.
AssayModule counting_table(const AssayModule& real) {
  AssayModule t = real;
  t.error = [](const AssayDevice* d) {
    return d ? real_table(d).error(real_handle(d)) : "a counting device is opened by its class alone";
  };
  t.open = [](int32_t, AssayDevice** d) {
    *d = reinterpret_cast<AssayDevice*>(opening);
    return int(opening ? ASSAY_DONE : ASSAY_ERROR);
  };
  t.close = [](AssayDevice*) {};
  t.info = [](AssayDevice* d, AssayDeviceInfo* out) {
    const int result = real_table(d).info(real_handle(d), out);
    out->free_bytes = of(d).free_bytes;
    return result;
  };
  t.counters = [](const AssayDevice* d, AssayCounters* out) { *out = of(d).counters; };
  t.variant = [](const AssayDevice*) { return ""; };
  t.allocate = [](AssayDevice* d, uint64_t bytes, void** memory) {
    State& s = of(d);
    *memory = reinterpret_cast<void*>(s.next);
    s.next += (bytes + 255) / 256 * 256;
    s.counters.allocations++;
    return int(ASSAY_DONE);
  };
  t.release = [](AssayDevice* d, void*) { of(d).counters.frees++; };
  t.allocate_host = [](AssayDevice* d, uint64_t bytes, void** memory) {
    std::vector<std::byte> made(bytes);
    *memory = made.data();
    of(d).host.emplace(*memory, std::move(made));
    return int(ASSAY_DONE);
  };
  t.release_host = [](AssayDevice* d, void* memory) { of(d).host.erase(memory); };
  t.upload = [](AssayDevice* d, void*, const void*, uint64_t bytes) {
    of(d).counters.uploads++;
    of(d).counters.upload_bytes += bytes;
    return int(ASSAY_DONE);
  };
  t.download = [](AssayDevice* d, void* host, const void*, uint64_t bytes) {
    of(d).counters.downloads++;
    of(d).counters.download_bytes += bytes;
    // A pass's results read as if no value had overflowed a cache; other host memory need not be there at all.
    const auto it = of(d).host.find(host);
    if (it != of(d).host.end()) std::memset(host, 0x7f, bytes);
    return int(ASSAY_DONE);
  };
  t.fill = [](AssayDevice*, void*, int32_t, uint64_t) { return int(ASSAY_DONE); };
  t.copy = [](AssayDevice*, void*, const void*, uint64_t) { return int(ASSAY_DONE); };
  t.finish = [](AssayDevice* d) {
    of(d).counters.syncs++;
    return int(ASSAY_DONE);
  };
  t.mark = nullptr;
  t.elapsed = nullptr;
  if (real.reserve) t.reserve = reserve;
  t.capture_begin = nullptr;  // a graph asks for nothing that the same passes without it don't
  t.capture_end = nullptr;
  t.replay = nullptr;
  t.release_graph = [](AssayDevice*, void*) {};
  if (real.weight_bytes)
    t.weight_bytes = [](const AssayDevice* d, int32_t type, int64_t rows, int64_t columns) {
      return real_table(d).weight_bytes(real_handle(d), type, rows, columns);
    };
  if (real.pack_weight)
    t.pack_weight = [](AssayDevice*, int32_t, int64_t, int64_t, const void*, void*) { return int(ASSAY_DONE); };
  t.unpack_weight = nullptr;
  t.operands = nullptr;
  if (real.embed) t.embed = asked<&AssayModule::embed, AssayEmbed>;
  if (real.norm) t.norm = asked<&AssayModule::norm, AssayNorm>;
  if (real.linear) t.linear = asked<&AssayModule::linear, AssayLinear>;
  if (real.rope) t.rope = asked<&AssayModule::rope, AssayRope>;
  if (real.kv_store) t.kv_store = asked<&AssayModule::kv_store, AssayKvStore>;
  if (real.heads) t.heads = asked<&AssayModule::heads, AssayHeads>;
  if (real.attention) t.attention = attention_asked;
  if (real.silu_mul) t.silu_mul = asked<&AssayModule::silu_mul, AssayBinary>;
  if (real.add) t.add = asked<&AssayModule::add, AssayBinary>;
  if (real.gather) t.gather = asked<&AssayModule::gather, AssayGather>;
  if (real.argmax) t.argmax = asked<&AssayModule::argmax, AssayArgmax>;
  if (real.sigmoid_mul) t.sigmoid_mul = asked<&AssayModule::sigmoid_mul, AssayBinary>;
  if (real.sigmoid) t.sigmoid = asked<&AssayModule::sigmoid, AssayUnary>;
  if (real.columns) t.columns = asked<&AssayModule::columns, AssayColumns>;
  if (real.l2_norm) t.l2_norm = asked<&AssayModule::l2_norm, AssayL2Norm>;
  if (real.gated_norm) t.gated_norm = asked<&AssayModule::gated_norm, AssayGatedNorm>;
  if (real.decay) t.decay = asked<&AssayModule::decay, AssayDecay>;
  if (real.conv) t.conv = asked<&AssayModule::conv, AssayConv>;
  if (real.delta_rule) t.delta_rule = asked<&AssayModule::delta_rule, AssayDeltaRule>;
  if (real.topk) t.topk = asked<&AssayModule::topk, AssayRouter>;
  if (real.topk_weights) t.topk_weights = asked<&AssayModule::topk_weights, AssayRouter>;
  if (real.expert_linear) t.expert_linear = asked<&AssayModule::expert_linear, AssayExpertLinear>;
  if (real.expert_sum) t.expert_sum = asked<&AssayModule::expert_sum, AssayExpertSum>;
  if (real.gated_add) t.gated_add = asked<&AssayModule::gated_add, AssayGatedAdd>;
  return t;
}

}  // namespace

CountingDevice::CountingDevice(std::shared_ptr<Device> real, uint64_t free_bytes) : state_(std::make_unique<State>()) {
  state_->table = counting_table(real->table());
  state_->free_bytes = free_bytes;
  state_->free_before_reserve = real->free_bytes();
  state_->real = std::move(real);
  const auto module = DeviceModule::of_table(&state_->table, state_->real->module().path().string() + " (counting)");
  opening = state_.get();
  device_ = std::make_shared<Device>(module, 0);
  opening = nullptr;
}

CountingDevice::~CountingDevice() = default;

uint64_t CountingDevice::scratch_bytes() const {
  return state_->scratch;
}

}  // namespace assay
