// pack: a matrix from the file's rows (engine/formats/quant.h) to the layout of layout.cuh; unpack: back, byte for byte, so
// that what is resident can be compared with its source. Both run once per matrix, at load or in a check: plain kernels that
// move each byte once, with byte loads on the side of the file, whose blocks are aligned to 2.
//
// PRECOND: `raw` holds rows * (bytes of a row) bytes; `packed` holds packed_bytes(), aligned to 256.
#include <algorithm>
#include <cstddef>

#include "cuda/device.h"
#include "cuda/layout.cuh"
#include "engine/formats/quant.h"
#include "engine/ops/group.h"

namespace assay {

/// One thread a row and group, padding included (to whole quads, as the scales lie).
__global__ void pack_groups(int32_t type, const unsigned char* raw, int64_t raw_row, unsigned char* packed, PackedLayout l) {
  const int64_t row = blockIdx.y + (int64_t)blockIdx.z * gridDim.y, g = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= l.rows || g >= l.quads * kQuadGroups) return;
  const int64_t b = g / kBlockGroups, j = g % kBlockGroups;
  const bool real = g * kGroupColumns < l.columns;
  const std::byte* file_row = reinterpret_cast<const std::byte*>(raw + row * raw_row);
  const WeightType file_type = (WeightType)type;

  // scales
  uint32_t scale = 0, both = 0;
  if (real) {
    const std::byte* block = group_block(file_type, file_row, g);
    switch (type) {
      case ASSAY_Q4_1:
      case ASSAY_Q5_1:
        scale = (uint32_t)load_u16(block) | (uint32_t)load_u16(block + offsetof(BlockQ4_1, m)) << 16;
        break;
      case ASSAY_Q4_K:
      case ASSAY_Q5_K: {
        const std::byte* scales = block + offsetof(BlockQ4_K, scales);
        scale = (uint32_t)k_scale(scales, (int)j) | (uint32_t)k_minimum(scales, (int)j) << 8;
        both = (uint32_t)load_u16(block) | (uint32_t)load_u16(block + offsetof(BlockQ4_K, dmin)) << 16;
        break;
      }
      case ASSAY_Q6_K:
        scale = load_u16(block + offsetof(BlockQ6_K, scales) + 2 * j);
        both = load_u16(block + offsetof(BlockQ6_K, d));
        break;
      default: scale = load_u16(block);
    }
  }
  const int64_t at = (b / kQuadBlocks * kBlockGroups + j) * kQuadBlocks + b % kQuadBlocks;
  unsigned char* scales = packed + l.scales + row * l.scales_row;
  if (type_scale_bytes(type) == 4) {
    reinterpret_cast<uint32_t*>(scales)[at] = scale;
  } else {
    reinterpret_cast<uint16_t*>(scales)[at] = (uint16_t)scale;
  }
  if (type_k_quant(type) && j == 0) reinterpret_cast<uint32_t*>(packed + l.super + row * l.super_row)[b] = both;
  if (b >= l.blocks) return;

  // codes
  uint8_t codes[kGroupColumns] = {};
  if (real) {
    group_codes(file_type, file_row, g, codes);
    for (int i = 0; i < kGroupColumns; i++) codes[i] ^= (uint8_t)type_sign_bit(type);
  }
  unsigned char* to = packed + row * l.codes_row;
  if (type == ASSAY_Q8_0) {
    for (int i = 0; i < kGroupColumns; i++) to[((b * 2 + i / 16) * kBlockGroups + j) * 16 + i % 16] = codes[i];
    return;
  }
  for (int i = 0; i < 16; i++) to[g * 16 + i] = (uint8_t)((codes[i] & 15) | codes[i + 16] << 4);
  uint32_t high[2] = {0, 0};
  for (int c = 0; c < kGroupColumns; c++) {
    const int i = c / 4, e = c % 4;
    if (type_code_bits(type) == 5) high[0] |= (uint32_t)(codes[c] >> 4 & 1) << (8 * e + i);
    if (type_code_bits(type) == 6) high[i / 4] |= (uint32_t)(codes[c] >> 4 & 3) << (8 * e + 2 * (i % 4));
  }
  uint32_t* high_to = reinterpret_cast<uint32_t*>(packed + l.high + row * l.high_row + g * type_high_bytes(type));
  for (int i = 0; i < type_high_bytes(type) / 4; i++) high_to[i] = high[i];
}

