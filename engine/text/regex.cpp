#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/text/regex.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <cctype>

#include "dumps/error.h"
#include "dumps/text.h"
#include "engine/text/unicode.h"

namespace assay {
namespace {

constexpr size_t kMaxPattern = 4096;  // bytes; the longest published one has about 1000

// \s is the property White_Space in Oniguruma; PCRE2's own \s also takes U+180E and misses nothing else.
constexpr const char* kSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr const char* kNotSpace =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";

/// Walks the pattern once and copies what both engines read alike.
class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where) : p_(pattern), where_(where) {}

  std::string run() {
    if (p_.size() > kMaxPattern)
      throw Error(ErrorKind::malformed, where_, "the pattern is absurdly long", fmt::format("{} bytes", kMaxPattern),
                  std::to_string(p_.size()));
    if (auto bad = first_invalid_utf8(p_)) refuse(*bad, 1, "is not UTF-8");
    while (i_ < p_.size()) {
      const char c = p_[i_];
      if (c == '\\')
        escape(false);
      else if (c == '[')
        bracket();
      else if (c == '(')
        group();
      else if (c == '{')
        braces();
      else if (c == '^' || c == '$')
        refuse(i_, 1, "line anchors are not supported");
      else
        out_ += p_[i_++];
    }
    return out_;
  }

 private:
  [[noreturn]] void refuse(size_t at, size_t length, const std::string& why) const {
    throw Error(ErrorKind::malformed, fmt::format("{}: byte {}", where_, at),
                in_quotes(p_.substr(at, length)) + " " + why, "what README.md of engine/text lists under Patterns",
                "the pattern " + in_quotes(p_, 200));
  }
  bool starts(std::string_view with) const { return p_.substr(i_).starts_with(with); }
  char peek(size_t ahead) const { return i_ + ahead < p_.size() ? p_[i_ + ahead] : '\0'; }

  void escape(bool in_class) {
    const char c = peek(1);
    const auto put = [&](const std::string& text) {
      out_ += text;
      i_ += 2;
    };
    switch (c) {
      case 's':
        return put(in_class ? kSpace : fmt::format("[{}]", kSpace));
      case 'S':
        return put(in_class ? kNotSpace : fmt::format("[{}]", kNotSpace));
      case 'd':
        return put("\\p{Nd}");
      case 'D':
        return put("\\P{Nd}");
      case 'r':
      case 'n':
      case 't':
      case 'f':
        return put(std::string("\\") + c);
      case 'v':
        return put("\\x{b}");  // one character in Ruby's syntax, a class in PCRE2's
      case 'p':
      case 'P':
        return property();
      case 'u':
        return hexadecimal(2, 4);
      case 'x':
        if (peek(2) == '{') {
          size_t digits = 0;
          while (std::isxdigit(uint8_t(peek(3 + digits)))) digits++;
          if (digits >= 1 && digits <= 6 && peek(3 + digits) == '}') {
            hexadecimal(3, digits);
            i_++;
            return;
          }
        }
        refuse(i_, 4, "is not \\x{H} to \\x{HHHHHH}");
      default:
        break;
    }
    if (c == '\0' || uint8_t(c) >= 0x80 || std::isalnum(uint8_t(c))) refuse(i_, 2, "is not supported");
    put(std::string("\\") + c);
  }

  void hexadecimal(size_t skip, size_t digits) {
    std::string hex(p_.substr(std::min(i_ + skip, p_.size()), digits));
    if (hex.size() != digits || hex.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos)
      refuse(i_, skip + digits, "is not a character");
    out_ += "\\x{" + hex + "}";
    i_ += skip + digits;
  }

  void property() {
    const size_t close = p_.find('}', i_);
    if (peek(2) != '{' || close == std::string_view::npos || close > i_ + 40) refuse(i_, 6, "is not \\p{NAME}");
    std::string_view name = p_.substr(i_ + 3, close - i_ - 3);
    bool negated = p_[i_ + 1] == 'P';
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    for (char c : name)
      if (!std::isalpha(uint8_t(c)) && c != '_') refuse(i_, close + 1 - i_, "is not a known property");
    // A longer name is a script; PCRE2 would take Script_Extensions for it.
    out_ += fmt::format("\\{}{{{}{}}}", negated ? 'P' : 'p', name.size() > 2 ? "sc:" : "", name);
    i_ = close + 1;
  }

