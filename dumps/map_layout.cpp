#include "dumps/map_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "dumps/error.h"
#include "dumps/text.h"

namespace assay::mapping {
namespace {

constexpr int kMaxDepth = 16;
constexpr int64_t kMaxIndex = int64_t(1) << 28;  // entries of an index: 2 GiB of numbers

int64_t times(int64_t a, int64_t b, const std::string& where) {
  int64_t out = 0;
  if (__builtin_mul_overflow(a, b, &out)) bad_map(where, "the sizes of the axes overflow");
  return out;
}

int64_t plus(int64_t a, int64_t b, const std::string& where) {
  int64_t out = 0;
  if (__builtin_add_overflow(a, b, &out)) bad_map(where, "the sizes of the axes overflow");
  return out;
}

bool letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool digit(char c) {
  return c >= '0' && c <= '9';
}

class AxesParser {
 public:
  AxesParser(std::string_view text, const Sizes& sizes, const std::string& where)
      : text_(text), sizes_(sizes), where_(where) {}

  Axes run() {
    Axes out;
    out.theirs = layout(false);
    if (take("=>")) {
      do out.ours.push_back(layout(true));
      while (take("|"));
    }
    blanks();
    if (!text_.empty()) expected("an axis, | or the end of the line");
    for (const std::string& a : atoms_of(out.theirs)) {
      if (sizes_.contains(a)) lets_.push_back(a);
    }
    out.lets = std::move(lets_);
    size_t splits = count_splits(out.theirs);
    if (splits > 1) bad_map(where_, "two splits in one rule", "one ( a | b )", std::to_string(splits));
    return out;
  }

 private:
  static size_t count_splits(const Layout& axes) {
    size_t n = 0;
    for (const Axis& a : axes) n += (a.kind == Axis::Kind::split) + count_splits(a.parts);
    return n;
  }

  [[noreturn]] void expected(const std::string& wanted) {
    bad_map(where_, "the axes can't be read", wanted, text_.empty() ? "the end of the line" : in_quotes(text_, 40));
  }
  void blanks() {
    while (!text_.empty() && (text_[0] == ' ' || text_[0] == '\t')) text_.remove_prefix(1);
  }
  bool take(std::string_view s) {
    blanks();
    if (!text_.starts_with(s)) return false;
    text_.remove_prefix(s.size());
    return true;
  }

  Layout layout(bool ours) {
    Layout out;
    while (true) {
      blanks();
      if (text_.empty() || text_[0] == '|' || text_[0] == ')' || text_.starts_with("=>")) break;
      out.push_back(axis(ours, 0));
    }
    if (out.empty()) expected("an axis");
    return out;
  }

  Axis axis(bool ours, int depth) {
    if (depth > kMaxDepth) bad_map(where_, "parentheses are nested too deep", fmt::format("{} at most", kMaxDepth));
    Axis out;
    if (take("(")) {
      out.kind = Axis::Kind::product;
      std::vector<Layout> parts(1);
      while (!take(")")) {
        if (take("|")) {
          if (ours) bad_map(where_, "a split among our axes", "one layout for each name: a b | c d");
          if (parts.back().empty()) expected("an axis");
          parts.emplace_back();
          continue;
        }
        if (text_.empty()) expected(")");
        parts.back().push_back(axis(ours, depth + 1));
      }
      if (parts.back().empty()) expected("an axis");
      if (parts.size() == 1) {
        out.parts = std::move(parts[0]);
        return out;
      }
      out.kind = Axis::Kind::split;
      for (Layout& p : parts) {
        Axis product;
        product.kind = Axis::Kind::product;
        product.parts = std::move(p);
        out.parts.push_back(std::move(product));
      }
      return out;
    }
    if (!text_.empty() && digit(text_[0])) {
      if (number(1) != 1) bad_map(where_, "an axis without a name", "1, or NAME:SIZE");
      out.kind = Axis::Kind::one;
      axis_ends();
      return out;
    }
    out.name = name("an axis");
    if (!text_.empty() && text_[0] == ':') {
      text_.remove_prefix(1);
      if (ours) bad_map(where_, "a size among our axes", "sizes stand on the left of =>", in_quotes(out.name));
      out.size = size();
    }
    if (!text_.empty() && text_[0] == '[') {
      text_.remove_prefix(1);
      if (ours) bad_map(where_, "an index among our axes", "an index on the left of =>", in_quotes(out.name));
      do {
        const int64_t from = number(0);
        if (take(":")) {
          const int64_t to = number(0);
          if (to <= from) bad_map(where_, "an empty range", "from:to with from < to", fmt::format("{}:{}", from, to));
          out.index.emplace_back(from, to);
        } else {
          out.index.emplace_back(from, from + 1);
        }
      } while (take(","));
      if (!take("]")) expected("] or ,");
    }
    axis_ends();
    return out;
  }

