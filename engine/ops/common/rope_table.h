// cos and sin tables of the rotary embedding, made on the host in double (NUMERICS.md "RoPE"), never on a device.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/model.h"

namespace assay {

/// cos/sin of position * inv_freq[j], each rounded once from double to f32.
struct RopeTable {
  int64_t context = 0;           // rows
  int64_t pairs = 0;             // rotary / 2
  std::vector<double> inv_freq;  // [pairs], radians per position
  std::vector<float> cos, sin;   // [context, pairs] row-major

  /// Makes the rows up to `context`; rows that exist keep their bytes (the vectors may move). Throws as
  /// make_rope_table.
  void extend(int64_t context);
};

/// inv_freq in double, after llama3 scaling where the config asks for it, in the order of transformers'
/// modeling_rope_utils.py, _compute_llama3_parameters. mrope: on text its three position streams are equal, so that the
/// sections choose nothing and the table is the plain one. Throws Error{malformed} where rotary is odd or negative,
/// theta or a factor is no positive finite number, the sections do not sum to rotary/2, or the context is beyond 2^23
/// (sin_f64).
RopeTable make_rope_table(const RopeConfig& rope, int64_t context);

}  // namespace assay
