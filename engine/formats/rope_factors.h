// llama3 rope scaling in GGUF. A Hugging Face config states it as four parameters; llama.cpp's converter writes the
// resulting divisors of the frequencies instead, as the f32 tensor rope_freqs.weight, computed in f32
// (convert_hf_to_gguf.py, LlamaModel.generate_extra_tensors). A divisor rounded to f32 can't give the bits of a
// frequency that was scaled in double, so the parameters are recognised and the frequencies made from them.
#pragma once
#include <optional>
#include <string>

#include "engine/model.h"

namespace assay {

/// The llama3 parameters whose divisors are `factors` ([rotary/2]) within the rounding of the converter's f32
/// arithmetic: `plain` with llama3 set. Candidates: low and high factors and contexts that are powers of two
/// (README.md, "rope_freqs"). nullopt: none fits. Precondition: plain.llama3 is false, factors are finite and positive.
std::optional<RopeConfig> recognise_llama3(const RopeConfig& plain, const Vector& factors);

/// The divisors of a config with llama3 scaling, [rotary/2], from the frequencies in double, rounded once to f32.
Vector llama3_divisors(const RopeConfig& rope);

}  // namespace assay
