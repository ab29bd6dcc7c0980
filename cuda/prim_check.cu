// See prim_check.h. A check gives each thread 16 words of input and takes 16 words of output from it; 64 blocks of 64 threads.
// Every NaN is written as the canonical one, so that outputs can be compared as bytes.
#include "cuda/prim_check.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <vector>

#include "cuda/device.h"

namespace assay {
namespace {

constexpr int kThreads = 64, kBlocks = 64, kWords = 16;
constexpr size_t kShared = kThreads * kWords * 4;
static_assert(kThreads * kBlocks * kWords == ASSAY_PRIMITIVE_WORDS);

__device__ __forceinline__ uint32_t bits_or_nan(float x) { return bits_of(is_nan(x) ? canonical_nan() : x); }

/// What a thread sees: its own words, all of the block's, all of the grid's.
struct Words {
  const uint32_t* in;
  uint32_t* out;
  const uint32_t* block_in;
  uint32_t* grid_out;
  uint32_t* shared;  // of the block: kWords per thread
};

struct Lane {
  static __device__ void run(const Words& w) {
    for (int i = 0; i < kWords; i++) w.out[i] = uint32_t(lane_of_warp() + 32 * i);
  }
};
struct BlockBarrier {  // each thread reads what another warp's thread wrote
  static __device__ void run(const Words& w) {
    const unsigned t = threadIdx.x;
    for (int i = 0; i < kWords; i++) {
      w.shared[t] = w.in[i];
      sync_block();
      w.out[i] = w.shared[kThreads - 1 - t];
      sync_block();
    }
  }
};
struct WarpBarrier {
  static __device__ void run(const Words& w) {
    const unsigned t = threadIdx.x;
    for (int i = 0; i < kWords; i++) {
      w.shared[t] = w.in[i];
      sync_warp();
      w.out[i] = w.shared[t ^ 31u];
      sync_warp();
    }
  }
};
struct ShuffleXor {
  static __device__ void run(const Words& w) {
    for (int i = 0; i < 5; i++) w.out[i] = shuffle_xor(w.in[i], 1 << i);
    for (int i = 5; i < 10; i++) w.out[i] = bits_of(shuffle_xor(float_of(w.in[i] & 0xff7fffffu), (7 * i) & 31));
    for (int i = 10; i < kWords; i += 2) {
      const uint64_t v = shuffle_xor(uint64_t(w.in[i]) << 32 | w.in[i + 1], i);
      w.out[i] = uint32_t(v >> 32);
      w.out[i + 1] = uint32_t(v);
    }
  }
};
struct Shuffle {
  static __device__ void run(const Words& w) {
    for (int i = 0; i < 12; i++) w.out[i] = shuffle(w.in[i], int(w.in[kWords - 1 - i] & 31u));
    for (int i = 12; i < kWords; i += 2) {
      const uint64_t v = shuffle(uint64_t(w.in[i]) << 32 | w.in[i + 1], i);
      w.out[i] = uint32_t(v >> 32);
      w.out[i + 1] = uint32_t(v);
    }
  }
};
struct Dp4a {
  static __device__ void run(const Words& w) {
    for (int i = 0; i < kWords; i++) w.out[i] = uint32_t(dp4a_s8(w.in[i], w.in[(i + 5) % kWords], int(w.in[(i + 9) % kWords])));
  }
};
struct MmaK16 {
  static __device__ void run(const Words& w) {
    for (int i = 0; i < kWords; i += 4) {
      int d[4];
      mma_s8_k16(d, w.in[i], w.in[i + 1], w.in[i + 2], i == 4 ? kMagicBits : i);
      for (int j = 0; j < 4; j++) w.out[i + j] = uint32_t(d[j]);
    }
  }
};
struct MmaK32 {
  static __device__ void run(const Words& w) {
    for (int i = 0; i < kWords; i += 8) {
      int d[4];
      mma_s8_k32(d, w.in + i, w.in[i + 4], w.in[i + 5], i == 0 ? kMagicBits : i);
      for (int j = 0; j < 4; j++) {
        w.out[i + j] = uint32_t(d[j]);
        w.out[i + 4 + j] = 0;
      }
    }
  }
};
/// Three groups of copies of different widths, taken as they come; read by the thread of the other warp.
struct CopyAsync {
  static __device__ void run(const Words& w) {
    const unsigned t = threadIdx.x, other = t ^ 32u;
    uint32_t* mine = w.shared + t * kWords;
    const uint32_t* others = w.shared + other * kWords;
    copy_async<16>(mine, w.in);
    copy_commit();
    copy_async<8>(mine + 4, w.in + 4);
    copy_async<8>(mine + 6, w.in + 6);
    copy_commit();
    for (int i = 8; i < kWords; i++) copy_async<4>(mine + i, w.in + i);
    copy_commit();
    copy_wait<2>();
    sync_block();
    for (int i = 0; i < 4; i++) w.out[i] = others[i];
    copy_wait<1>();
    sync_block();
    for (int i = 4; i < 8; i++) w.out[i] = others[i];
    copy_commit();  // an empty group
    copy_wait<1>();
    sync_block();
    for (int i = 8; i < kWords; i++) w.out[i] = others[i];
  }
};
struct CopyAsyncOrZero {
  static __device__ void run(const Words& w) {
    uint32_t* mine = w.shared + threadIdx.x * kWords;
    for (int i = 0; i < kWords; i++) mine[i] = 0x5a5a5a5au;
    copy_async_or_zero<16>(mine, w.in, w.in[0] % 2 != 0);
    copy_async_or_zero<16>(mine + 4, w.in + 4, w.in[1] % 2 != 0);
    copy_async_or_zero<8>(mine + 8, w.in + 8, w.in[2] % 2 != 0);
    copy_async_or_zero<8>(mine + 10, w.in + 10, w.in[3] % 2 != 0);
    for (int i = 12; i < kWords; i++) copy_async_or_zero<4>(mine + i, w.in + i, w.in[i] % 2 != 0);
    copy_commit();
    copy_wait<0>();
    for (int i = 0; i < kWords; i++) w.out[i] = mine[i];
  }
};
struct LoadOnce {
  static __device__ void run(const Words& w) {
    for (int i = 0; i < 8; i += 4) {
      const uint4 v = load_once(reinterpret_cast<const uint4*>(w.in + i));
      w.out[i] = v.x, w.out[i + 1] = v.y, w.out[i + 2] = v.z, w.out[i + 3] = v.w;
    }
    for (int i = 8; i < kWords; i += 2) {
      const uint2 v = load_once(reinterpret_cast<const uint2*>(w.in + i));
      w.out[i] = v.x, w.out[i + 1] = v.y;
    }
  }
};
struct Atomics {  // on the first words of the grid's output, which are 0 before
  static __device__ void run(const Words& w) {
    for (int i = 0; i < kWords; i++) {
      atomic_max(reinterpret_cast<int32_t*>(w.grid_out) + w.in[i] % 61, int32_t(w.in[i]));
      atomic_min(reinterpret_cast<int64_t*>(w.grid_out + 64) + w.in[i] % 59,
                 int64_t(uint64_t(w.in[i]) << 32 | w.in[(i + 1) % kWords]));
    }
  }
};
struct Widen {  // block b: all halves with the high bits of b
  static __device__ void run(const Words& w) {
    const uint32_t first = uint32_t(blockIdx.x * kThreads + threadIdx.x) * kWords;
    for (uint32_t i = 0; i < kWords; i++) w.out[i] = bits_or_nan(widen_f16(first + i));
  }
};
struct WidenBf16 {
  static __device__ void run(const Words& w) {
    const uint32_t first = uint32_t(blockIdx.x * kThreads + threadIdx.x) * kWords;
    for (uint32_t i = 0; i < kWords; i++) w.out[i] = bits_or_nan(widen_bf16(first + i));
  }
};
struct Magic {
  static __device__ void run(const Words& w) {
    for (int i = 0; i < kWords; i++) {
      const int32_t d = int32_t(w.in[i]) >> 10;  // |d| <= 2^21
      w.out[i] = bits_of(sub_f32(float_of(uint32_t(kMagicBits + d)), kMagic));
    }
  }
};
/// Not primitives, but compiled by another compiler for the device: the functions of numerics.h, on any bits and on usual values.
struct Numerics {
  static __device__ void run(const Words& w) {
    const float a = float_of(w.in[0]), b = float_of(w.in[1]), c = float_of(w.in[2]);
    const float usual = mul_f32(float(int32_t(w.in[3])), 0x1p-25f);  // within 64
    w.out[0] = bits_or_nan(fma_f32(a, b, c));
    w.out[1] = bits_or_nan(add_f32(a, b));
    w.out[2] = bits_or_nan(mul_f32(a, b));
    w.out[3] = bits_or_nan(div_f32(a, b));
    w.out[4] = bits_or_nan(sqrt_f32(a));
    w.out[5] = bits_or_nan(exp_f32(a));
    w.out[6] = bits_or_nan(exp_f32(usual));
    w.out[7] = bits_or_nan(log_f32(a));
    w.out[8] = bits_or_nan(silu_f32(usual));
    w.out[9] = bits_or_nan(sigmoid_f32(a));
    w.out[10] = bits_or_nan(softplus_f32(usual));
    w.out[11] = f16_of_f32(mul_f32(usual, 2048.0f)) | uint32_t(bf16_of_f32(a)) << 16;
    w.out[12] = bits_or_nan(f32_of_f16(uint16_t(w.in[4])));
    w.out[13] = bits_or_nan(f32_of_bf16(uint16_t(w.in[4])));
    w.out[14] = f16_of_f32(mul_f32(usual, 0x1p-20f));
    w.out[15] = uint32_t(ordered_of(a));
  }
};

template <class Check>
__global__ void __launch_bounds__(kThreads) check(const uint32_t* in, uint32_t* out) {
  SHARED_BYTES(bytes);
  wait_for_previous();
  const unsigned block = blockIdx.x * kThreads * kWords, own = block + threadIdx.x * kWords;
  Check::run({in + own, out + own, in + block, out, reinterpret_cast<uint32_t*>(bytes)});
}
/// Order between launches: each of a chain works on what all blocks of the one before wrote.
__global__ void __launch_bounds__(kThreads) step_of_chain(const uint32_t* in, uint32_t* out) {
  let_next_start();
  wait_for_previous();
  const unsigned own = (blockIdx.x * kThreads + threadIdx.x) * kWords;
  for (unsigned i = 0; i < kWords; i++) {
    const unsigned at = own + i, from = (at * 40503u + 12345u) % ASSAY_PRIMITIVE_WORDS;  // a permutation
    out[at] = in[from] * 2654435761u + at;
  }
}

/// Each thread's words go to the same thread of another block of its cluster; without clusters they are read from there. The
/// first barrier is taken in halves, as attention_cluster.cu does: what lies between them needs no other block.
template <int kCluster>
__global__ void __launch_bounds__(kThreads) between_blocks(const uint32_t* in, uint32_t* out, bool clusters) {
  SHARED_BYTES(bytes);
  const unsigned at = threadIdx.x * kWords, rank = blockIdx.x % kCluster, own = blockIdx.x * kThreads * kWords + at;
  auto* const shared = reinterpret_cast<uint4*>(bytes) + at / 4;
  if (clusters) cluster_arrive();
  wait_for_previous();
  if (clusters) {
    cluster_wait();
    const unsigned to = (unsigned(cluster_rank()) + 3) % kCluster;
    for (unsigned i = 0; i < kWords / 4; i++) {
      const uint32_t* w = in + own + 4 * i;
      store_to_block(shared + i, int(to), make_uint4(w[0], w[1], w[2], w[3]));
    }
    store_to_block(reinterpret_cast<uint32_t*>(shared) + 5, int(to), in[own] + rank);
    cluster_arrive();
    cluster_wait();
  }
  const unsigned from = (rank + kCluster - 3) % kCluster, other = own + (from - rank) * kThreads * kWords;
  for (unsigned i = 0; i < kWords; i++) {
    const uint32_t word = i == 5 ? in[other] + from : in[other + i];
    out[own + i] = clusters ? reinterpret_cast<const uint32_t*>(shared)[i] : word;
  }
}

template <class Check>
int run_one(AssayDevice& d, const char* name, uint32_t* in, uint32_t* out) {
  return launch(d, name, Overlap::no, check<Check>, dim3(kBlocks), kThreads, kShared, in, out);
}
template <int kCluster>
int run_clusters(AssayDevice& d, const char* name, uint32_t* in, uint32_t* out) {
  const bool clusters = clusters_at_once(d, between_blocks<kCluster>, kCluster, kThreads, kShared) > 0;
  return launch_in_clusters(d, name, Overlap::no, between_blocks<kCluster>, clusters ? kCluster : 1, dim3(kBlocks), kThreads, kShared, in, out,
                            clusters);
}
int run_chain(AssayDevice& d, const char* name, uint32_t* in, uint32_t* out) {
  for (int i = 0; i < 5; i++, std::swap(in, out))
    if (const int result = launch(d, name, Overlap::yes, step_of_chain, dim3(kBlocks), kThreads, 0, in, out); result != ASSAY_DONE)
      return result;
  return ASSAY_DONE;
}

constexpr struct {
  const char* name;
  int (*run)(AssayDevice&, const char* name, uint32_t* in, uint32_t* out);
} kChecks[] = {
    {"lane_of_warp", run_one<Lane>},
    {"sync_block", run_one<BlockBarrier>},
    {"sync_warp", run_one<WarpBarrier>},
    {"shuffle_xor", run_one<ShuffleXor>},
    {"shuffle", run_one<Shuffle>},
    {"dp4a_s8", run_one<Dp4a>},
    {"mma_s8_k16", run_one<MmaK16>},
    {"mma_s8_k32", run_one<MmaK32>},
    {"copy_async", run_one<CopyAsync>},
    {"copy_async_or_zero", run_one<CopyAsyncOrZero>},
    {"load_once", run_one<LoadOnce>},
    {"atomics", run_one<Atomics>},
    {"widen_f16", run_one<Widen>},
    {"widen_bf16", run_one<WidenBf16>},
    {"magic", run_one<Magic>},
    {"numerics", run_one<Numerics>},
    {"wait_for_previous", run_chain},
    {"clusters_8", run_clusters<8>},
    {"clusters_16", run_clusters<16>},  // what attention_cluster.cu uses; more than every device has to have
};

struct Memory {
  uint32_t *in = nullptr, *out = nullptr;
  cudaStream_t stream = nullptr;
  ~Memory() {
    cudaFree(in);
    cudaFree(out);
    if (stream) cudaStreamDestroy(stream);
  }
};
int run_check(AssayDevice& d, int which, const uint32_t* in, uint32_t* out) {
  constexpr size_t kBytes = ASSAY_PRIMITIVE_WORDS * 4;
  CUDA_TRY(d, cudaSetDevice(d.ordinal));
  cudaDeviceProp properties;
  CUDA_TRY(d, cudaGetDeviceProperties(&properties, d.ordinal));
  d.architecture = properties.major * 10 + properties.minor;
  Memory m;
  CUDA_TRY(d, cudaStreamCreateWithFlags(&m.stream, cudaStreamNonBlocking));
  d.stream = m.stream;
  CUDA_TRY(d, cudaMalloc(reinterpret_cast<void**>(&m.in), kBytes));
  CUDA_TRY(d, cudaMalloc(reinterpret_cast<void**>(&m.out), kBytes));
  CUDA_TRY(d, cudaMemcpyAsync(m.in, in, kBytes, cudaMemcpyHostToDevice, m.stream));
  CUDA_TRY(d, cudaMemsetAsync(m.out, 0, kBytes, m.stream));
  if (const int result = kChecks[which].run(d, kChecks[which].name, m.in, m.out); result != ASSAY_DONE) return result;
  CUDA_TRY(d, cudaMemcpyAsync(out, m.out, kBytes, cudaMemcpyDeviceToHost, m.stream));
  CUDA_TRY(d, cudaStreamSynchronize(m.stream));
  return ASSAY_DONE;
}

}  // namespace
}  // namespace assay

extern "C" __attribute__((visibility("default"))) const char* assay_primitive_name(int which) {
  return which >= 0 && size_t(which) < std::size(assay::kChecks) ? assay::kChecks[which].name : nullptr;
}
extern "C" __attribute__((visibility("default"))) int assay_check_primitive(int ordinal, int which, const uint32_t* in,
                                                                            uint32_t* out, char* words) {
  words[0] = 0;
  if (!assay_primitive_name(which)) return ASSAY_ERROR;
  AssayDevice d;
  d.ordinal = ordinal;
  const int result = assay::run_check(d, which, in, out);
  snprintf(words, 512, "%s", d.error.c_str());
  return result;
}
