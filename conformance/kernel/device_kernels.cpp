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
  const int64_t columns = heads ? a.heads * a.head_dim : a.columns, rows = end - begin, wide = a.x_columns ? a.x_columns : columns;
  const AssayNorm n{c.up(a.x + begin * wide, size_t(rows * wide)), c.up(a.w, size_t(heads ? a.head_dim : columns)),
                    c.room<float>(size_t(rows * columns)), rows, columns, heads ? a.heads : 0, a.head_dim, a.eps, int32_t(a.x_stride)};
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

void binary(const BinaryArgs& a, int64_t begin, int64_t end, const char* name, int (*AssayModule::*member)(AssayDevice*, const AssayBinary*)) {
  if (begin >= end) return;
  Call c(name);
  const auto op = c.table().*member;
  if (!c.offered(op)) return;
  const int64_t rows = end - begin;
  const size_t n = size_t(rows * a.columns);
  const int64_t skip = begin * a.columns % 4;
  const AssayBinary b{c.up(a.a + begin * a.columns, n, skip), c.up(a.b + begin * a.columns, n, skip), c.room<float>(n, skip), rows, a.columns};
  if (!c.ran(op(c.handle(), &b))) return;
  c.down(a.y + begin * a.columns, b.y, n * sizeof(float));
  c.finish();
}
void silu_mul(const BinaryArgs& a, int64_t begin, int64_t end) { binary(a, begin, end, "silu_mul", &AssayModule::silu_mul); }
void add(const BinaryArgs& a, int64_t begin, int64_t end) { binary(a, begin, end, "add", &AssayModule::add); }
void sigmoid_mul(const BinaryArgs& a, int64_t begin, int64_t end) { binary(a, begin, end, "sigmoid_mul", &AssayModule::sigmoid_mul); }

/// An op whose result is rows [begin, end) of `columns`; `args(c, rows, y)` makes its arguments.
template <class Op, class Args>
void by_rows(const char* name, Op AssayModule::*member, float* y, int64_t columns, int64_t begin, int64_t end, Args&& args) {
  if (begin >= end) return;
  Call c(name);
  if (!c.offered(c.table().*member)) return;
  float* const out = c.room<float>(size_t((end - begin) * columns));
  const auto a = args(c, end - begin, out);
  if (!c.ran((c.table().*member)(c.handle(), &a))) return;
  c.down(y + begin * columns, out, size_t((end - begin) * columns) * sizeof(float));
  c.finish();
}

