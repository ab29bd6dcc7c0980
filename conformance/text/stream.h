// Text from a model, piece by piece: one conversation in one slot, ids chosen by sampling.h, ended by EOS, stop strings
// or length.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/sampling.h"
#include "engine/session.h"
#include "engine/text/tokenizer.h"

namespace assay {

struct StreamOptions {
  SamplingOptions sampling = {};       // checked
  uint64_t sequence = 0;               // for sampling: which timeline this is
  int64_t count = 0;                   // ids at most, 0: as many as the context holds
  int64_t chunk = 512;                 // prefill rows per pass; between passes `interrupted` is looked at
  std::vector<int32_t> eos = {};       // ids that end the text; they are part of Streamed::ids, their text is not shown
  std::vector<std::string> stop = {};  // strings that end the text and are cut off with what follows
  const std::atomic<bool>* interrupted = nullptr;
};

struct Streamed {
  enum class End : uint8_t { eos, stop, count, context, interrupted, not_finite };
  std::vector<int32_t> ids;  // chosen
  std::string text;          // all that was shown
  End end = End::count;
  int64_t reused = 0;                              // positions that the slot still held from the last call
  int64_t prefilled = 0;                           // positions that were computed for the prompt
  double prefill_seconds = 0, decode_seconds = 0;  // for people: the first id comes with the prefill
};
std::string_view name_of(Streamed::End e);  // "eos", "stop" ...

/// Holds back what may become a stop string, and cuts at the first one that does.
class StopFilter {
 public:
  explicit StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {}
  /// The part of the text so far that can be shown.
  std::string push(const std::string& piece);
  bool stopped() const { return stopped_; }
  std::string finish();  // what was held back, when the text ends otherwise

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

class TextStream {
 public:
  /// Uses slot 0 of `engine`, which must outlive this.
  TextStream(Engine& engine, Tokenizer tokenizer) : engine_(engine), tokenizer_(std::move(tokenizer)) {}

  /// Continues `prompt`: what the slot already holds of it is not computed again (the bits are the same either way).
  /// `show` gets the text as it becomes whole. Throws Error{usage} for an empty prompt, ids outside the vocabulary, and
  /// a prompt that fills the context.
  Streamed run(const std::vector<int32_t>& prompt, const StreamOptions& options,
               const std::function<void(const std::string&)>& show);

 private:
  Engine& engine_;
  Tokenizer tokenizer_;
  std::vector<int32_t> held_;  // ids of the slot's positions
};

}  // namespace assay
