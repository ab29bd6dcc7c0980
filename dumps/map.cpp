// Reading a map file. Everything that needs no dump is checked here, with file and line.
#include "dumps/map.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <set>
#include <sstream>

#include "dumps/error.h"
#include "dumps/map_rules.h"
#include "dumps/names.h"
#include "dumps/text.h"

namespace assay {
namespace mapping {
namespace {

constexpr size_t kMaxFile = size_t(4) << 20;

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> out;
  std::istringstream in{std::string(text)};
  for (std::string w; in >> w;) out.push_back(w);
  return out;
}

std::string joined_words(const std::vector<std::string>& words, size_t from, size_t to) {
  std::string out;
  for (size_t i = from; i < to; ++i) out += (out.empty() ? "" : " ") + words[i];
  return out;
}

// Splits at commas outside of brackets.
std::vector<std::string> clauses_of(const std::string& text) {
  std::vector<std::string> out(1);
  int depth = 0;
  for (char c : text) {
    depth += (c == '[' || c == '(') - (c == ']' || c == ')');
    if (c == ',' && depth == 0) {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

TableRef parse_table(const std::string& text, const std::string& where) {
  TableRef out;
  std::string name = text;
  if (text.ends_with(']') && text.find('[') != std::string::npos) {
    const size_t open = text.rfind('[');
    out.row = identifier(std::string_view(text).substr(open + 1, text.size() - open - 2), where, "a capture");
    name = text.substr(0, open);
  }
  if (name.empty()) bad_map(where, "the name of a table is missing", "TENSOR or TENSOR[P]", in_quotes(text));
  out.name = parse_template(name, where);
  if (out.name.stars()) bad_map(where, "a * in the name of a table", {}, in_quotes(text));
  return out;
}

// Of the vocabulary: a phase, or what a state or ids are called. Names of caches have no rank there.
bool is_phase(const std::string& s) {
  static const int unknown = phase_rank("");
  static const std::set<std::string> others = {"k", "v", "conv_state", "recurrent_state", "ids", "greedy_ids"};
  return phase_rank(s) < unknown || others.contains(s);
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& where) : text_(text) { map_.where = where; }

  DumpMap::Impl run() {
    if (text_.size() > kMaxFile)
      bad_map(map_.where, "too long for a map", fmt::format("at most {} bytes", kMaxFile), "more");
    std::istringstream in{std::string(text_)};
    std::string line, whole_line;
    int number = 0, begun = 0;
    while (std::getline(in, line)) {
      ++number;
      for (size_t i = 0; i < line.size(); ++i) {
        if (line[i] == '#' && (i == 0 || line[i - 1] == ' ' || line[i - 1] == '\t')) line.resize(i);
      }
      if (!line.empty() && line.back() == '\r') line.pop_back();
      if (line.find_first_not_of(" \t") == std::string::npos) continue;
      if (line[0] == ' ' || line[0] == '\t') {
        if (whole_line.empty())
          bad_map(map_.at(number), "a continued line, and none before it", "a line that begins at its left edge");
        whole_line += line;
        continue;
      }
      if (!whole_line.empty()) statement(whole_line, begun);
      whole_line = line;
      begun = number;
    }
    if (!whole_line.empty()) statement(whole_line, begun);
    if (map_.rules.empty()) bad_map(map_.where, "a map without rules", "THEIRS -> OURS");
    check_passes();
    for (const auto& [number, name] : lets_) {
      if (!used_sizes_.contains(name))
        bad_map(map_.at(number), "the size " + in_quotes(name) + " has no use", "an axis or a size of that name");
    }
    return std::move(map_);
  }

 private:
  void statement(const std::string& line, int number) {
    const std::string where = map_.at(number);
    std::vector<std::string> words = words_of(line);
    const std::string& first = words[0];
    const bool arrow_second = words.size() > 1 && words[1] == "->";
    if (first == "pass") return pass(words, number);
    if (arrow_second) return rule(words, number);
    if (first == "let") return let(words, number);
    if (first == "rows") return rows(words, number);
    if (first == "absent" || first == "ignore") {
      if (words.size() != 2) bad_map(where, first + " takes one name", first + " NAME", in_quotes(line));
      if (first == "absent") return absent(words[1], number);
      Rule r;
      r.kind = Rule::Kind::ignore;
      r.line = number;
      r.text = line;
      r.theirs = parse_pattern(words[1], where);
      map_.rules.push_back(std::move(r));
      return;
    }
    bad_map(where, "the line can't be read", "let, pass, rows, absent, ignore or THEIRS -> OURS", in_quotes(line, 60));
  }

  // An excuse that fits nothing, or everything, is a slip of the pen: comparisons would be wrong either way.
  void absent(const std::string& name, int number) {
    const std::string where = map_.at(number);
    parse_template(name, where);
    if (name.find_first_of("{}") != std::string::npos)
      bad_map(where, "a capture under absent", "*", in_quotes(name));
    if (name.find_first_not_of("*/") == std::string::npos)
      bad_map(where, "absent fits every tensor", "the name of a phase", in_quotes(name));
    const std::string last = name.substr(name.rfind('/') + 1);  // of a name without / all of it
    if (last.find('*') == std::string::npos && !is_phase(last)) {
      bad_map(where, "absent ends with no known phase", "a phase of FORMAT.md, as */layer.*/q_norm",
              in_quotes(name));
    }
    map_.absent.push_back({number, name});
  }

  void let(const std::vector<std::string>& words, int number) {
    const std::string where = map_.at(number);
    if (words.size() != 4 || words[2] != "=")
      bad_map(where, "the line can't be read", "let NAME = SIZE", in_quotes(joined_words(words, 0, words.size()), 60));
    const std::string name = identifier(words[1], where, "a size");
    std::optional<int64_t> n = whole(words[3]);
    if (!n && map_.sizes.contains(words[3])) {
      n = map_.sizes[words[3]];
      used_sizes_.insert(words[3]);
    }
    if (!n || *n < 1)
      bad_map(where, "not a size", "a whole number from 1, or an earlier name", in_quotes(words[3], 40));
    if (!map_.sizes.emplace(name, *n).second) bad_map(where, "the size " + in_quotes(name) + " is given twice");
    lets_.emplace_back(number, name);
  }

  void pass(const std::vector<std::string>& words, int number) {
    const std::string where = map_.at(number);
    const auto arrow = std::find(words.begin(), words.end(), "->");
    const size_t left = size_t(arrow - words.begin()) - 1,
                 right = arrow == words.end() ? 0 : size_t(words.end() - arrow) - 1;
    if (arrow == words.end() || left > 1 || right > 1) {
      bad_map(where, "the line can't be read", "pass THEIRS -> OURS",
              in_quotes(joined_words(words, 0, words.size()), 60));
    }
    PassPrefix p;
    p.line = number;
    p.text = joined_words(words, 0, words.size());
    p.theirs = parse_pattern(left ? words[1] : "", where);
    p.ours = parse_template(right ? words.back() : "", where);
    if (p.ours.stars() > p.theirs.stars()) bad_map(where, "more * in ours than in theirs");
    map_.passes.push_back(std::move(p));
  }

  void rows(const std::vector<std::string>& words, int number) {
    const std::string where = map_.at(number);
    if (words.size() != 4 || words[2] != "=")
      bad_map(where, "the line can't be read", "rows OURS = THEIRS",
              in_quotes(joined_words(words, 0, words.size()), 60));
    Rule r;
    r.kind = Rule::Kind::rows;
    r.line = number;
    r.text = joined_words(words, 0, words.size());
    r.ours.push_back(parse_template(words[1], where));
    r.theirs = parse_pattern(words[3], where);
    if (r.ours[0].stars() > r.theirs.stars()) bad_map(where, "more * in ours than in theirs");
    for (const std::string& c : r.ours[0].captures()) require(r.theirs.captures(), c, where);
    map_.rules.push_back(std::move(r));
  }

  static void require(const std::vector<std::string>& names, const std::string& name, const std::string& where) {
    if (std::find(names.begin(), names.end(), name) != names.end()) return;
    bad_map(where, "{" + name + "} of ours is not in theirs");
  }

  void rule(const std::vector<std::string>& words, int number) {
    const std::string where = map_.at(number);
    Rule r;
    r.line = number;
    size_t colon = 2;
    while (colon < words.size() && words[colon] != ":") ++colon;
    r.text = joined_words(words, 0, colon);
    std::string theirs = words[0];
    std::vector<std::string> ours;
    bool want_name = true;
    for (size_t i = 2; i < colon; ++i) {
      if (want_name == (words[i] == "|"))
        bad_map(where, "the names of ours can't be read", "OURS | OURS ...", in_quotes(joined_words(words, 2, colon)));
      if (want_name) ours.push_back(words[i]);
      want_name = !want_name;
    }
    if (want_name) bad_map(where, "a name of ours is missing", "THEIRS -> OURS");
    r.full = theirs[0] == '/';
    if (r.full != (ours[0][0] == '/')) {
      bad_map(where, "one side with a full name, the other without", "/THEIRS -> /OURS, or no / on both",
              in_quotes(r.text));
    }
    if (r.full) {
      theirs.erase(0, 1);
      ours[0].erase(0, 1);
    }
    for (size_t i = 1; i < ours.size(); ++i) {
      if (ours[i].find('/') == std::string::npos) {
        const size_t slash = ours[i - 1].rfind('/');
        if (slash != std::string::npos) ours[i] = ours[i - 1].substr(0, slash + 1) + ours[i];
      } else if (r.full) {
        if (ours[i][0] != '/')
          bad_map(where, "one side with a full name, the other without", "/OURS", in_quotes(ours[i]));
        ours[i].erase(0, 1);
      }
    }
    r.theirs = parse_pattern(theirs, where);
    for (const std::string& o : ours) {
      if (o.empty()) bad_map(where, "an empty name of ours");
      r.ours.push_back(parse_template(o, where));
      if (r.ours.back().stars() > r.theirs.stars()) bad_map(where, "more * in ours than in theirs");
    }
    if (colon < words.size()) {
      if (colon + 1 == words.size()) bad_map(where, "nothing behind the colon", "axes, sum, same, ...");
      for (const std::string& c : clauses_of(joined_words(words, colon + 1, words.size()))) clause(r, c, where);
    }
    check_rule(r, where);
    map_.rules.push_back(std::move(r));
  }

  void clause(Rule& r, const std::string& text, const std::string& where) {
    const std::vector<std::string> words = words_of(text);
    auto twice = [&](bool there) {
      if (there) bad_map(where, "a clause twice", "each kind of clause once", in_quotes(text));
    };
    if (words.empty()) bad_map(where, "an empty clause");
    if (words[0] == "sum" || words[0] == "same") {
      if (words.size() != 2) bad_map(where, words[0] + " takes one capture", words[0] + " R", in_quotes(text));
      twice(!r.sum.empty() || !r.same.empty());
      (words[0] == "sum" ? r.sum : r.same) = identifier(words[1], where, "a capture");
    } else if (words[0] == "pages") {
      if (words.size() != 2) bad_map(where, "pages takes one table", "pages TENSOR[P]", in_quotes(text));
      twice(r.pages.has_value());
      r.pages = parse_table(words[1], where);
    } else if (words.size() == 3 && words[1] == "<") {
      Limit limit;
      limit.axis = identifier(words[0], where, "an axis");
      const std::optional<int64_t> n = whole(words[2]);
      if (n) {
        limit.size = *n;
      } else if (map_.sizes.contains(words[2])) {
        limit.size = map_.sizes[words[2]];
        used_sizes_.insert(words[2]);
      } else {
        limit.table = parse_table(words[2], where);
      }
      for (const Limit& l : r.limits) twice(l.axis == limit.axis);
      r.limits.push_back(std::move(limit));
    } else {
      twice(r.axes.has_value());
      r.axes = parse_axes(text, map_.sizes, where);
      used_sizes_.insert(r.axes->lets.begin(), r.axes->lets.end());
    }
  }

  // What can be said of a rule without its pass and without a dump.
  void check_rule(const Rule& r, const std::string& where) {
    const size_t parts = r.axes ? parts_of(r.axes->theirs) : 1;
    if (parts != r.ours.size()) {
      bad_map(where, "as many names of ours as parts of the split", fmt::format("{} names", parts),
              std::to_string(r.ours.size()));
    }
    if (r.axes && !r.axes->ours.empty() && r.axes->ours.size() != parts) {
      bad_map(where, "as many layouts of ours as names", std::to_string(parts), std::to_string(r.axes->ours.size()));
    }
    if (!r.pages) return;
    for (size_t part = 0; part < parts; ++part) {
      const std::vector<std::string> atoms = r.axes ? part_atoms(r.axes->theirs, part) : std::vector<std::string>();
      for (const char* a : {"page", "slot"}) {
        if (std::find(atoms.begin(), atoms.end(), a) == atoms.end()) {
          bad_map(where, "pages without their axes", "page and slot among theirs, position among ours",
                  "no " + std::string(a) + (parts > 1 ? fmt::format(" in part {}", part + 1) : ""));
        }
      }
    }
    if (r.axes->ours.empty()) bad_map(where, "pages without a layout of ours", "theirs => ... position ...");
  }

  void check_passes() {
    const bool relative = std::any_of(map_.rules.begin(), map_.rules.end(), [](const Rule& r) { return !r.full; });
    if (map_.passes.empty()) {
      PassPrefix none;
      map_.passes.push_back(none);
    } else if (!relative) {
      bad_map(map_.at(map_.passes[0].line), "a pass, and no rule for it", "a rule whose names do not begin with /");
    }
    for (const Rule& r : map_.rules) {
      if (r.kind != Rule::Kind::rule) continue;
      for (const PassPrefix& p : r.full ? std::vector<PassPrefix>(1) : map_.passes) check_captures(r, p);
    }
  }

  // Every capture of theirs must have a use, every name in ours an origin. A split makes tensors of different axes, so
  // that what stands in names, layouts and tables is asked of each part.
  void check_captures(const Rule& r, const PassPrefix& p) {
    const std::string where = map_.at(r.line);
    const std::vector<std::string> theirs = joined(p.theirs, r.theirs, where).captures();
    const std::set<std::string> known(theirs.begin(), theirs.end());
    if (r.axes) {
      for (const std::string& a : atoms_of(r.axes->theirs)) {
        if (known.contains(a)) bad_map(where, in_quotes(a) + " is an axis and a capture", "two names");
        if (r.pages && a == "position") bad_map(where, "position among their axes, and pages", "page and slot");
      }
    }
    std::vector<std::set<std::string>> in_names(r.ours.size());  // of each part
    std::set<std::string> fixed;                                 // captures of theirs that stand in any of our names
    for (size_t i = 0; i < r.ours.size(); ++i) {
      std::set<std::string> bound = known;
      if (r.axes) {
        const std::vector<std::string> atoms = part_atoms(r.axes->theirs, i);
        bound.insert(atoms.begin(), atoms.end());
      }
      if (r.pages && !r.pages->row.empty()) bound.insert(r.pages->row);
      for (const std::string& c : joined(p.ours, r.ours[i]).captures()) {
        if (!bound.contains(c)) bad_map(where, "{" + c + "} of ours is not in theirs", {}, in_quotes(r.ours[i].source));
        if (r.pages && (c == "page" || c == "slot"))
          bad_map(where, "{" + c + "} of ours becomes position", "position among our axes", in_quotes(r.ours[i].source));
        in_names[i].insert(c);
        if (known.contains(c)) fixed.insert(c);
      }
    }
    for (const std::set<std::string>& names : in_names) check_tables(r, names, fixed, where);
    for (const std::string* name : {&r.sum, &r.same}) {
      if (name->empty()) continue;
      if (!known.contains(*name)) bad_map(where, "{" + *name + "} is not in theirs", "a capture of theirs");
      if (fixed.contains(*name)) bad_map(where, "{" + *name + "} is in ours and gathered", "one of both");
    }
    std::set<std::string> ranks;  // captures that must be axes of each of our layouts
    for (const std::string& c : known) {
      if (!fixed.contains(c) && c != r.sum && c != r.same) ranks.insert(c);
    }
    const size_t layouts = r.axes ? r.axes->ours.size() : 0;
    for (size_t i = 0; i < layouts; ++i) check_ours(r, i, known, in_names[i], ranks, where);
    if (layouts > 0 || ranks.empty()) return;
    for (const std::string& c : theirs) {
      if (ranks.contains(c)) no_use(c, where);
    }
  }

  [[noreturn]] static void no_use(const std::string& c, const std::string& where) {
    bad_map(where, "{" + c + "} has no use",
            fmt::format("{{{}}} in ours, {} among our axes, sum {} or same {}", c, c, c, c));
  }

  // What a table's name and row are made of must have one value for each tensor of ours.
  static void check_tables(const Rule& r, const std::set<std::string>& in_name, const std::set<std::string>& fixed,
                           const std::string& where) {
    std::vector<TableRef> tables;
    if (r.pages) tables.push_back(*r.pages);
    for (const Limit& l : r.limits) {
      if (l.table) tables.push_back(*l.table);
    }
    for (const TableRef& t : tables) {
      for (const std::string& c : t.name.captures()) {
        if (!in_name.contains(c) && !fixed.contains(c))
          bad_map(where, "{" + c + "} in the name of a table is not among ours", {}, in_quotes(t.name.source));
      }
      if (!t.row.empty() && !in_name.contains(t.row) && !fixed.contains(t.row))
        bad_map(where, "[" + t.row + "] of a table is not among ours", {}, in_quotes(t.name.source));
    }
  }

  // The axes of our layout `i`: each axis of theirs once, all ranks, nothing else.
  void check_ours(const Rule& r, size_t i, const std::set<std::string>& captures, const std::set<std::string>& in_name,
                  const std::set<std::string>& ranks, const std::string& where) {
    std::set<std::string> wanted;
    for (const std::string& a : part_atoms(r.axes->theirs, i)) {
      const bool gone = in_name.contains(a) || (r.pages && (a == "page" || a == "slot"));
      if (!gone) wanted.insert(a);
    }
    if (r.pages) wanted.insert("position");
    std::set<std::string> found;
    for (const std::string& a : atoms_of(r.axes->ours[i])) {
      if (!found.insert(a).second) bad_map(where, "the axis " + in_quotes(a) + " stands twice among ours");
      if (captures.contains(a) && (a == r.sum || a == r.same))
        bad_map(where, "{" + a + "} is gathered and an axis of ours", "one of both");
      if (!ranks.contains(a) && !wanted.contains(a))
        bad_map(where, "the axis " + in_quotes(a) + " of ours is not among theirs");
    }
    for (const std::string& a : wanted) {
      if (!found.contains(a)) bad_map(where, "the axis " + in_quotes(a) + " of theirs is not among ours");
    }
    for (const std::string& c : ranks) {
      if (!found.contains(c)) no_use(c, where);
    }
  }

  // Atoms of the tensor that part `i` makes.
  static std::vector<std::string> part_atoms(const std::vector<Axis>& axes, size_t part) {
    std::vector<std::string> out;
    for (const Axis& a : axes) {
      if (a.kind == Axis::Kind::atom) out.push_back(a.name);
      const std::vector<Axis>& inner = a.kind == Axis::Kind::split ? a.parts[part].parts : a.parts;
      const std::vector<std::string> more = part_atoms(inner, part);
      out.insert(out.end(), more.begin(), more.end());
    }
    return out;
  }

  std::string_view text_;
  DumpMap::Impl map_;
  std::vector<std::pair<int, std::string>> lets_;  // line, name
  std::set<std::string> used_sizes_;
};

}  // namespace

}  // namespace mapping

DumpMap DumpMap::parse(std::string_view text, const std::string& where) {
  DumpMap out;
  out.impl_ = std::make_shared<const Impl>(mapping::Reader(text, where).run());
  return out;
}

DumpMap DumpMap::read(const std::filesystem::path& file) {
  // No more than a map may have, whatever the file is: one byte beyond is enough to refuse it.
  std::error_code error;
  std::ifstream in(file, std::ios::binary);
  std::string text(mapping::kMaxFile + 1, '\0');
  if (in) in.read(text.data(), std::streamsize(text.size()));
  text.resize(size_t(in.gcount()));
  if (!in.is_open() || in.bad() || std::filesystem::is_directory(file, error))
    throw Error(ErrorKind::malformed, file.string(), "the map can't be read", "a text file");
  return parse(text, file.string());
}

}  // namespace assay
