// One token row times quantised weights: the decode path. Order of sums: engine/NUMERICS.md, "Quantised weights".
//
// Thread = lane of the rule: eight neighbouring threads own two rows, each thread the groups j, j + 8, ... of both, so that no
// sum is split and the fold is three shuffles. A warp's task is eight rows (four thread-groups of two); with `gated` four pairs
// of a gate row and the up row of the same number. Where rows are so few that no warp would get a second task of four, tasks
// have four rows and thread-groups own one. Warps walk tasks blockIdx + grid * (warp + workers * round): every processor
// gets the same number of tasks, give or take one. Up to three matrices that share x are one list of tasks.
//
// Weights stream through a ring of asynchronous copies in shared memory that belongs to the thread (the K-quants' super scales
// to the warp), so the loop has no barrier. Unit is a quad of blocks, 1024 columns. A part of the ring is filled before
// wait_for_previous(), while the kernel before this one still runs, the rest behind the loads of x, which would else wait
// for all of it.
//
// x is quantised by every block for itself into shared memory (quantise.cuh), after an RMS norm where one is asked for: x is
// read from L2 by all blocks, but no launch and no wait lies between. Two rows per thread share what they read of it.
//
// Bytes moved: each packed byte once; x, norm once per block.
//
// PRECOND: one row; columns a multiple of the type's blocks; matrices of one type and width; x, norm aligned to 16, weights to 256 bytes;
// gated: two matrices of as many rows.
#include <algorithm>
#include <cstdint>

#include "cuda/device.h"
#include "cuda/quant_group.cuh"
#include "cuda/quantise.cuh"

namespace assay {

constexpr int kGemvThreads = 256, kGemvWarps = 8, kLargestRing = 8;
/// Bytes of a block that are on their way before x is asked for, about what memory brings while the kernel before this one ends:
/// x waits behind all of them.
constexpr int kEarlyBytes = 56 << 10;
/// Rows of a task; kRows: of a thread-group.
template <int kRows>
constexpr int kTaskRows = 4 * kRows;

struct GemvMatrix {
  const unsigned char* data;
  int64_t high, scales, super;  // offsets of the planes
  const float* bias;
  float* y;
  int32_t rows;
  int32_t first_task;
};
struct GemvArgs {
  GemvMatrix w[3];
  int64_t codes_row, high_row, scales_row, super_row;
  const float* x;
  const float* norm;
  const float* residual;
  float eps;
  int32_t count, gated;
  int32_t columns, blocks, quads;
  int32_t tasks;
  int32_t workers, ring_quads;  // warps that have a ring, quads in each
  int32_t early_quads;          // that are filled before the kernel before this one has ended
};

/// Bytes of a warp's quad in the ring, by part: codes [row][block 4][part][thread] 16, high alike, scales [row][thread] of four
/// blocks, super [thread-group 4][row][block 4] 4.
template <int32_t kType, int kRows>
struct RingQuad {
  static constexpr int kParts = type_code_parts(kType), kHighBytes = type_high_bytes(kType);
  static constexpr int kScaleBytes = 4 * type_scale_bytes(kType);
  static constexpr int kPlaces = 4 * kRows;  // pairs of row and block
  static constexpr int kHigh = kPlaces * kParts * 512, kScales = kHigh + kPlaces * 32 * kHighBytes;
  static constexpr int kSuper = kScales + kRows * 32 * kScaleBytes, kBytes = kSuper + (type_k_quant(kType) ? kRows * 64 : 0);
};

/// The rows of a thread in a task.
template <int kRows>
struct TaskRows {
  int matrix[kRows], row[kRows];
};
template <int kRows>
__device__ __forceinline__ TaskRows<kRows> rows_of_task(const GemvArgs& a, int task, int thread_group) {
  TaskRows<kRows> rows;
  const int m = a.count > 2 && task >= a.w[2].first_task ? 2 : a.count > 1 && task >= a.w[1].first_task ? 1 : 0;
#pragma unroll
  for (int r = 0; r < kRows; r++) {
    const bool pair = kRows == 2 && a.gated;  // a row of each matrix
    rows.matrix[r] = pair ? r : m;
    rows.row[r] = pair ? task * 4 + thread_group : (task - a.w[m].first_task) * kTaskRows<kRows> + kRows * thread_group + r;
  }
  return rows;
}

/// copy_wait for a number that is known at run time: ring_quads - 1 + kMore. Three branches, which all threads take alike, are
/// quicker here than a jump by a table.
template <int kMore>
__device__ __forceinline__ void wait_for_ring(int ring_quads) {
  static_assert(kLargestRing == 8);
  const int r = ring_quads - 1;
  if (r & 4) {
    if (r & 2) {
      if (r & 1) return copy_wait<7 + kMore>();
      return copy_wait<6 + kMore>();
    }
    if (r & 1) return copy_wait<5 + kMore>();
    return copy_wait<4 + kMore>();
  }
  if (r & 2) {
    if (r & 1) return copy_wait<3 + kMore>();
    return copy_wait<2 + kMore>();
  }
  if (r & 1) return copy_wait<1 + kMore>();
  return copy_wait<0 + kMore>();
}

/// What a thread copies: where its rows lie, and how far it has come. Rows beyond the end are the last one again. Addresses are
/// moved on just before the next copies: a copy reads them late, and who changes one waits for it.
template <int32_t kType, int kRows>
struct RingFiller {
  using Quad = RingQuad<kType, kRows>;
  const unsigned char *codes[kRows] = {}, *high[kRows] = {}, *scales[kRows] = {}, *super = nullptr;
  int to_codes, to_high, to_scales, to_super;  // in shared memory
  int task, step, quad = -1, slot;

