// Writing a dump: a folder with manifest.json and *.safetensors (format: dumps/FORMAT.md).
// Values stream to disk; memory is bounded by what one call brings. The manifest is written last, under another name, then
// renamed: a folder without manifest.json is an unfinished dump, and no reader takes it for a whole one.
// Memory: one chunk, up to 32 MiB of gathered small tensors per unfinished set, 600 bytes per tensor in progress.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dumps/dtype.h"

namespace assay {

enum class CaptureMode : uint8_t { hash, stats, full };

std::string_view name_of(CaptureMode m);
std::optional<CaptureMode> capture_mode_from_name(std::string_view s);

/// Keys of the manifest that belong to the format itself; all others are free blocks.
bool is_format_key(const std::string& key);

/// What a tensor is, said before its first row comes.
struct TensorDecl {
  std::string name;             // full name, "prompt0/prefill/0/layer.3/q_rope"; is_valid_name (names.h)
  DType dtype = DType::f32;
  std::vector<int64_t> shape;   // [rows, columns] for phases; the first axis is what write_rows() fills in order
  int64_t order = 0;            // place in execution order, unique within a pass
  std::vector<std::string> inputs;  // phases (same pass) or state this value was computed from: "layer.3/q_proj", "state:layer.3/k"
  std::string role;             // "phase", "state", "ids"
  std::vector<std::string> axes;  // {"token", "head*head_dim"}
};

/// Not thread-safe: one thread at a time.
class DumpWriter {
 public:
  struct Options {
    std::filesystem::path dir;   // created; must be empty or absent, or hold an unfinished dump (then it is replaced)
    CaptureMode mode = CaptureMode::full;
    bool replace = false;        // --force: a finished dump may be replaced; the old one is gone from the start
    std::string filter;          // what --filter left in, as text for the manifest
    bool partial = false;        // a baseline that does not hold everything: extra tensors on the other side are no failure
    std::string when_full;       // what to do about a full disk besides freeing space (OutFile)
    bool sync = true;            // fsync before the rename; off only where a power cut does not matter (tests)
    uint64_t max_bytes = 0;      // refuse to declare more bytes of values than this (0: no limit); Error{usage}
  };
  /// Throws Error{usage} if the folder holds a finished dump (and not `replace`) or files that are no part of a dump.
  explicit DumpWriter(Options options);
  ~DumpWriter();  // without finish(): leaves no manifest.json, and gives the disk space back
  DumpWriter(const DumpWriter&) = delete;

  /// Announces a set of tensors that will be filled together (all phases of one pass of one prompt). Disk space for them is
  /// reserved here in full mode, so that a full disk is said before the pass runs. Small sets are gathered into one file.
  void declare(const std::vector<TensorDecl>& tensors);
  /// Rows [first_row, first_row + n) along the first axis, contiguous, in the tensor's dtype. Rows of a tensor come in order,
  /// without gaps (a chunked prefill brings them chunk by chunk). NaNs are canonicalised (sign and payload dropped) first.
  void write_rows(const std::string& name, int64_t first_row, int64_t n, const void* data);
  /// declare() and write_rows() of a whole tensor.
  void write(const TensorDecl& tensor, const void* data);
  /// Phases of a pass that a fused kernel did not write: neither missing nor compared.
  void not_materialised(const std::vector<std::string>& names);

  /// Free-form blocks of the manifest, written as given: "engine", "device", "model", "options", "prompts", "numerics"...
  /// Keys of the format itself (format, capture, files, hashes, not_materialised, tensors) can't be set. "rows": see rows.h.
  nlohmann::ordered_json& manifest();
  /// Every declared tensor must be complete (else Error{internal} naming it). Hashes, statistics, row hashes and the manifest
  /// are written, synced, renamed.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace assay
