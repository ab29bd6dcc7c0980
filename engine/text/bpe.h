// Byte-level BPE: an alphabet of printable characters for the 256 bytes, and merges by rank.
// Sources: GPT-2's encoder.py (openai/gpt-2), bytes_to_unicode; Sennrich, Haddow, Birch 2016 (arXiv 1508.07909); the
// order of merges is that of Hugging Face tokenizers (models/bpe/word.rs, merge_all): lowest rank first, leftmost
// first.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace assay {

/// The bytes that a vocabulary entry stands for ("Ġthe" -> " the"); nullopt if a character is not of the alphabet.
std::optional<std::string> bytes_of_byte_level(std::string_view entry);
/// The other way round.
std::string byte_level_of_bytes(std::string_view bytes);

struct Merge {
  int32_t left, right, result;
};

class Bpe {
 public:
  Bpe() = default;
  /// `tokens`: bytes -> id. `merges` by rising rank; of two for the same pair the later one counts, as in the official
  /// code. `unknown`: the id of a byte without token; -1: such a byte is left out, as in the official code.
  Bpe(std::unordered_map<std::string, int32_t> tokens, const std::vector<Merge>& merges, int32_t unknown,
      bool ignore_merges);

  /// Appends the ids of one word, given as bytes. n log n in its length.
  void encode(std::string_view word, std::vector<int32_t>& ids) const;
  const std::unordered_map<std::string, int32_t>& tokens() const { return tokens_; }

 private:
  struct Entry {
    uint64_t pair = kFree;
    uint32_t rank = 0;
    int32_t result = 0;
  };
  static constexpr uint64_t kFree = ~uint64_t{0};
  static uint64_t key(int32_t left, int32_t right) { return uint64_t(uint32_t(left)) << 32 | uint32_t(right); }
  const Entry* find(int32_t left, int32_t right) const;

  std::unordered_map<std::string, int32_t> tokens_;
  std::array<int32_t, 256> byte_ids_{};
  std::vector<Entry> table_;  // open addressing; its size is a power of two, at most half of it in use
  int32_t unknown_ = -1;
  bool ignore_merges_ = false;
};

}  // namespace assay
