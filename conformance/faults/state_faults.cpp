// Faults of positions, caches, passes and captures: each node is right, and what it is given is not.
#include <algorithm>
#include <cmath>
#include <set>

#include "conformance/faults/plants.h"
#include "conformance/runner.h"

namespace assay {
namespace {

/// D8: positions restart at each chunk of a prefill.
void positions_restart(Engine& e) {
  replace(e, OpKind::rope, "positions-restart", [](NodeContext& c, CpuBackend& b) {
    std::vector<int64_t> positions(c.positions.begin(), c.positions.end());
    if (c.batch.pass == Pass::prefill) {
      size_t at = 0;
      for (const Segment& s : c.batch.segments)
        for (int64_t r = 0; r < s.rows; r++) positions[at++] -= s.position;
    }
    c.positions = positions;
    b.run(c);
  });
}

/// D9: every row attends over as many positions as the whole cache may hold, whatever was written.
void whole_length(const AttentionArgs& a, int64_t begin, int64_t end, float* scratch) {
  std::vector<RowPlace> places(a.places, a.places + (end + a.heads - 1) / a.heads);
  for (RowPlace& p : places) p.position = std::min(p.position + 2, a.cache.context - 1);
  AttentionArgs b = a;
  b.places = places.data();
  kernels(Isa::scalar).attention(b, begin, end, scratch);
}

/// B16: in prefill passes attention sees the largest seventh of each query's dimensions alone, 9 of 64. (Measured on
/// trained-engine: with 8 the easy needle is lost as well, with 10 both are found.)
void approximate_queries(Engine& e) {
  replace(e, OpKind::attention, "approximate-queries", [](NodeContext& c, CpuBackend& b) {
    if (c.batch.pass != Pass::prefill) return b.run(c);
    std::vector<float> q(c.inputs[0], c.inputs[0] + c.rows * c.columns);
    const size_t d = size_t(c.node.head_dim), kept = std::max<size_t>(1, d / 7);
    std::vector<float> magnitude(d);
    for (size_t at = 0; at < q.size(); at += d) {
      for (size_t j = 0; j < d; j++) magnitude[j] = std::fabs(q[at + j]);
      std::nth_element(magnitude.begin(), magnitude.begin() + int64_t(kept) - 1, magnitude.end(), std::greater<>());
      for (size_t j = 0; j < d; j++)
        if (std::fabs(q[at + j]) < magnitude[kept - 1]) q[at + j] = 0;
    }
    run_on(c, b, q);
  });
}

}  // namespace

void add_state_faults(std::vector<Fault>& out) {
  out.push_back(
      {"D8/positions-restart", "position ids restart at each chunk of a prefill", How::state, "", positions_restart});
  Fault d9{"D9/whole-length", "attention reads positions that were not written yet", How::kernel};
  d9.kernels = [](Kernels& k) { k.attention = whole_length; };
  out.push_back(d9);
  out.push_back({"B16/approximate-queries", "attention of prefill passes sees a seventh of each query's dimensions",
                 How::value, "the easy needle is found all the same: both difficulties are asked",
                 approximate_queries});
  Fault hook{"A24/hook-removed", "the capture of q_rope is not called", How::state};
  hook.spec = [](DumpSpec& s) {
    s.capture.phases = {"embed", "attn_*", "*_proj", "*_norm", "k_rope", "ffn_*", "logits", "logits_last", "k", "v"};
  };
  out.push_back(hook);
  Fault none{"A24/nothing-captured", "no capture is called at all: there is nothing that could differ", How::state};
  none.spec = [](DumpSpec& s) {
    s.capture.phases = {"attn_norm"};
    s.capture.layers = {{1 << 20, 1 << 20}};
  };
  out.push_back(none);
}

}  // namespace assay
