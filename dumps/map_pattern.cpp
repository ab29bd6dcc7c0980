// Names in map files: patterns of theirs, templates of ours.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "dumps/map_rules.h"
#include "dumps/text.h"

namespace assay::mapping {
namespace {

bool is_identifier(std::string_view s) {
  auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  return !s.empty() && letter(s[0]) &&
         std::all_of(s.begin(), s.end(), [&](char c) { return letter(c) || c == '_' || (c >= '0' && c <= '9'); });
}

// Calls literal(text), capture(text between braces) or star() for each piece of a name.
template <class Literal, class Capture, class Star>
void pieces_of(const std::string& text, const std::string& where, Literal literal, Capture capture, Star star) {
  std::string run;
  auto flush = [&] {
    if (!run.empty()) literal(run);
    run.clear();
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    if (c < 0x21 || c > 0x7e) bad_map(where, "a name with odd bytes", "printable ASCII", in_quotes(text));
    if (c == '|') bad_map(where, "a | within a name", "blanks around it: a | b", in_quotes(text));
    if (c == '}') bad_map(where, "a } without {", {}, in_quotes(text));
    if (c == '{') {
      const size_t end = text.find('}', i);
      if (end == std::string::npos) bad_map(where, "a { without }", {}, in_quotes(text));
      flush();
      capture(std::string_view(text).substr(i + 1, end - i - 1));
      i = end;
    } else if (c == '*') {
      flush();
      star();
    } else {
      run += char(c);
    }
  }
  flush();
}

}  // namespace

std::string identifier(std::string_view s, const std::string& where, const char* what) {
  if (!is_identifier(s)) {
    bad_map(where, std::string("not the name of ") + what, "letters, digits and _, beginning with a letter",
            in_quotes(s, 40));
  }
  return std::string(s);
}

std::optional<int64_t> whole(std::string_view s) {
  int64_t n = 0;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), n);
  if (s.empty() || s[0] == '-' || error != std::errc{} || end != s.data() + s.size()) return std::nullopt;
  return n;
}

std::vector<std::string> Pattern::captures() const {
  std::vector<std::string> out;
  for (const Piece& p : pieces) {
    if (p.kind == Piece::Kind::capture) out.push_back(p.text);
  }
  return out;
}

size_t Pattern::stars() const {
  return size_t(
      std::count_if(pieces.begin(), pieces.end(), [](const Piece& p) { return p.kind == Piece::Kind::star; }));
}

std::vector<std::string> Template::captures() const {
  std::vector<std::string> out;
  for (const Piece& p : pieces) {
    if (p.kind == Piece::Kind::capture) out.push_back(p.text);
  }
  return out;
}

size_t Template::stars() const {
  return size_t(
      std::count_if(pieces.begin(), pieces.end(), [](const Piece& p) { return p.kind == Piece::Kind::star; }));
}

std::string Template::fill(const std::map<std::string, int64_t>& captures, const std::vector<std::string>& stars,
                           const std::string& where) const {
  std::string out;
  size_t star = 0;
  for (const Piece& p : pieces) {
    if (p.kind == Piece::Kind::literal) {
      out += p.text;
    } else if (p.kind == Piece::Kind::star) {
      out += stars.at(star++);
    } else {
      int64_t n = 0;
      if (__builtin_add_overflow(captures.at(p.text), p.add, &n) || n < 0) {
        bad_map(where, "{" + p.text + "} gives a number below 0", "0 or more", std::to_string(n),
                "A line for the first pass alone may stand above");
      }
      out += std::to_string(n);
    }
  }
  return out;
}

