#include "engine/text/jinja_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "dumps/error.h"
#include "engine/text/unicode.h"

namespace assay::jinja {
namespace {

struct StringObject : Object {
  std::string text;
};
struct ListObject : Object {
  std::vector<Value> items;
  int depth = 1;
  uint64_t weight = 1;
};
struct DictObject : Object {
  std::vector<std::pair<Value, Value>> pairs;
  std::unordered_map<std::string, size_t> index;  // of string keys
  int depth = 1;
  uint64_t weight = 1;
};

uint64_t plus(uint64_t a, uint64_t b) {
  return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

int compare_numbers(const Value& a, const Value& b) {
  if (!a.is(Kind::real) && !b.is(Kind::real))
    return a.as_integer() < b.as_integer() ? -1 : a.as_integer() > b.as_integer();
  const double x = a.is(Kind::real) ? a.as_real() : double(a.as_integer());
  const double y = b.is(Kind::real) ? b.as_real() : double(b.as_integer());
  return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;  // 2: a NaN
}

bool printable(uint32_t c) {
  if (c < 0x20 || (c >= 0x7f && c <= 0xa0) || c == 0xad) return false;
  if ((c >= 0x600 && c <= 0x605) || c == 0x61c || c == 0x6dd || c == 0x70f || c == 0x1680 || c == 0x180e) return false;
  if ((c >= 0x2000 && c <= 0x200f) || (c >= 0x2028 && c <= 0x202f) || (c >= 0x205f && c <= 0x206f) || c == 0x3000)
    return false;
  if ((c >= 0xe000 && c <= 0xf8ff) || c == 0xfeff || (c >= 0xfff0 && c <= 0xfffb) || (c & 0xfffe) == 0xfffe)
    return false;
  return !(c >= 0xe0000);
}

void append_hex(std::string& out, uint32_t value, int digits) {
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out += "0123456789abcdef"[(value >> shift) & 15];
}

std::string python_quoted(std::string_view text) {
  const bool twice = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = twice ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    const uint32_t c = next_code_point(text, at);
    if (c == uint32_t(quote) || c == '\\') {
      out += '\\';
      out += char(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (printable(c)) {
      out += text.substr(start, at - start);
    } else {
      out += c < 0x100 ? "\\x" : c < 0x10000 ? "\\u" : "\\U";
      append_hex(out, c, c < 0x100 ? 2 : c < 0x10000 ? 4 : 8);
    }
  }
  return out + quote;
}

void json_quoted(std::string_view text, bool ascii, std::string& out) {
  out += '"';
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    const uint32_t c = next_code_point(text, at);
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (c < 0x20 || (ascii && c >= 0x7f && c < 0x10000)) {
          out += "\\u";
          append_hex(out, c, 4);
        } else if (ascii && c >= 0x10000) {
          out += "\\u";
          append_hex(out, 0xd800 + ((c - 0x10000) >> 10), 4);
          out += "\\u";
          append_hex(out, 0xdc00 + (c & 0x3ff), 4);
        } else {
          out += text.substr(start, at - start);
        }
    }
  }
  out += '"';
}

std::string number_text(const Value& v) {
  if (v.is(Kind::real)) return real_text(v.as_real());
  if (v.is(Kind::boolean)) return v.as_boolean() ? "True" : "False";
  return std::to_string(v.as_integer());
}

bool json_at(const Value& v, const JsonStyle& style, int level, std::string& out, std::string& culprit) {
  if (out.size() > style.limit) {
    culprit = "so much";
    return false;
  }
  auto new_line = [&](int l) {
    if (style.indent < 0) return;
    out += '\n';
    out.append(size_t(l) * style.indent, ' ');
  };
  switch (v.kind()) {
    case Kind::none:
      out += "null";
      return true;
    case Kind::boolean:
      out += v.as_boolean() ? "true" : "false";
      return true;
    case Kind::integer:
      out += std::to_string(v.as_integer());
      return true;
    case Kind::real: {
      const double d = v.as_real();
      out += std::isnan(d) ? "NaN" : std::isinf(d) ? (d < 0 ? "-Infinity" : "Infinity") : real_text(d);
      return true;
    }
    case Kind::string:
      json_quoted(v.as_string(), style.ascii, out);
      return true;
    case Kind::list:
    case Kind::tuple: {
      if (v.items().empty()) {
        out += "[]";
        return true;
      }
      out += '[';
      for (size_t i = 0; i < v.items().size(); i++) {
        if (i) out += style.item_separator;
        new_line(level + 1);
        if (!json_at(v.items()[i], style, level + 1, out, culprit)) return false;
      }
      new_line(level);
      out += ']';
      return true;
    }
    case Kind::dict: {
      if (v.pairs().empty()) {
        out += "{}";
        return true;
      }
      std::vector<std::pair<std::string, const Value*>> rows;
      for (const auto& [key, value] : v.pairs()) {
        if (key.is(Kind::string))
          rows.emplace_back(key.as_string(), &value);
        else if (key.is(Kind::none))
          rows.emplace_back("null", &value);
        else if (key.is(Kind::boolean))
          rows.emplace_back(key.as_boolean() ? "true" : "false", &value);
        else
          rows.emplace_back(number_text(key), &value);
      }
      if (style.sort) std::stable_sort(rows.begin(), rows.end(), [](auto& a, auto& b) { return a.first < b.first; });
      out += '{';
      for (size_t i = 0; i < rows.size(); i++) {
        if (i) out += style.item_separator;
        new_line(level + 1);
        json_quoted(rows[i].first, style.ascii, out);
        out += style.key_separator;
        if (!json_at(*rows[i].second, style, level + 1, out, culprit)) return false;
      }
      new_line(level);
      out += '}';
      return true;
    }
    default:
      culprit = v.is(Kind::undefined) && !v.as_string().empty() ? v.as_string() + ", which is undefined"
                                                                : std::string(name_of(v.kind()));
  }
  return false;
}

}  // namespace

std::string_view name_of(Kind k) {
  switch (k) {
    case Kind::undefined:
      return "undefined";
    case Kind::none:
      return "none";
    case Kind::boolean:
      return "a boolean";
    case Kind::integer:
      return "an integer";
    case Kind::real:
      return "a fraction";
    case Kind::string:
      return "a string";
    case Kind::list:
      return "a list";
    case Kind::tuple:
      return "a tuple";
    case Kind::dict:
      return "a mapping";
    case Kind::space:
      return "a namespace";
    case Kind::function:
      return "a function";
    case Kind::loop:
      return "the loop variable";
  }
  return "";
}

Value Value::undefined(std::string name) {
  Value v = string(std::move(name));
  v.kind_ = Kind::undefined;
  return v;
}
Value Value::none() {
  Value v;
  v.kind_ = Kind::none;
  return v;
}
Value Value::boolean(bool b) {
  Value v;
  v.kind_ = Kind::boolean;
  v.integer_ = b;
  return v;
}
Value Value::integer(int64_t i) {
  Value v;
  v.kind_ = Kind::integer;
  v.integer_ = i;
  return v;
}
Value Value::real(double d) {
  Value v;
  v.kind_ = Kind::real;
  v.real_ = d;
  return v;
}
Value Value::string(std::string s) {
  Value v;
  v.kind_ = Kind::string;
  auto o = std::make_shared<StringObject>();
  o->text = std::move(s);
  v.object_ = std::move(o);
  return v;
}
Value Value::safe(std::string s) {
  Value v = string(std::move(s));
  v.safe_ = true;
  return v;
}
Value Value::list(std::vector<Value> items, bool tuple) {
  Value v;
  v.kind_ = tuple ? Kind::tuple : Kind::list;
  auto o = std::make_shared<ListObject>();
  for (const Value& i : items) {
    o->depth = std::max(o->depth, 1 + i.depth());
    o->weight = plus(o->weight, i.weight());
  }
  o->items = std::move(items);
  v.object_ = std::move(o);
  return v;
}
Value Value::dict(std::vector<std::pair<Value, Value>> items) {
  Value v;
  v.kind_ = Kind::dict;
  auto o = std::make_shared<DictObject>();
  for (auto& [key, value] : items) {
    o->depth = std::max(o->depth, 1 + value.depth());
    o->weight = plus(o->weight, plus(key.weight(), value.weight()));
    if (key.is(Kind::string)) {
      const auto [at, fresh] = o->index.emplace(key.as_string(), o->pairs.size());
      if (fresh)
        o->pairs.emplace_back(std::move(key), std::move(value));
      else
        o->pairs[at->second].second = std::move(value);
      continue;
    }
    auto same = std::find_if(o->pairs.begin(), o->pairs.end(), [&, k = &key](auto& p) { return equal(p.first, *k); });
    if (same == o->pairs.end())
      o->pairs.emplace_back(std::move(key), std::move(value));
    else
      same->second = std::move(value);
  }
  v.object_ = std::move(o);
  return v;
}
Value Value::space(Space* s) {
  Value v;
  v.kind_ = Kind::space;
  v.space_ = s;
  return v;
}
Value Value::object(Kind kind, std::shared_ptr<Object> o) {
  Value v;
  v.kind_ = kind;
  v.object_ = std::move(o);
  return v;
}

const std::string& Value::as_string() const {
  static const std::string nothing;
  return object_ ? static_cast<const StringObject*>(object_.get())->text : nothing;
}
const std::vector<Value>& Value::items() const {
  return static_cast<const ListObject*>(object_.get())->items;
}
const std::vector<std::pair<Value, Value>>& Value::pairs() const {
  return static_cast<const DictObject*>(object_.get())->pairs;
}

const Value* Value::find(std::string_view key) const {
  const auto* d = static_cast<const DictObject*>(object_.get());
  const auto at = d->index.find(std::string(key));
  return at == d->index.end() ? nullptr : &d->pairs[at->second].second;
}
const Value* Value::find(const Value& key) const {
  if (key.is(Kind::string)) return find(std::string_view(key.as_string()));
  for (const auto& [k, v] : pairs())
    if (equal(k, key)) return &v;
  return nullptr;
}

int Value::depth() const {
  if (is_sequence()) return static_cast<const ListObject*>(object_.get())->depth;
  if (is(Kind::dict)) return static_cast<const DictObject*>(object_.get())->depth;
  return 0;
}

uint64_t Value::weight() const {
  if (is_sequence()) return static_cast<const ListObject*>(object_.get())->weight;
  if (is(Kind::dict)) return static_cast<const DictObject*>(object_.get())->weight;
  return is(Kind::string) ? 8 + as_string().size() : 8;
}

bool Value::truth() const {
  switch (kind_) {
    case Kind::undefined:
    case Kind::none:
      return false;
    case Kind::boolean:
    case Kind::integer:
      return integer_ != 0;
    case Kind::real:
      return real_ != 0;
    case Kind::string:
      return !as_string().empty();
    case Kind::list:
    case Kind::tuple:
      return !items().empty();
    case Kind::dict:
      return !pairs().empty();
    default:
      return true;
  }
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0;
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::undefined:
    case Kind::none:
      return true;
    case Kind::string:
      return a.as_string() == b.as_string();
    case Kind::list:
    case Kind::tuple:
      return std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(), equal);
    case Kind::dict:
      return a.pairs().size() == b.pairs().size() &&
             std::all_of(a.pairs().begin(), a.pairs().end(), [&](const auto& p) {
               const Value* other = b.find(p.first);
               return other && equal(p.second, *other);
             });
    case Kind::space:
      return a.as_space() == b.as_space();
    default:
      return a.as_object() == b.as_object();
  }
}

