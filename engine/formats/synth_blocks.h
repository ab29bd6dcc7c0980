// Random weights as a function of their place: every block follows from (seed, tensor name, row, block) alone, so that
// any part can be made anywhere, in any order, by any number of threads, with the same bytes.
// Source of the generator: SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA
// 2014), whose n-th output is a hash of key + n * golden ratio: a counter generator as it stands.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/model.h"

namespace assay {

/// The weights of one matrix, never stored here. Quantised blocks are made as such: random codes, and scales that give
/// the widened weights the wanted root mean square and a mean near 0. Scales have both signs where the format's own
/// quantisers use both, and are never zero or Inf; K-quants use sub-block scales of all 6 (Q6_K: 8) bits.
class RandomMatrix {
 public:
  /// Precondition: columns divide into blocks of the type, rms is positive and finite.
  RandomMatrix(uint64_t seed, std::string_view name, WeightType type, int64_t columns, double rms);
  /// Writes rows [begin, end), row after row without padding; row `begin` goes to `out`.
  void write(int64_t begin, int64_t end, std::byte* out) const;

 private:
  template <WeightType type>
  void write_rows(int64_t begin, int64_t end, std::byte* out) const;
  uint64_t key_;
  WeightType type_;
  int64_t columns_;
  float step_ = 0;                // F32: the weight of code 1
  std::vector<uint32_t> scales_;  // quantised: d, and above it m or dmin, as binary16 bits
  std::vector<uint16_t> values_;  // F16, BF16: elements by 16 random bits
};

/// n values, uniform in [centre - spread, centre + spread].
Vector random_vector(uint64_t seed, std::string_view name, int64_t n, double centre, double spread);

}  // namespace assay
