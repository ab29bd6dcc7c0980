// The gates of 16-bit activations on trained weights, which the planted faults are judged by as well.
#pragma once
#include "conformance/quality/divergence.h"

namespace assay {

/// Official KL of activations rounded to 16 and 8 bits (manifest, "rounded_activations"), and what is allowed of ours:
/// four times that, as everywhere with noise that was measured.
struct KlGate {
  double mean, max;
};
KlGate kl_gate(const CheckContext& c, const OfficialCase& oc, const char* rounding);  // "int16", "int8"

/// Engines of a case's quantised weights for one text at a time, context as long as its longest text.
std::unique_ptr<Engine> corpus_engine(const CheckContext& c, const OfficialCase& oc, std::shared_ptr<const Model> model,
                                      Activations kind, const std::string& plant = "");

}  // namespace assay
