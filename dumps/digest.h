// What a dump knows about a tensor without its values: hashes and statistics, taken in one pass as the values stream by.
// The results do not depend on how the values were cut into calls.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "dumps/dtype.h"

namespace assay {

struct TensorStats {
  double min = 0, max = 0, mean = 0, rms = 0;  // over finite values; all 0 if there is none
  int64_t non_finite = 0;
};

/// Gives every NaN the one bit pattern of its type (quiet, positive, no payload): 0x7fc00000 in float32. NaN bits differ
/// between machines; nothing else may. Returns the number of NaNs. `data` needs no alignment.
int64_t canonicalise(DType type, void* data, int64_t elements);

/// XXH3-128 of the bytes of a tensor, XXH3-64 of each row (last axis), statistics. Hex as `xxhsum -H2` prints it: the high
/// 64 bits first.
class TensorDigest {
 public:
  using RowSink = std::function<void(uint64_t row_hash)>;  // called for each row in order
  /// `columns`: elements of a row, 1 or more. `with_stats`: false saves the time.
  TensorDigest(DType type, int64_t columns, bool with_stats, RowSink sink);
  ~TensorDigest();
  TensorDigest(TensorDigest&&) noexcept;

  /// The next elements, canonical. Any number; no alignment needed.
  void update(const void* data, int64_t elements);
  std::string hash() const;    // of all so far
  TensorStats stats() const;   // after whole rows

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::string xxh3_128_hex(const void* data, size_t bytes);
uint64_t xxh3_64(const void* data, size_t bytes);

}  // namespace assay