  // "1d" and "a:2b" would be two axes that look like one.
  void axis_ends() {
    if (!text_.empty() && (letter(text_[0]) || digit(text_[0]) || text_[0] == '_')) expected("a blank behind an axis");
  }

  std::string name(const char* what) {
    size_t n = 0;
    while (n < text_.size() && (letter(text_[n]) || (n > 0 && (digit(text_[n]) || text_[n] == '_')))) ++n;
    if (n == 0) expected(what);
    const std::string out(text_.substr(0, n));
    text_.remove_prefix(n);
    return out;
  }

  int64_t number(int64_t least) {
    blanks();
    int64_t out = 0;
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), out);
    if (error != std::errc{} || out < least || out == INT64_MAX) expected(fmt::format("a whole number from {}", least));
    text_.remove_prefix(size_t(end - text_.data()));
    return out;
  }

  int64_t size() {
    if (!text_.empty() && digit(text_[0])) return number(1);
    const std::string n = name("a size");
    const auto it = sizes_.find(n);
    if (it == sizes_.end())
      bad_map(where_, "an unknown size", "a number or the name of a let line above", in_quotes(n));
    lets_.push_back(n);
    return it->second;
  }

  std::string_view text_;
  const Sizes& sizes_;
  std::vector<std::string> lets_;
  const std::string& where_;
};

const Axis* split_in(const std::vector<Axis>& axes) {
  for (const Axis& a : axes) {
    if (a.kind == Axis::Kind::split) return &a;
    if (const Axis* found = split_in(a.parts)) return found;
  }
  return nullptr;
}

void collect(const std::vector<Axis>& axes, std::vector<std::string>& out) {
  for (const Axis& a : axes) {
    if (a.kind == Axis::Kind::atom) out.push_back(a.name);
    collect(a.parts, out);
  }
}

// The size of an axis as constant + factor * (the one unknown size in it).
struct Linear {
  int64_t constant = 0, factor = 0;
  std::string unknown;
  bool solvable = true;  // false: two unknown sizes, or one squared
};

Linear linear(const Axis& a, const Sizes& sizes, const std::string& where) {
  Linear out;
  switch (a.kind) {
    case Axis::Kind::one:
      out.constant = 1;
      return out;
    case Axis::Kind::atom: {
      const auto it = sizes.find(a.name);
      if (it != sizes.end()) {
        out.constant = it->second;
      } else {
        out.factor = 1;
        out.unknown = a.name;
      }
      return out;
    }
    case Axis::Kind::product:
    case Axis::Kind::split:
      break;
  }
  const bool product = a.kind == Axis::Kind::product;
  out.constant = product ? 1 : 0;
  for (const Axis& p : a.parts) {
    const Linear x = linear(p, sizes, where);
    const bool two = !out.unknown.empty() && !x.unknown.empty() && (product || out.unknown != x.unknown);
    if (!x.solvable || !out.solvable || two) {
      out.solvable = false;
      return out;
    }
    if (!x.unknown.empty()) out.unknown = x.unknown;
    if (product) {
      out.factor = plus(times(out.factor, x.constant, where), times(out.constant, x.factor, where), where);
      out.constant = times(out.constant, x.constant, where);
    } else {
      out.factor = plus(out.factor, x.factor, where);
      out.constant = plus(out.constant, x.constant, where);
    }
  }
  return out;
}

void given_sizes(const std::vector<Axis>& axes, Sizes& sizes, const std::string& where) {
  for (const Axis& a : axes) {
    if (a.kind == Axis::Kind::atom && a.size >= 0) {
      const auto [it, added] = sizes.emplace(a.name, a.size);
      if (!added && it->second != a.size) {
        bad_map(where, "two sizes of the axis " + in_quotes(a.name), std::to_string(it->second),
                std::to_string(a.size));
      }
    }
    given_sizes(a.parts, sizes, where);
  }
}

