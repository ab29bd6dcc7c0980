// Shared by the kernels of attention (attention_decode.cu, attention_prefill.cu): what they see of a call, cache rows in
// pieces of 16 bytes, which rows belong together, and exp of a difference of scores.
#pragma once
#include "cuda/device.h"

namespace assay {

/// AssayAttention as kernels take it.
struct AttentionCall {
  const float* q;  // [rows, heads*head_dim]
  float* y;
  const AssayPlace* places;  // [rows]
  const unsigned char* k;    // [slot][kv_head][position][head_dim]
  const unsigned char* v;
  int64_t context;
  int rows, heads, kv_heads, head_dim;
  float scale;
  bool whole_pieces;  // every row of the cache starts at a multiple of 16 bytes and ends at one
};

/// Rows are looked at in windows of 64. A window whose rows form few runs (one slot, one position after the other) is
/// *tiled*: attention_prefill does it; the rows of all others are *scattered* and attention_decode does them one by one.
/// Both read the places, so that host code need not know them.
constexpr int kWindowRows = 64;
enum class Rows : uint8_t { every, scattered, tiled };

/// The last step of a split sum: y = fold of the classes' mixes / fold of their sums.
/// Class c of 2^class_bits holds the lanes (positions mod 256) that are c mod 2^class_bits.
struct FinishJob {
  AttentionCall call;
  const float* partial;  // [row - first][head][class][head_dim]
  const float* sums;     // [row - first][head][class]
  int first, rows, class_bits;
  Rows which;
};

// ---- host: attention_decode.cu. `which` is every or scattered.
int attention_decode(AssayDevice& d, const AttentionCall& call, int32_t type, int64_t longest, Rows which);
int attention_finish(AssayDevice& d, const FinishJob& job);
/// Whether the device has the shared memory for heads that long.
bool attention_decode_fits(const AssayDevice& d, int64_t head_dim, int64_t group);
// ---- host: attention_short.cu. One row up to 256 positions, heads in front; REFUSED: not such a row, or heads too long.
int attention_short(AssayDevice& d, const AssayHeads& h, const AttentionCall& call, int64_t longest);
// ---- host: attention_prefill.cu, the tiled rows. It fits where the device has the shared memory for heads that long.
bool attention_prefill_fits(const AssayDevice& d, int64_t head_dim);
int attention_prefill(AssayDevice& d, const AttentionCall& call, int32_t type, int64_t longest);

/// Scratch of one row, split in classes as FinishJob says; few rows are split more finely.
constexpr int kFewestClassBits = 4, kMostClassBits = 6;
size_t attention_decode_bytes(int64_t heads, int64_t head_dim, int64_t longest, int class_bits);
/// Of so many windows, however they are split; 0: the least that one window can be done with, head after head.
size_t attention_prefill_bytes(int64_t windows, int64_t heads, int64_t head_dim, int64_t longest);

// ---- pieces of cache rows

/// Elements of 16 bytes.
template <int kType>
constexpr int kPiece = kType == ASSAY_F32 ? 4 : 8;
template <int kType>
constexpr int kElementBytes = kType == ASSAY_F32 ? 4 : 2;

template <int kType>
__device__ __forceinline__ void widen_piece(const uint4& piece, float* values) {
  const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if constexpr (kType == ASSAY_F32) {
      values[i] = float_of(words[i]);
    } else if constexpr (kType == ASSAY_F16) {
      values[2 * i] = widen_f16(words[i] & 0xffffu);
      values[2 * i + 1] = widen_f16(words[i] >> 16);
    } else {
      values[2 * i] = widen_bf16(words[i]);
      values[2 * i + 1] = float_of(words[i] & 0xffff0000u);
    }
  }
}

