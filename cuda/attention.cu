// Attention: which kernels do it. Up to 8 rows, and rows whose heads are too long for a tile, go through attention_decode one
// by one; one row of a short sequence whose heads are still to be made goes through attention_short. Of more rows, those that form runs go through attention_prefill and the others through attention_decode; the kernels
// tell them apart by their places, so both are launched.
#include <algorithm>

#include "cuda/attention.cuh"

namespace assay {
namespace {

constexpr int64_t kDecodeRows = 8;
constexpr size_t kScratchBytes = size_t(1) << 30;  // aimed at; rows and heads are done in several launches beyond it

}  // namespace

size_t attention_scratch_bytes(const AssayDevice& d, const AssayLimits& limits) {
  if (limits.rows <= 0 || limits.heads <= 0 || limits.head_dim <= 0 || limits.context <= 0) return 0;
  const auto of_rows = [&](int64_t rows, int class_bits) {
    const size_t of_row = attention_decode_bytes(limits.heads, limits.head_dim, limits.context, class_bits);
    return std::max(of_row, std::min(kScratchBytes, size_t(rows) * of_row));
  };
  size_t bytes = std::max(of_rows(limits.rows, kFewestClassBits), of_rows(std::min(limits.rows, kDecodeRows), kMostClassBits));
  if (limits.rows > kDecodeRows && attention_prefill_fits(d, limits.head_dim)) {
    const int64_t windows = (limits.rows + kWindowRows - 1) / kWindowRows;
    const size_t all = attention_prefill_bytes(windows, limits.heads, limits.head_dim, limits.context);
    const size_t least = attention_prefill_bytes(0, limits.heads, limits.head_dim, limits.context);
    bytes = std::max({bytes, least, std::min(kScratchBytes, all)});
  }
  return bytes;
}

int attention(AssayDevice& d, const AssayAttention& a) {
  const AssayCache& c = a.cache;
  if (c.type != ASSAY_F32 && c.type != ASSAY_F16 && c.type != ASSAY_BF16) {
    return failed(d, ASSAY_REFUSED, "attention: cache type %d", c.type);
  }
  if (c.kv_heads <= 0 || a.heads % c.kv_heads != 0 || a.rows < 0 || a.longest < 1 || a.longest > c.context ||
      std::max({a.rows * a.heads, c.head_dim, c.context}) > (int64_t(1) << 24)) {
    return failed(d, ASSAY_REFUSED, "attention: rows %lld, heads %lld/%lld, head_dim %lld, longest %lld of %lld",
                  (long long)a.rows, (long long)a.heads, (long long)c.kv_heads, (long long)c.head_dim, (long long)a.longest,
                  (long long)c.context);
  }
  if (!attention_decode_fits(d, c.head_dim, a.heads / c.kv_heads)) {
    return failed(d, ASSAY_REFUSED, "attention: head_dim %lld needs more shared memory than the device has", (long long)c.head_dim);
  }
  if (a.heads_of) {
    AssayHeads probe = *a.heads_of;
    probe.rows = 0;
    if (heads(d, probe) != ASSAY_DONE) return ASSAY_REFUSED;
  }
  if (a.rows == 0) return ASSAY_DONE;

  const int64_t row_bytes = c.head_dim * (c.type == ASSAY_F32 ? 4 : 2);
  const bool aligned = (reinterpret_cast<uintptr_t>(c.k) | reinterpret_cast<uintptr_t>(c.v)) % 16 == 0;
  const AttentionCall call{a.q,
                           a.y,
                           a.places,
                           static_cast<const unsigned char*>(c.k),
                           static_cast<const unsigned char*>(c.v),
                           c.context,
                           int(a.rows),
                           int(a.heads),
                           int(c.kv_heads),
                           int(c.head_dim),
                           a.scale,
                           aligned && row_bytes % 16 == 0};
  if (a.heads_of) {
    if (const int result = attention_short(d, *a.heads_of, call, a.longest); result != ASSAY_REFUSED) return result;
    if (const int result = heads(d, *a.heads_of); result != ASSAY_DONE) return result;
  }
  const bool tiles = a.rows > kDecodeRows && attention_prefill_fits(d, c.head_dim);
  const int result = attention_decode(d, call, c.type, a.longest, tiles ? Rows::scattered : Rows::every);
  if (result != ASSAY_DONE || !tiles) return result;
  return attention_prefill(d, call, c.type, a.longest);
}

}  // namespace assay
