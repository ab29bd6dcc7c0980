// Faults of steps, graphs and state on a device: what one pass leaves to the next.
#include <algorithm>

#include "conformance/faults/device_probe.h"

namespace assay {
namespace device_faults {
namespace {

/// A7: a step of a decode graph does what no steady step may.
void allocates_in_a_step(AssayModule& t) {
  t.replay = [](AssayDevice* d, void* graph) {
    kept.stash.emplace_back();
    kept.real->allocate(d, 256, &kept.stash.back());
    return kept.real->replay(d, graph);
  };
}
void frees_in_a_step(AssayModule& t) {
  t.open = [](int32_t ordinal, AssayDevice** d) {
    const int result = kept.real->open(ordinal, d);
    for (int i = 0; i < 64 && result == ASSAY_DONE; i++) {
      kept.stash.emplace_back();
      kept.real->allocate(*d, 256, &kept.stash.back());
    }
    return result;
  };
  t.replay = [](AssayDevice* d, void* graph) {
    if (!kept.stash.empty()) {
      kept.real->release(d, kept.stash.back());
      kept.stash.pop_back();
    }
    return kept.real->replay(d, graph);
  };
}
void waits_in_a_step(AssayModule& t) {
  t.replay = [](AssayDevice* d, void* graph) {
    const int result = kept.real->replay(d, graph);
    kept.real->finish(d);
    return result;
  };
}
/// A7, the cure: a pool of buffers. It gives a buffer of 16 KiB away while another still uses it.
void pool_hands_out_twice(AssayModule& t) {
  t.allocate = [](AssayDevice* d, uint64_t bytes, void** at) {
    if (bytes == 16384)
      for (auto& [held, use] : kept.handed_out)
        if (use.second == 1) {
          use.second++;
          *at = held;
          return int(ASSAY_DONE);
        }
    const int result = kept.real->allocate(d, bytes, at);
    if (result == ASSAY_DONE && bytes == 16384) kept.handed_out[*at] = {bytes, 1};
    return result;
  };
  t.release = [](AssayDevice* d, void* at) {
    if (const auto it = kept.handed_out.find(at); it != kept.handed_out.end()) {
      if (--it->second.second > 0) return;
      kept.handed_out.erase(it);
    }
    kept.real->release(d, at);
  };
}
/// A7, the cure: what a pass has to find cleared is as the last user left it.
void pool_is_not_cleared(AssayModule& t) {
  t.fill = [](AssayDevice* d, void* at, int32_t byte, uint64_t bytes) {
    return byte == 0x7f ? int(ASSAY_DONE) : kept.real->fill(d, at, byte, bytes);
  };
}

/// A16: there is one cache, whatever slot a row belongs to.
void one_cache(AssayModule& t) {
  t.upload = [](AssayDevice* d, void* to, const void* host, uint64_t bytes) {
    if (is_input(host))
      for (size_t i = places_in(host, bytes); i-- > 0;)  // the host's memory is this pass's own: it may be changed
        std::memset(static_cast<std::byte*>(const_cast<void*>(host)) + i * sizeof(AssayPlace), 0, sizeof(int32_t));
    return kept.real->upload(d, to, host, bytes);
  };
}

/// A26: a graph replays with the places that its rows had when it was captured.
void frozen_position(AssayModule& t) {
  t.upload = [](AssayDevice* d, void* to, const void* host, uint64_t bytes) {
    if (is_input(host)) {
      kept.places.resize(places_in(host, bytes));
      std::memcpy(kept.places.data(), host, kept.places.size() * sizeof(AssayPlace));
      kept.places_at = to;
    }
    return kept.real->upload(d, to, host, bytes);
  };
  t.capture_end = [](AssayDevice* d, void** graph) {
    const int result = kept.real->capture_end(d, graph);
    if (result == ASSAY_DONE) kept.frozen[*graph] = {kept.places_at, kept.places};
    return result;
  };
  t.replay = [](AssayDevice* d, void* graph) {
    const auto& [at, places] = kept.frozen.at(graph);
    kept.real->upload(d, at, places.data(), places.size() * sizeof(AssayPlace));
    return kept.real->replay(d, graph);
  };
}

/// D11: of inputs that are shorter than earlier ones the last word is not refreshed.
void stale_tail(AssayModule& t) {
  t.upload = [](AssayDevice* d, void* to, const void* host, uint64_t bytes) {
    if (!is_input(host)) return kept.real->upload(d, to, host, bytes);
    uint64_t& longest = kept.longest_upload[to];
    const bool shorter = bytes < longest;
    longest = std::max(longest, bytes);
    return kept.real->upload(d, to, host, shorter ? bytes - sizeof(int32_t) : bytes);
  };
}

/// D10: graphs are kept by less than what their passes differ in: the first is replayed for all.
void graph_of_other_rows(AssayModule& t) {
  t.capture_end = [](AssayDevice* d, void** graph) {
    const int result = kept.real->capture_end(d, graph);
    if (result == ASSAY_DONE && !kept.first_graph) kept.first_graph = *graph;
    return result;
  };
  t.replay = [](AssayDevice* d, void*) { return kept.real->replay(d, kept.first_graph); };
  t.release_graph = [](AssayDevice* d, void* graph) {
    if (graph == kept.first_graph) kept.first_graph = nullptr;
    kept.real->release_graph(d, graph);
  };
}
/// D10: a launch inside a graph has the rows of the first pass that was captured.
void captured_geometry(AssayModule& t) {
  t.capture_begin = [](AssayDevice* d) {
    kept.capturing = true;
    return kept.real->capture_begin(d);
  };
  t.capture_end = [](AssayDevice* d, void** graph) {
    kept.capturing = false;
    return kept.real->capture_end(d, graph);
  };
  t.attention = [](AssayDevice* d, const AssayAttention* a) {
    AssayAttention as_captured = *a;
    if (kept.capturing && a->rows > 0) {
      if (kept.captured_rows == 0) kept.captured_rows = a->rows;
      as_captured.rows = std::min(a->rows, kept.captured_rows);
    }
    return kept.real->attention(d, &as_captured);
  };
}

}  // namespace
}  // namespace device_faults

void add_device_graph_faults(std::vector<Fault>& out) {
  using namespace device_faults;
  add(out, "A7/allocation-in-a-step", "a steady decode step allocates device memory", How::state,
      {.module = allocates_in_a_step});
  add(out, "A7/free-in-a-step", "a steady decode step frees device memory", How::state, {.module = frees_in_a_step});
  add(out, "A7/wait-in-a-step", "a steady decode step waits for the device once more", How::state,
      {.module = waits_in_a_step});
  add(out, "A7/pool-hands-out-twice", "a pool gives a buffer away that another still uses", How::state,
      {.module = pool_hands_out_twice});
  add(out, "A7/pool-not-cleared", "a pooled buffer is not cleared before its next use", How::state,
      {.module = pool_is_not_cleared});
  add(out, "A16/one-cache", "two slots share one cache on the device", How::state, {.module = one_cache});
  add(out, "A26/frozen-position", "the captured graph holds the position of the step that it was captured in",
      How::state, {.module = frozen_position}, "one step from one start shows nothing: three steps and two starts do");
  add(out, "C13/shared-capture", "a dump under graph replay shows buffers that later layers have reused", How::value,
      {.engine = [](Engine& e) { e.device()->device().plant_shared_capture = true; }});
  add(out, "D10/graph-of-other-rows", "a pass of three rows replays the graph that a pass of two was captured in",
      How::state, {.module = graph_of_other_rows},
      "passes that all have one row show nothing: two sizes of decode pass do");
  add(out, "D10/captured-geometry", "a graph launches attention for as many rows as the first captured pass had",
      How::state, {.module = captured_geometry});
  add(out, "D11/stale-tail", "the tail of a static buffer is not refreshed when a run is shorter than the one before",
      How::state, {.module = stale_tail});
}

}  // namespace assay