Pattern parse_pattern(const std::string& text, const std::string& where) {
  Pattern out;
  out.source = text;
  std::set<std::string> seen;
  pieces_of(
      text, where,
      [&](const std::string& s) {
        out.pieces.push_back({Pattern::Piece::Kind::literal, s});
      },
      [&](std::string_view s) {
        const std::string name = identifier(s, where, "a capture");
        if (!seen.insert(name).second) bad_map(where, "{" + name + "} twice in one name", "another name");
        if (!out.pieces.empty() && out.pieces.back().kind != Pattern::Piece::Kind::literal) {
          bad_map(where, "nothing between two captures", "text between them", in_quotes(text));
        }
        out.pieces.push_back({Pattern::Piece::Kind::capture, name});
      },
      [&] {
        if (!out.pieces.empty() && out.pieces.back().kind != Pattern::Piece::Kind::literal) {
          bad_map(where, "nothing between two captures", "text between them", in_quotes(text));
        }
        out.pieces.push_back({Pattern::Piece::Kind::star, {}});
      });
  return out;
}

Template parse_template(const std::string& text, const std::string& where) {
  Template out;
  out.source = text;
  pieces_of(
      text, where,
      [&](const std::string& s) {
        out.pieces.push_back({Template::Piece::Kind::literal, s, 0});
      },
      [&](std::string_view s) {
        const size_t sign = s.find_first_of("+-");
        int64_t add = 0;
        if (sign != std::string_view::npos) {
          const std::optional<int64_t> n = whole(s.substr(sign + 1));
          if (!n) bad_map(where, "not a capture", "{L}, {L+1} or {L-1}", in_quotes(s, 40));
          add = s[sign] == '-' ? -*n : *n;
        }
        out.pieces.push_back({Template::Piece::Kind::capture, identifier(s.substr(0, sign), where, "a capture"), add});
      },
      [&] {
        out.pieces.push_back({Template::Piece::Kind::star, {}, 0});
      });
  return out;
}

Pattern joined(const Pattern& prefix, const Pattern& name, const std::string& where) {
  return parse_pattern(prefix.source + name.source, where);
}

Template joined(const Template& prefix, const Template& name) {
  Template out = prefix;
  out.source += name.source;
  out.pieces.insert(out.pieces.end(), name.pieces.begin(), name.pieces.end());
  return out;
}

namespace {

// Tries piece `i` at `at`. A number takes all digits that stand there. What failed once is not tried again.
bool match_from(const Pattern& p, std::string_view s, size_t i, size_t at, std::vector<bool>& failed, Match& out) {
  if (i == p.pieces.size()) return at == s.size();
  const size_t key = i * (s.size() + 1) + at;
  if (failed[key]) return false;
  const Pattern::Piece& piece = p.pieces[i];
  bool found = false;
  if (piece.kind == Pattern::Piece::Kind::literal) {
    found = s.substr(at).starts_with(piece.text) && match_from(p, s, i + 1, at + piece.text.size(), failed, out);
  } else if (piece.kind == Pattern::Piece::Kind::capture) {
    size_t end = at;
    while (end < s.size() && s[end] >= '0' && s[end] <= '9') ++end;
    const std::optional<int64_t> n = whole(s.substr(at, end - at));
    found = n && match_from(p, s, i + 1, end, failed, out);
    if (found) out.captures[piece.text] = *n;
  } else {
    for (size_t end = at; end <= s.size() && !found; ++end) {
      found = match_from(p, s, i + 1, end, failed, out);
      if (found) out.stars.insert(out.stars.begin(), std::string(s.substr(at, end - at)));
    }
  }
  if (!found) failed[key] = true;
  return found;
}

}  // namespace

std::optional<Match> match(const Pattern& pattern, std::string_view name) {
  if (pattern.pieces.empty()) return name.empty() ? std::optional<Match>(Match{}) : std::nullopt;
  const Pattern::Piece& first = pattern.pieces[0];
  if (first.kind == Pattern::Piece::Kind::literal && !name.starts_with(first.text)) return std::nullopt;
  std::vector<bool> failed((pattern.pieces.size() + 1) * (name.size() + 1));
  Match out;
  if (!match_from(pattern, name, 0, 0, failed, out)) return std::nullopt;
  return out;
}

}  // namespace assay::mapping
