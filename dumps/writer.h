// Writing a dump: a folder with manifest.json and *.safetensors (format: dumps/FORMAT.md).
// Values stream to disk; memory is bounded by what one call brings. The manifest is written last, under another name, then
// renamed: a folder without manifest.json is an unfinished dump, and no reader takes it for a whole one.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dumps/dtype.h"

namespace assay {

enum class CaptureMode : uint8_t { hash, stats, full };

/// What a tensor is, said before its first row comes.
struct TensorDecl {
  std::string name;             // full name, "prompt0/prefill/0/layer.3/q_rope"
  DType dtype = DType::f32;
  std::vector<int64_t> shape;   // [rows, columns] for phases; the first axis is what write_rows() fills in order
  int64_t order = 0;            // place in execution order, unique within a pass
  std::vector<std::string> inputs;  // phases (same pass) or state this value was computed from: "layer.3/q_proj", "state:layer.3/k"
  std::string role;             // "phase", "state", "ids"
  std::vector<std::string> axes;  // {"token", "head*head_dim"}
};

class DumpWriter {
 public:
  struct Options {
    std::filesystem::path dir;   // created; must be empty or absent, or hold an unfinished dump (then it is replaced)
    CaptureMode mode = CaptureMode::full;
    bool replace = false;        // --force: a finished dump may be replaced
  };
  explicit DumpWriter(Options options);
  ~DumpWriter();  // without finish(): leaves no manifest.json
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
  /// Keys of the format itself (format, capture, tensors, files, not_materialised) can't be set.
  nlohmann::ordered_json& manifest();
  /// Every declared tensor must be complete (else Error{internal} naming it). Hashes, statistics, row hashes and the manifest
  /// are written, synced, renamed.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace assay
