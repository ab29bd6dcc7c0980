#include "engine/sampling.h"

#include <algorithm>
#include <string>
#include <vector>

#include "dumps/error.h"
#include "engine/numerics.h"
#include "engine/session.h"

namespace assay {

std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> c, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; round++) {
    const uint64_t a = uint64_t(0xD2511F53u) * c[0], b = uint64_t(0xCD9E8D57u) * c[2];
    c = {uint32_t(b >> 32) ^ c[1] ^ key[0], uint32_t(b), uint32_t(a >> 32) ^ c[3] ^ key[1], uint32_t(a)};
    key[0] += 0x9E3779B9u;  // the golden ratio
    key[1] += 0xBB67AE85u;  // sqrt(3) - 1
  }
  return c;
}

void check_sampling(const SamplingOptions& o) {
  auto refuse = [](const char* option, const char* wanted, float found) {
    throw Error(ErrorKind::usage, option, "out of range", wanted, std::to_string(found));
  };
  if (!(o.temperature >= 0 && is_finite(o.temperature))) refuse("--temperature", "0 (greedy) or more", o.temperature);
  if (!(o.top_p > 0 && o.top_p <= 1)) refuse("--top-p", "more than 0, at most 1", o.top_p);
  if (!(o.min_p >= 0 && o.min_p <= 1)) refuse("--min-p", "0 to 1", o.min_p);
  if (o.top_k < 0) throw Error(ErrorKind::usage, "--top-k", "out of range", "0 (all) or more", std::to_string(o.top_k));
}

std::optional<int32_t> sample(std::span<const float> logits, const SamplingOptions& o, uint64_t sequence,
                              uint32_t position) {
  if (o.temperature == 0 || logits.empty()) return argmax(logits);
  // One integer orders (value descending, id ascending). Adding +0 makes -0 equal to +0, as values are.
  std::vector<uint64_t> order(logits.size());
  for (size_t i = 0; i < logits.size(); i++) {
    if (is_nan(logits[i])) return std::nullopt;
    const float x = add_f32(div_f32(logits[i], o.temperature), 0.0f);
    order[i] = uint64_t(uint32_t(INT32_MAX - int64_t(ordered_of(x)))) << 32 | uint32_t(i);
  }
  const size_t k = o.top_k > 0 ? size_t(std::min<int64_t>(o.top_k, int64_t(order.size()))) : order.size();
  std::partial_sort(order.begin(), order.begin() + std::ptrdiff_t(k), order.end());
  order.resize(k);

  auto value = [&](uint64_t key) { return float_of_ordered(int32_t(INT32_MAX - int64_t(key >> 32))); };
  const float largest = value(order[0]);
  std::vector<float> p(k);
  float total = 0.0f;
  for (size_t i = 0; i < k; i++) {
    const float x = value(order[i]);
    p[i] = x == largest ? 1.0f : exp_f32(sub_f32(x, largest));  // an infinite largest value takes all
    total = add_f32(total, p[i]);
  }
  size_t n = k;
  if (o.top_p < 1.0f) {
    const float wanted = mul_f32(o.top_p, total);
    float sum = 0.0f;
    for (n = 0; n < k;) {
      sum = add_f32(sum, p[n++]);
      if (sum >= wanted) break;
    }
  }
  while (n > 1 && p[n - 1] < o.min_p) n--;  // the largest is 1
  total = 0.0f;
  for (size_t i = 0; i < n; i++) total = add_f32(total, p[i]);

  const auto random = philox4x32_10({position, uint32_t(sequence), uint32_t(sequence >> 32), 0},
                                    {uint32_t(o.seed), uint32_t(o.seed >> 32)});
  const float threshold = mul_f32(mul_f32(float(random[0] >> 8), 0x1p-24f), total);
  float sum = 0.0f;
  for (size_t i = 0; i < n; i++) {
    sum = add_f32(sum, p[i]);
    if (sum > threshold) return int32_t(uint32_t(order[i]));
  }
  return int32_t(uint32_t(order[n - 1]));  // not reached: u < 1 and the last sum is `total`
}

}  // namespace assay
