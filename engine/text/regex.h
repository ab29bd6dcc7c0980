// Regular expressions of pre-tokenizers. The official code runs them with Oniguruma in its Ruby syntax; here PCRE2 runs
// them, on the part of the syntax that both read alike, translated where they differ (README.md, "Patterns"). Anything
// else is refused by name: a pattern that compiles splits as the official code does.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace assay {

/// The pattern in PCRE2's syntax. Throws Error{malformed} naming the construct and its byte.
std::string translate_pattern(std::string_view pattern, const std::string& where);

class Regex {
 public:
  /// `where` names the file and key in messages. Throws Error{malformed}.
  Regex(std::string_view pattern, const std::string& where);
  /// A pattern that stands for itself.
  static Regex literal(std::string_view text, const std::string& where);

  /// The pattern as it was given.
  const std::string& source() const { return source_; }

  struct Match {
    size_t begin, end;  // bytes
  };
  /// All matches from left to right, without overlap, empty ones included. `text` is UTF-8. Throws Error{malformed}
  /// where the pattern needs more steps than PCRE2's limit.
  void find_all(std::string_view text, std::vector<Match>& out) const;

 private:
  Regex(std::string_view pcre, const std::string& where, unsigned options);
  std::shared_ptr<const void> code_;  // pcre2_code
  std::string where_, source_;
};

}  // namespace assay
