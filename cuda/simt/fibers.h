// Runs a kernel on the CPU. Each thread of a block is a fiber; a barrier or warp collective switches to another one. Order of
// blocks and fibers is shuffled by ASSAY_SIMT_SEED; some blocks let one warp run ahead as far as it gets, others keep all in
// step. Shared memory is NaN (0xff bytes) when a block starts, with guard bytes and guard pages around it.
//
// A fault ends the launch and is told in words with kernel, block and thread:
//  - threads that wait for others which ended, or wait elsewhere: barriers and collectives that not all reach;
//  - two threads that meet in barriers or collectives of different source lines;
//  - shared memory written outside of what the launch asked for (reads too, under AddressSanitizer);
//  - an asynchronous copy that is misaligned, or whose target is not the block's shared memory;
//  - shared memory of another block of the cluster written before a barrier of the cluster, or after that block has ended;
//  - a kernel launched with Overlap::yes in which a thread does not call wait_for_previous() exactly once.
// Asynchronous copies happen at the wait that covers them (ASSAY_SIMT_COPIES=late, the default), at once (early) or either
// (random): a wait that covers too little and a buffer reused too soon both give wrong numbers.
//
// One process runs one kernel at a time (runtime.cpp holds a lock), so the state of the running fiber is plain globals.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "cuda/simt/prim_simt.h"

namespace simt {

struct Launch {
  std::string name;
  dim3 grid;
  unsigned threads = 0;
  size_t shared = 0;
  bool overlap = false;  // may start before the kernel before it has ended
  std::function<void()> body;
  unsigned cluster = 1;  // so many blocks, consecutive in x, run at the same time
};

/// Bytes of shared memory that a block may have; threads of a block; threads that may be held between start and finish.
inline constexpr size_t kSharedLimit = 227 << 10;
inline constexpr unsigned kClusterLimit = 16;
inline constexpr unsigned kThreadLimit = 1024, kHeldThreads = 4096;

/// A launch between its start and its end.
struct Started;
struct EndStarted {
  void operator()(Started*) const;
};
using StartedPointer = std::unique_ptr<Started, EndStarted>;

/// Runs all blocks up to wait_for_previous(). Precondition: may_start_early(launch).
StartedPointer start(const Launch& launch, uint64_t seed);
bool may_start_early(const Launch& launch);
/// Words of the fault, or "".
std::string finish(Started& started);
/// All of it, block after block.
std::string run(const Launch& launch, uint64_t seed);

/// Where the process is now, for messages: "kernel gemv, block (0,1,0), thread 17"; "" outside of kernels.
/// For a signal handler: allocates nothing.
void describe_running(char* text, size_t size);
/// Whether the address lies in the guard page of a fiber's stack.
bool in_stack_guard(const void* address);

}  // namespace simt
