// Methods of strings, mappings and lists (jinja.h), with Python's meaning. Those that Python has and that are not done
// here are known by name, so that calling one is an error and never an undefined value.
#include <algorithm>
#include <unordered_set>

#include "dumps/text.h"
#include "engine/text/jinja_context.h"

namespace assay::jinja {

std::vector<std::string_view> split_text(std::string_view text, std::string_view separator, int64_t most,
                                         bool from_right) {
  std::vector<std::string_view> parts;
  while (most < 0 || int64_t(parts.size()) < most) {
    const size_t at = from_right ? text.rfind(separator) : text.find(separator);
    if (at == std::string_view::npos) break;
    parts.push_back(from_right ? text.substr(at + separator.size()) : text.substr(0, at));
    text = from_right ? text.substr(0, at) : text.substr(at + separator.size());
  }
  parts.push_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::string replace_text(Context& c, std::string_view text, std::string_view from, std::string_view to, int64_t most) {
  std::string out;
  size_t at = 0;
  if (from.empty()) {
    for (;;) {
      if (most != 0) out += to;
      if (most > 0) most--;
      c.check_size(out.size());
      if (at >= text.size()) return out;
      const size_t start = at;
      next_code_point(text, at);
      out += text.substr(start, at - start);
    }
  }
  for (; most != 0; most--) {
    const size_t found = text.find(from, at);
    if (found == std::string_view::npos) break;
    out += text.substr(at, found - at);
    out += to;
    c.check_size(out.size());
    at = found + from.size();
  }
  return out += text.substr(at);
}

namespace {

using Bound = std::vector<std::optional<Value>>;

const std::unordered_set<std::string_view>& known_methods(Kind kind) {
  static const std::unordered_set<std::string_view> of_strings = {
      "capitalize", "casefold",     "center",       "count",   "encode",     "endswith",    "expandtabs",
      "find",       "format",       "format_map",   "index",   "isalnum",    "isalpha",     "isascii",
      "isdecimal",  "isdigit",      "isidentifier", "islower", "isnumeric",  "isprintable", "isspace",
      "istitle",    "isupper",      "join",         "ljust",   "lower",      "lstrip",      "maketrans",
      "partition",  "removeprefix", "removesuffix", "replace", "rfind",      "rindex",      "rjust",
      "rpartition", "rsplit",       "rstrip",       "split",   "splitlines", "startswith",  "strip",
      "swapcase",   "title",        "translate",    "upper",   "zfill"};
  static const std::unordered_set<std::string_view> of_dicts = {
      "clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"};
  static const std::unordered_set<std::string_view> of_lists = {
      "append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse", "sort"};
  static const std::unordered_set<std::string_view> of_tuples = {"count", "index"};
  static const std::unordered_set<std::string_view> of_loops = {"cycle"};
  static const std::unordered_set<std::string_view> none;
  return kind == Kind::string  ? of_strings
         : kind == Kind::dict  ? of_dicts
         : kind == Kind::list  ? of_lists
         : kind == Kind::tuple ? of_tuples
         : kind == Kind::loop  ? of_loops
                               : none;
}

bool ascii(std::string_view s) {
  return std::all_of(s.begin(), s.end(), [](char ch) { return uint8_t(ch) < 0x80; });
}
bool is_upper(char ch) {
  return ch >= 'A' && ch <= 'Z';
}
bool is_lower(char ch) {
  return ch >= 'a' && ch <= 'z';
}
bool is_digit(char ch) {
  return ch >= '0' && ch <= '9';
}

Value case_mapped(Context& c, const std::string& name, const std::string& text) {
  if (!ascii(text)) c.fail("case mapping of text beyond ASCII is not supported", {}, in_quotes(name));
  std::string out = text;
  bool in_word = false;
  for (size_t i = 0; i < out.size(); i++) {
    const bool letter = is_upper(out[i]) || is_lower(out[i]);
    const bool up = name == "upper" || (name == "capitalize" && i == 0) || (name == "title" && !in_word);
    if (up && is_lower(out[i]))
      out[i] = char(out[i] - 32);
    else if (!up && is_upper(out[i]))
      out[i] = char(out[i] + 32);
    in_word = letter;
  }
  return c.string(std::move(out));
}

/// startswith and endswith: a string or a tuple of them.
bool affixed(Context& c, const std::string& name, const std::string& text, const Value& affix) {
  if (affix.is(Kind::tuple))
    return std::any_of(affix.items().begin(), affix.items().end(),
                       [&](const Value& v) { return affixed(c, name, text, v); });
  const std::string& a = c.text_of(affix, name + "'s argument");
  return name == "startswith" ? text.starts_with(a) : text.ends_with(a);
}

std::vector<std::string_view> words(std::string_view text, int64_t most,
                                    bool from_right) {  // split() without a separator
  std::vector<std::string_view> parts;
  for (;;) {
    text = strip(text, !from_right, from_right);
    if (text.empty()) break;
    if (most >= 0 && int64_t(parts.size()) == most) {
      parts.push_back(text);
      break;
    }
    size_t cut = from_right ? text.size() : 0;
    while (from_right ? cut > 0 : cut < text.size()) {
      size_t start = cut, end = cut;
      if (from_right) {
        do start--;
        while ((uint8_t(text[start]) & 0xc0) == 0x80);
        end = start;
      }
      if (is_space(next_code_point(text, end))) break;
      cut = from_right ? start : end;
    }
    parts.push_back(from_right ? text.substr(cut) : text.substr(0, cut));
    text = from_right ? text.substr(0, cut) : text.substr(cut);
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> lines_of(std::string_view text, bool keep_ends) {  // Python's line boundaries
  std::vector<std::string_view> out;
  size_t start = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = at;
    const uint32_t ch = next_code_point(text, at);
    const bool boundary =
        (ch >= 10 && ch <= 13) || (ch >= 0x1c && ch <= 0x1e) || ch == 0x85 || ch == 0x2028 || ch == 0x2029;
    if (!boundary) continue;
    if (ch == '\r' && at < text.size() && text[at] == '\n') at++;
    out.push_back(text.substr(start, (keep_ends ? at : end) - start));
    start = at;
  }
  if (start < text.size()) out.push_back(text.substr(start));
  return out;
}

Value texts(Context& c, const std::vector<std::string_view>& parts, bool tuple = false) {
  std::vector<Value> out;
  for (const std::string_view p : parts) out.push_back(c.string(std::string(p)));
  c.step(parts.size());
  return c.list(std::move(out), tuple);
}

Value of_string(Context& c, const std::string& text, const std::string& name, Args args) {
  const std::string callee = "the method " + name;
  auto some = [&](const std::optional<Value>& v) -> const std::string& {
    if (!v) c.fail(callee + " wants an argument");
    return c.text_of(*v, name + "'s argument");
  };
  c.step(text.size() / 64);
  if (name == "upper" || name == "lower" || name == "title" || name == "capitalize")
    return c.bind(callee, args, {}), case_mapped(c, name, text);
  if (name == "startswith" || name == "endswith") {
    const Bound b = c.bind(callee, args, {"affix"});
    if (!b[0]) c.fail(callee + " wants an argument");
    return Value::boolean(affixed(c, name, text, *b[0]));
  }
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const Bound b = c.bind(callee, args, {"chars"});
    const std::string* chars = b[0] && !b[0]->is(Kind::none) ? &some(b[0]) : nullptr;
    return c.string(std::string(strip(text, name != "rstrip", name != "lstrip", chars)));
  }
  if (name == "split" || name == "rsplit") {
    const Bound b = c.bind(callee, args, {"sep", "maxsplit"});
    const int64_t most = b[1] ? c.integer_of(*b[1], "maxsplit") : -1;
    if (!b[0] || b[0]->is(Kind::none)) return texts(c, words(text, most, name == "rsplit"));
    if (some(b[0]).empty()) c.fail("the separator of " + name + " is empty");
    return texts(c, split_text(text, some(b[0]), most, name == "rsplit"));
  }
  if (name == "splitlines") {
    const Bound b = c.bind(callee, args, {"keepends"});
    return texts(c, lines_of(text, b[0] && b[0]->truth()));
  }
  if (name == "partition" || name == "rpartition") {
    const Bound b = c.bind(callee, args, {"sep"});
    const std::string& s = some(b[0]);
    if (s.empty()) c.fail("the separator of " + name + " is empty");
    const size_t at = name == "partition" ? text.find(s) : text.rfind(s);
    const std::string_view all = text;
    if (at != std::string::npos)
      return texts(c, {all.substr(0, at), all.substr(at, s.size()), all.substr(at + s.size())}, true);
    return name == "partition" ? texts(c, {all, "", ""}, true) : texts(c, {"", "", all}, true);
  }
  if (name == "replace") {
    const Bound b = c.bind(callee, args, {"old", "new", "count"});
    return c.string(replace_text(c, text, some(b[0]), some(b[1]), b[2] ? c.integer_of(*b[2], "count") : -1));
  }
  if (name == "removeprefix" || name == "removesuffix") {
    const Bound b = c.bind(callee, args, {"affix"});
    const std::string& a = some(b[0]);
    if (name == "removeprefix") return c.string(text.starts_with(a) ? text.substr(a.size()) : text);
    return c.string(text.ends_with(a) ? text.substr(0, text.size() - a.size()) : text);
  }
  if (name == "find" || name == "rfind" || name == "index" || name == "rindex") {
    const Bound b = c.bind(callee, args, {"sub"});
    const size_t at = name == "find" || name == "index" ? text.find(some(b[0])) : text.rfind(some(b[0]));
    if (at == std::string::npos && name.ends_with("index")) c.fail(callee + ": the text is not found");
    return Value::integer(at == std::string::npos ? -1 : int64_t(code_points(std::string_view(text).substr(0, at))));
  }
  if (name == "count") {
    const Bound b = c.bind(callee, args, {"sub"});
    if (some(b[0]).empty()) return Value::integer(int64_t(code_points(text)) + 1);
    return Value::integer(int64_t(split_text(text, some(b[0]), -1, false).size()) - 1);
  }
  if (name == "join") {
    const Bound b = c.bind(callee, args, {"iterable"});
    if (!b[0]) c.fail(callee + " wants an argument");
    std::string out;
    bool first = true;
    for (const Value& v : c.iterate(*b[0])) {
      if (!first) out += text;
      first = false;
      out += c.text_of(v, "a part of join");
      c.check_size(out.size());
    }
    return c.string(std::move(out));
  }
  for (const std::string_view n :
       {"isalnum", "isalpha", "isdigit", "isdecimal", "isnumeric", "isspace", "islower", "isupper", "isascii"}) {
    if (name != n) continue;
    c.bind(callee, args, {});
    if (name == "isascii") return Value::boolean(ascii(text));
    if (!ascii(text)) c.fail(callee + " of text beyond ASCII is not supported");
    if (name == "islower" || name == "isupper") {
      const bool wrong = std::any_of(text.begin(), text.end(), name == "islower" ? is_upper : is_lower);
      return Value::boolean(!wrong && std::any_of(text.begin(), text.end(), name == "islower" ? is_lower : is_upper));
    }
    return Value::boolean(!text.empty() && std::all_of(text.begin(), text.end(), [&](char ch) {
      const bool letter = is_upper(ch) || is_lower(ch);
      return name == "isspace"   ? is_space(uint8_t(ch))
             : name == "isalpha" ? letter
                                 : is_digit(ch) || (name == "isalnum" && letter);
    }));
  }
  c.fail("the string method " + in_quotes(name) + " is not supported");
}

Value of_dict(Context& c, const Value& self, const std::string& name, Args args) {
  if (name == "get") {
    const Bound b = c.bind("get", args, {"key", "default"});
    if (!b[0]) c.fail("get wants a key");
    if (!b[0]->is(Kind::string)) c.step(self.pairs().size());
    const Value* found = self.find(*b[0]);
    return found ? *found : b[1] ? *b[1] : Value::none();
  }
  if (name == "items" || name == "keys" || name == "values" || name == "copy") {
    c.bind(name, args, {});
    c.step(self.pairs().size());
    if (name == "copy") return self;
    std::vector<Value> out;
    for (const auto& [key, value] : self.pairs())
      out.push_back(name == "items" ? c.list({key, value}, true) : name == "keys" ? key : value);
    return c.list(std::move(out));
  }
  c.fail("the method " + in_quotes(name) + " would change a mapping, and values never change");
}

Value of_list(Context& c, const Value& self, const std::string& name, Args args) {
  if (name == "copy") return c.bind(name, args, {}), self;
  if (name == "count" || name == "index") {
    const Bound b = c.bind(name, args, {"value"});
    if (!b[0]) c.fail(name + " wants a value");
    c.walk(self);
    const auto same = [&](const Value& v) { return equal(v, *b[0]); };
    if (name == "count") return Value::integer(std::count_if(self.items().begin(), self.items().end(), same));
    const auto at = std::find_if(self.items().begin(), self.items().end(), same);
    if (at == self.items().end()) c.fail("index: the value is not in the list");
    return Value::integer(at - self.items().begin());
  }
  c.fail("the method " + in_quotes(name) + " would change a list, and values never change", "+ makes a new list");
}

}  // namespace

bool Context::has_method(const Value& v, const std::string& name) {
  return known_methods(v.kind()).contains(name);
}

Value Context::method(const Value& self, const std::string& name, Args args) {
  step();
  if (self.is(Kind::string)) return of_string(*this, self.as_string(), name, std::move(args));
  if (self.is(Kind::dict)) return of_dict(*this, self, name, std::move(args));
  if (self.is_sequence()) return of_list(*this, self, name, std::move(args));
  const Loop& loop = *static_cast<const Loop*>(self.as_object());  // loop.cycle
  if (args.positional.empty() || !args.named.empty()) fail("loop.cycle wants values");
  return args.positional[loop.index % args.positional.size()];
}

}  // namespace assay::jinja