/// Elements first, first + 1, ... of a row, where pieces are not whole: zeros behind the row's end.
template <int kType>
__device__ __forceinline__ uint4 piece_by_elements(const unsigned char* row, int first, int elements) {
  uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < kPiece<kType>; i++) {
    if (first + i >= elements) continue;
    if constexpr (kType == ASSAY_F32) {
      words[i] = reinterpret_cast<const uint32_t*>(row)[first + i];
    } else {
      words[i / 2] |= (uint32_t) reinterpret_cast<const uint16_t*>(row)[first + i] << 16 * (i % 2);
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// ---- rows that belong together. All lanes of a warp call these and get the same answer, so every warp may ask for itself.

__device__ __forceinline__ bool continues(const AssayPlace& before, const AssayPlace& place) {
  return place.slot == before.slot && place.position == before.position + 1;
}

/// Of kCount windows, the first of which starts at row `first` and the others `stride` rows behind each other. Those that start
/// at row `rows` or later are.
template <int kCount>
__device__ __forceinline__ void windows_are_tiled(const AssayPlace* places, int first, int stride, int rows,
                                                  bool (&tiled)[kCount]) {
  int runs[kCount];
#pragma unroll
  for (int w = 0; w < kCount; w++) {
    runs[w] = 0;
#pragma unroll
    for (int i = lane_of_warp(); i < kWindowRows; i += 32) {
      const int row = first + w * stride + i;
      if (row < rows && (i == 0 || !continues(places[row - 1], places[row]))) runs[w]++;
    }
  }
#pragma unroll
  for (int mask = 16; mask >= 1; mask /= 2) {
#pragma unroll
    for (int w = 0; w < kCount; w++) runs[w] += shuffle_xor(runs[w], mask);
  }
#pragma unroll
  for (int w = 0; w < kCount; w++) {
    const int left = rows - (first + w * stride);
    tiled[w] = 16 * runs[w] <= (left < kWindowRows ? left : kWindowRows) + 15 || left <= 0;  // a short run costs a whole tile
  }
}

/// Length of the run that starts at row `first`, at most `rows` <= 64.
__device__ __forceinline__ int run_length(const AssayPlace* places, int first, int rows) {
  int length = rows;
#pragma unroll
  for (int i = lane_of_warp() + 32; i >= 1; i -= 32) {  // downwards: the first break counts
    if (i < rows && !continues(places[first + i - 1], places[first + i])) length = i;
  }
#pragma unroll
  for (int mask = 16; mask >= 1; mask /= 2) {
    const int other = shuffle_xor(length, mask);
    length = other < length ? other : length;
  }
  return length;
}

/// Calls unit(row, u), u < units_per_row, for the rows of [first, first + rows) that are asked for, spread over the grid.
/// All threads of the block get the same calls. flags: kWindowsOfWarp words of shared memory per warp.
constexpr int kWindowsOfWarp = 4;
template <class Unit>
__device__ __forceinline__ void for_units(const AttentionCall& call, int first, int rows, Rows which, int units_per_row,
                                          uint32_t* flags, Unit&& unit) {
  const bool every = which == Rows::every;
  const int last = first + rows, warps = (int)blockDim.x / 32, warp = (int)threadIdx.x / 32;
  const int end = every ? 1 : (last + kWindowRows - 1) / kWindowRows;
  const int at_once = every ? 1 : warps * kWindowsOfWarp;
  for (int window = every ? 0 : first / kWindowRows; window < end; window += at_once) {
    if (!every) {
      bool tiled[kWindowsOfWarp];
      windows_are_tiled(call.places, (window + warp) * kWindowRows, warps * kWindowRows, call.rows, tiled);
      sync_block();  // the flags of the turn before have been read
      if (lane_of_warp() == 0) {
#pragma unroll
        for (int w = 0; w < kWindowsOfWarp; w++) flags[w * warps + warp] = tiled[w] == (which == Rows::tiled) ? 1 : 0;
      }
      sync_block();
    }
    for (int w = 0; w < at_once && window + w < end; w++) {
      if (!every && flags[w] == 0) continue;
      const int begin = (window + w) * kWindowRows;
      const int from = every || begin < first ? first : begin;
      const int to = every || begin + kWindowRows > last ? last : begin + kWindowRows;
      const int units = (to - from) * units_per_row;
      for (int u = (int)blockIdx.x; u < units; u += (int)gridDim.x) unit(from + u / units_per_row, u % units_per_row);
    }
  }
}

// ---- arithmetic

/// x[i] = exp_f32(x[i]) for x[i] <= 0 or NaN, the same bits (attention_test.cpp), by the shorter form where all results are far
/// from denormal.
template <int kCount>
__device__ __forceinline__ void exp_of_differences(float (&x)[kCount]) {
  bool plain = true;
#pragma unroll
  for (int i = 0; i < kCount; i++) plain = plain && x[i] > -80.0f;
  if (plain) {
#pragma unroll
    for (int i = 0; i < kCount; i++) x[i] = exp_near_f32(x[i]);
  } else {
#pragma unroll 1
    for (int i = 0; i < kCount; i++) {  // element 0 again and again, so that registers are not indexed
      const float y = exp_f32(x[0]);
#pragma unroll
      for (int j = 0; j + 1 < kCount; j++) x[j] = x[j + 1];
      x[kCount - 1] = y;
    }
  }
}

/// Folds by halves: 8, 4, 2, 1. What does not exist is +0.
__device__ __forceinline__ float fold_16(float* f) {
#pragma unroll
  for (int i = 0; i < 8; i++) f[i] = add_f32(f[i], f[i + 8]);
  const float a = add_f32(f[0], f[4]), b = add_f32(f[1], f[5]), c = add_f32(f[2], f[6]), d = add_f32(f[3], f[7]);
  return add_f32(add_f32(a, c), add_f32(b, d));
}

}  // namespace assay