bool order(const Value& a, const Value& b, int& result) {
  if (a.is_number() && b.is_number()) {
    result = compare_numbers(a, b);
    return result != 2;
  }
  if (!a.is(Kind::string) || !b.is(Kind::string)) return false;
  const int c = a.as_string().compare(b.as_string());  // UTF-8 keeps the order of code points
  result = c < 0 ? -1 : c > 0;
  return true;
}

std::string real_text(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  char buffer[40];
  auto end = std::to_chars(buffer, buffer + sizeof buffer, d, std::chars_format::scientific).ptr;
  const std::string text(buffer, end);
  const size_t e = text.find('e');
  const int exponent = std::stoi(text.substr(e + 1));
  if (exponent < -4 || exponent >= 16)
    return text;  // "1e-05", "1.5e+16": to_chars writes two digits or more, as Python
  end = std::to_chars(buffer, buffer + sizeof buffer, d, std::chars_format::fixed).ptr;
  const std::string fixed(buffer, end);
  return fixed.find('.') == std::string::npos ? fixed + ".0" : fixed;
}

std::string repr(const Value& v) {
  if (v.is(Kind::string)) return python_quoted(v.as_string());
  if (v.is_sequence()) {
    std::string out = v.is(Kind::list) ? "[" : "(";
    for (size_t i = 0; i < v.items().size(); i++) out += (i ? ", " : "") + repr(v.items()[i]);
    if (v.is(Kind::tuple) && v.items().size() == 1) out += ",";
    return out + (v.is(Kind::list) ? "]" : ")");
  }
  if (v.is(Kind::dict)) {
    std::string out = "{";
    for (const auto& [key, value] : v.pairs()) out += (out.size() > 1 ? ", " : "") + repr(key) + ": " + repr(value);
    return out + "}";
  }
  return v.is(Kind::undefined) ? "Undefined" : str(v);
}