  /// ring: the warp's, an offset in shared memory.
  __device__ __forceinline__ RingFiller(const GemvArgs& a, int ring, int first_task, int step_of_tasks) : task(first_task), step(step_of_tasks) {
    const int lane = lane_of_warp(), j = lane % 8;
    slot = a.ring_quads - 1;
    const int last = ring + slot * Quad::kBytes;
    to_codes = last + lane * 16, to_high = last + Quad::kHigh + lane * Quad::kHighBytes;
    to_scales = last + Quad::kScales + lane * Quad::kScaleBytes;
    to_super = last + Quad::kSuper + (lane / 8 * 4 * kRows + j) * 4;
    locate(a, -1);
  }
  /// To quad `from` of the task.
  __device__ __forceinline__ void locate(const GemvArgs& a, int from) {
    if (task >= a.tasks) return;
    const int lane = lane_of_warp(), j = lane % 8;
    const TaskRows<kRows> rows = rows_of_task<kRows>(a, task, lane / 8);
#pragma unroll
    for (int r = 0; r < kRows; r++) {
      const GemvMatrix& m = a.w[rows.matrix[r]];
      const int64_t row = rows.row[r] < m.rows ? rows.row[r] : m.rows - 1;
      codes[r] = m.data + row * a.codes_row + j * 16 + from * kCodesQuad;
      if constexpr (Quad::kHighBytes > 0) high[r] = m.data + m.high + row * a.high_row + j * Quad::kHighBytes + from * kHighQuad;
      scales[r] = m.data + m.scales + row * a.scales_row + j * Quad::kScaleBytes + from * kScalesQuad;
      // thread j copies the word of block j mod 4 of row j / 4
      if constexpr (type_k_quant(kType)) {
        if (j / 4 == r) super = m.data + m.super + row * a.super_row + j % 4 * 4 + from * kSuperQuad;
      }
    }
  }
  /// Queues the next quad as one group of copies, an empty one behind the last task.
  __device__ __forceinline__ void fill(const GemvArgs& a, unsigned char* shared) {
    if (task < a.tasks) {
      if (++quad == a.quads) {
        quad = 0;
        task += step;
        locate(a, 0);
      } else {
#pragma unroll
        for (int r = 0; r < kRows; r++) {
          codes[r] += kCodesQuad;
          if constexpr (Quad::kHighBytes > 0) high[r] += kHighQuad;
          scales[r] += kScalesQuad;
        }
        if constexpr (type_k_quant(kType)) super += kSuperQuad;
      }
      const bool wraps = ++slot == a.ring_quads;
      const int move = wraps ? (1 - a.ring_quads) * Quad::kBytes : Quad::kBytes;
      if (wraps) slot = 0;
      to_codes += move, to_scales += move;
      if constexpr (Quad::kHighBytes > 0) to_high += move;
      if constexpr (type_k_quant(kType)) to_super += move;
    }
    if (task < a.tasks) {
      if ((quad + 1) * kQuadBlocks <= a.blocks) {
        copy_quad<true>(a, shared);
      } else {
        copy_quad<false>(a, shared);
      }
    }
    copy_commit();
  }

