#include "conformance/kernel/device_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "conformance/kernel/device_call.h"
#include "dumps/error.h"
#include "engine/ops/panel.h"

namespace assay {

namespace {

DeviceKernels::State* current = nullptr;   // a table of plain functions has no other way to know its device

struct Call : DeviceCall {
  explicit Call(const char* op) : DeviceCall(*current, op) {}
};

std::vector<AssayPlace> places_of(const RowPlace* places, int64_t rows) {
  std::vector<AssayPlace> out(static_cast<size_t>(rows));
  for (int64_t i = 0; i < rows; i++) out[size_t(i)] = {places[i].slot, 0, places[i].position};
  return out;
}

/// Output rows [begin, end) of a product: their part of the matrix alone, written into columns [begin, end) of y.
void product(const Matrix& w, const float* bias, const float* x, float* y, int64_t tokens, Activations kind, int64_t begin, int64_t end) {
  if (begin >= end) return;
  Call c("linear");
  if (!c.offered(c.table().linear)) return;
  Matrix part = w;
  part.rows = end - begin;
  part.data = w.row(begin);
  c.reserve(tokens, w.columns);
  AssayLinear a{};
  a.activations = int32_t(kind);
  a.count = 1;
  a.rows = tokens;
  a.w[0] = c.weight(part);
  a.bias[0] = bias ? c.up(bias + begin, size_t(part.rows)) : nullptr;
  a.x = c.up(x, size_t(tokens * w.columns), kind == Activations::f32 ? begin % 4 : 0);  // others want it aligned
  a.y[0] = c.room<float>(size_t(tokens * part.rows));
  if (!c.ran(!a.w[0].data ? int(ASSAY_REFUSED) : c.table().linear(c.handle(), &a))) return;
  std::vector<float> got(size_t(tokens * part.rows));
  c.down(got.data(), a.y[0], got.size() * sizeof(float));
  c.finish();
  for (int64_t t = 0; t < tokens; t++) std::copy_n(&got[size_t(t * part.rows)], part.rows, y + t * w.rows + begin);
}

void linear(const LinearArgs& a, int64_t begin, int64_t end) {
  product(a.w, a.bias, a.x, a.y, a.tokens, Activations::f32, begin, end);
}

/// A device quantises inside its product: the place of the codes keeps where the floats are.
void quantise(const QuantiseArgs& a, int64_t, int64_t) { std::memcpy(a.out.codes, &a.x, sizeof a.x); }
void quant_linear(const QuantLinearArgs& a, int64_t begin, int64_t end) {
  const float* x = nullptr;
  std::memcpy(&x, a.x.codes, sizeof x);
  product(a.w, a.bias, x, a.y, a.x.rows, a.x.kind, begin * kPanelRows, std::min(end * kPanelRows, a.w.rows));
}

void embed(const EmbedArgs& a, int64_t begin, int64_t end) {
  if (begin >= end) return;
  Call c("embed");
  if (!c.offered(c.table().embed)) return;
  float* const y = c.room<float>(size_t((end - begin) * a.table.columns), begin % 4);
  AssayEmbed e{c.weight(a.table), c.up(a.ids + begin, size_t(end - begin)), y, end - begin};
  if (!c.ran(e.table.data ? c.table().embed(c.handle(), &e) : int(ASSAY_REFUSED))) return;
  c.down(a.y + begin * a.table.columns, e.y, size_t((end - begin) * a.table.columns) * sizeof(float));
  c.finish();
}

void norm(const NormArgs& a, int64_t begin, int64_t end, bool heads) {
  if (begin >= end) return;
  Call c(heads ? "head_norm" : "rms_norm");
  if (!c.offered(c.table().norm)) return;
  const int64_t columns = heads ? a.heads * a.head_dim : a.columns, rows = end - begin;
  const AssayNorm n{c.up(a.x + begin * columns, size_t(rows * columns)), c.up(a.w, size_t(heads ? a.head_dim : columns)),
                    c.room<float>(size_t(rows * columns)), rows, columns, heads ? a.heads : 0, a.head_dim, a.eps, 0};
  if (!c.ran(c.table().norm(c.handle(), &n))) return;
  c.down(a.y + begin * columns, n.y, size_t(rows * columns) * sizeof(float));
  c.finish();
}
void rms_norm(const NormArgs& a, int64_t begin, int64_t end) { norm(a, begin, end, false); }
void head_norm(const NormArgs& a, int64_t begin, int64_t end) { norm(a, begin, end, true); }

void rope(const RopeArgs& a, int64_t begin, int64_t end) {
  if (begin >= end) return;
  Call c("rope");
  if (!c.offered(c.table().rope)) return;
  const int64_t columns = a.heads * a.head_dim, rows = end - begin;
  std::vector<AssayPlace> places;
  int64_t last = 0;
  for (int64_t r = begin; r < end; r++) {
    places.push_back({0, 0, a.positions[r]});
    last = std::max(last, a.positions[r]);
  }
  const size_t table = size_t((last + 1) * (a.rotary / 2));
  const AssayRope n{c.up(a.x + begin * columns, size_t(rows * columns)), c.room<float>(size_t(rows * columns)),
                    c.up(places.data(), places.size()), c.up(a.cos, table), c.up(a.sin, table), rows, a.heads, a.head_dim, a.rotary};
  if (!c.ran(c.table().rope(c.handle(), &n))) return;
  c.down(a.y + begin * columns, n.y, size_t(rows * columns) * sizeof(float));
  c.finish();
}

struct DeviceCache {
  AssayCache cache;
  size_t bytes;
  DeviceCache(Call& c, const KvLayer& h) : bytes(size_t(h.slots * h.kv_heads * h.context * h.head_dim) * size_of(h.type)) {
    cache = {int32_t(h.type), 0, h.slots, h.kv_heads, h.context, h.head_dim, c.up(h.k, bytes), c.up(h.v, bytes)};
  }
};

void kv_store(const KvStoreArgs& a, int64_t begin, int64_t end) {
  if (begin >= end) return;
  Call c("kv_store");
  if (!c.offered(c.table().kv_store)) return;
  const int64_t columns = a.cache.kv_heads * a.cache.head_dim, rows = end - begin;
  const DeviceCache cache(c, a.cache);
  const std::vector<AssayPlace> places = places_of(a.places + begin, rows);
  const int64_t none = INT64_MAX;
  const AssayKvStore s{c.up(a.k + begin * columns, size_t(rows * columns)), c.up(a.v + begin * columns, size_t(rows * columns)),
                       c.up(places.data(), places.size()), cache.cache, rows, c.up(&none, 1)};
  if (!c.ran(c.table().kv_store(c.handle(), &s))) return;
  c.down(a.cache.k, cache.cache.k, cache.bytes);
  c.down(a.cache.v, cache.cache.v, cache.bytes);
  int64_t overflow = 0;
  c.down(&overflow, s.overflow, sizeof overflow);
  c.finish();
  if (overflow == none) return;
  // Of these rows alone: v begins behind them.
  const bool is_v = overflow >= rows * columns;
  const int64_t at = is_v ? overflow - rows * columns + (a.rows + begin) * columns : overflow + begin * columns;
  *a.overflow = std::min(*a.overflow, at);
}

void attention(const AttentionArgs& a, int64_t begin, int64_t end, float*) {
  if (begin >= end) return;
  Call c("attention");
  if (!c.offered(c.table().attention)) return;
  const int64_t dim = a.cache.head_dim, first = begin / a.heads, rows = (end + a.heads - 1) / a.heads - first, columns = a.heads * dim;
  const std::vector<AssayPlace> places = places_of(a.places + first, rows);
  int64_t longest = 0;
  for (const AssayPlace& p : places) longest = std::max(longest, p.position + 1);
  c.reserve(rows, 1, a.heads, dim, a.cache.context);
  const DeviceCache cache(c, a.cache);
  const AssayAttention n{c.up(a.q + first * columns, size_t(rows * columns)), c.room<float>(size_t(rows * columns)),
                         c.up(places.data(), places.size()), cache.cache, rows, a.heads, longest, a.scale, 0, nullptr};
  if (!c.ran(c.table().attention(c.handle(), &n))) return;
  std::vector<float> got(size_t(rows * columns));
  c.down(got.data(), n.y, got.size() * sizeof(float));
  c.finish();
  std::copy_n(&got[size_t((begin - first * a.heads) * dim)], (end - begin) * dim, a.y + begin * dim);
}

void binary(const BinaryArgs& a, int64_t begin, int64_t end, bool is_add) {
  if (begin >= end) return;
  Call c(is_add ? "add" : "silu_mul");
  const auto op = is_add ? c.table().add : c.table().silu_mul;
  if (!c.offered(op)) return;
  const int64_t rows = end - begin;
  const size_t n = size_t(rows * a.columns);
  const int64_t skip = begin * a.columns % 4;
  const AssayBinary b{c.up(a.a + begin * a.columns, n, skip), c.up(a.b + begin * a.columns, n, skip), c.room<float>(n, skip), rows, a.columns};
  if (!c.ran(op(c.handle(), &b))) return;
  c.down(a.y + begin * a.columns, b.y, n * sizeof(float));
  c.finish();
}
void silu_mul(const BinaryArgs& a, int64_t begin, int64_t end) { binary(a, begin, end, false); }
void add(const BinaryArgs& a, int64_t begin, int64_t end) { binary(a, begin, end, true); }

// Isa::scalar: no panels are packed for it, and code_bytes_for gives room for a pointer in every group.
constexpr Kernels kDeviceTable = {Isa::scalar, linear, quantise, quant_linear, embed, rms_norm, head_norm, rope, kv_store, attention, silu_mul, add,
                                  // ops of gated DeltaNet and of experts: abi.h has none (KernelCheck::on_device)
                                  nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};

}  // namespace

DeviceKernels::DeviceKernels(std::shared_ptr<Device> device) : state_(std::make_unique<State>()) {
  if (current) throw Error(ErrorKind::internal, "device kernels", "two devices at a time");
  state_->device = std::move(device);
  current = state_.get();
}
DeviceKernels::~DeviceKernels() { current = nullptr; }
const Kernels& DeviceKernels::table() const { return kDeviceTable; }
DeviceKernels::State& DeviceKernels::state() { return *state_; }
std::string DeviceKernels::refused() { return std::exchange(state_->refused, ""); }
const std::map<std::string, int64_t>& DeviceKernels::ran() const { return state_->ran; }
std::string DeviceKernels::variants() const {
  std::string out;
  for (const auto& [name, times] : state_->ran) out += fmt::format("{}{} {}", out.empty() ? "" : ", ", name, times);
  return out;
}

}  // namespace assay
