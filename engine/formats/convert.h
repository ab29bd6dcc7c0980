// Converting models: Hugging Face folder or GGUF file to either, in every weight type that is read.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/model.h"

namespace assay {

class GgufWriter;

struct ConvertOptions {
  std::optional<WeightType> type;  // of all matrices; absent: each keeps its own, byte for byte
  bool replace = false;            // an output of that name may be there
  int threads = 0;                 // 0: all cores
  /// Writes the tokenizer.ggml.* keys of a Hugging Face folder (text/ does it, which this folder does not know).
  /// Absent, or where the folder has no tokenizer.json: a placeholder vocabulary (gguf_keys.h), which a note says.
  std::function<void(GgufWriter&, const std::filesystem::path& folder, const Config&)> put_tokenizer;
};

/// What became of one matrix.
struct ConvertedTensor {
  std::string name;  // in the output
  std::vector<int64_t> shape;
  WeightType from, to;
  bool fallback = false;  // `to` is not the wanted type: its rows don't divide into the wanted blocks
  bool router = false;    // chooses experts: never quantised, whatever is wanted
  double sqnr_db = 0;     // signal to quantisation noise against the widened source; +Inf: no value differs
  int64_t worst_row = 0;  // of the least ratio, in Hugging Face order, and that ratio
  double worst_row_sqnr_db = 0;
};

struct ConvertReport {
  std::vector<ConvertedTensor> tensors;  // matrices, in file order
  std::vector<std::string> notes;        // what a person should hear: fallbacks, what the output can't hold
  uint64_t bytes = 0;                    // of the weight file
};

/// Writes `to`: a GGUF file if its name ends in .gguf, else a folder with model.safetensors, config.json and the
/// tokenizer's files. Rows go where the format wants them (q and k of llama files are permuted), norms and biases are
/// F32 in GGUF. The output appears whole or not at all. Throws Error{malformed} naming tensor, row and column of a NaN
/// or Inf and what the model's loader refuses, Error{numeric} where a value overflows the type, Error{usage} for a type
/// that the output format can't hold or an output that is there, Error{io}.
ConvertReport convert_model(const std::filesystem::path& from, const std::filesystem::path& to,
                            const ConvertOptions& options);

}  // namespace assay