std::string str(const Value& v) {
  switch (v.kind()) {
    case Kind::undefined:
      return "";
    case Kind::none:
      return "None";
    case Kind::boolean:
    case Kind::integer:
    case Kind::real:
      return number_text(v);
    case Kind::string:
      return v.as_string();
    case Kind::list:
    case Kind::tuple:
    case Kind::dict:
      return repr(v);
    default:
      return "<" + std::string(name_of(v.kind())) + ">";
  }
}

bool to_json(const Value& v, const JsonStyle& style, std::string& out, std::string& culprit) {
  return json_at(v, style, 0, out, culprit);
}

namespace {
Value from_json_at(const nlohmann::ordered_json& json, int level) {
  using Type = nlohmann::ordered_json::value_t;
  if (level > kMaxValueDepth)
    throw Error(ErrorKind::malformed, "template variables", "nested too deeply",
                "at most " + std::to_string(kMaxValueDepth) + " levels");
  switch (json.type()) {
    case Type::null:
      return Value::none();
    case Type::boolean:
      return Value::boolean(json.get<bool>());
    case Type::number_integer:
      return Value::integer(json.get<int64_t>());
    case Type::number_unsigned:
      if (json.get<uint64_t>() > uint64_t(INT64_MAX))
        throw Error(ErrorKind::malformed, "template variables", "an integer beyond 64 bits", "at most 2^63 - 1",
                    json.dump());
      return Value::integer(int64_t(json.get<uint64_t>()));
    case Type::number_float:
      return Value::real(json.get<double>());
    case Type::string: {
      const std::string& s = json.get_ref<const std::string&>();
      if (first_invalid_utf8(s)) throw Error(ErrorKind::malformed, "template variables", "a string is not UTF-8");
      return Value::string(s);
    }
    case Type::array: {
      std::vector<Value> items;
      for (const auto& i : json) items.push_back(from_json_at(i, level + 1));
      return Value::list(std::move(items));
    }
    case Type::object: {
      std::vector<std::pair<Value, Value>> items;
      for (const auto& [key, value] : json.items())
        items.emplace_back(from_json_at(key, level + 1), from_json_at(value, level + 1));
      return Value::dict(std::move(items));
    }
    default:
      throw Error(ErrorKind::malformed, "template variables", "hold bytes, which templates have no value for");
  }
}
}  // namespace

