#include "conformance/quality/divergence.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "conformance/quality/nll.h"
#include "dumps/error.h"

namespace assay {

std::vector<ScoredText> corpus(const CheckContext& c, const OfficialCase& oc) {
  const std::filesystem::path path = case_dir(c, oc) / "corpus.jsonl";
  std::ifstream in(path);
  if (!in) throw Error(ErrorKind::malformed, path.string(), "can't be read");
  std::vector<ScoredText> out;
  try {
    for (std::string line; std::getline(in, line);) {
      const nlohmann::json t = nlohmann::json::parse(line);
      if (t.contains("ids"))
        out.push_back({t.at("name"), t.at("ids").get<std::vector<int32_t>>(), t.at("nll").get<double>()});
    }
  } catch (const nlohmann::json::exception& e) {
    throw Error(ErrorKind::malformed, path.string(), e.what());
  }
  return out;
}

std::vector<float> logits_of(Engine& engine, const std::vector<int32_t>& ids, Pass pass) {
  const size_t vocab = size_t(engine.model().config.vocab);
  std::vector<float> out;
  out.reserve(ids.size() * vocab);
  engine.truncate(0, 0);
  for (size_t at = 0; at < ids.size();) {
    const size_t rows = pass == Pass::prefill ? ids.size() : 1;
    Batch b;
    b.pass = at == 0 ? Pass::prefill : Pass::decode;
    b.ids.assign(ids.begin() + int64_t(at), ids.begin() + int64_t(at + rows));
    b.segments = {{0, int64_t(at), int64_t(rows), 0, at == 0 ? 0 : int64_t(at) - 1}};
    for (size_t r = 0; r < rows; r++) b.logit_rows.push_back(int64_t(r));
    const float* logits = engine.forward(b);
    out.insert(out.end(), logits, logits + rows * vocab);
    at += rows;
  }
  return out;
}

void TextDivergence::add(const std::vector<float>& base, const std::vector<float>& target,
                         const std::vector<int32_t>& ids, size_t first) {
  const size_t vocab = base.size() / ids.size();
  for (size_t p = first; p + 1 < ids.size(); p++) {
    const float* b = &base[p * vocab];
    const float* t = &target[p * vocab];
    const size_t best_b = size_t(std::max_element(b, b + vocab) - b),
                 best_t = size_t(std::max_element(t, t + vocab) - t);
    double sum_b = 0, sum_t = 0;
    for (size_t i = 0; i < vocab; i++) {
      sum_b += std::exp(double(b[i]) - b[best_b]);
      sum_t += std::exp(double(t[i]) - t[best_t]);
    }
    const double log_b = std::log(sum_b) + b[best_b], log_t = std::log(sum_t) + t[best_t];
    // Sum of p * (log p - log q), written so that differences of 1e-5 keep their digits: with d = log q - log p and sum
    // of p = sum of q = 1, it is the sum of p * (e^d - 1 - d), whose terms are all >= 0.
    double kl = 0;
    for (size_t i = 0; i < vocab; i++) {
      const double d = (double(t[i]) - b[i]) - (log_t - log_b);
      kl += std::exp(b[i] - log_b) * (std::expm1(d) - d);
    }
    positions++;
    kl_sum += kl;
    kl_max = std::max(kl_max, kl);
    nll_sum_base += nll_of({b, vocab}, ids[p + 1]);
    nll_sum_target += nll_of({t, vocab}, ids[p + 1]);
    same_best += best_b == best_t;
  }
}

}  // namespace assay
