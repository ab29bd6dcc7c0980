// Filters and tests (jinja.h), with the meaning of Jinja 3.1's builtins; tojson is transformers' own.
#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "dumps/text.h"
#include "engine/text/jinja_context.h"

namespace assay::jinja {
namespace {

using Bound = std::vector<std::optional<Value>>;

bool flag(const std::optional<Value>& v, bool missing) {
  return v ? v->truth() : missing;
}

/// "a.b" or an integer, as filters' `attribute` arguments have it.
Value by_path(Context& c, Value v, const Value& path) {
  if (path.is(Kind::integer)) return c.item(v, path);
  for (const std::string_view part : split_text(c.text_of(path, "an attribute"), ".", -1, false)) {
    int64_t index = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number = error == std::errc() && end == part.data() + part.size();
    v = c.item(v, number ? Value::integer(index) : Value::string(std::string(part)));
  }
  return v;
}

/// select, reject, selectattr, rejectattr: keeps the elements for which the test's answer is `wanted`.
Value select(Context& c, const Value& input, Args args, bool attribute, bool wanted) {
  Value path;
  if (attribute) {
    if (args.positional.empty()) c.fail("selectattr and rejectattr want an attribute");
    path = args.positional.front();
    args.positional.erase(args.positional.begin());
  }
  std::string test;
  if (!args.positional.empty()) {
    test = c.text_of(args.positional.front(), "the test's name");
    args.positional.erase(args.positional.begin());
  }
  std::vector<Value> out;
  if (!input.truth()) return c.list({});  // none too
  for (const Value& v : c.iterate(input)) {
    const Value subject = attribute ? by_path(c, v, path) : v;
    if ((test.empty() ? subject.truth() : c.test(test, subject, args)) == wanted) out.push_back(v);
  }
  return c.list(std::move(out));
}

Value map(Context& c, const Value& input, Args args) {
  std::vector<Value> out;
  const std::vector<Value> in = input.truth() ? c.iterate(input) : std::vector<Value>();
  if (args.positional.empty()) {
    const Bound b = c.bind("map", args, {"", "attribute", "default"});
    if (!b[1]) c.fail("map wants a filter or an attribute");
    for (const Value& v : in) {
      Value found = by_path(c, v, *b[1]);
      out.push_back(found.is(Kind::undefined) && b[2] ? *b[2] : found);
    }
    return c.list(std::move(out));
  }
  const std::string filter = c.text_of(args.positional.front(), "the filter's name");
  args.positional.erase(args.positional.begin());
  for (const Value& v : in) out.push_back(c.filter(filter, v, args));
  return c.list(std::move(out));
}

Value folded(const Value& v, bool case_sensitive) {
  if (case_sensitive || !v.is(Kind::string)) return v;
  std::string s = v.as_string();
  for (char& ch : s)
    if (ch >= 'A' && ch <= 'Z') ch = char(ch + 32);
  return Value::string(std::move(s));
}

/// Sorted by the keys, which must have an order; equal ones keep their places.
void sort_by(Context& c, std::vector<std::pair<Value, Value>>& rows, bool reverse) {
  c.step(rows.size() * 16);
  const Value* odd = nullptr;
  auto less = [&](const auto& a, const auto& b) {
    int o = 0;
    if (!order(a.first, b.first, o)) odd = &a.first;
    return reverse ? o > 0 : o < 0;
  };
  if (!rows.empty() && !rows[0].first.is_number() && !rows[0].first.is(Kind::string)) odd = &rows[0].first;
  for (size_t i = 1; i < rows.size() && !odd; i++) less(rows[0], rows[i]);  // one kind throughout, or no order at all
  if (odd) c.fail_kind("can't be sorted", "numbers or strings throughout", *odd);
  std::stable_sort(rows.begin(), rows.end(), less);
}

Value sort(Context& c, const Value& input, Args args) {
  const Bound b = c.bind("sort", args, {"reverse", "case_sensitive", "attribute"});
  std::vector<std::pair<Value, Value>> rows;
  for (Value& v : c.iterate(input)) {
    const Value key = b[2] && !b[2]->is(Kind::none) ? by_path(c, v, *b[2]) : v;
    rows.emplace_back(folded(key, flag(b[1], false)), std::move(v));
  }
  sort_by(c, rows, flag(b[0], false));
  std::vector<Value> out;
  for (auto& [key, value] : rows) out.push_back(std::move(value));
  return c.list(std::move(out));
}

Value dictsort(Context& c, const Value& input, Args args) {
  const Bound b = c.bind("dictsort", args, {"case_sensitive", "by", "reverse"});
  if (!input.is(Kind::dict)) c.fail_kind("dictsort's input", "a mapping", input);
  const std::string by = b[1] ? c.text_of(*b[1], "dictsort's by") : "key";
  if (by != "key" && by != "value") c.fail("dictsort's by", "\"key\" or \"value\"", in_quotes(by));
  std::vector<std::pair<Value, Value>> rows;
  for (const auto& [key, value] : input.pairs())
    rows.emplace_back(folded(by == "key" ? key : value, flag(b[0], false)), c.list({key, value}, true));
  sort_by(c, rows, flag(b[2], false));
  std::vector<Value> out;
  for (auto& [key, pair] : rows) out.push_back(std::move(pair));
  return c.list(std::move(out));
}

Value extreme(Context& c, const std::string& name, const Value& input, Args args) {
  const Bound b = c.bind(name, args, {"case_sensitive", "attribute"});
  std::optional<std::pair<Value, Value>> best;
  for (const Value& v : c.iterate(input)) {
    const Value key = folded(b[1] && !b[1]->is(Kind::none) ? by_path(c, v, *b[1]) : v, flag(b[0], false));
    int o = 0;
    if (best && !order(key, best->first, o))
      c.fail_kind(name + " finds no order", "numbers or strings throughout", key);
    if (!best || (name == "min" ? o < 0 : o > 0)) best.emplace(key, v);
  }
  return best ? best->second : Value::undefined(name);
}

Value unique(Context& c, const Value& input, Args args) {
  const Bound b = c.bind("unique", args, {"case_sensitive", "attribute"});
  std::vector<Value> keys, out;
  for (const Value& v : c.iterate(input)) {
    const Value key = folded(b[1] && !b[1]->is(Kind::none) ? by_path(c, v, *b[1]) : v, flag(b[0], false));
    if (key.depth() > 0) c.fail_kind("unique's elements", "strings, numbers or none", key);
    c.walk(key, keys.size() + 1);
    if (std::any_of(keys.begin(), keys.end(), [&](const Value& k) { return equal(k, key); })) continue;
    keys.push_back(key);
    out.push_back(v);
  }
  return c.list(std::move(out));
}

Value tojson(Context& c, const Value& input, Args args) {
  const Bound b = c.bind("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = flag(b[0], false);
  style.sort = flag(b[3], false);
  style.limit = c.limits().output;
  if (b[1] && !b[1]->is(Kind::none)) {
    const int64_t n = c.integer_of(*b[1], "tojson's indent");
    if (n < 0 || n > 64) c.fail("tojson's indent", "0 to 64", std::to_string(n));
    style.indent = int(n);
    style.item_separator = ",";
  }
  if (b[2] && !b[2]->is(Kind::none)) {
    if (!b[2]->is_sequence() || b[2]->items().size() != 2)
      c.fail_kind("tojson's separators", "a pair of strings", *b[2]);
    style.item_separator = c.text_of(b[2]->items()[0], "a separator");
    style.key_separator = c.text_of(b[2]->items()[1], "a separator");
  }
  c.walk(input);
  std::string out, culprit;
  if (!to_json(input, style, out, culprit)) c.fail("JSON can't be made of " + culprit);
  return c.string(std::move(out));
}

Value join(Context& c, const Value& input, Args args) {
  const Bound b = c.bind("join", args, {"d", "attribute"});
  const std::string between = b[0] ? c.str_of(*b[0]) : "";
  std::string out;
  bool first = true;
  for (const Value& v : c.iterate(input)) {
    if (!first) out += between;
    first = false;
    out += c.str_of(b[1] && !b[1]->is(Kind::none) ? by_path(c, v, *b[1]) : v);
    c.check_size(out.size());
  }
  return c.string(std::move(out));
}

Value indent(Context& c, const Value& input, Args args) {
  const Bound b = c.bind("indent", args, {"width", "first", "blank"});
  std::string pad;
  if (b[0] && b[0]->is(Kind::string)) {
    pad = b[0]->as_string();
  } else {
    const int64_t n = b[0] ? c.integer_of(*b[0], "indent's width") : 4;
    if (n < 0 || n > 1000) c.fail("indent's width", "0 to 1000", std::to_string(n));
    pad.assign(size_t(n), ' ');
  }
  std::string out;
  const std::string& text = c.text_of(input, "indent's input");
  const auto lines = split_text(text, "\n", -1, false);
  for (size_t i = 0; i < lines.size(); i++) {
    if (i) out += '\n';
    if (i == 0 ? flag(b[1], false) : (flag(b[2], false) || !lines[i].empty())) out += pad;
    out += lines[i];
    c.check_size(out.size());
  }
  return c.string(std::move(out));
}

int64_t length(Context& c, const Value& v) {
  switch (v.kind()) {
    case Kind::undefined:
      return 0;
    case Kind::string:
      c.step(v.as_string().size() / 64);
      return int64_t(code_points(v.as_string()));
    case Kind::list:
    case Kind::tuple:
      return int64_t(v.items().size());
    case Kind::dict:
      return int64_t(v.pairs().size());
    case Kind::loop:
      return int64_t(static_cast<const Loop*>(v.as_object())->items.size());
    default:
      c.fail_kind("has no length", "a string, a list or a mapping", v);
  }
}

Value to_int(Context& c, const Value& input, Args args) {
  const Bound b = c.bind("int", args, {"default", "base"});
  if (b[1]) c.fail("int's base is not supported");
  if (input.is(Kind::undefined)) c.fail_kind("int's input", "a number or a string", input);
  if (input.is(Kind::integer) || input.is(Kind::boolean)) return Value::integer(input.as_integer());
  if (input.is(Kind::real)) {
    if (!(input.as_real() > -9e18 && input.as_real() < 9e18)) c.fail("the number does not fit", "64 bits");
    return Value::integer(int64_t(input.as_real()));
  }
  if (input.is(Kind::string)) {
    std::string_view s = strip(input.as_string(), true, true);
    if (s.starts_with("+") && !s.starts_with("+-")) s.remove_prefix(1);
    int64_t i = 0;
    const auto whole = std::from_chars(s.data(), s.data() + s.size(), i);
    if (whole.ec == std::errc() && whole.ptr == s.data() + s.size()) return Value::integer(i);
    double d = 0;
    const auto real = std::from_chars(s.data(), s.data() + s.size(), d);
    if (real.ec == std::errc() && real.ptr == s.data() + s.size() && d > -9e18 && d < 9e18)
      return Value::integer(int64_t(d));
  }
  return b[0] ? *b[0] : Value::integer(0);
}

Value sum(Context& c, const Value& input, Args args) {
  const Bound b = c.bind("sum", args, {"attribute", "start"});
  int64_t total = b[1] ? c.integer_of(*b[1], "sum's start") : 0;
  for (const Value& v : c.iterate(input)) {
    const Value part = b[0] && !b[0]->is(Kind::none) ? by_path(c, v, *b[0]) : v;
    if (__builtin_add_overflow(total, c.integer_of(part, "a part of the sum"), &total))
      c.fail("the sum does not fit", "64 bits");
  }
  return Value::integer(total);
}

/// Jinja's own, not Python's: words are what stands between white space and -({[<.
Value title(Context& c, const Value& input) {
  std::string out = c.str_of(input);
  bool starts = true;
  for (size_t at = 0; at < out.size();) {
    const size_t start = at;
    const uint32_t ch = next_code_point(out, at);
    if (ch >= 0x80 && !is_space(ch)) c.fail("case mapping of text beyond ASCII is not supported", {}, "\"title\"");
    const bool between = is_space(ch) || ch == '-' || ch == '(' || ch == '{' || ch == '[' || ch == '<';
    if (!between && starts && ch >= 'a' && ch <= 'z') out[start] = char(ch - 32);
    if (!between && !starts && ch >= 'A' && ch <= 'Z') out[start] = char(ch + 32);
    starts = between;
  }
  return c.string(std::move(out));
}

using Filter = Value (*)(Context&, const std::string& name, const Value&, Args);

/// A filter that is a method of the input's text.
Value by_method(Context& c, const std::string& name, const Value& input, Args args) {
  return c.method(c.string(c.str_of(input)), name, std::move(args));
}

const std::unordered_map<std::string_view, Filter>& filters() {
  static const std::unordered_map<std::string_view, Filter> table = {
      {"abs",
       [](Context& c, const std::string& n, const Value& v, Args a) {
         c.bind(n, a, {});
         if (v.is(Kind::real)) return Value::real(v.as_real() < 0 ? -v.as_real() : v.as_real());
         const int64_t i = c.integer_of(v, "abs's input");
         if (i == INT64_MIN) c.fail("the number does not fit", "64 bits");
         return Value::integer(i < 0 ? -i : i);
       }},
      {"capitalize", by_method},
      {"default",
       [](Context& c, const std::string& n, const Value& v, Args a) {
         const Bound b = c.bind(n, a, {"default_value", "boolean"});
         const bool missing = v.is(Kind::undefined) || (flag(b[1], false) && !v.truth());
         return missing ? (b[0] ? *b[0] : Value::string("")) : v;
       }},
      {"dictsort", [](Context& c, const std::string&, const Value& v, Args a) { return dictsort(c, v, std::move(a)); }},
      {"first",
       [](Context& c, const std::string& n, const Value& v, Args a) {
         c.bind(n, a, {});
         const std::vector<Value> all = c.iterate(v);
         return all.empty() ? Value::undefined("first") : all.front();
       }},
      {"indent", [](Context& c, const std::string&, const Value& v, Args a) { return indent(c, v, std::move(a)); }},
      {"int", [](Context& c, const std::string&, const Value& v, Args a) { return to_int(c, v, std::move(a)); }},
      {"items",
       [](Context& c, const std::string& n, const Value& v, Args a) {
         c.bind(n, a, {});
         if (v.is(Kind::undefined)) return c.list({});
         if (!v.is(Kind::dict)) c.fail_kind("items' input", "a mapping", v);
         return c.method(v, "items", {});
       }},
      {"join", [](Context& c, const std::string&, const Value& v, Args a) { return join(c, v, std::move(a)); }},
      {"last",
       [](Context& c, const std::string& n, const Value& v, Args a) {
         c.bind(n, a, {});
         const std::vector<Value> all = c.iterate(v);
         return all.empty() ? Value::undefined("last") : all.back();
       }},
      {"length",
       [](Context& c, const std::string& n, const Value& v, Args a) {
         c.bind(n, a, {});
         return Value::integer(length(c, v));
       }},
      {"list",
       [](Context& c, const std::string& n, const Value& v, Args a) {
         c.bind(n, a, {});
         return c.list(c.iterate(v));
       }},
      {"lower", by_method},
      {"map", [](Context& c, const std::string&, const Value& v, Args a) { return map(c, v, std::move(a)); }},
      {"max", [](Context& c, const std::string& n, const Value& v, Args a) { return extreme(c, n, v, std::move(a)); }},
      {"min", [](Context& c, const std::string& n, const Value& v, Args a) { return extreme(c, n, v, std::move(a)); }},
      {"reject", [](Context& c, const std::string&, const Value& v, Args a) { return select(c, v, std::move(a), false, false); }},
      {"rejectattr", [](Context& c, const std::string&, const Value& v, Args a) { return select(c, v, std::move(a), true, false); }},
      {"replace",
       [](Context& c, const std::string& n, const Value& v, Args a) {
         const Bound b = c.bind(n, a, {"old", "new", "count"});
         if (!b[0] || !b[1]) c.fail("replace wants the old and the new text");
         const int64_t most = b[2] && !b[2]->is(Kind::none) ? c.integer_of(*b[2], "replace's count") : -1;
         return c.string(replace_text(c, c.str_of(v), c.str_of(*b[0]), c.str_of(*b[1]), most));
       }},
      {"reverse",
       [](Context& c, const std::string& n, const Value& v, Args a) {
         c.bind(n, a, {});
         std::vector<Value> all = c.iterate(v);
         std::reverse(all.begin(), all.end());
         if (!v.is(Kind::string)) return c.list(std::move(all));
         std::string out;
         for (const Value& part : all) out += part.as_string();
         return c.string(std::move(out));
       }},
      {"safe",
       [](Context& c, const std::string& n, const Value& v, Args a) {
         c.bind(n, a, {});
         return v.is_safe() ? v : Value::safe(c.str_of(v));
       }},
      {"select", [](Context& c, const std::string&, const Value& v, Args a) { return select(c, v, std::move(a), false, true); }},
      {"selectattr", [](Context& c, const std::string&, const Value& v, Args a) { return select(c, v, std::move(a), true, true); }},
      {"sort", [](Context& c, const std::string&, const Value& v, Args a) { return sort(c, v, std::move(a)); }},
      {"string", [](Context& c, const std::string& n, const Value& v, Args a) { return c.bind(n, a, {}), c.string(c.str_of(v)); }},
      {"sum", [](Context& c, const std::string&, const Value& v, Args a) { return sum(c, v, std::move(a)); }},
      {"title", [](Context& c, const std::string& n, const Value& v, Args a) { return c.bind(n, a, {}), title(c, v); }},
      {"tojson", [](Context& c, const std::string&, const Value& v, Args a) { return tojson(c, v, std::move(a)); }},
      {"trim",
       [](Context& c, const std::string& n, const Value& v, Args a) {
         const Bound b = c.bind(n, a, {"chars"});
         Args passed;
         if (b[0]) passed.positional.push_back(*b[0]);
         return c.method(c.string(c.str_of(v)), "strip", std::move(passed));
       }},
      {"unique", [](Context& c, const std::string&, const Value& v, Args a) { return unique(c, v, std::move(a)); }},
      {"upper", by_method},
  };
  return table;
}

/// The one argument of a test.
Value one(Context& c, const std::string& name, Args& args) {
  const Bound b = c.bind("the test " + name, args, {"other"});
  if (!b[0]) c.fail("the test " + name + " wants an argument");
  return *b[0];
}

bool ordered(Context& c, const std::string& name, const Value& v, Args& args) {
  const Value other = one(c, name, args);
  int o = 0;
  if (!order(v, other, o))
    c.fail(std::string(name_of(v.kind())) + " and " + std::string(name_of(other.kind())) + " have no order",
           "two numbers or two strings");
  return name == "lt" || name == "lessthan" || name == "<" ? o < 0
         : name == "le" || name == "<="                    ? o <= 0
         : name == "ge" || name == ">="                    ? o >= 0
                                                           : o > 0;
}

bool cased(const Value& v, bool upper) {  // Python's islower and isupper
  bool any = false;
  for (const char ch : str(v)) {
    if (upper ? (ch >= 'a' && ch <= 'z') : (ch >= 'A' && ch <= 'Z')) return false;
    any |= upper ? (ch >= 'A' && ch <= 'Z') : (ch >= 'a' && ch <= 'z');
  }
  return any;
}

}  // namespace

Value Context::filter(const std::string& name, const Value& input, Args args) {
  const std::string known = name == "d" ? "default" : name == "count" ? "length" : name;
  const auto f = filters().find(known);
  if (f == filters().end()) {
    std::vector<std::string_view> names;
    for (const auto& [n, function] : filters()) names.push_back(n);
    std::sort(names.begin(), names.end());
    std::string list;
    for (const std::string_view n : names) list += (list.empty() ? "" : ", ") + std::string(n);
    fail("the filter " + in_quotes(name) + " is not supported", list);
  }
  if (known != "safe" && known != "default" && known != "length") refuse_safe(input);
  if (++calls_ > kMaxCalls) fail("filters call each other too deeply", std::to_string(kMaxCalls) + " levels at most");
  step();
  Value v = f->second(*this, known, input, std::move(args));
  calls_--;
  return v;
}

bool Context::test(const std::string& name, const Value& v, Args args) {
  step();
  if (name == "divisibleby") {
    const int64_t by = integer_of(one(*this, name, args), "the divisor"), i = integer_of(v, "what is divided");
    if (by == 0) fail("division by zero");
    return by == -1 || i % by == 0;
  }
  if (name == "eq" || name == "equalto" || name == "==" || name == "ne" || name == "!=") {
    walk(v);
    return equal(v, one(*this, name, args)) == (name != "ne" && name != "!=");
  }
  for (const std::string_view n : {"lt", "lessthan", "<", "le", "<=", "gt", "greaterthan", ">", "ge", ">="})
    if (name == n) return ordered(*this, name, v, args);
  if (name == "in") return contains(one(*this, name, args), v);
  if (name == "sameas") {
    const Value other = one(*this, name, args);
    const bool plain = v.is(Kind::none) || v.is(Kind::boolean) || v.is(Kind::undefined);
    if (!plain && v.kind() == other.kind()) fail("the test sameas is supported for none, true and false only");
    return v.kind() == other.kind() && equal(v, other);
  }
  bind("the test " + name, args, {});
  if (name == "defined") return !v.is(Kind::undefined);
  if (name == "undefined") return v.is(Kind::undefined);
  if (name == "none") return v.is(Kind::none);
  if (name == "boolean") return v.is(Kind::boolean);
  if (name == "true") return v.is(Kind::boolean) && v.as_boolean();
  if (name == "false") return v.is(Kind::boolean) && !v.as_boolean();
  if (name == "integer") return v.is(Kind::integer);
  if (name == "float") return v.is(Kind::real);
  if (name == "number") return v.is_number();
  if (name == "string") return v.is(Kind::string);
  if (name == "mapping") return v.is(Kind::dict);
  // Jinja's Undefined can be iterated over, and passes for a sequence and a callable too.
  if (name == "iterable")
    return v.is_sequence() || v.is(Kind::dict) || v.is(Kind::string) || v.is(Kind::undefined) || v.is(Kind::loop);
  if (name == "sequence") return v.is_sequence() || v.is(Kind::dict) || v.is(Kind::string) || v.is(Kind::undefined);
  if (name == "callable") return v.is(Kind::function) || v.is(Kind::undefined);
  if (name == "even" || name == "odd") return (integer_of(v, "what is tested") % 2 != 0) == (name == "odd");
  if (name == "lower" || name == "upper") {
    const std::string s = str_of(v);
    if (std::any_of(s.begin(), s.end(), [](char ch) { return uint8_t(ch) >= 0x80; }))
      fail("the test " + name + " of text beyond ASCII is not supported");
    return cased(v, name == "upper");
  }
  fail("the test " + in_quotes(name) + " is not supported",
       "boolean, callable, defined, divisibleby, eq, even, false, float, ge, gt, in, integer, iterable, le, lower, lt, "
       "mapping, ne, none, "
       "number, odd, sameas, sequence, string, true, undefined or upper");
}

}  // namespace assay::jinja
