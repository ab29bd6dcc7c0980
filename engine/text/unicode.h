// What tokenizers need of Unicode: well-formed UTF-8, NFC, and the classes of characters beside an added token.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace assay {

/// One step through UTF-8 by the table of well-formed sequences (Unicode 15, table 3-7).
struct Utf8Step {
  enum Kind : uint8_t { whole, broken, cut };  // cut: the text ends inside what may still become a character
  Kind kind;
  uint8_t bytes;       // of the character, or of the maximal ill-formed part: 1 to 4
  char32_t character;  // whole only
};
/// The step at the beginning of `text`, which is not empty.
Utf8Step utf8_step(std::string_view text);

/// Byte of the first ill-formed part; nullopt where all of `text` is UTF-8.
std::optional<size_t> first_invalid_utf8(std::string_view text);
/// Moves what is decided from `bytes` into the result: characters as they are, each maximal ill-formed part as U+FFFD.
/// An unfinished character at the end stays in `bytes`, unless this is the end of the text.
std::string take_utf8(std::string& bytes, bool end);
/// The character that ends just before `text` ends; `text` is UTF-8 and not empty.
char32_t last_character(std::string_view text);

/// "text" in quotes for people: characters as they are, but control, format and unassigned ones and bytes that are no
/// UTF-8 as \xNN, so that no text can steer a terminal.
std::string readable(std::string_view bytes);

/// Canonical composition (UAX 15). `text` is UTF-8.
std::string nfc(std::string_view text);

bool is_white_space(char32_t c);     // the property White_Space (PropList.txt)
bool is_word_character(char32_t c);  // \w of UTS 18, annex C: Alphabetic, M, Nd, Pc, Join_Control

}  // namespace assay
