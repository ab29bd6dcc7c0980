// One function per family: the model's forward pass as a program. Sources are named at each definition.
#pragma once
#include "engine/program.h"

namespace assay {

Program llama(const Model& model);
Program olmo2(const Model& model);
Program qwen2(const Model& model);
Program qwen3(const Model& model);
Program qwen3_5(const Model& model);
Program qwen3_5_moe(const Model& model);
Program qwen3_next(const Model& model);
Program qwen3_moe(const Model& model);
Program qwen3_vl_text(const Model& model);

}  // namespace assay
