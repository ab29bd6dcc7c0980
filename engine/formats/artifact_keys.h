// What a GGUF file of ours says about itself, so that an engine with other ideas refuses it: "right code with a wrong
// file" and a layout flag that disagrees with the code are faults that run for days before somebody looks at the
// output.
//   assay.layout_version   u32     of everything below and of the block layouts (quant.h)
//   assay.layout.blocks    string  "ggml": codes and scales inside a block as quant.h has them
//   assay.layout.qk_rows   string  "interleaved" (llama) or "halves": the order of q and k rows within a head
//   assay.source_hash      string  Provenance::hash of the model that was converted
//   assay.tokenizer_hash   string  of the tokenizer.* keys as they were written (provenance.h)
// Files of other programs have none of these keys, and nothing is checked then.
#pragma once
#include <string>

#include "engine/formats/gguf.h"
#include "engine/formats/gguf_writer.h"

namespace assay {

inline constexpr uint32_t kLayoutVersion = 1;

/// After the tokenizer's keys.
void put_artifact_keys(GgufWriter& file, const std::string& family, const std::string& source_hash);

/// Throws Error{malformed} naming the key, wanted and found: a layout that this engine doesn't have, a key of the list
/// that is missing, tokenizer keys that were changed since.
void check_artifact_keys(const GgufFile& file, const std::string& family);

}  // namespace assay
