// Values of templates, with Python's meaning of truth, equality, str() and repr(). Lists, tuples and dictionaries never
// change once made, so values are shared, not copied, and can't form cycles; what can change (namespaces, macros)
// belongs to the rendering and is pointed at.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace assay::jinja {

enum class Kind : uint8_t { undefined, none, boolean, integer, real, string, list, tuple, dict, space, function, loop };

inline constexpr int kMaxValueDepth = 100;  // of nested lists and dictionaries

struct Object {
  virtual ~Object() = default;
};

struct Space;  // a namespace(); lives as long as the rendering

class Value {
 public:
  Value() = default;                         // undefined
  static Value undefined(std::string name);  // the name is for messages
  static Value none();
  static Value boolean(bool b);
  static Value integer(int64_t i);
  static Value real(double d);  // carried and printed, never computed with
  static Value string(std::string s);
  /// Text that the filter `safe` marked. Jinja escapes plain text that is joined to it, as for HTML; that is not done
  /// here, so that it can be printed and tested, and every other use is refused.
  static Value safe(std::string s);
  static Value list(std::vector<Value> items, bool tuple = false);
  static Value dict(std::vector<std::pair<Value, Value>> items);  // a later item replaces an equal key's value
  static Value space(Space* s);
  static Value object(Kind kind, std::shared_ptr<Object> o);  // function, loop

  Kind kind() const { return kind_; }
  bool is(Kind k) const { return kind_ == k; }
  bool is_sequence() const { return kind_ == Kind::list || kind_ == Kind::tuple; }
  bool is_number() const { return kind_ == Kind::boolean || kind_ == Kind::integer || kind_ == Kind::real; }
  bool truth() const;
  bool is_safe() const { return safe_; }

  // Each wants its kind.
  bool as_boolean() const { return integer_ != 0; }
  int64_t as_integer() const { return integer_; }  // of booleans too
  double as_real() const { return real_; }
  const std::string& as_string() const;                       // of undefined: its name
  const std::vector<Value>& items() const;                    // list, tuple
  const std::vector<std::pair<Value, Value>>& pairs() const;  // dict, in insertion order
  const Value* find(const Value& key) const;                  // dict; nullptr: no such key
  const Value* find(std::string_view key) const;
  Space* as_space() const { return space_; }
  Object* as_object() const { return object_.get(); }
  int depth() const;  // of containers; 0: has none
  uint64_t weight()
      const;  // what walking all of it costs: elements and bytes, those that are shared as often as they stand

 private:
  Kind kind_ = Kind::undefined;
  bool safe_ = false;
  int64_t integer_ = 0;
  double real_ = 0;
  Space* space_ = nullptr;
  std::shared_ptr<Object> object_;
};

bool equal(const Value& a, const Value& b);  // Python's ==: True == 1, 1 == 1.0, a list never equals a tuple
/// -1, 0, 1 as Python's < would order numbers or strings (by code point); false where the kinds have no order.
bool order(const Value& a, const Value& b, int& result);

/// Python's str() and repr(). Non-ASCII control, format, separator and private code points are escaped in repr(), all
/// other non-ASCII text stands as it is. Functions, loops and namespaces print as <kind>.
std::string str(const Value& v);
std::string repr(const Value& v);
std::string real_text(double d);  // Python's repr of a float: the shortest that reads back, "1e-05", "0.1", "1e+16"

struct JsonStyle {
  int indent = -1;  // -1: one line
  bool ascii = false, sort = false;
  std::string item_separator = ", ", key_separator = ": ";
  size_t limit = SIZE_MAX;  // bytes
};
/// Python's json.dumps. False where `v` holds something that JSON does not have; `culprit` names it.
bool to_json(const Value& v, const JsonStyle& style, std::string& out, std::string& culprit);

/// Throws Error{malformed} for an integer beyond 64 bits or nesting beyond kMaxValueDepth.
Value from_json(const nlohmann::ordered_json& json);

/// "a string", "a list", "undefined": for messages.
std::string_view name_of(Kind k);

// UTF-8. Strings of templates are well-formed: the template's source and the variables are checked once (unicode.h).
size_t code_points(std::string_view text);
/// The code point at `at`, which moves behind it.
uint32_t next_code_point(std::string_view text, size_t& at);
/// The bytes at which each code point starts, and the end.
std::vector<size_t> code_point_starts(std::string_view text);
void append_utf8(std::string& out, uint32_t code_point);
bool is_space(uint32_t code_point);  // Python's str.isspace
/// Strips white space, or the code points of `chars` where it is given, as Python's strip, lstrip and rstrip.
std::string_view strip(std::string_view text, bool left, bool right, const std::string* chars = nullptr);

}  // namespace assay::jinja
