#include "engine/text/bpe.h"

#include <algorithm>
#include <bit>
#include <queue>

#include "engine/text/unicode.h"

namespace assay {
namespace {

/// Printable bytes stand for themselves, the other 68 for U+0100 and up in their order.
struct Alphabet {
  std::array<char32_t, 256> character{};
  std::array<int, 512> byte{};  // by character; -1: none
  Alphabet() {
    byte.fill(-1);
    char32_t next = 256;
    for (int b = 0; b < 256; b++) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      character[size_t(b)] = printable ? char32_t(b) : next++;
      byte[character[size_t(b)]] = b;
    }
  }
};
const Alphabet& alphabet() {
  static const Alphabet a;
  return a;
}

uint64_t mix(uint64_t x) {  // the finaliser of MurmurHash3 (Appleby)
  x = (x ^ x >> 33) * 0xff51afd7ed558ccdULL;
  x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53ULL;
  return x ^ x >> 33;
}

}  // namespace

std::optional<std::string> bytes_of_byte_level(std::string_view entry) {
  std::string bytes;
  for (size_t i = 0; i < entry.size();) {
    const Utf8Step step = utf8_step(entry.substr(i));
    if (step.kind != Utf8Step::whole || step.character >= 512) return std::nullopt;
    const int byte = alphabet().byte[step.character];
    if (byte < 0) return std::nullopt;
    bytes += char(byte);
    i += step.bytes;
  }
  return bytes;
}

std::string byte_level_of_bytes(std::string_view bytes) {
  std::string entry;
  for (const char b : bytes) {
    const char32_t c = alphabet().character[uint8_t(b)];
    if (c < 0x80) {
      entry += char(c);
    } else {
      entry += char(0xC0 | c >> 6);
      entry += char(0x80 | (c & 0x3F));
    }
  }
  return entry;
}

Bpe::Bpe(std::unordered_map<std::string, int32_t> tokens, const std::vector<Merge>& merges, int32_t unknown,
         bool ignore_merges)
    : tokens_(std::move(tokens)), unknown_(unknown), ignore_merges_(ignore_merges) {
  for (int b = 0; b < 256; b++) {
    auto it = tokens_.find(std::string(1, char(b)));
    byte_ids_[size_t(b)] = it == tokens_.end() ? -1 : it->second;
  }
  table_.resize(std::bit_ceil(2 * merges.size() + 2));
  for (size_t rank = 0; rank < merges.size(); rank++) {
    const uint64_t pair = key(merges[rank].left, merges[rank].right);
    size_t i = mix(pair) & (table_.size() - 1);
    while (table_[i].pair != kFree && table_[i].pair != pair) i = (i + 1) & (table_.size() - 1);
    table_[i] = {pair, uint32_t(rank), merges[rank].result};
  }
}

const Bpe::Entry* Bpe::find(int32_t left, int32_t right) const {
  const uint64_t pair = key(left, right);
  for (size_t i = mix(pair) & (table_.size() - 1);; i = (i + 1) & (table_.size() - 1)) {
    if (table_[i].pair == pair) return &table_[i];
    if (table_[i].pair == kFree) return nullptr;
  }
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& ids) const {
  if (word.empty()) return;
  if (ignore_merges_) {
    if (auto it = tokens_.find(std::string(word)); it != tokens_.end()) {
      ids.push_back(it->second);
      return;
    }
  }
  struct Symbol {
    int32_t id, previous, next;  // neighbours by index; -1: none
  };
  struct Candidate {
    uint32_t rank;
    int32_t at;           // index of the left symbol
    int32_t left, right;  // ids when it was found: stale if they have changed
    int32_t result;
    bool operator>(const Candidate& o) const { return rank != o.rank ? rank > o.rank : at > o.at; }
  };
  static thread_local std::vector<Symbol> symbols;
  static thread_local std::vector<Candidate> heap;
  symbols.clear();
  heap.clear();
  for (const char byte : word) {
    const int32_t id = byte_ids_[uint8_t(byte)] >= 0 ? byte_ids_[uint8_t(byte)] : unknown_;
    if (id < 0) continue;
    const auto n = int32_t(symbols.size());
    symbols.push_back({id, n - 1, n + 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;

  const auto propose = [&](int32_t at) {
    const Symbol& left = symbols[size_t(at)];
    if (left.next < 0) return;
    const int32_t right = symbols[size_t(left.next)].id;
    const Entry* e = find(left.id, right);
    if (!e) return;
    heap.push_back({e->rank, at, left.id, right, e->result});
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  for (size_t i = 0; i < symbols.size(); i++) propose(int32_t(i));
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const Candidate c = heap.back();
    heap.pop_back();
    Symbol& left = symbols[size_t(c.at)];
    if (left.id != c.left || left.next < 0 || symbols[size_t(left.next)].id != c.right) continue;
    const int32_t gone = left.next;
    left.id = c.result;
    left.next = symbols[size_t(gone)].next;
    symbols[size_t(gone)].id = -1;
    if (left.next >= 0) symbols[size_t(left.next)].previous = c.at;
    if (left.previous >= 0) propose(left.previous);
    propose(c.at);
  }
  for (int32_t i = 0; i >= 0; i = symbols[size_t(i)].next) ids.push_back(symbols[size_t(i)].id);
}

}  // namespace assay
