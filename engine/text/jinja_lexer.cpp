// From template text to tokens. White space control is that of Jinja 3.1 with trim_blocks and lstrip_blocks: the
// newline after a block or comment goes, and so does the blank start of a line before one; `-` strips further, `+`
// keeps.
#include <array>

#include "dumps/error.h"
#include "dumps/text.h"
#include "engine/text/jinja_ast.h"
#include "engine/text/unicode.h"

namespace assay::jinja {

void fail_at(const std::string& name, Place place, const std::string& what, const std::string& wanted,
             const std::string& found, const std::string& hint) {
  throw Error(ErrorKind::malformed,
              name + ": line " + std::to_string(place.line) + ", column " + std::to_string(place.column), what, wanted,
              found, hint);
}

namespace {

/// Newlines become \n and one at the end goes, as Jinja's lexer does by default.
std::string normalised(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); i++) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') i++;
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& name) : text_(normalised(source)), name_(name) {}

  std::vector<Token> run() {
    if (first_invalid_utf8(text_)) fail_at(name_, {}, "the template is not UTF-8");
    while (at_ < text_.size()) {
      const size_t tag = next_tag();
      const std::string_view data = std::string_view(text_).substr(at_, tag - at_);
      if (tag == std::string::npos) {
        push(TokenKind::text, std::string(data));
        at_ = text_.size();
        break;
      }
      const char kind = text_[tag + 1];
      const char sign = tag + 2 < text_.size() ? text_[tag + 2] : ' ';
      push(TokenKind::text, std::string(before_tag(data, kind, sign)));
      move_to(tag);
      const Place opened = place_;
      const bool has_sign = sign == '-' || sign == '+';
      at_ = tag + 2 + (has_sign ? 1 : 0);
      if (kind == '#') {
        const size_t end = text_.find("#}", at_);
        if (end == std::string::npos) fail_at(name_, opened, "the comment is not closed", "#}");
        close(end, end > at_ ? text_[end - 1] : ' ', true);
      } else if (kind == '%' && raw_follows("raw")) {
        raw(opened);
      } else {
        push(kind == '%' ? TokenKind::block_begin : TokenKind::output_begin, "", opened);
        inside(kind == '%', opened);
      }
    }
    push(TokenKind::end, "");
    return std::move(tokens_);
  }

 private:
  size_t next_tag() const {
    for (size_t i = text_.find('{', at_); i != std::string::npos && i + 1 < text_.size(); i = text_.find('{', i + 1))
      if (text_[i + 1] == '%' || text_[i + 1] == '{' || text_[i + 1] == '#') return i;
    return std::string::npos;
  }

  std::string_view before_tag(std::string_view data, char kind, char sign) const {
    if (sign == '-') return strip(data, false, true);
    if (sign == '+' || kind == '{') return data;
    const size_t line = data.rfind('\n') + 1;  // npos + 1 is 0
    if (line == 0 && !line_starts_) return data;
    return strip(data.substr(line), true, true).empty() ? data.substr(0, line) : data;
  }

  /// `end` is where "%}", "}}" or "#}" stands; `sign` stands before it.
  void close(size_t end, char sign, bool block) {
    size_t next = end + 2;
    if (sign == '-') {
      const std::string_view rest = std::string_view(text_).substr(next);
      next += rest.size() - strip(rest, true, false).size();
    } else if (block && sign != '+' && next < text_.size() && text_[next] == '\n') {
      next++;
    }
    line_starts_ = text_[next - 1] == '\n';
    at_ = next;
  }

  bool raw_follows(std::string_view word) const {
    size_t i = skip_space(at_);
    if (std::string_view(text_).substr(i, word.size()) != word) return false;
    i = skip_space(i + word.size());
    const std::string_view rest = std::string_view(text_).substr(i);
    return rest.starts_with("%}") || rest.starts_with("-%}") || rest.starts_with("+%}");
  }

  void raw(Place opened) {
    size_t end = text_.find("%}", at_);
    const size_t begin_tag_end = end + 2;
    const bool strips = text_[end - 1] == '-';
    at_ = begin_tag_end;
    if (strips) {
      const std::string_view rest = std::string_view(text_).substr(at_);
      at_ += rest.size() - strip(rest, true, false).size();
    }
    line_starts_ = text_[at_ - 1] == '\n';
    for (size_t tag = text_.find("{%", at_); tag != std::string::npos; tag = text_.find("{%", tag + 2)) {
      const size_t start = at_;
      const char sign = tag + 2 < text_.size() ? text_[tag + 2] : ' ';
      at_ = tag + 2 + (sign == '-' || sign == '+' ? 1 : 0);
      if (raw_follows("endraw")) {
        const std::string_view data = std::string_view(text_).substr(start, tag - start);
        at_ = start;
        push(TokenKind::text, std::string(before_tag(data, '%', sign)));
        end = text_.find("%}", tag);
        close(end, text_[end - 1], true);
        return;
      }
      at_ = start;
    }
    fail_at(name_, opened, "raw is not closed", "{% endraw %}");
  }

  size_t skip_space(size_t i) const {
    while (i < text_.size()) {
      size_t next = i;
      if (!is_space(next_code_point(text_, next))) break;
      i = next;
    }
    return i;
  }

  void inside(bool block, Place opened) {
    const std::string_view mark = block ? "%}" : "}}";
    std::vector<std::pair<char, Place>> open;
    for (;;) {
      at_ = skip_space(at_);
      move_to(at_);
      if (at_ >= text_.size())
        fail_at(name_, opened, block ? "the block is not closed" : "the output is not closed", std::string(mark));
      const std::string_view rest = std::string_view(text_).substr(at_);
      const bool sign = rest[0] == '-' || (block && rest[0] == '+');
      if (open.empty() && rest.substr(sign ? 1 : 0).starts_with(mark)) {
        push(block ? TokenKind::block_end : TokenKind::output_end, std::string(mark));
        close(at_ + (sign ? 1 : 0), sign ? rest[0] : ' ', block);
        return;
      }
      const char c = rest[0];
      if (c == '\'' || c == '"') {
        string(c);
      } else if (is_digit(c)) {
        number();
      } else if (is_word(c)) {
        size_t n = 1;
        while (n < rest.size() && is_word(rest[n])) n++;
        push(TokenKind::name, std::string(rest.substr(0, n)));
        at_ += n;
      } else {
        symbol(rest, open);
      }
    }
  }

  void symbol(std::string_view rest, std::vector<std::pair<char, Place>>& open) {
    static constexpr std::array<std::string_view, 26> kSymbols = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                                  "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                                  ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    for (const std::string_view s : kSymbols) {
      if (!rest.starts_with(s)) continue;
      const char c = s[0];
      if (c == '[' || c == '(' || c == '{') open.emplace_back(c, place_);
      if (c == ']' || c == ')' || c == '}') {
        const char wanted = c == ']' ? '[' : c == ')' ? '(' : '{';
        if (open.empty() || open.back().first != wanted)
          fail_at(name_, place_, "unexpected '" + std::string(1, c) + "'", {}, {}, "It closes nothing.");
        open.pop_back();
      }
      push(TokenKind::symbol, std::string(s));
      at_ += s.size();
      return;
    }
    size_t n = 0;
    next_code_point(rest, n);
    fail_at(name_, place_, "unexpected character " + in_quotes(rest.substr(0, n)) + " in an expression");
  }

  void number() {
    const std::string_view rest = std::string_view(text_).substr(at_);
    size_t n = 0;
    bool real = false;
    auto digits = [&] {
      while (n < rest.size() && (is_digit(rest[n]) || (rest[n] == '_' && n + 1 < rest.size() && is_digit(rest[n + 1]))))
        n++;
    };
    digits();
    if (n + 1 < rest.size() && rest[n] == '.' && is_digit(rest[n + 1])) {
      real = true;
      n++;
      digits();
    }
    if (n < rest.size() && (rest[n] == 'e' || rest[n] == 'E')) {
      const size_t sign = n + 1 < rest.size() && (rest[n + 1] == '+' || rest[n + 1] == '-') ? 1 : 0;
      if (n + 1 + sign < rest.size() && is_digit(rest[n + 1 + sign])) {
        real = true;
        n += 1 + sign;
        digits();
      }
    }
    if (n < rest.size() && is_word(rest[n]))
      fail_at(name_, place_, "malformed number", "decimal digits", in_quotes(rest.substr(0, n + 1)));
    std::string text;
    for (const char c : rest.substr(0, n))
      if (c != '_') text += c;
    if (!real && text.size() > 1 && text.find_first_not_of('0') != std::string::npos && text[0] == '0')
      fail_at(name_, place_, "malformed number", "no leading zero", in_quotes(text));
    push(real ? TokenKind::real : TokenKind::integer, text);
    at_ += n;
  }

  /// Escapes are those of Python's strings; an unknown one keeps its backslash.
  void string(char quote) {
    const Place opened = place_;
    std::string out;
    size_t i = at_ + 1;
    auto hex = [&](int digits) {
      uint32_t v = 0;
      for (int k = 0; k < digits; k++, i++) {
        const char c = i < text_.size() ? text_[i] : ' ';
        const int d = is_digit(c)            ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
        if (d < 0) fail_at(name_, opened, "malformed escape in a string", std::to_string(digits) + " hex digits");
        v = v << 4 | uint32_t(d);
      }
      if (v > 0x10ffff || (v >= 0xd800 && v < 0xe000))
        fail_at(name_, opened, "an escape in a string names no character");
      append_utf8(out, v);
    };
    for (;;) {
      if (i >= text_.size()) fail_at(name_, opened, "the string is not closed", std::string(1, quote));
      const char c = text_[i++];
      if (c == quote) break;
      if (c != '\\' || i >= text_.size()) {
        out += c;
        continue;
      }
      const char e = text_[i++];
      switch (e) {
        case 'n':
          out += '\n';
          break;
        case 't':
          out += '\t';
          break;
        case 'r':
          out += '\r';
          break;
        case 'a':
          out += '\a';
          break;
        case 'b':
          out += '\b';
          break;
        case 'f':
          out += '\f';
          break;
        case 'v':
          out += '\v';
          break;
        case '\n':
          break;
        case '\\':
        case '\'':
        case '"':
          out += e;
          break;
        case 'x':
          hex(2);
          break;
        case 'u':
          hex(4);
          break;
        case 'U':
          hex(8);
          break;
        case 'N':
          fail_at(name_, opened, "escape \\N is not supported", "\\u and four hex digits");
        default:
          if (e >= '0' && e <= '7') {
            uint32_t v = uint32_t(e - '0');
            for (int k = 0; k < 2 && i < text_.size() && text_[i] >= '0' && text_[i] <= '7'; k++)
              v = v * 8 + uint32_t(text_[i++] - '0');
            append_utf8(out, v);
          } else {
            out += '\\';
            out += e;
          }
      }
    }
    push(TokenKind::string, std::move(out), opened);
    at_ = i;
  }

  void push(TokenKind kind, std::string text, Place place) {
    if (kind == TokenKind::text && text.empty()) return;
    tokens_.push_back({kind, std::move(text), place});
  }
  void push(TokenKind kind, std::string text) {
    move_to(at_);
    push(kind, std::move(text), place_);
  }
  /// Counts lines and columns up to `to`, which never moves back.
  void move_to(size_t to) {
    for (; counted_ < to && counted_ < text_.size(); counted_++) {
      place_.column++;
      if (text_[counted_] == '\n') place_ = {place_.line + 1, 1};
    }
  }

  std::string text_;
  const std::string& name_;
  size_t at_ = 0, counted_ = 0;
  bool line_starts_ = true;
  Place place_;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenise(std::string_view source, const std::string& name) {
  return Lexer(source, name).run();
}

}  // namespace assay::jinja
