// Small texts for messages: quoting what a file brought, shapes, byte counts.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace assay {

/// "name" in quotes, control and non-ASCII bytes as \xNN, cut after `max` bytes: a hostile name can't flood or steer a terminal.
std::string in_quotes(std::string_view text, size_t max = 120);
/// Whether `text` matches `glob`, where * stands for any run of characters. Linear in practice: the last * alone is retried.
bool glob_match(std::string_view glob, std::string_view text);
std::string shape_text(const std::vector<int64_t>& shape);  // "[5, 96]"
std::string bytes_text(uint64_t bytes);                     // "820.6 KB", "1.62 MB": powers of 1000, three digits or more
/// A path or name as a POSIX shell takes it: as it is, or in single quotes. For commands that a text ends with.
std::string shell_word(const std::string& text);

}  // namespace assay
