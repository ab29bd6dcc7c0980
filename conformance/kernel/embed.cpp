// Kernel scope: rows of the embedding table, widened.
#include <fmt/format.h>

#include <cmath>

#include "conformance/kernel/bounds.h"
#include "conformance/kernel/kernel_check.h"
#include "conformance/kernel/matrices.h"

namespace assay {
namespace {

void run(KernelBench& b, WeightType type, int64_t columns, Values kind) {
  const int64_t vocab = 7, tokens = 9;
  const StoredMatrix w = stored_matrix(b.rng(), type, vocab, columns, kind);
  std::vector<int32_t> ids = {0, int32_t(vocab) - 1, 0};  // first, last, twice the same
  while (int64_t(ids.size()) < tokens) ids.push_back(int32_t(b.rng()() % uint64_t(vocab)));
  std::vector<float> scalar = unwritten(size_t(tokens * columns)), got = scalar;
  EmbedArgs a{w.matrix, ids.data(), scalar.data()};
  b.scalar.embed(a, 0, tokens);
  a.y = got.data();
  b.target.embed(a, 0, 2);
  b.target.embed(a, 2, tokens);
  b.bytes("element", scalar, got);
  const oracle::Matrix64 want = oracle::embed(oracle::rows_of(w.wide), ids);
  b.bounds(
      got, tokens, columns, [&](int64_t r, int64_t c) { return want.at(r, c); },
      [&](int64_t r, int64_t c) { return bounds::add(want.at(r, c)); });
}

}  // namespace

void embed_cases(KernelBench& b) {
  constexpr WeightType kTypes[] = {WeightType::f32,  WeightType::f16,  WeightType::bf16, WeightType::q8_0,
                                   WeightType::q4_0, WeightType::q4_1, WeightType::q5_0, WeightType::q5_1,
                                   WeightType::q4_k, WeightType::q5_k, WeightType::q6_k};
  for (WeightType type : kTypes)
    for (int64_t columns : kEdgeWidths)
      for (int64_t times : {1, 3}) {
        const int64_t width = columns * times * (columns % block_elements(type) ? block_elements(type) : 1);
        if (width > 1536) continue;
        for (Values kind : {Values::normal, Values::mixed, Values::denormals, Values::huge})
          if (b.next(fmt::format("{} columns {}, {}", name_of(type), width, name_of(kind)))) run(b, type, width, kind);
      }
  for (WeightType type : {WeightType::f32, WeightType::f16, WeightType::bf16})  // rows end on half of a thread's eight elements
    if (b.next(fmt::format("{} columns 12, mixed", name_of(type)))) run(b, type, 12, Values::mixed);
}

}  // namespace assay
