#include "engine/text/pretokenizer.h"

namespace assay {

const char* const kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::vector<std::string> PreTokenizer::words(std::string_view text) const {
  std::vector<std::string> pieces, next;
  if (!text.empty()) pieces.emplace_back(text);
  std::vector<Regex::Match> matches;
  for (const PreTokenizerStep& step : steps_) {
    next.clear();
    for (std::string& piece : pieces) {
      if (step.kind == PreTokenizerStep::prefix_space) {
        next.push_back(piece.starts_with(' ') ? std::move(piece) : " " + piece);
        continue;
      }
      matches.clear();
      step.regex.front().find_all(piece, matches);
      const auto put = [&](size_t begin, size_t end, bool match) {
        if (begin < end && !(step.removed && match != step.invert)) next.push_back(piece.substr(begin, end - begin));
      };
      size_t done = 0;
      for (const Regex::Match& m : matches) {
        put(done, m.begin, false);
        put(m.begin, m.end, true);
        done = m.end;
      }
      put(done, piece.size(), false);
    }
    pieces.swap(next);
  }
  return pieces;
}

}  // namespace assay