void sigmoid(const SigmoidArgs& a, int64_t begin, int64_t end) {
  by_rows("sigmoid", &AssayModule::sigmoid, a.y, a.columns, begin, end, [&](Call& c, int64_t rows, float* y) {
    return AssayUnary{c.up(a.x + begin * a.columns, size_t(rows * a.columns)), y, rows, a.columns};
  });
}
void decay(const DecayArgs& a, int64_t begin, int64_t end) {
  by_rows("decay", &AssayModule::decay, a.y, a.heads, begin, end, [&](Call& c, int64_t rows, float* y) {
    return AssayDecay{c.up(a.x + begin * a.heads, size_t(rows * a.heads)), c.up(a.w, size_t(2 * a.heads)), y, rows, a.heads};
  });
}
void l2_norm(const L2NormArgs& a, int64_t begin, int64_t end) {
  by_rows("l2_norm", &AssayModule::l2_norm, a.y, a.heads * a.head_dim, begin, end, [&](Call& c, int64_t rows, float* y) {
    // What lies behind the last row's last head may be nobody's.
    const int64_t n = (rows - 1) * a.x_columns + a.heads * a.head_dim;
    return AssayL2Norm{c.up(a.x + begin * a.x_columns, size_t(n)), y, rows, a.x_columns, a.heads, a.head_dim, a.scale, 0};
  });
}
void gated_norm(const GatedNormArgs& a, int64_t begin, int64_t end) {
  const int64_t columns = a.heads * a.head_dim;
  by_rows("gated_norm", &AssayModule::gated_norm, a.y, columns, begin, end, [&](Call& c, int64_t rows, float* y) {
    const size_t n = size_t(rows * columns);
    return AssayGatedNorm{c.up(a.x + begin * columns, n), c.up(a.z + begin * columns, n), c.up(a.w, size_t(a.head_dim)), y, rows, a.heads,
                          a.head_dim, a.eps, 0};
  });
}
void topk(const TopkArgs& a, int64_t begin, int64_t end) {
  by_rows("topk", &AssayModule::topk, a.ids, a.chosen, begin, end, [&](Call& c, int64_t rows, float* y) {
    return AssayRouter{c.up(a.logits + begin * a.experts, size_t(rows * a.experts)), y, nullptr, rows, a.experts, a.chosen, 0, 0};
  });
}
void topk_weights(const TopkWeightsArgs& a, int64_t begin, int64_t end) {
  by_rows("topk_weights", &AssayModule::topk_weights, a.y, a.chosen, begin, end, [&](Call& c, int64_t rows, float* y) {
    float* const ids = c.room<float>(size_t(rows * a.chosen));
    return AssayRouter{c.up(a.logits + begin * a.experts, size_t(rows * a.experts)), c.filled(ids, a.ids + begin * a.chosen, size_t(rows * a.chosen)),
                       y, rows, a.experts, a.chosen, a.normalised, 0};
  });
}
void expert_sum(const ExpertSumArgs& a, int64_t begin, int64_t end) {
  by_rows("expert_sum", &AssayModule::expert_sum, a.y, a.columns, begin, end, [&](Call& c, int64_t rows, float* y) {
    const int64_t row = a.chosen * a.columns;
    return AssayExpertSum{c.up(a.weights + begin * a.chosen, size_t(rows * a.chosen)), c.up(a.x + begin * row, size_t(rows * row)), y, rows,
                          a.chosen, a.columns, nullptr};
  });
}
void gated_add(const GatedAddArgs& a, int64_t begin, int64_t end) {
  by_rows("gated_add", &AssayModule::gated_add, a.y, a.columns, begin, end, [&](Call& c, int64_t rows, float* y) {
    const size_t n = size_t(rows * a.columns);
    return AssayGatedAdd{c.up(a.gate + begin, size_t(rows)), c.up(a.shared + begin * a.columns, n), c.up(a.x + begin * a.columns, n), y, rows,
                         a.columns, nullptr};
  });
}

/// The spans of items [begin, end), `per_span` of each, and their states: entry = slot, read and replaced.
struct SpansOfItems {
  std::vector<AssaySpan> spans;
  std::vector<int32_t> after;
  int64_t rows = 0, slots = 0;
  SpansOfItems(const RowSpan* all, int64_t per_span, int64_t begin, int64_t end) {
    for (int64_t i = 0; i <= (end - 1) / per_span; i++) {
      rows = std::max(rows, all[i].first + all[i].rows);
      slots = std::max<int64_t>(slots, all[i].slot + 1);
      if (i < begin / per_span) continue;
      spans.push_back({all[i].slot, 0, all[i].first, all[i].rows});
    }
    after.assign(size_t(rows), -1);
    for (const AssaySpan& s : spans) after[size_t(s.first + s.rows - 1)] = s.entry;
  }
  AssayStates states(Call& c) const {
    AssayStates s{};
    s.entries = slots;
    s.spans = c.up(spans);
    s.after = c.up(after);
    s.span_count = int64_t(spans.size());
    return s;
  }
};