  void bracket() {
    const size_t begin = i_;
    out_ += p_[i_++];
    if (peek(0) == '^') out_ += p_[i_++];
    if (peek(0) == ']') refuse(begin, 2, "an empty class or one that begins with ] is read differently by each engine");
    for (; i_ < p_.size() && p_[i_] != ']';) {
      if (p_[i_] == '[') refuse(i_, 2, "a class within a class is not supported");
      if (starts("&&")) refuse(i_, 2, "an intersection is not supported");
      if (p_[i_] == '\\')
        escape(true);
      else
        out_ += p_[i_++];
    }
    if (i_ == p_.size()) refuse(begin, 8, "the class has no end");
    out_ += p_[i_++];
  }

  void group() {
    if (peek(1) == '*') refuse(i_, 2, "is not supported");
    if (peek(1) == '?') {
      for (std::string_view known : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"})
        if (starts(known)) {
          out_ += known;
          i_ += known.size();
          return;
        }
      refuse(i_, 4, "is not supported");
    }
    out_ += p_[i_++];
  }

  /// {n}, {n,} or {n,m}; {,m} means something else to each engine, and so does a + behind the braces.
  void braces() {
    size_t j = i_ + 1;
    const auto digits = [&] {
      const size_t from = j;
      while (j < p_.size() && std::isdigit(uint8_t(p_[j]))) j++;
      return j - from;
    };
    const bool counted = digits() > 0;
    if (counted && j < p_.size() && p_[j] == ',') {
      j++;
      digits();
    }
    if (!counted || j >= p_.size() || p_[j] != '}') refuse(i_, 4, "is not a repetition {n}, {n,} or {n,m}");
    if (j + 1 < p_.size() && p_[j + 1] == '+') refuse(i_, j + 2 - i_, "is not supported");
    out_ += p_.substr(i_, j + 1 - i_);
    i_ = j + 1;
  }

  std::string_view p_;
  const std::string& where_;
  size_t i_ = 0;
  std::string out_;
};

/// What matching needs besides the pattern; one per thread.
struct Scratch {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(64 << 10, 16 << 20, nullptr);
  Scratch() {
    if (context && stack) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Scratch() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

std::string pcre_message(int code) {
  PCRE2_UCHAR text[256];
  return pcre2_get_error_message(code, text, sizeof text) >= 0 ? reinterpret_cast<const char*>(text) : "unknown error";
}

}  // namespace

std::string translate_pattern(std::string_view pattern, const std::string& where) {
  return Translator(pattern, where).run();
}

Regex::Regex(std::string_view pattern, const std::string& where)
    : Regex(translate_pattern(pattern, where), where, PCRE2_UTF | PCRE2_UCP) {
  source_ = pattern;
}

Regex Regex::literal(std::string_view text, const std::string& where) {
  return Regex(text, where, PCRE2_UTF | PCRE2_LITERAL);
}

Regex::Regex(std::string_view pcre, const std::string& where, unsigned options) : where_(where) {
  int error = 0;
  PCRE2_SIZE at = 0;
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  if (context) pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);  // what . leaves out
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pcre.data()), pcre.size(), options, &error, &at, context.get());
  if (!code)
    throw Error(ErrorKind::malformed, where, "the pattern does not compile", "",
                fmt::format("{} at byte {} of {}", pcre_message(error), at, in_quotes(pcre, 200)));
  code_ = std::shared_ptr<const void>(
      code, [](const void* c) { pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(c))); });
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where there is no JIT, the interpreter gives the same matches
}

void Regex::find_all(std::string_view text, std::vector<Match>& out) const {
  static thread_local Scratch scratch;
  if (!scratch.data || !scratch.context) throw std::bad_alloc();
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE* found = pcre2_get_ovector_pointer(scratch.data);
  size_t from = 0;
  uint32_t options = PCRE2_NO_UTF_CHECK;
  while (from <= text.size()) {
    const int rc = pcre2_match(static_cast<const pcre2_code*>(code_.get()), subject, text.size(), from, options,
                               scratch.data, scratch.context);
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) throw Error(ErrorKind::malformed, where_, "the pattern can't be matched", "", pcre_message(rc));
    out.push_back({found[0], found[1]});
    from = found[1];
    if (found[0] == found[1]) {  // an empty match: go on behind the next character
      if (from == text.size()) break;
      from += utf8_step(text.substr(from)).bytes;
    }
  }
}

}  // namespace assay
