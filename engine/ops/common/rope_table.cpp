#include "engine/ops/common/rope_table.h"

#include <cmath>
#include <numeric>
#include <string>

#include "dumps/error.h"
#include "engine/numerics.h"

namespace assay {
namespace {

constexpr int64_t kMaxContext = int64_t(1) << 23;

[[noreturn]] void refuse(const char* what, const char* wanted, const std::string& found) {
  throw Error(ErrorKind::malformed, "config.json, rope", what, wanted, found);
}

void require_positive(double value, const char* what) {
  if (!(value > 0) || !std::isfinite(value)) refuse(what, "a positive finite number", std::to_string(value));
}

std::vector<double> inverse_frequencies(const RopeConfig& rope) {
  std::vector<double> inv_freq(size_t(rope.rotary / 2));
  const double log2_theta = log2_f64(rope.theta);
  for (int64_t j = 0; j < rope.rotary / 2; j++) {
    double e = double(2 * j) / double(rope.rotary);
    inv_freq[size_t(j)] = 1.0 / exp2_f64(e * log2_theta);
  }
  if (!rope.llama3) return inv_freq;
  const double pi = 0x1.921fb54442d18p+1;  // math.pi
  const double low_freq_wavelen = rope.original_context / rope.low_freq_factor;
  const double high_freq_wavelen = rope.original_context / rope.high_freq_factor;
  for (double& f : inv_freq) {
    const double wavelen = 2 * pi / f;
    const double scaled = wavelen > low_freq_wavelen ? f / rope.factor : f;
    if (wavelen < high_freq_wavelen || wavelen > low_freq_wavelen) {
      f = scaled;
      continue;
    }
    const double smooth =
        (rope.original_context / wavelen - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
    f = (1 - smooth) * scaled / rope.factor + smooth * scaled;
  }
  return inv_freq;
}

}  // namespace

void RopeTable::extend(int64_t rows) {
  if (rows > kMaxContext) refuse("the context is too long for the table", "at most 8388608", std::to_string(rows));
  if (rows <= context) return;
  cos.resize(size_t(rows * pairs));
  sin.resize(size_t(rows * pairs));
  for (int64_t position = context; position < rows; position++) {
    for (int64_t j = 0; j < pairs; j++) {
      const double angle = double(position) * inv_freq[size_t(j)];
      cos[size_t(position * pairs + j)] = float(cos_f64(angle));
      sin[size_t(position * pairs + j)] = float(sin_f64(angle));
    }
  }
  context = rows;
}

RopeTable make_rope_table(const RopeConfig& rope, int64_t context) {
  if (rope.rotary < 0 || rope.rotary % 2 != 0) {
    refuse("the rotating dims do not pair up", "an even number", std::to_string(rope.rotary));
  }
  require_positive(rope.theta, "theta");
  // A theta below 1 turns faster with j: its angles would leave the range of sin_f64.
  if (rope.theta < 1) refuse("theta", "at least 1", std::to_string(rope.theta));
  if (rope.llama3) {
    require_positive(rope.factor, "factor");
    if (rope.factor < 1) refuse("factor", "at least 1", std::to_string(rope.factor));
    require_positive(rope.low_freq_factor, "low_freq_factor");
    require_positive(rope.high_freq_factor, "high_freq_factor");
    require_positive(rope.original_context, "original_max_position_embeddings");
    if (rope.high_freq_factor == rope.low_freq_factor) {
      refuse("high_freq_factor equals low_freq_factor", "two different numbers", std::to_string(rope.low_freq_factor));
    }
  }
  if (!rope.mrope_section.empty()) {
    const int64_t sum = std::accumulate(rope.mrope_section.begin(), rope.mrope_section.end(), int64_t(0));
    if (sum != rope.rotary / 2) {
      refuse("the mrope sections do not cover the rotating pairs", std::to_string(rope.rotary / 2).c_str(),
             std::to_string(sum));
    }
  }
  RopeTable table;
  table.pairs = rope.rotary / 2;
  table.inv_freq = inverse_frequencies(rope);
  table.extend(context);
  return table;
}

}  // namespace assay
