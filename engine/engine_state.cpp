// Engine: what slots hold. Caches grow by positions and are cut by forgetting some; a gated DeltaNet's state has seen every row
// and can forget none. A verify pass therefore keeps, for each of its slots, the states from before it and what its rows brought
// to the nodes that change them (conv, delta_rule); taking rows back restores the states and runs those nodes again on the rows
// that stay. A copy of the state after every row would be the other way: of a 27B model 150 MB a row and slot, where the operands
// of a row are 2 MB and the state is written twice only when drafts were rejected. A device, for which 150 MB are 40 microseconds,
// goes that way (device_states.h); what is kept here are the nodes that the CPU ran.
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "dumps/error.h"
#include "engine/device_backend.h"
#include "engine/ops/common/rope_table.h"
#include "engine/session.h"
#include "engine/verified.h"

namespace assay {

KvLayer kv_layer_of(const Config& c, int64_t layer, const EngineOptions& o) {
  return {o.kv, o.slots, c.is_gdn(layer) ? 0 : c.kv_heads, o.context, c.head_dim, nullptr, nullptr};
}

GdnLayer gdn_layer_of(const Config& c, int64_t layer, const EngineOptions& o) {
  if (!c.is_gdn(layer)) return {};
  return {o.slots, c.conv_width, c.gdn_channels(), c.gdn_v_heads, c.gdn_k_dim, c.gdn_v_dim, nullptr, nullptr};
}

void Engine::allocate_state() {
  const Config& c = model_->config;
  lengths_.assign(options_.slots, 0);
  mtp_lengths_ = lengths_;
  verified_.resize(size_t(options_.slots));
  size_t wanted = 0;
  try {
    for (int64_t l = 0; l < c.state_layers(); l++) {
      KvLayer layer = kv_layer_of(c, l, options_);
      const size_t bytes = size_t(layer.elements()) * size_of(layer.type);
      wanted += 2 * bytes;
      for (std::byte** half : {&layer.k, &layer.v}) {
        if (bytes == 0) continue;
        cache_storage_.emplace_back(new std::byte[bytes]);
        *half = cache_storage_.back().get();
        if (options_.poison) std::memset(*half, 0xff, bytes);  // all ones is a NaN in f32, f16 and bf16
      }
      caches_.push_back(layer);
      GdnLayer gdn = gdn_layer_of(c, l, options_);
      if (gdn.floats() > 0) {
        const float unwritten = options_.poison ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
        wanted += size_t(gdn.slots * gdn.floats()) * sizeof(float);
        gdn_storage_.emplace_back(size_t(gdn.slots * gdn.floats()), unwritten);
        gdn.conv = gdn_storage_.back().data();
        gdn.state = gdn.conv + gdn.slots * gdn.conv_floats();
      }
      gdn_.push_back(gdn);
    }
  } catch (const std::bad_alloc&) {
    throw Error(ErrorKind::memory, "caches and states", "do not fit", "more than " + std::to_string(wanted) + " bytes", "",
                "Fewer slots, a smaller --ctx or --kv f16 need less.");
  }
}

/// A sequence's states begin as zeros; what the pass before kept is void.
void Engine::begin_state(const Batch& batch) {
  if (batch.pass >= Pass::mtp_prefill) return;   // the head attends
  for (const Segment& s : batch.segments) {
    auto& verified = verified_[size_t(s.slot)];
    verified.reset();
    if (s.position == 0)
      for (const GdnLayer& g : gdn_)
        if (g.floats() > 0) {
          std::fill_n(g.conv_of(s.slot), g.conv_floats(), 0.0f);
          std::fill_n(g.state_of(s.slot), g.state_floats(), 0.0f);
        }
    if (batch.pass != Pass::verify) continue;
    verified = std::make_unique<Verified>();
    verified->position = s.position;
    verified->rows = s.rows;
  }
}

/// What a node changes of a slot's states, and how many floats that is.
static std::pair<float*, int64_t> changed_by(const Node& n, const GdnLayer& g, int slot) {
  return n.op == OpKind::conv ? std::pair(g.conv_of(slot), g.conv_floats()) : std::pair(g.state_of(slot), g.state_floats());
}

void Engine::keep_inputs(size_t node, const NodeContext& c) {
  for (const RowSpan& s : c.spans) {
    const auto [at, floats] = changed_by(c.node, *c.gdn, s.slot);
    Verified::Ran kept{node, {at, at + floats}, {}};
    for (size_t i = 0; i < c.inputs.size(); i++) {
      const int64_t columns = program_.values[size_t(c.node.inputs[i])].columns;
      kept.inputs.emplace_back(c.inputs[i] + s.first * columns, c.inputs[i] + (s.first + s.rows) * columns);
    }
    verified_[size_t(s.slot)]->ran.push_back(std::move(kept));
  }
}

/// States become those of the rows before `length`.
void Engine::roll_back(int slot, int64_t length) {
  const Verified* v = verified_[size_t(slot)].get();
  if (!v || length < v->position || length > v->position + v->rows)
    throw Error(ErrorKind::usage, "slot " + std::to_string(slot), "a recurrent state can't go back to any position",
                v ? "0, or " + std::to_string(v->position) + " to " + std::to_string(v->position + v->rows) + ", where its last verify pass was"
                  : "0, or " + std::to_string(lengths_[slot]) + ", where it is",
                std::to_string(length));
  if (keeps_rejected_) return;
  const int64_t rows = length - v->position;
  if (device_) device_->roll_back(slot, rows);
  Batch batch;
  batch.pass = Pass::verify;
  batch.ids.resize(size_t(rows));
  batch.segments = {{slot, v->position, rows, 0, 0}};
  const PassState pass = PassState::of(batch, nullptr, nullptr);
  std::vector<float> nobody_reads;
  for (const Verified::Ran& i : v->ran) {
    const Node& n = program_.nodes[i.node];
    if (device_) device_->state_to_host(n.layer);
    std::copy(i.before.begin(), i.before.end(), changed_by(n, gdn_[size_t(n.layer)], slot).first);
    const int64_t columns = program_.values[size_t(n.output)].columns;
    nobody_reads.resize(size_t(rows * columns));
    NodeContext c{n,    program_,         model_->config, batch, rows, {}, nobody_reads.data(), columns, batch.ids, pass.places, pass.positions,
                  &caches_[size_t(n.layer)], rope_.get(), &gdn_[size_t(n.layer)], pass.spans};
    for (const auto& x : i.inputs) c.inputs.push_back(x.data());
    if (rows > 0) n.replacement ? n.replacement(c) : backend_->run(c);
    if (device_) device_->state_from_host(n.layer, slot, length);
  }
}

const KvLayer& Engine::kv(int layer) const {
  if (device_) device_->state_to_host(layer);
  return caches_.at(size_t(layer));
}

const GdnLayer& Engine::gdn(int layer) const {
  if (device_) device_->state_to_host(layer);
  return gdn_.at(size_t(layer));
}

static void poison_positions(const KvLayer& l, int slot, int64_t from, int64_t to) {
  for (int64_t h = 0; h < l.kv_heads; h++) {
    const size_t at = size_t(l.offset(slot, h, from)) * size_of(l.type), n = size_t((to - from) * l.head_dim) * size_of(l.type);
    std::memset(l.k + at, 0xff, n);
    std::memset(l.v + at, 0xff, n);
  }
}

static void check_cut(int slot, int64_t length, int64_t from) {
  if (length < 0 || length > from)
    throw Error(ErrorKind::usage, "slot " + std::to_string(slot), "can't be cut to a longer length", "0 to " + std::to_string(from),
                std::to_string(length));
}

void Engine::truncate(int slot, int64_t length) {
  const int64_t layers = model_->config.layers;
  check_cut(slot, length, lengths_.at(size_t(slot)));
  const bool recurrent = std::any_of(gdn_.begin(), gdn_.end(), [](auto& g) { return g.floats() > 0; });
  if (length == 0) {
    verified_[size_t(slot)].reset();
    if (options_.poison)   // the next sequence's first pass writes its zeros
      for (const GdnLayer& g : gdn_)
        if (g.floats() > 0) {
          std::fill_n(g.conv_of(slot), g.conv_floats(), std::numeric_limits<float>::quiet_NaN());
          std::fill_n(g.state_of(slot), g.state_floats(), std::numeric_limits<float>::quiet_NaN());
        }
  } else if (recurrent && length < lengths_[slot]) {
    roll_back(slot, length);
  }
  if (device_) device_->truncate(slot, length, false);
  if (options_.poison)
    for (int64_t l = 0; l < layers; l++) poison_positions(caches_[size_t(l)], slot, length, lengths_[slot]);
  lengths_[slot] = length;
  truncate_mtp(slot, std::min(length, mtp_lengths_[slot]));
}

void Engine::truncate_mtp(int slot, int64_t length) {
  const int64_t layers = model_->config.layers;
  check_cut(slot, length, mtp_lengths_.at(size_t(slot)));
  if (device_) device_->truncate(slot, length, true);
  if (options_.poison)
    for (size_t l = size_t(layers); l < caches_.size(); l++) poison_positions(caches_[l], slot, length, mtp_lengths_[slot]);
  mtp_lengths_[slot] = length;
}

void Engine::copy_slot(int from, int to) {
  for (int slot : {from, to})
    if (slot < 0 || slot >= options_.slots)
      throw Error(ErrorKind::usage, "copy of a slot", "no such slot", "0 to " + std::to_string(options_.slots - 1), std::to_string(slot));
  if (from == to) return;
  truncate(to, 0);
  for (int l = 0; l < int(caches_.size()); l++) {
    const KvLayer& c = kv(l);
    const int64_t length = l < model_->config.layers ? lengths_[from] : mtp_lengths_[from];
    for (std::byte* half : {c.k, c.v})
      for (int64_t h = 0; h < c.kv_heads; h++)
        std::memcpy(half + size_t(c.offset(to, h, 0)) * size_of(c.type), half + size_t(c.offset(from, h, 0)) * size_of(c.type),
                    size_t(length * c.head_dim) * size_of(c.type));
    const GdnLayer& g = gdn_[size_t(l)];
    if (g.floats() > 0) {
      std::copy_n(g.conv_of(from), g.conv_floats(), g.conv_of(to));
      std::copy_n(g.state_of(from), g.state_floats(), g.state_of(to));
    }
    if (device_) device_->state_from_host(l, to, length);
  }
  lengths_[to] = lengths_[from];
  mtp_lengths_[to] = mtp_lengths_[from];
}

EngineMemory Engine::memory() const {
  EngineMemory m;
  m.panels = backend_->panel_bytes();
  for (const KvLayer& l : caches_) m.kv += 2 * size_t(l.elements()) * size_of(l.type);
  for (const GdnLayer& g : gdn_) m.gdn += size_t(g.slots * g.floats()) * sizeof(float);
  for (const auto& v : verified_)
    if (v) m.gdn += v->floats() * sizeof(float);
  m.rope = (rope_->cos.size() + rope_->sin.size()) * sizeof(float);
  for (const auto& b : buffers_) m.values += b.size() * sizeof(float);
  m.quantised = backend_->quantised_bytes();
  m.scratch = backend_->scratch_bytes();
  m.experts = backend_->expert_bytes();
  return m;
}

std::string Engine::state_hash(int slot) const {
  XXH3_state_t* h = XXH3_createState();
  XXH3_128bits_reset(h);
  for (int i = 0; i < int(caches_.size()); i++) {
    const KvLayer& l = kv(i);
    const int64_t length = i < model_->config.layers ? lengths_.at(size_t(slot)) : mtp_lengths_.at(size_t(slot));
    for (const std::byte* half : {l.k, l.v})
      for (int64_t head = 0; head < l.kv_heads; head++)
        XXH3_128bits_update(h, half + size_t(l.offset(slot, head, 0)) * size_of(l.type), size_t(length * l.head_dim) * size_of(l.type));
    const GdnLayer& g = gdn_[size_t(i)];
    if (g.floats() == 0 || length == 0) continue;   // before the first row it is nobody's
    XXH3_128bits_update(h, g.conv_of(slot), size_t(g.conv_floats()) * sizeof(float));
    XXH3_128bits_update(h, g.state_of(slot), size_t(g.state_floats()) * sizeof(float));
  }
  const XXH128_hash_t d = XXH3_128bits_digest(h);
  XXH3_freeState(h);
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", (unsigned long long)d.high64, (unsigned long long)d.low64);
  return text;
}

}  // namespace assay