 private:
  static constexpr int kCodesQuad = kQuadBlocks * Quad::kParts * 128, kHighQuad = kQuadGroups * Quad::kHighBytes;
  static constexpr int kScalesQuad = 8 * Quad::kScaleBytes, kSuperQuad = kQuadBlocks * 4;

  /// kWhole: none of the quad's blocks is padding.
  template <bool kWhole>
  __device__ __forceinline__ void copy_quad(const GemvArgs& a, unsigned char* shared) {
#pragma unroll
    for (int r = 0; r < kRows; r++) {
#pragma unroll
      for (int block = 0; block < kQuadBlocks; block++) {
        const int place = r * kQuadBlocks + block;
        const bool real = kWhole || quad * kQuadBlocks + block < a.blocks;
#pragma unroll
        for (int part = 0; part < Quad::kParts; part++) {
          unsigned char* to = shared + to_codes + (place * Quad::kParts + part) * 512;
          const int from = (block * Quad::kParts + part) * 128;
          if constexpr (kWhole) {
            copy_async<16>(to, codes[r] + from);
          } else {
            copy_async_or_zero<16>(to, codes[r] + (real ? from : 0), real);
          }
        }
        if constexpr (Quad::kHighBytes > 0) {
          unsigned char* to = shared + to_high + place * 32 * Quad::kHighBytes;
          const int from = block * 8 * Quad::kHighBytes;
          if constexpr (kWhole) {
            copy_async<Quad::kHighBytes>(to, high[r] + from);
          } else {
            copy_async_or_zero<Quad::kHighBytes>(to, high[r] + (real ? from : 0), real);
          }
        }
      }
      copy_async<Quad::kScaleBytes>(shared + to_scales + r * 32 * Quad::kScaleBytes, scales[r]);
    }
    if constexpr (type_k_quant(kType)) {
      if (lane_of_warp() % 8 < 4 * kRows) copy_async<4>(shared + to_super, super);
    }
  }
};

/// Offsets in shared memory behind the rings: codes of x [block][digit][half][lane] 16, scales [group], sums [group] (types
/// with a minimum), columns of x on their way to codes, the norm's weights, 256 floats.
struct GemvShared {
  int codes, scales, sums, staged, norm, lanes, bytes;
};
constexpr int kStagedColumns = 12288;
__host__ __device__ __forceinline__ GemvShared gemv_shared(int ring_bytes, int digits, int quads, int norm_columns) {
  GemvShared s;
  s.codes = ring_bytes;
  s.scales = s.codes + quads * kQuadColumns * digits;
  s.sums = s.scales + quads * kQuadGroups * 4;
  s.staged = s.sums + quads * kQuadGroups * 4;
  s.norm = s.staged + (quads * kQuadColumns < kStagedColumns ? quads * kQuadColumns : kStagedColumns) * 4;
  s.lanes = s.norm + norm_columns * 4;
  s.bytes = s.lanes + (norm_columns > 0 ? kFloatLanes * 4 : 0);
  return s;
}

/// What a thread loads of the kStagedColumns columns of x from `first` on, by pieces of four. +0 where nothing is.
constexpr int kPieces = kStagedColumns / 4 / kGemvThreads;
struct PartOfRow {
  float4 piece[kPieces];
};
__device__ __forceinline__ PartOfRow part_of_row(const GemvArgs& a, int first) {
  PartOfRow part;
#pragma unroll
  for (int i = 0; i < kPieces; i++) {
    const int k = first + 4 * ((int)threadIdx.x + i * kGemvThreads);
    part.piece[i] = k < a.columns ? *reinterpret_cast<const float4*>(a.x + k) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
  return part;
}

/// x to integers in shared memory, after the norm, whose factor r is; part: part_of_row(a, 0). It goes through shared memory so
/// that this is a short loop: a kernel's code is cold when it starts, and comes from where the weights come from.
template <int kDigits>
__device__ __forceinline__ void quantise_row(const GemvArgs& a, unsigned char* shared, const GemvShared& at, float r, PartOfRow& part) {
  const int columns = a.quads * kQuadColumns;  // a multiple of 1024: warps stay whole
  float* const staged = reinterpret_cast<float*>(shared + at.staged);
  for (int first = 0; first < columns; first += kStagedColumns) {
    if (first > 0) {
      part = part_of_row(a, first);
      sync_block();  // what was staged has been read
    }
    const int here = columns - first < kStagedColumns ? columns - first : kStagedColumns;
#pragma unroll
    for (int i = 0; i < kPieces; i++) {
      const int piece = (int)threadIdx.x + i * kGemvThreads;
      if (4 * piece < here) *reinterpret_cast<float4*>(staged + 4 * piece) = part.piece[i];
    }
    sync_block();
#pragma unroll 1
    for (int eight = (int)threadIdx.x; eight < here / 8; eight += kGemvThreads) {
      const float4 low = reinterpret_cast<const float4*>(staged)[2 * eight], high = reinterpret_cast<const float4*>(staged)[2 * eight + 1];
      float e[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      const int k = first + 8 * eight, u = k / 8;
      if (a.norm && k < a.columns) {
        const float* w = reinterpret_cast<const float*>(shared + at.norm) + k;  // this thread copied them
#pragma unroll
        for (int n = 0; n < 8; n++) e[n] = mul_f32(mul_f32(e[n], r), w[n]);
      }
      const QuantisedEight<kDigits> q = quantise_8<kDigits>(e);
      const int g = u / 4, b = g / kBlockGroups, j = g % kBlockGroups, part_of_group = u % 4;
#pragma unroll
      for (int d = 0; d < kDigits; d++) {
        *reinterpret_cast<uint2*>(shared + at.codes + ((b * kDigits + d) * 2 + part_of_group / 2) * 128 + j * 16 + part_of_group % 2 * 8) =
            make_uint2(q.words[d][0], q.words[d][1]);
      }
      if (part_of_group == 0) {
        reinterpret_cast<float*>(shared + at.scales)[g] = q.scale;
        reinterpret_cast<float*>(shared + at.sums)[g] = (float)q.sum;  // exact: below 2^24
      }
    }
  }
}

template <int32_t kType, int kDigits, int kRows>
__global__ void __launch_bounds__(kGemvThreads, 1) gemv(const GemvArgs a) {
  using Quad = RingQuad<kType, kRows>;
  SHARED_BYTES(shared);
  const int warp = (int)threadIdx.x / 32, lane = lane_of_warp(), j = lane % 8;
  const bool worker = warp < a.workers;
  const GemvShared at = gemv_shared(a.workers * a.ring_quads * Quad::kBytes, kDigits, a.quads, a.norm ? a.columns : 0);
  let_next_start();

  if (a.norm) {
    for (int k = 8 * (int)threadIdx.x; k < a.columns; k += 8 * kGemvThreads) {
      copy_async<16>(shared + at.norm + 4 * k, a.norm + k);
      copy_async<16>(shared + at.norm + 4 * k + 16, a.norm + k + 4);
    }
  }
  copy_commit();
  const int ring = (worker ? warp : 0) * a.ring_quads * Quad::kBytes, first_task = worker ? (int)(blockIdx.x + gridDim.x * warp) : a.tasks;
  RingFiller<kType, kRows> filler(a, ring, first_task, (int)gridDim.x * a.workers);
  HeldRow held;
  PartOfRow part;
  for (int i = 0;; i++) {
    if (i == a.early_quads) {
      wait_for_previous();
      if (a.norm) held = hold_row(a.x, a.columns);
      part = part_of_row(a, 0);
    }
    if (i >= a.ring_quads) break;
    filler.fill(a, shared);
  }
  float r = 1.0f;
  if (a.norm) {
    wait_for_ring<1>(a.ring_quads);  // the norm's group is the oldest, ring_quads were closed behind it
    r = block_reciprocal_rms(held, a.x, a.columns, a.eps, reinterpret_cast<float*>(shared + at.lanes));
  }
  quantise_row<kDigits>(a, shared, at, r, part);
  sync_block();

  const float* scales = reinterpret_cast<const float*>(shared + at.scales) + j;
  const float* sums = reinterpret_cast<const float*>(shared + at.sums) + j;
  int slot = 0;
  for (int task = first_task; task < a.tasks; task += filler.step) {
    // Thread j < kRows of a thread-group writes its row j (gated: thread 0); what they add is fetched early.
    const TaskRows<kRows> rows = rows_of_task<kRows>(a, task, lane / 8);
    const int mine = j & (kRows - 1);
    const GemvMatrix& m = a.w[mine ? rows.matrix[kRows - 1] : rows.matrix[0]];
    const int row = mine ? rows.row[kRows - 1] : rows.row[0];
    const bool writes = row < m.rows && j < kRows;  // gated: both fetch, thread 0 writes
    const float bias = writes && m.bias ? m.bias[row] : 0.0f;
    const float residual = writes && a.residual ? a.residual[row] : 0.0f;
    float acc[kRows] = {};
    for (int quad = 0; quad < a.quads; quad++) {
      wait_for_ring<0>(a.ring_quads);
      if constexpr (type_k_quant(kType)) sync_warp();  // super: here it is all there
      const unsigned char* const here = shared + ring + slot * Quad::kBytes;
      if (++slot == a.ring_quads) slot = 0;
      uint32_t scale_words[kRows][Quad::kScaleBytes / 4];
      uint4 super[kRows];
#pragma unroll
      for (int r = 0; r < kRows; r++) {
        const unsigned char* p = here + Quad::kScales + (r * 32 + lane) * Quad::kScaleBytes;
        if constexpr (Quad::kScaleBytes == 8) {
          const uint2 v = *reinterpret_cast<const uint2*>(p);
          scale_words[r][0] = v.x, scale_words[r][1] = v.y;
        } else {
          const uint4 v = *reinterpret_cast<const uint4*>(p);
          scale_words[r][0] = v.x, scale_words[r][1] = v.y, scale_words[r][2] = v.z, scale_words[r][3] = v.w;
        }
        super[r] = make_uint4(0, 0, 0, 0);
        if constexpr (type_k_quant(kType)) {
          super[r] = *reinterpret_cast<const uint4*>(here + Quad::kSuper + (lane / 8 * kRows + r) * 16);
        }
      }
#pragma unroll
      for (int block = 0; block < kQuadBlocks; block++) {
        const int b = quad * kQuadBlocks + block;
        uint4 x[kDigits][2];
#pragma unroll
        for (int d = 0; d < kDigits; d++) {
#pragma unroll
          for (int h = 0; h < 2; h++) {
            x[d][h] = *reinterpret_cast<const uint4*>(shared + at.codes + ((b * kDigits + d) * 2 + h) * 128 + j * 16);
          }
        }
        const float x_scale = scales[b * kBlockGroups], x_sum = type_has_minimum(kType) ? sums[b * kBlockGroups] : 0.0f;
#pragma unroll
        for (int r = 0; r < kRows; r++) {
          const int place = r * kQuadBlocks + block;
          uint4 codes[Quad::kParts];
#pragma unroll
          for (int part_of_group = 0; part_of_group < Quad::kParts; part_of_group++) {
            codes[part_of_group] = *reinterpret_cast<const uint4*>(here + (place * Quad::kParts + part_of_group) * 512 + lane * 16);
          }
          uint2 upper = make_uint2(0, 0);
          if constexpr (Quad::kHighBytes == 4) {
            upper.x = *reinterpret_cast<const uint32_t*>(here + Quad::kHigh + (place * 32 + lane) * 4);
          } else if constexpr (Quad::kHighBytes == 8) {
            upper = *reinterpret_cast<const uint2*>(here + Quad::kHigh + (place * 32 + lane) * 8);
          }
          const uint32_t scale = Quad::kScaleBytes == 16 ? scale_words[r][block] : scale_words[r][block / 2] >> (block % 2 * 16);
          acc[r] = add_group<kType, kDigits>(acc[r], codes, upper, widened_scales<kType>(scale, word_of(super[r], block)), x, x_scale, x_sum);
        }
      }
      if constexpr (type_k_quant(kType)) sync_warp();  // nobody reads super any more
      filler.fill(a, shared);
    }
#pragma unroll
    for (int r = 0; r < kRows; r++) {
#pragma unroll
      for (int mask = 1; mask <= 4; mask *= 2) acc[r] = add_f32(acc[r], shuffle_xor(acc[r], mask));
    }
    // Sums are never -0, so adding +0 for a bias or residual that is not there changes nothing.
    float v = add_f32(mine ? acc[kRows - 1] : acc[0], bias);
    if (kRows == 2 && a.gated) {
      const float up = shuffle_xor(v, 1);
      if (writes && j == 0) m.y[row] = mul_f32(silu_f32(v), up);
    } else if (writes) {
      m.y[row] = add_f32(residual, v);
    }
  }
}

// ---- host
/// Warps with a ring and its length, for `per_processor` tasks on each processor: no more warps than tasks, as few left over in
/// the last round as may be, at least four where there is work for them, and two quads in each ring (one where the activations
/// of a wide row leave no more). `fixed` bytes are taken by the activations. False: it does not fit.
static bool choose_rings(int64_t per_processor, int64_t quad_bytes, int64_t fixed, int64_t limit, int32_t& workers,
                         int32_t& ring_quads) {
  const int64_t most = std::min<int64_t>(per_processor, kGemvWarps), least = std::min<int64_t>(most, 4);
  for (const int64_t quads : {2, 1}) {
    int64_t best = 0, best_steps = 0;
    for (int64_t w = least; w <= most; w++) {
      const int64_t steps = (per_processor + w - 1) / w * w;
      if (w * quads * quad_bytes + fixed > limit || (best && steps > best_steps)) continue;
      best = w, best_steps = steps;
    }
    if (!best) continue;
    workers = int32_t(best);
    ring_quads = int32_t(std::min<int64_t>(kLargestRing, (limit - fixed) / (best * quad_bytes)));
    return true;
  }
  return false;
}

bool gemv_takes(const AssayLinear& a) {
  const AssayWeight& first = a.w[0];
  if (a.rows != 1 || a.count < 1 || a.count > 3 || !type_quantised(first.type) || a.activations == ASSAY_ACTIVATIONS_F32 ||
      first.columns <= 0 || first.columns % type_file_block_columns(first.type) != 0 || first.columns > INT32_MAX / 4) {
    return false;
  }
  if ((reinterpret_cast<uintptr_t>(a.x) | reinterpret_cast<uintptr_t>(a.norm)) % 16 != 0) return false;
  if (a.gated && (a.count != 2 || a.w[1].rows != first.rows || a.residual)) return false;
  if (a.residual && a.count != 1) return false;
  for (int i = 0; i < a.count; i++) {
    const AssayWeight& w = a.w[i];
    if (w.type != first.type || w.columns != first.columns || w.rows <= 0 || w.rows > INT32_MAX / 2 ||
        reinterpret_cast<uintptr_t>(w.data) % 256 != 0) {
      return false;
    }
  }
  return true;
}

int quant_gemv(AssayDevice& d, const AssayLinear& a) {
  if (!gemv_takes(a)) return ASSAY_REFUSED;
  const AssayWeight& first = a.w[0];
  GemvArgs g = {};
  const PackedLayout l = packed_layout(first.type, 1, first.columns);
  g.codes_row = l.codes_row, g.high_row = l.high_row, g.scales_row = l.scales_row, g.super_row = l.super_row;
  const auto tasks_of = [&](int rows) {  // per thread-group
    int64_t tasks = 0;
    for (int i = 0; i < a.count; i++) tasks += (a.w[i].rows + 4 * rows - 1) / (4 * rows);
    return a.gated ? (first.rows + 3) / 4 : tasks;
  };
  const int rows = !a.gated && tasks_of(1) <= int64_t(d.processors) * kGemvWarps ? 1 : 2;
  const int64_t tasks = tasks_of(rows);
  int64_t before = 0;
  for (int i = 0; i < a.count; i++) {
    const AssayWeight& w = a.w[i];
    const PackedLayout planes = packed_layout(w.type, w.rows, w.columns);
    g.w[i] = {static_cast<const unsigned char*>(w.data), planes.high, planes.scales, planes.super, a.bias[i], a.y[i], int32_t(w.rows),
              int32_t(before)};
    before += (w.rows + 4 * rows - 1) / (4 * rows);
  }
  g.x = a.x, g.norm = a.norm, g.residual = a.residual, g.eps = a.eps;
  g.count = a.count, g.gated = a.gated ? 1 : 0;
  g.columns = int32_t(first.columns), g.blocks = int32_t(l.blocks), g.quads = int32_t(l.quads), g.tasks = int32_t(tasks);

  int result = ASSAY_REFUSED;
  with_type_and_digits(first.type, a.activations, [&]<int32_t kType, int kDigits>() {
    const int64_t quad_bytes = rows == 1 ? RingQuad<kType, 1>::kBytes : RingQuad<kType, 2>::kBytes;
    const int norm_columns = a.norm ? g.columns : 0;
    const int64_t fixed = gemv_shared(0, kDigits, g.quads, norm_columns).bytes, all = int64_t(d.shared_limit);
    const int64_t per_processor = (tasks + d.processors - 1) / d.processors;
    if (!choose_rings(per_processor, quad_bytes, fixed, all, g.workers, g.ring_quads)) return;
    g.early_quads = int32_t(std::clamp<int64_t>(kEarlyBytes / (g.workers * quad_bytes), 1, g.ring_quads));
    // More than half of a multiprocessor's shared memory: a launch that starts early, while blocks of the one before are still
    // there, would else put two blocks on some multiprocessors and none on others (measured: 48 of 132).
    const int64_t shared = std::max<int64_t>(gemv_shared(g.workers * g.ring_quads * int(quad_bytes), kDigits, g.quads, norm_columns).bytes,
                                             all / 2 + 1024);
    const dim3 grid = dim3(unsigned(std::min<int64_t>(d.processors, tasks)));
    const std::string name = variant_name(rows == 1 ? "gemv_r1" : "gemv", kType, kDigits);
    result = launch(d, name.c_str(), Overlap::yes, rows == 1 ? gemv<kType, kDigits, 1> : gemv<kType, kDigits, 2>, grid, kGemvThreads,
                    size_t(shared), g);
  });
  return result;
}

}  // namespace assay
