// Physical bounds from the shape of a model alone: what must move and be computed, against what a machine can do.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "engine/cost.h"

namespace assay {

/// Operations of a pass by the unit that can do them without another rule (NUMERICS.md section 1): a product and its
/// sum are two. A quantised weight meets an s8 activation in one int8 product, an s16 one (256 hi + lo) in two; with
/// f32 activations, and in everything else, sums are f32 fmas in the rule's order, which no matrix unit has.
struct Work {
  int64_t int8 = 0, f32 = 0;
};

/// What a machine can do at most; 0: not known, which bounds nothing.
struct Rates {
  double bandwidth = 0;      // bytes/s
  double int8 = 0, f32 = 0;  // operations/s: int8 products of dense matrices, f32 on vector units
};

/// Published figures of a device.
struct KnownDevice {
  std::string_view name;  // of --device
  std::string_view title;
  Rates rates;
  double memory = 0;        // bytes
  std::string_view source;  // where the vendor says so
};
std::span<const KnownDevice> known_devices();
const KnownDevice* find_device(std::string_view name);  // null: unknown

/// The least time of a pass, and what it is bound by: "bytes", "int8 products" or "f32 operations".
struct Bound {
  double seconds = 0;
  std::string_view by = "";
};

struct Limits {
  int64_t context = 0;  // cached positions of each decoded token, itself included
  int64_t batch = 0;    // sequences that decode together
  int64_t prompt = 0;   // tokens of one prefill pass
  NodeCost decode;      // of a pass with one token of each sequence
  NodeCost prefill;     // of the whole prompt, logits of the last row
  Work decode_work, prefill_work;
  int64_t kv_bytes_per_position = 0;

  /// Whichever of bytes, int8 and f32 takes longest: units work side by side, so that their times are not added.
  static Bound bound(const NodeCost& cost, const Work& work, const Rates& rates);
  /// Tokens per second that no implementation can exceed which reads each byte once.
  double decode_at_most(const Rates& rates) const { return double(batch) / bound(decode, decode_work, rates).seconds; }
  double prefill_at_most(const Rates& rates) const {
    return double(prompt) / bound(prefill, prefill_work, rates).seconds;
  }
};

/// Of a program with `context` positions in use in each of `batch` sequences when a token of each is decoded, and a
/// first prefill of `prompt` tokens. `activations`: of quantised weights.
Limits limits_of(const Program& program, int64_t context, int64_t prompt, KvType kv, int64_t batch = 1,
                 Activations activations = Activations::s16);

}  // namespace assay
