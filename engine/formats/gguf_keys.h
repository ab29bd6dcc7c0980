// The metadata of a GGUF file that a Config implies: what gguf_model.cpp reads and llama.cpp wants before it loads.
// Source of the keys: gguf-py/gguf/constants.py.
#pragma once
#include <optional>
#include <string>

#include "engine/formats/gguf_writer.h"
#include "engine/model.h"

namespace assay {

/// n where exactly every n-th layer attends, as GGUF says it of hybrids; nullopt: no n fits.
std::optional<int64_t> attention_interval(const Config& config);

/// general.* and <architecture>.*; `type` is that of most matrices. Of llama3 rope scaling GGUF has no key: its
/// divisors are the tensor rope_freqs.weight.
void put_config_keys(GgufWriter& file, const Config& config, const std::string& name, WeightType type);

/// A vocabulary for models that have none, since llama.cpp loads no model without: byte-level BPE of the 256 bytes
/// (where the vocabulary is that large), one merge, and names for the remaining ids. Special ids are control tokens.
void put_placeholder_tokenizer(GgufWriter& file, const Config& config);

}  // namespace assay
