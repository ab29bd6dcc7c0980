// Finds races whatever the order: kernels that are compiled with -fsanitize=thread report every access to the functions of
// races.cpp (libtsan is not linked), which remember who wrote and read what. Two threads of a block that touch the same byte of
// shared memory, one of them writing, must have a barrier between them, or a warp collective if they are of one warp; what a
// thread wrote to device memory may be read or written in the same launch only by itself, or by its block behind a barrier.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace simt::races {

/// When a thread did something: barriers and warp collectives that it had passed.
struct Access {
  uint32_t barriers = 0, meetings = 0;
  uint16_t thread = 0xffff;  // nobody
};
/// Of one byte of shared memory.
struct Cell {
  Access write, read, read_before;  // the last ones; reads of two threads
};
struct Shadow {
  std::vector<Cell> cells;  // made when the block's first access is reported
};
/// The thread that runs; null where none does.
struct Running {
  Access now;
  uint64_t launch, block;
  std::byte* shared;
  size_t shared_bytes;
  Shadow* shadow;
};
bool running(Running& r);                           // fibers.cpp
[[noreturn]] void found(const char* words);         // fibers.cpp: a fault of the thread that runs
void touched(const void* from, size_t bytes, bool write);  // for accesses that nobody reports: asynchronous copies

}  // namespace simt::races
