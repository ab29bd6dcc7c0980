// Cutting a case down while it still fails. Every cut leaves a case that is whole: a shorter sequence, fewer heads,
// fewer output features, fewer blocks of the summed dimension.
#include <algorithm>
#include <cstring>

#include "engine/replay.h"

namespace assay {
namespace {

/// Columns [begin, end) of [rows, columns] values.
std::vector<float> columns_of(const std::vector<float>& x, int64_t rows, int64_t begin, int64_t end) {
  const int64_t columns = int64_t(x.size()) / rows;
  std::vector<float> out;
  out.reserve(size_t(rows * (end - begin)));
  for (int64_t r = 0; r < rows; r++)
    out.insert(out.end(), x.begin() + r * columns + begin, x.begin() + r * columns + end);
  return out;
}

std::vector<float> rows_of(const std::vector<float>& x, int64_t rows, int64_t begin, int64_t end) {
  const int64_t columns = rows ? int64_t(x.size()) / rows : 0;
  return {x.begin() + begin * columns, x.begin() + end * columns};
}

/// kv heads [h0, h1) and positions [p0, p1) of a cache [kv_heads, positions, head_dim].
std::vector<std::byte> cache_of(const NodeCase& c, const std::vector<std::byte>& all, int64_t h0, int64_t h1,
                                int64_t p0, int64_t p1) {
  const size_t row = size_t(c.config.head_dim) * size_of(c.options.kv);
  std::vector<std::byte> out;
  for (int64_t h = h0; h < h1; h++) {
    const std::byte* at = all.data() + size_t(h * c.positions()) * row;
    out.insert(out.end(), at + size_t(p0) * row, at + size_t(p1) * row);
  }
  return out;
}

/// Rows [begin, end) and columns [k0, k1), whole blocks, of the weight, copied.
void slice_weight(NodeCase& c, int64_t begin, int64_t end, int64_t k0, int64_t k1) {
  const Matrix w = c.weight;
  const size_t from = row_bytes(w.type, k0), bytes = row_bytes(w.type, k1 - k0);
  auto copy = std::make_shared<std::vector<std::byte>>(size_t(end - begin) * bytes);
  for (int64_t r = begin; r < end; r++) std::memcpy(copy->data() + size_t(r - begin) * bytes, w.row(r) + from, bytes);
  c.weight = {w.type, end - begin, k1 - k0, copy->data()};
  c.storage = {copy};
}

NodeCase keep_rows(NodeCase c, int64_t begin, int64_t end) {
  if (!c.k.empty()) {
    const int64_t heads = c.config.kv_heads, positions = c.first_position + end;
    auto k = cache_of(c, c.k, 0, heads, 0, positions), v = cache_of(c, c.v, 0, heads, 0, positions);
    c.k = std::move(k);
    c.v = std::move(v);
  }
  for (auto& x : c.inputs) x = rows_of(x, c.rows, begin, end);
  if (!c.ids.empty()) c.ids = {c.ids.begin() + begin, c.ids.begin() + end};
  c.cos = rows_of(c.cos, c.rows, begin, end);
  c.sin = rows_of(c.sin, c.rows, begin, end);
  c.first_position += begin;
  c.rows = end - begin;
  return c;
}

/// Forgets the first positions of the cache; the rows move up.
NodeCase keep_positions(NodeCase c, int64_t begin, int64_t) {
  const int64_t heads = c.config.kv_heads;
  auto k = cache_of(c, c.k, 0, heads, begin, c.positions()), v = cache_of(c, c.v, 0, heads, begin, c.positions());
  c.k = std::move(k);
  c.v = std::move(v);
  c.first_position -= begin;
  return c;
}

NodeCase keep_outputs(NodeCase c, int64_t begin, int64_t end) {
  slice_weight(c, begin, end, 0, c.weight.columns);
  if (!c.vector.empty()) c.vector = {c.vector.begin() + begin, c.vector.begin() + end};
  c.columns = end - begin;
  return c;
}

NodeCase keep_elements(NodeCase c, int64_t begin, int64_t end) {  // silu_mul, add, rms_norm
  for (auto& x : c.inputs) x = columns_of(x, c.rows, begin, end);
  if (!c.vector.empty()) c.vector = {c.vector.begin() + begin, c.vector.begin() + end};
  c.columns = end - begin;
  return c;
}

NodeCase keep_heads(NodeCase c, int64_t begin, int64_t end) {  // rope, head_norm
  const int64_t d = c.node.head_dim;
  for (auto& x : c.inputs) x = columns_of(x, c.rows, begin * d, end * d);
  c.node.heads = end - begin;
  c.columns = c.node.heads * d;
  return c;
}

NodeCase keep_kv_heads(NodeCase c, int64_t begin, int64_t end) {  // attention
  const int64_t group = c.node.heads / c.config.kv_heads, d = c.node.head_dim;
  auto k = cache_of(c, c.k, begin, end, 0, c.positions()), v = cache_of(c, c.v, begin, end, 0, c.positions());
  c.k = std::move(k);
  c.v = std::move(v);
  for (auto& x : c.inputs) x = columns_of(x, c.rows, begin * group * d, end * group * d);
  c.config.kv_heads = end - begin;
  c.node.heads = c.config.heads = group * c.config.kv_heads;
  c.columns = c.node.heads * d;
  return c;
}

NodeCase keep_summed(NodeCase c, int64_t begin, int64_t end) {  // linear, in blocks
  const int64_t block = block_elements(c.weight.type);
  for (auto& x : c.inputs) x = columns_of(x, c.rows, begin * block, end * block);
  slice_weight(c, 0, c.weight.rows, begin * block, end * block);
  return c;
}

/// The table rows that are asked for, in order of first use.
NodeCase keep_ids(NodeCase c) {
  std::vector<int32_t> used;
  const Matrix w = c.weight;
  const size_t bytes = row_bytes(w.type, w.columns);
  auto copy = std::make_shared<std::vector<std::byte>>();
  for (int32_t& id : c.ids) {
    auto it = std::find(used.begin(), used.end(), id);
    if (it == used.end()) {
      copy->insert(copy->end(), w.row(id), w.row(id) + bytes);
      it = used.insert(it, id);
    }
    id = int32_t(it - used.begin());
  }
  c.weight = {w.type, int64_t(used.size()), w.columns, copy->data()};
  c.storage = {copy};
  return c;
}

using Cut = NodeCase (*)(NodeCase, int64_t, int64_t);
/// Drops from either end of [0, n) what can go, large pieces first. `front_only`: the end stays.
void narrow(NodeCase& c, int64_t n, Cut cut, const Fails& fails, bool front_only = false) {
  for (int64_t step = n / 2; step >= 1;) {
    bool done = false;
    if (n > step) {
      for (const bool front : {true, false}) {
        if (!front && front_only) break;
        NodeCase smaller = front ? cut(c, step, n) : cut(c, 0, n - step);
        if (!fails(smaller)) continue;
        c = std::move(smaller);
        n -= step;
        done = true;
        break;
      }
    }
    if (!done || step >= n) step /= 2;
  }
}

}  // namespace

NodeCase shrink(NodeCase c, const Fails& fails) {
  const bool recurrent = c.node.op == OpKind::conv || c.node.op == OpKind::delta_rule;
  if (recurrent)  // the state that the case holds is the first row's
    while (c.rows > 1) {
      NodeCase smaller = keep_rows(c, 0, c.rows - 1);
      if (!fails(smaller)) break;
      c = std::move(smaller);
    }
  else
    narrow(c, c.rows, keep_rows, fails);
  switch (c.node.op) {
    case OpKind::embed:
      if (NodeCase smaller = keep_ids(c); fails(smaller)) c = std::move(smaller);
      break;
    case OpKind::linear:
      narrow(c, c.columns, keep_outputs, fails);
      narrow(c, c.weight.columns / block_elements(c.weight.type), keep_summed, fails);
      break;
    case OpKind::attention:
      narrow(c, c.first_position, keep_positions, fails, true);
      narrow(c, c.config.kv_heads, keep_kv_heads, fails);
      break;
    case OpKind::head_norm:
      if (c.node.input_stride) break;  // heads lie apart in the input
      [[fallthrough]];
    case OpKind::rope:
    case OpKind::gated_norm:
      narrow(c, c.node.heads, keep_heads, fails);
      break;
    case OpKind::rms_norm:
    case OpKind::silu_mul:
    case OpKind::sigmoid_mul:
    case OpKind::sigmoid:
    case OpKind::add:
      narrow(c, c.columns, keep_elements, fails);
      break;
    case OpKind::topk:
    case OpKind::topk_weights:
    case OpKind::expert_linear:
    case OpKind::expert_sum:
    case OpKind::gated_add:
    case OpKind::l2_norm:
    case OpKind::decay:
    case OpKind::conv:
    case OpKind::delta_rule:
    case OpKind::columns:
    case OpKind::hidden:
      break;  // a row's columns belong together
    case OpKind::kv_store:
      break;  // writes state: no case of its own
  }
  return c;
}

}  // namespace assay