/// The unsigned codes of a group, as the file has them (Q8_0: the bytes).
__device__ void unpacked_codes(int32_t type, const unsigned char* packed, const PackedLayout& l, int64_t row, int64_t g,
                               uint8_t* codes) {
  const int64_t b = g / kBlockGroups, j = g % kBlockGroups;
  const unsigned char* from = packed + row * l.codes_row;
  if (type == ASSAY_Q8_0) {
    for (int i = 0; i < kGroupColumns; i++) codes[i] = from[((b * 2 + i / 16) * kBlockGroups + j) * 16 + i % 16];
    return;
  }
  const uint32_t* high = reinterpret_cast<const uint32_t*>(packed + l.high + row * l.high_row + g * type_high_bytes(type));
  for (int c = 0; c < kGroupColumns; c++) {
    const int i = c / 4, e = c % 4, pair = from[g * 16 + c % 16];
    uint32_t code = (uint32_t)(c < 16 ? pair & 15 : pair >> 4);
    if (type_code_bits(type) == 5) code |= (high[0] >> (8 * e + i) & 1u) << 4;
    if (type_code_bits(type) == 6) code |= (high[i / 4] >> (8 * e + 2 * (i % 4)) & 3u) << 4;
    codes[c] = (uint8_t)(code ^ (uint32_t)type_sign_bit(type));
  }
}

__device__ __forceinline__ void store_u16(unsigned char* to, uint32_t v) {
  to[0] = (unsigned char)v;
  to[1] = (unsigned char)(v >> 8);
}

/// One thread a block of the file.
__global__ void unpack_blocks(int32_t type, const unsigned char* packed, PackedLayout l, unsigned char* raw, int64_t block_bytes) {
  const int64_t columns = type_file_block_columns(type), blocks = l.columns / columns;
  const int64_t row = blockIdx.y + (int64_t)blockIdx.z * gridDim.y, n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= l.rows || n >= blocks) return;
  unsigned char* to = raw + (row * blocks + n) * block_bytes;
  const int64_t first = n * columns / kGroupColumns, b = first / kBlockGroups;  // group, block of the layout
  const unsigned char* scales = packed + l.scales + row * l.scales_row +
                                ((b / kQuadBlocks * kBlockGroups + first % kBlockGroups) * kQuadBlocks + b % kQuadBlocks) *
                                    type_scale_bytes(type);
  uint8_t codes[kGroupColumns];
  if (!type_k_quant(type)) {
    unpacked_codes(type, packed, l, row, first, codes);
    for (int i = 0; i < type_scale_bytes(type); i++) *to++ = scales[i];
    if (type == ASSAY_Q8_0) {
      for (int i = 0; i < kGroupColumns; i++) to[i] = codes[i];
      return;
    }
    if (type_code_bits(type) == 5) {
      uint32_t high = 0;
      for (int i = 0; i < kGroupColumns; i++) high |= (uint32_t)(codes[i] >> 4) << i;
      store_u16(to, high & 0xffffu);
      store_u16(to + 2, high >> 16);
      to += 4;
    }
    for (int i = 0; i < 16; i++) to[i] = (uint8_t)((codes[i] & 15) | codes[i + 16] << 4);
    return;
  }
  const uint32_t both = reinterpret_cast<const uint32_t*>(packed + l.super + row * l.super_row)[b];
  const int next = kQuadBlocks * type_scale_bytes(type);  // from a group's scales to those of the next one of the block
  if (type == ASSAY_Q6_K) {
    for (int j = 0; j < kBlockGroups; j++) {
      unpacked_codes(type, packed, l, row, first + j, codes);
      const int half = j / 4, quarter = j % 4;
      for (int i = 0; i < kGroupColumns; i++) {
        unsigned char* low = to + 64 * half + 32 * (quarter % 2) + i;
        unsigned char* high = to + offsetof(BlockQ6_K, high) + 32 * half + i;
        // Quarters 0 and 1 come first and set the byte, the later ones add to it.
        *low = (unsigned char)(quarter < 2 ? codes[i] & 15 : *low | (codes[i] & 15) << 4);
        *high = (unsigned char)(quarter == 0 ? codes[i] >> 4 : *high | codes[i] >> 4 << (2 * quarter));
      }
      to[offsetof(BlockQ6_K, scales) + 2 * j] = scales[j * next];
      to[offsetof(BlockQ6_K, scales) + 2 * j + 1] = scales[j * next + 1];
    }
    store_u16(to + offsetof(BlockQ6_K, d), both & 0xffffu);
    return;
  }
  store_u16(to, both & 0xffffu);
  store_u16(to + offsetof(BlockQ4_K, dmin), both >> 16);
  unsigned char* packed_scales = to + offsetof(BlockQ4_K, scales);
  for (int j = 0; j < 4; j++) {  // group.h: k_scale, k_minimum
    const int scale = scales[j * next], minimum = scales[j * next + 1];
    const int scale4 = scales[(j + 4) * next], minimum4 = scales[(j + 4) * next + 1];
    packed_scales[j] = (unsigned char)(scale | scale4 >> 4 << 6);
    packed_scales[j + 4] = (unsigned char)(minimum | minimum4 >> 4 << 6);
    packed_scales[j + 8] = (unsigned char)((scale4 & 15) | (minimum4 & 15) << 4);
  }
  unsigned char* low = to + (type == ASSAY_Q4_K ? offsetof(BlockQ4_K, codes) : offsetof(BlockQ5_K, codes));
  for (int j = 0; j < kBlockGroups; j++) {
    unpacked_codes(type, packed, l, row, first + j, codes);
    for (int i = 0; i < kGroupColumns; i++) {
      unsigned char* pair = low + 32 * (j / 2) + i;
      *pair = (unsigned char)(j % 2 == 0 ? codes[i] & 15 : *pair | (codes[i] & 15) << 4);
      if (type == ASSAY_Q5_K) {
        unsigned char* high = to + offsetof(BlockQ5_K, high) + i;
        *high = (unsigned char)(j == 0 ? codes[i] >> 4 : *high | codes[i] >> 4 << j);
      }
    }
  }
}

