#include "engine/text/unicode.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "dumps/error.h"

namespace assay {

Utf8Step utf8_step(std::string_view text) {
  const auto at = [&](size_t i) { return uint8_t(text[i]); };
  const uint8_t first = at(0);
  if (first < 0x80) return {Utf8Step::whole, 1, first};
  if (first < 0xC2 || first > 0xF4) return {Utf8Step::broken, 1, 0};
  const size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  char32_t character = first & (0x7F >> length);
  for (size_t i = 1; i < length; i++) {
    if (i == text.size()) return {Utf8Step::cut, uint8_t(i), 0};
    // Only the second byte has a narrower range: no overlong forms, no surrogates, nothing above U+10FFFF.
    uint8_t low = 0x80, high = 0xBF;
    if (i == 1) {
      if (first == 0xE0) low = 0xA0;
      if (first == 0xED) high = 0x9F;
      if (first == 0xF0) low = 0x90;
      if (first == 0xF4) high = 0x8F;
    }
    if (at(i) < low || at(i) > high) return {Utf8Step::broken, uint8_t(i), 0};
    character = character << 6 | (at(i) & 0x3F);
  }
  return {Utf8Step::whole, uint8_t(length), character};
}

std::optional<size_t> first_invalid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = utf8_step(text.substr(i));
    if (step.kind != Utf8Step::whole) return i;
    i += step.bytes;
  }
  return std::nullopt;
}

std::string take_utf8(std::string& bytes, bool end) {
  std::string out;
  size_t i = 0;
  while (i < bytes.size()) {
    const Utf8Step step = utf8_step(std::string_view(bytes).substr(i));
    if (step.kind == Utf8Step::cut && !end) break;
    if (step.kind == Utf8Step::whole)
      out.append(bytes, i, step.bytes);
    else
      out += "\xEF\xBF\xBD";
    i += step.bytes;
  }
  bytes.erase(0, i);
  return out;
}

char32_t last_character(std::string_view text) {
  size_t i = text.size() - 1;
  while (i > 0 && (uint8_t(text[i]) & 0xC0) == 0x80) i--;
  return utf8_step(text.substr(i)).character;
}

std::string readable(std::string_view bytes) {
  std::string out = "\"";
  for (size_t i = 0; i < bytes.size();) {
    const Utf8Step step = utf8_step(bytes.substr(i));
    const std::string_view part = bytes.substr(i, step.bytes);
    i += step.bytes;
    const auto category = utf8proc_category(utf8proc_int32_t(step.character));
    const bool shown = step.kind == Utf8Step::whole && category != UTF8PROC_CATEGORY_CN &&
                       category != UTF8PROC_CATEGORY_CC && category != UTF8PROC_CATEGORY_CF &&
                       category != UTF8PROC_CATEGORY_CO && category != UTF8PROC_CATEGORY_ZL &&
                       category != UTF8PROC_CATEGORY_ZP;
    if (part == "\"" || part == "\\")
      out += "\\" + std::string(part);
    else if (part == "\n")
      out += "\\n";
    else if (shown)
      out += part;
    else
      for (const char byte : part) out += fmt::format("\\x{:02x}", uint8_t(byte));
  }
  return out + "\"";
}

std::string nfc(std::string_view text) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return uint8_t(c) < 0x80; })) return std::string(text);
  utf8proc_uint8_t* composed = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), utf8proc_ssize_t(text.size()), &composed,
                   utf8proc_option_t(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(composed, &std::free);
  if (size == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  if (size < 0) throw Error(ErrorKind::internal, "NFC", utf8proc_errmsg(size));
  return std::string(reinterpret_cast<const char*>(composed), size_t(size));
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_word_character(char32_t c) {
  switch (utf8proc_category(utf8proc_int32_t(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:  // Join_Control, and the symbols that are Alphabetic (Other_Alphabetic: circled and squared letters)
      return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
             (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
  }
}

}  // namespace assay