Value from_json(const nlohmann::ordered_json& json) {
  return from_json_at(json, 0);
}

uint32_t next_code_point(std::string_view text, size_t& at) {
  const uint8_t b = uint8_t(text[at++]);
  if (b < 0x80) return b;
  const int more = b < 0xe0 ? 1 : b < 0xf0 ? 2 : 3;
  uint32_t c = b & (0x3f >> more);
  for (int k = 0; k < more && at < text.size(); k++) c = c << 6 | (uint8_t(text[at++]) & 0x3f);
  return c;
}

size_t code_points(std::string_view text) {
  return size_t(std::count_if(text.begin(), text.end(), [](char c) { return (uint8_t(c) & 0xc0) != 0x80; }));
}

std::vector<size_t> code_point_starts(std::string_view text) {
  std::vector<size_t> starts;
  for (size_t i = 0; i < text.size(); i++)
    if ((uint8_t(text[i]) & 0xc0) != 0x80) starts.push_back(i);
  starts.push_back(text.size());
  return starts;
}

void append_utf8(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += char(c);
  } else if (c < 0x800) {
    out += char(0xc0 | c >> 6);
    out += char(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    out += char(0xe0 | c >> 12);
    out += char(0x80 | (c >> 6 & 0x3f));
    out += char(0x80 | (c & 0x3f));
  } else {
    out += char(0xf0 | c >> 18);
    out += char(0x80 | (c >> 12 & 0x3f));
    out += char(0x80 | (c >> 6 & 0x3f));
    out += char(0x80 | (c & 0x3f));
  }
}

bool is_space(uint32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

std::string_view strip(std::string_view text, bool left, bool right, const std::string* chars) {
  auto gone = [&](size_t at, size_t end) {
    if (chars)
      return chars->find(text.substr(at, end - at)) !=
             std::string::npos;  // whole code points: UTF-8 has no false match
    size_t i = at;
    return is_space(next_code_point(text, i));
  };
  size_t begin = 0, end = text.size();
  while (left && begin < end) {
    size_t next = begin;
    next_code_point(text, next);
    if (!gone(begin, next)) break;
    begin = next;
  }
  while (right && begin < end) {
    size_t last = end - 1;
    while ((uint8_t(text[last]) & 0xc0) == 0x80) last--;
    if (!gone(last, end)) break;
    end = last;
  }
  return text.substr(begin, end - begin);
}

}  // namespace assay::jinja
