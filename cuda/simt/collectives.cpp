// What kernels call (prim_simt.h): barriers, warp collectives, asynchronous copies, order between launches, clusters.
#include <cstring>

#include "cuda/simt/arena.h"
#include "cuda/simt/block.h"

namespace simt {
namespace {

bool same(const Site& a, const Site& b) { return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0); }

void perform(const Copy& c) {
  races::touched(c.shared, c.bytes, true);
  if (c.real) races::touched(c.global, c.bytes, false);
  if (c.real)
    memcpy(c.shared, c.global, c.bytes);
  else
    memset(c.shared, 0, c.bytes);
}

}  // namespace

void perform_copies(Fiber& f, unsigned group) {
  size_t n = 0;
  while (n < f.copies.size() && f.copies[n].group < group) perform(f.copies[n++]);
  f.copies.erase(f.copies.begin(), f.copies.begin() + ptrdiff_t(n));
}

unsigned char* shared_memory() { return reinterpret_cast<unsigned char*>(block->shared); }

void sync_block(Site site) {
  Block& b = *block;
  if (b.arrived == 0) b.barrier = site;
  if (!same(site, b.barrier))
    fault("comes to the barrier %s while others wait at %s", place_of(site).text, place_of(b.barrier).text);
  if (++b.arrived == b.launch->threads) {
    b.arrived = 0;
    b.barriers++;
    wake(b, 0, b.launch->threads, Waits::block);
    return;
  }
  fiber->waits = Waits::block;
  fiber->site = site;
  suspend();
}

namespace {
/// The product of a warp: slots hold the operands and then, in words 0..3, each lane's results without c.
#ifndef __clang__
__attribute__((optimize("O3")))
#endif
void multiply(Slot* slots, int chunks) {  // chunks of 16 inputs
  int16_t a[16][32], b[8][32];
  for (int r = 0; r < 8; r++)
    for (int q = 0; q < 4; q++)
      for (int i = 0; i < 4; i++) {
        const uint32_t* w = slots[4 * r + q].words;
        for (int chunk = 0; chunk < chunks; chunk++) {
          const int k = 16 * chunk + 4 * q + i;
          a[r][k] = int8_t(w[2 * chunk] >> 8 * i);
          a[r + 8][k] = int8_t(w[2 * chunk + 1] >> 8 * i);
          b[r][k] = int8_t(w[4 + chunk] >> 8 * i);
        }
      }
  for (int r = 0; r < 16; r++)
    for (int c = 0; c < 8; c++) {
      int sum = 0;
      for (int k = 0; k < 16 * chunks; k++) sum += int(a[r][k]) * int(b[c][k]);
      slots[4 * (r % 8) + c / 2].words[c % 2 + 2 * (r / 8)] = uint32_t(sum);
    }
}
}  // namespace

const Slot* meet(Collective kind, const uint32_t* words, int count, Site site) {
  Block& b = *block;
  const unsigned number = fiber->thread / 32, lane = fiber->thread % 32;
  Warp& w = b.warps[number];
  if (w.arrived == 0) w.site = site, w.kind = kind;
  if (kind != w.kind || !same(site, w.site))
    fault("comes to the warp collective %s while other lanes wait at %s", place_of(site).text, place_of(w.site).text);
  Slot* slots = w.slots[w.generation & 1];
  for (int i = 0; i < count; i++) slots[lane].words[i] = words[i];
  if (++w.arrived < 32) {
    fiber->waits = Waits::warp;
    fiber->site = site;
    suspend();
    return slots;
  }
  w.arrived = 0;
  w.generation++;
  if (kind == Collective::mma_k16 || kind == Collective::mma_k32) multiply(slots, kind == Collective::mma_k32 ? 2 : 1);
  wake(b, 32 * number, 32 * number + 32, Waits::warp);
  return slots;
}

void copy_async(void* shared, const void* global, unsigned bytes, bool real, Site site) {
  const auto* to = static_cast<const std::byte*>(shared);
  const Block& b = *block;
  if (to < b.shared || to + bytes > b.shared + b.launch->shared)
    fault("%s: an asynchronous copy to byte %td of %zu of shared memory", place_of(site).text, to - b.shared, b.launch->shared);
  if (reinterpret_cast<uintptr_t>(shared) % bytes || reinterpret_cast<uintptr_t>(global) % bytes)
    fault("%s: a misaligned asynchronous copy of %u bytes", place_of(site).text, bytes);
  if (real && !arena::holds(global, bytes)) {
    char text[128];
    arena::describe(global, text, sizeof text);
    fault("%s: an asynchronous copy from outside of device memory: %s", place_of(site).text, text);
  }
  races::touched(shared, bytes, true);  // from now to the wait
  const Copy copy{shared, global, bytes, fiber->open_group, real};
  const bool now = copies_now == Copies::early || (copies_now == Copies::random && block->random.below(2));
  if (now)
    perform(copy);
  else
    fiber->copies.push_back(copy);
}
void copy_commit() { fiber->open_group++; }
void copy_wait(unsigned pending) {
  if (fiber->open_group > pending) perform_copies(*fiber, fiber->open_group - pending);
}

void wait_for_previous(Site site) {
  fiber->calls++;
  if (!block->launch->overlap) return;
  if (fiber->calls > 1) fault("%s: calls wait_for_previous() again", place_of(site).text);
  if (!block->hold) return;
  fiber->waits = Waits::previous;
  fiber->site = site;
  suspend();
}

unsigned cluster_rank() { return block->rank; }
void cluster_arrive(Site site) {
  if (fiber->cluster_arrivals != fiber->cluster_waits) fault("%s: arrives again without waiting", place_of(site).text);
  fiber->cluster_arrivals++;
  Cluster& c = *block->cluster;
  if (++c.arrived < c.blocks.size() * block->launch->threads) return;
  c.arrived = 0;
  c.barriers++;
  for (Block* b : c.blocks) {
    b->barriers++;
    wake(*b, 0, b->launch->threads, Waits::cluster);
  }
}
void cluster_wait(Site site) {
  if (fiber->cluster_arrivals == fiber->cluster_waits) fault("%s: waits without having arrived", place_of(site).text);
  fiber->cluster_waits++;
  if (block->cluster->barriers >= fiber->cluster_waits) return;
  fiber->waits = Waits::cluster;
  fiber->site = site;
  suspend();
}
void store_to_block(void* shared, int rank, const void* value, size_t bytes, Site site) {
  const Cluster& c = *block->cluster;
  auto* const to = static_cast<std::byte*>(shared);
  const ptrdiff_t at = to - block->shared;
  if (rank < 0 || size_t(rank) >= c.blocks.size())
    fault("%s: block %d of a cluster of %zu", place_of(site).text, rank, c.blocks.size());
  if (at < 0 || size_t(at) + bytes > block->launch->shared || reinterpret_cast<uintptr_t>(to) % bytes)
    fault("%s: a store to byte %td of %zu of another block's shared memory", place_of(site).text, at, block->launch->shared);
  Block& other = *c.blocks[size_t(rank)];
  if (c.barriers == 0) fault("%s: no barrier of the cluster says that block %d has started", place_of(site).text, rank);
  if (other.running == 0) fault("%s: block %d of the cluster has ended", place_of(site).text, rank);
  memcpy(other.shared + at, value, bytes);
}

}  // namespace simt
