// `assay import`: bare safetensors files, or a dump whose writer left the hashes out, become a whole dump.
#pragma once
#include <cstdint>
#include <filesystem>
#include <vector>

#include "dumps/writer.h"

namespace assay {

struct ImportOptions {
  CaptureMode mode = CaptureMode::full;
  bool replace = false;             // as in DumpWriter::Options
  bool partial = false;             // the result is a baseline that doesn't hold everything
  bool sync = true;
  std::filesystem::path manifest;   // a JSON object: blocks for the manifest (prompts, engine, options, rows, not_materialised)
};

/// Throws Error{usage} if writing to `out` would replace `input`: the folder itself, or a file in it.
void refuse_own_input(const std::filesystem::path& input, const std::filesystem::path& out);

/// Reads all tensors of `paths` (files, folders of files, dumps), computes hashes and statistics and writes a dump to `out`.
/// Order, role: from the vocabulary where names follow it, from the manifest of a dump, else by name. Returns the number of
/// tensors. Throws Error{malformed} for broken inputs, a tensor in two inputs, hashes that disagree with their values, names
/// that a dump can't hold; Error{usage} if `out` is one of the inputs, or an input is an official case or has no values.
int64_t import_safetensors(const std::vector<std::filesystem::path>& paths, const std::filesystem::path& out,
                           const ImportOptions& options = {});

}  // namespace assay
