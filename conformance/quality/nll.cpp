#include "conformance/quality/nll.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "dumps/error.h"
#include "engine/numerics.h"

namespace assay {

double nll_of(std::span<const float> logits, int32_t id) {
  constexpr double kLog2E = 0x1.71547652b82fep+0, kLn2 = 0x1.62e42fefa39efp-1;
  float largest = logits[0];
  for (const float x : logits) {
    if (is_nan(x)) return double(canonical_nan());
    largest = x > largest ? x : largest;
  }
  double sum = 0;
  for (const float x : logits) sum = sum + exp2_f64((double(x) - double(largest)) * kLog2E);
  return (log2_f64(sum) - (double(logits[size_t(id)]) - double(largest)) * kLog2E) * kLn2;
}

double Nll::mean() const {
  double sum = 0;
  for (const TokenNll& t : tokens) sum += t.nll;
  return tokens.empty() ? 0 : sum / double(tokens.size());
}
double Nll::perplexity() const {
  return std::exp(mean());
}  // for people: no bytes are promised

Nll token_nll(Engine& engine, std::span<const int32_t> ids, const NllOptions& o) {
  const int64_t vocab = engine.model().config.vocab, prefix = int64_t(o.prefix.size());
  const int64_t window = o.window > 0 ? o.window : engine.options().context;
  if (window > engine.options().context)
    throw Error(ErrorKind::usage, "--window", "does not fit the context",
                "at most " + std::to_string(engine.options().context), std::to_string(window));
  if (window < prefix + 2 && window < prefix + int64_t(ids.size()))
    throw Error(ErrorKind::usage, "--window", "too small", std::to_string(prefix + 2) + " positions or more",
                std::to_string(window));
  if (int64_t(ids.size()) + std::min<int64_t>(prefix, 1) < 2)
    throw Error(ErrorKind::usage, "text", "too short", "two ids or more", std::to_string(ids.size()));
  for (const int32_t id : ids)
    if (id < 0 || id >= vocab)
      throw Error(ErrorKind::usage, "text", "id outside the vocabulary", "0 to " + std::to_string(vocab - 1),
                  std::to_string(id));

  Nll out;
  int64_t windows = 0;
  for (int64_t first = 0; first < int64_t(ids.size()); windows++) {
    const int64_t n = std::min(window - prefix, int64_t(ids.size()) - first);
    std::vector<int32_t> row = o.prefix;
    row.insert(row.end(), ids.begin() + first, ids.begin() + first + n);
    const int64_t inputs = int64_t(row.size()) - 1;  // the last id is only judged
    engine.truncate(0, 0);
    for (int64_t at = 0; at < inputs;) {
      const bool decode = o.pass == Pass::decode && at > 0;  // a sequence begins with a prefill
      const int64_t rows = o.pass == Pass::decode ? 1 : o.chunk > 0 ? std::min(o.chunk, inputs - at) : inputs - at;
      Batch b;
      b.pass = decode ? Pass::decode : Pass::prefill;
      b.ids.assign(row.begin() + at, row.begin() + at + rows);
      b.segments = {{0, at, rows, 0, decode ? at - 1 : 0}};
      std::vector<int64_t> judged;  // positions whose next id is one of the text
      for (int64_t r = 0; r < rows; r++)
        if (at + r + 1 >= prefix) judged.push_back(at + r);
      for (const int64_t p : judged) b.logit_rows.push_back(p - at);
      const float* logits = engine.forward(b);
      for (size_t k = 0; k < judged.size(); k++) {
        const int64_t position = judged[k] + 1;
        const double nll = nll_of(std::span(logits + int64_t(k) * vocab, size_t(vocab)), row[size_t(position)]);
        if (!std::isfinite(nll) && !out.not_finite) out.not_finite = out.tokens.size();
        out.tokens.push_back({first + position - prefix, windows, position, nll});
      }
      at += rows;
    }
    first += n;
  }
  return out;
}

}  // namespace assay
