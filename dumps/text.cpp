#include "dumps/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace assay {

std::string in_quotes(std::string_view text, size_t max) {
  std::string out = "\"";
  for (size_t i = 0; i < text.size() && i < max; ++i) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    if (c < 0x20 || c >= 0x7f) {
      out += fmt::format("\\x{:02x}", c);
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += static_cast<char>(c);
    }
  }
  out += text.size() > max ? fmt::format("\"... ({} bytes)", text.size()) : "\"";
  return out;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  constexpr size_t kMaxShown = 16;  // a hostile shape may have millions of axes
  std::string out = "[";
  for (size_t i = 0; i < shape.size() && i < kMaxShown; ++i) out += fmt::format("{}{}", i ? ", " : "", shape[i]);
  if (shape.size() > kMaxShown) out += fmt::format(", ... {} axes", shape.size());
  return out + "]";
}

std::string bytes_text(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KB", "MB", "GB", "TB", "PB", "EB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < std::size(kUnits)) value /= 1000, ++unit;
  if (unit == 0) return fmt::format("{} B", bytes);
  return value < 10 ? fmt::format("{:.2f} {}", value, kUnits[unit])
                    : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

bool glob_match(std::string_view glob, std::string_view text) {
  size_t g = 0, t = 0, star = std::string_view::npos, retry = 0;
  while (t < text.size()) {
    if (g < glob.size() && glob[g] == '*') {
      star = g++;
      retry = t;
    } else if (g < glob.size() && glob[g] == text[t]) {
      g++;
      t++;
    } else if (star != std::string_view::npos) {
      g = star + 1;
      t = ++retry;
    } else {
      return false;
    }
  }
  while (g < glob.size() && glob[g] == '*') g++;
  return g == glob.size();
}

std::string shell_word(const std::string& text) {
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) || std::string_view("/._-+=:,@%").find(char(c)) != std::string_view::npos;
  });
  if (plain) return text;
  std::string out = "'";
  for (char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace assay
