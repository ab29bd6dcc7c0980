// A map file in memory. Not for other folders.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dumps/map.h"
#include "dumps/map_layout.h"

namespace assay::mapping {

/// "layers.{L}.*": literal text, captures of whole numbers, stars.
struct Pattern {
  struct Piece {
    enum class Kind { literal, capture, star } kind = Kind::literal;
    std::string text;  // of a literal, or the capture's name
  };
  std::vector<Piece> pieces;
  std::string source;
  std::vector<std::string> captures() const;
  size_t stars() const;
};
struct Match {
  std::map<std::string, int64_t> captures;
  std::vector<std::string> stars;
};
std::optional<Match> match(const Pattern& pattern, std::string_view name);

/// "prompt{P}/decode/{S-1}/layer.{L}/*"
struct Template {
  struct Piece {
    enum class Kind { literal, capture, star } kind = Kind::literal;
    std::string text;
    int64_t add = 0;
  };
  std::vector<Piece> pieces;
  std::string source;
  std::vector<std::string> captures() const;
  size_t stars() const;
  /// Throws Error{malformed}: a number below 0.
  std::string fill(const std::map<std::string, int64_t>& captures, const std::vector<std::string>& stars,
                   const std::string& where) const;
};

/// "block_table[P]"
struct TableRef {
  Template name;
  std::string row;  // empty: the whole tensor
};
struct Limit {
  std::string axis;
  int64_t size = -1;
  std::optional<TableRef> table;  // in place of a size
};

/// A line that takes tensors, one for each pass.
struct Rule {
  enum class Kind { rule, ignore, rows } kind = Kind::rule;
  int line = 0;
  std::string text;  // for messages
  bool full = true;  // full names: no passes
  Pattern theirs;
  std::vector<Template> ours;
  std::optional<Axes> axes;
  std::string sum, same;  // the capture that is gathered so
  std::optional<TableRef> pages;
  std::vector<Limit> limits;
};
struct PassPrefix {
  int line = 0;
  std::string text;
  Pattern theirs;
  Template ours;
};

/// A phase that they do not write.
struct Absent {
  int line = 0;
  std::string name;  // may hold *
};

/// A name of letters, digits and _, beginning with a letter; Error{malformed} says that it is not the name of `what`.
std::string identifier(std::string_view s, const std::string& where, const char* what);
/// A whole number from 0.
std::optional<int64_t> whole(std::string_view s);

Pattern parse_pattern(const std::string& text, const std::string& where);
Template parse_template(const std::string& text, const std::string& where);
/// Joins a pass's prefix and a rule's name.
Pattern joined(const Pattern& prefix, const Pattern& name, const std::string& where);
Template joined(const Template& prefix, const Template& name);

}  // namespace assay::mapping

namespace assay {

struct DumpMap::Impl {
  std::string where;  // the file
  std::vector<mapping::Rule> rules;
  std::vector<mapping::PassPrefix> passes;
  std::vector<mapping::Absent> absent;
  mapping::Sizes sizes;
  std::string at(int line) const { return where + ":" + std::to_string(line); }
};

}  // namespace assay
