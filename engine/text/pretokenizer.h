// Cutting text into the words within which BPE merges: a sequence of steps, each of which cuts the pieces of the step
// before it (Hugging Face tokenizers, pre_tokenizers/).
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/regex.h"

namespace assay {

struct PreTokenizerStep {
  enum Kind { split, prefix_space };  // prefix_space: a space before each piece that does not begin with one
  Kind kind = split;
  std::vector<Regex> regex;  // split: one
  bool invert = false;       // split: what lies between the matches counts as the matches
  bool removed = false;      // split: matches are thrown away; otherwise they are pieces of their own ("Isolated")
};

class PreTokenizer {
 public:
  PreTokenizer() = default;
  explicit PreTokenizer(std::vector<PreTokenizerStep> steps) : steps_(std::move(steps)) {}
  /// The words of `text`, in order, none empty.
  std::vector<std::string> words(std::string_view text) const;

 private:
  std::vector<PreTokenizerStep> steps_;
};

/// The pattern of GPT-2's encoder.py, which a ByteLevel step with use_regex splits with.
extern const char* const kGpt2Pattern;

}  // namespace assay