class ViewMaker {
 public:
  ViewMaker(const Sizes& sizes, size_t part, const std::string& where) : sizes_(sizes), part_(part), where_(where) {}
  // Returns the number of elements that the axis spans, in units of its own stride.
  int64_t add(const Axis& a, int64_t stride, bool wanted) {
    switch (a.kind) {
      case Axis::Kind::one:
        return 1;
      case Axis::Kind::atom: {
        const int64_t size = sizes_.at(a.name);
        if (wanted) atom(a, size, stride);
        return size;
      }
      case Axis::Kind::product: {
        int64_t span = 1;
        for (size_t i = a.parts.size(); i-- > 0;) {
          span = times(span, add(a.parts[i], times(stride, span, where_), wanted), where_);
        }
        return span;
      }
      case Axis::Kind::split: {
        int64_t at = 0;
        for (size_t i = 0; i < a.parts.size(); ++i) {
          if (wanted && i == part_) view.base = plus(view.base, times(at, stride, where_), where_);
          at = plus(at, add(a.parts[i], stride, wanted && i == part_), where_);
        }
        return at;
      }
    }
    return 1;
  }

  View view;

 private:
  void atom(const Axis& a, int64_t size, int64_t stride) {
    ViewAxis axis;
    axis.name = a.name;
    axis.size = size;
    axis.stride = stride;
    for (const auto& [from, to] : a.index) {
      if (to > size) {
        bad_map(where_, "the index of " + in_quotes(a.name) + " leaves the axis", fmt::format("0 to {}", size - 1),
                std::to_string(to - 1));
      }
      if (to - from + int64_t(axis.offsets.size()) > kMaxIndex) bad_map(where_, "an index of absurd length");
      for (int64_t i = from; i < to; ++i) axis.offsets.push_back(i * stride);
    }
    if (!a.index.empty()) axis.size = int64_t(axis.offsets.size());
    if (!view.axes.emplace(a.name, axis).second) {
      bad_map(where_, "the axis " + in_quotes(a.name) + " stands twice in one tensor");
    }
  }

  const Sizes& sizes_;
  const size_t part_;
  const std::string& where_;
};

}  // namespace

void bad_map(const std::string& where, const std::string& what, const std::string& wanted, const std::string& found,
             const std::string& hint) {
  throw Error(ErrorKind::malformed, where, what, wanted, found, hint);
}

size_t parts_of(const Layout& layout) {
  const Axis* split = split_in(layout);
  return split ? split->parts.size() : 1;
}

std::vector<std::string> atoms_of(const Layout& layout) {
  std::vector<std::string> out;
  collect(layout, out);
  return out;
}

Axes parse_axes(std::string_view text, const Sizes& sizes, const std::string& where) {
  return AxesParser(text, sizes, where).run();
}

Sizes solve_sizes(const Layout& layout, const std::vector<int64_t>& shape, Sizes known, const std::string& where) {
  if (layout.size() != shape.size()) {
    bad_map(where, "another number of axes", std::to_string(layout.size()), shape_text(shape));
  }
  given_sizes(layout, known, where);
  const std::vector<std::string> names = atoms_of(layout);
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t i = 0; i < layout.size(); ++i) {
      const Linear x = linear(layout[i], known, where);
      if (!x.solvable || x.unknown.empty() || x.factor == 0) continue;
      const int64_t rest = shape[i] - x.constant;
      if (rest < 0 || rest % x.factor != 0) {
        bad_map(where, fmt::format("axis {} of {} can't be cut so", i, shape_text(shape)),
                fmt::format("{}{} * {}", x.constant ? fmt::format("{} + ", x.constant) : "", x.factor, x.unknown),
                std::to_string(shape[i]));
      }
      known[x.unknown] = rest / x.factor;
      progress = true;
    }
  }
  for (const std::string& n : names) {
    if (!known.contains(n)) {
      bad_map(where, "the size of " + in_quotes(n) + " can't be told from the shape " + shape_text(shape),
              "a let line or NAME:SIZE");
    }
  }
  for (size_t i = 0; i < layout.size(); ++i) {
    const int64_t wanted = linear(layout[i], known, where).constant;
    if (wanted != shape[i]) {
      bad_map(where, fmt::format("axis {} of {} has another size", i, shape_text(shape)), std::to_string(wanted),
              std::to_string(shape[i]));
    }
  }
  return known;
}

View view_of(const Layout& layout, const std::vector<int64_t>& shape, const Sizes& sizes, size_t part,
             const std::string& where) {
  ViewMaker maker(sizes, part, where);
  int64_t stride = 1;
  for (size_t i = layout.size(); i-- > 0;) {
    maker.add(layout[i], stride, true);
    stride = times(stride, std::max<int64_t>(shape[i], 1), where);
  }
  return std::move(maker.view);
}

}  // namespace assay::mapping