/// Rows of elements of 2 or 4 bytes, `from_columns` wide, to rows of `to_columns`; what is missing is zero.
template <class T>
__global__ void copy_rows(const T* from, int64_t from_columns, T* to, int64_t to_columns, int64_t rows) {
  const int64_t row = blockIdx.y + (int64_t)blockIdx.z * gridDim.y, k = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows || k >= to_columns) return;
  to[row * to_columns + k] = k < from_columns ? from[row * from_columns + k] : T(0);
}

/// Bytes of a block of the file.
static int64_t file_block_bytes(int32_t type) {
  constexpr int64_t kBytes[ASSAY_TYPES] = {4, 2, 2, sizeof(BlockQ8_0), sizeof(BlockQ4_0), sizeof(BlockQ4_1), sizeof(BlockQ5_0),
                                           sizeof(BlockQ5_1), sizeof(BlockQ4_K), sizeof(BlockQ5_K), sizeof(BlockQ6_K)};
  return kBytes[type];
}

static bool packable(int32_t type, int64_t rows, int64_t columns) {
  constexpr int64_t kMost = int64_t(1) << 40;  // bytes: no overflow below
  return type_known(type) && rows > 0 && columns > 0 && columns < kMost / 8 / rows && columns % type_file_block_columns(type) == 0;
}

/// A grid of one thread per row and item: rows in y and z.
static dim3 row_grid(int64_t rows, int64_t items, int threads) {
  const int64_t y = std::min<int64_t>(rows, 32768);
  return dim3(unsigned((items + threads - 1) / threads), unsigned(y), unsigned((rows + y - 1) / y));
}

static int copy_float_rows(AssayDevice& d, const char* variant, int32_t type, int64_t rows, const void* from, int64_t from_columns,
                           void* to, int64_t to_columns) {
  constexpr int kThreads = 256;
  const dim3 grid = row_grid(rows, to_columns, kThreads);
  if (type == ASSAY_F32) {
    return launch(d, variant, Overlap::no, copy_rows<uint32_t>, grid, kThreads, 0, static_cast<const uint32_t*>(from), from_columns,
                  static_cast<uint32_t*>(to), to_columns, rows);
  }
  return launch(d, variant, Overlap::no, copy_rows<uint16_t>, grid, kThreads, 0, static_cast<const uint16_t*>(from), from_columns,
                static_cast<uint16_t*>(to), to_columns, rows);
}

uint64_t packed_bytes(int32_t type, int64_t rows, int64_t columns) {
  return packable(type, rows, columns) ? uint64_t(packed_layout(type, rows, columns).bytes) : 0;
}

int pack(AssayDevice& d, int32_t type, int64_t rows, int64_t columns, const void* raw, void* packed) {
  if (!packable(type, rows, columns)) return ASSAY_REFUSED;
  const PackedLayout l = packed_layout(type, rows, columns);
  if (!type_quantised(type)) {
    return copy_float_rows(d, "pack_float", type, rows, raw, columns, packed, l.codes_row / type_float_bytes(type));
  }
  constexpr int kThreads = 64;
  const int64_t file_row = columns / type_file_block_columns(type) * file_block_bytes(type);
  return launch(d, "pack_groups", Overlap::no, pack_groups, row_grid(rows, l.quads * kQuadGroups, kThreads), kThreads, 0, type,
                static_cast<const unsigned char*>(raw), file_row, static_cast<unsigned char*>(packed), l);
}

int unpack(AssayDevice& d, int32_t type, int64_t rows, int64_t columns, const void* packed, void* raw) {
  if (!packable(type, rows, columns)) return ASSAY_REFUSED;
  const PackedLayout l = packed_layout(type, rows, columns);
  if (!type_quantised(type)) {
    return copy_float_rows(d, "unpack_float", type, rows, packed, l.codes_row / type_float_bytes(type), raw, columns);
  }
  constexpr int kThreads = 32;
  return launch(d, "unpack_blocks", Overlap::no, unpack_blocks, row_grid(rows, columns / type_file_block_columns(type), kThreads),
                kThreads, 0, type, static_cast<const unsigned char*>(packed), l, static_cast<unsigned char*>(raw),
                file_block_bytes(type));
}

}  // namespace assay
