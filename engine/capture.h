// From physical passes to the logical tensors of a dump: prefill/0 holds all rows of a prompt however they were chunked or
// batched, decode/<s> one row, state what the caches hold. Capturing reads values after their node ran; it changes nothing.
#pragma once
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dumps/writer.h"
#include "engine/session.h"

namespace assay {

struct CaptureOptions {
  std::vector<std::string> phases;               // globs with * ("q_*"); empty: all
  std::vector<std::pair<int, int>> layers;       // closed ranges; empty: all. Phases outside layers are always kept
  bool state = false;                            // KV caches after prefill and after the last decode pass
  bool wants(int layer, std::string_view phase) const;
  void check(const Program& program) const;      // Error{usage} where a glob matches no phase of the program
};

/// Where a dump goes and what is written there.
struct DumpFolder {
  std::filesystem::path out;         // empty: none is written
  CaptureMode mode = CaptureMode::full;
  bool replace = false;              // a finished dump at `out` may be replaced
  bool sync = true;                  // off for dumps of a check, which a power cut may take
  CaptureOptions capture;
  DumpWriter::Options writer_options() const;
};

class Capture : public GenerateObserver {
 public:
  /// `writer`, `engine` and `requests` must outlive this.
  Capture(DumpWriter& writer, const Engine& engine, const std::vector<Request>& requests, CaptureOptions options);

  /// Whether any wanted tensor needs the logits of all rows (GenerateOptions::all_logits).
  bool needs_all_logits() const { return options_.wants(-1, "logits"); }

  void value(const Batch& batch, const Node& node, const float* data, std::span<const int64_t> rows, int64_t columns) override;
  void after_prefill(const Engine& engine, int32_t prompt, int slot) override;
  void after_decode(const Engine& engine, int32_t prompt, int slot, const Generated& g) override;

 private:
  void declare_pass(const Batch& batch, int32_t prompt, int64_t step);
  void write_state(const Engine& engine, int32_t prompt, int slot, const char* when);
  void write_ids(int32_t prompt, const char* name, const std::vector<int32_t>& ids);

  DumpWriter& writer_;
  const Engine& engine_;
  const std::vector<Request>& requests_;
  CaptureOptions options_;
  std::set<std::tuple<Pass, int32_t, int64_t>> declared_;
};

/// How a dump stores a cache of a type: as it lies in memory.
DType cache_dtype(KvType t);

/// The manifest's blocks on who computed what: engine, device, model, options that can change a bit, prompts. Taken from the
/// engine as it runs, not from the command line.
void describe(nlohmann::ordered_json& manifest, const Engine& engine, const std::vector<Request>& requests,
              const std::vector<Generated>& generated, const GenerateOptions& generate);

}  // namespace assay
