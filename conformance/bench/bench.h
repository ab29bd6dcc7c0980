// Speed of the engine on this machine, in one run: prefill and decode, what must move per token, and the plain-read bandwidth
// and integer peak to hold it against. Absolute figures are of this machine in this hour; ratios within one run mean something.
#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/device_backend.h"
#include "engine/session.h"

namespace assay {

struct BenchSpec {
  EngineOptions engine;        // context is set from the lengths below
  int64_t prefill = 128;       // tokens of one prompt in one pass; 0: not measured
  int64_t decode = 32;         // single-row passes; 0: not measured
  int64_t depth = 0;           // positions already in the cache when decode starts
  int64_t draft = 0;           // decode by speculation with the model's MTP head, so many drafts a round; 0: plain
  std::vector<int32_t> prompt; // of speculation; empty: random ids
  int64_t rows = 1;            // sequences that decode together
  int repetitions = 3;         // after one that is not counted
  uint64_t seed = 1;           // of the token ids
};

/// One measured kind of pass. Times are medians over the repetitions.
struct BenchResult {
  std::string pass;                     // "prefill", "decode"
  int64_t tokens = 0;                   // per repetition
  double seconds = 0;                   // per repetition
  std::vector<double> all_seconds;      // of each
  double bytes = 0;                     // that must move per pass: weights once, cache as far as it is filled (engine/cost.h)
  double operations = 0;                // of one pass (engine/cost.h)
  std::vector<std::pair<std::string, double>> by_phase;  // seconds per repetition, in execution order, layers summed
  double gap = 0;                       // seconds outside of nodes
  int64_t rounds = 0;                   // of speculation: verify passes
  std::vector<int64_t> drafted, accepted;   // by place in the draft
  std::optional<PassTraffic> traffic;   // of one steady pass of a device
  double tokens_per_second() const { return double(tokens) / seconds; }
};

struct BenchReport {
  std::vector<BenchResult> results;
  double read_gbps = 0;                 // plain read of 512 MiB, same threads, best of four, measured between the results
  double copy_gbps = 0;                 // of the device: copy inside its memory, bytes read plus bytes written; 0: no device
  std::string device;                   // its name
  size_t panel_bytes = 0;
  double load_seconds = 0;              // of the engine: repacking and caches
};

/// Best of four passes over 512 MiB in GB/s: what a token's weights could be read with. `threads` 0: all cores.
double plain_read_gbps(int threads);
/// Error{usage} for lengths the model has no room for.
BenchReport bench(std::shared_ptr<const Model> model, const BenchSpec& spec);
/// Copy of 1 GiB of random bytes inside the device's memory, best of five: bytes read plus bytes written, in GB/s.
double device_copy_gbps(Device& device);
std::string render(const BenchReport& report, const BenchSpec& spec, const Model& model, bool by_phase);
std::vector<nlohmann::ordered_json> records(const BenchReport& report, const BenchSpec& spec, const Model& model);

}  // namespace assay