void conv(const ConvArgs& a, int64_t begin, int64_t end) {
  if (begin >= end) return;
  Call c("conv");
  if (!c.offered(c.table().conv)) return;
  const int64_t blocks = conv_blocks(a.channels), entry = a.width * a.channels;
  const SpansOfItems s(a.spans, blocks, begin, end);
  AssayConv n{c.up(a.x, size_t(s.rows * a.channels)), c.up(a.w, size_t(entry)), c.room<float>(size_t(s.rows * a.channels)), s.rows, s.states(c)};
  n.states.width = a.width, n.states.channels = a.channels, n.states.stride = entry;
  n.states.conv = c.filled(c.room<float>(size_t(s.slots * entry)), a.state, size_t(s.slots * entry));
  if (!c.ran(c.table().conv(c.handle(), &n))) return;
  const std::vector<float> y = c.down(n.y, size_t(s.rows * a.channels)), state = c.down(n.states.conv, size_t(s.slots * entry));
  for (int64_t item = begin; item < end; item++) {
    const RowSpan& span = a.spans[item / blocks];
    const int64_t first = item % blocks * kConvBlock, count = std::min(kConvBlock, a.channels - first);
    for (int64_t r = span.first; r < span.first + span.rows; r++) std::copy_n(&y[size_t(r * a.channels + first)], count, a.y + r * a.channels + first);
    for (int64_t t = span.slot * a.width; t < (span.slot + 1) * a.width; t++)
      std::copy_n(&state[size_t(t * a.channels + first)], count, a.state + t * a.channels + first);
  }
}

void delta_rule(const DeltaRuleArgs& a, int64_t begin, int64_t end) {
  if (begin >= end) return;
  Call c("delta_rule");
  if (!c.offered(c.table().delta_rule)) return;
  const int64_t blocks = delta_blocks(a.d_v), entry = a.v_heads * a.d_k * a.d_v, values = a.v_heads * a.d_v;
  const SpansOfItems s(a.spans, blocks * a.v_heads, begin, end);
  const size_t keys = size_t(s.rows * a.k_heads * a.d_k), heads = size_t(s.rows * a.v_heads);
  AssayDeltaRule n{c.up(a.q, keys), c.up(a.k, keys), c.up(a.v, size_t(s.rows * values)), c.up(a.beta, heads), c.up(a.decay, heads),
                   c.room<float>(size_t(s.rows * values)), s.rows, a.k_heads, s.states(c), nullptr, nullptr, nullptr, nullptr, 0, 0};
  n.states.v_heads = a.v_heads, n.states.k_dim = a.d_k, n.states.v_dim = a.d_v, n.states.stride = entry;
  n.states.state = c.filled(c.room<float>(size_t(s.slots * entry)), a.state, size_t(s.slots * entry));
  if (!c.ran(c.table().delta_rule(c.handle(), &n))) return;
  const std::vector<float> y = c.down(n.y, size_t(s.rows * values)), state = c.down(n.states.state, size_t(s.slots * entry));
  for (int64_t item = begin; item < end; item++) {
    const RowSpan& span = a.spans[item / blocks / a.v_heads];
    const int64_t head = item / blocks % a.v_heads, first = item % blocks * kDeltaBlock, count = std::min(kDeltaBlock, a.d_v - first);
    for (int64_t r = span.first; r < span.first + span.rows; r++)
      std::copy_n(&y[size_t((r * a.v_heads + head) * a.d_v + first)], count, a.y + (r * a.v_heads + head) * a.d_v + first);
    for (int64_t k = (span.slot * a.v_heads + head) * a.d_k; k < (span.slot * a.v_heads + head + 1) * a.d_k; k++)
      std::copy_n(&state[size_t(k * a.d_v + first)], count, a.state + k * a.d_v + first);
  }
}

// Isa::scalar: no panels are packed for it, and code_bytes_for gives room for a pointer in every group.
constexpr Kernels kDeviceTable = {Isa::scalar, linear, quantise, quant_linear, embed, rms_norm, head_norm, rope, kv_store, attention, silu_mul, add,
                                  sigmoid_mul, sigmoid, l2_norm, gated_norm, decay, conv, delta_rule, topk, topk_weights, expert_sum, gated_add};

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
