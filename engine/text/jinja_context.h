// What evaluating a template shares between the renderer, filters, tests and methods: the place for messages and the
// budget.
#pragma once
#include <ctime>
#include <deque>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "engine/text/jinja.h"
#include "engine/text/jinja_ast.h"

namespace assay::jinja {

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// A namespace(): the one value with parts that can be set.
struct Space {
  std::vector<std::pair<std::string, Value>> fields;
};

struct Function : Object {
  enum class Type : uint8_t { global, method, macro };
  Type type = Type::global;
  std::string name;
  Value self;                        // method
  const Statement* macro = nullptr;  // macro
  size_t scope = 0;                  // macro: where it was defined, an index of the renderer's
};

/// The variable `loop` of one for statement.
struct Loop : Object {
  std::vector<Value> items;
  size_t index = 0;
};

class Context {
 public:
  Context(const std::string& name, const std::tm& now, const Limits& limits)
      : name_(name), now_(now), limits_(limits) {}

  void at(Place place) { place_ = place; }
  Place place() const { return place_; }
  [[noreturn]] void fail(const std::string& what, const std::string& wanted = {}, const std::string& found = {}) const {
    fail_at(name_, place_, what, wanted, found);
  }
  /// "'message.foo' is undefined", or the kind.
  [[noreturn]] void fail_kind(const std::string& what, const std::string& wanted, const Value& found) const;
  const std::string& name() const { return name_; }
  const std::tm& now() const { return now_; }
  const Limits& limits() const { return limits_; }

  void step(uint64_t n = 1);                      // time
  void charge(uint64_t bytes);                    // memory
  void check_size(uint64_t bytes);                // of one string
  void refuse_safe(const Value& v) const;         // see Value::safe
  void walk(const Value& v, uint64_t times = 1);  // before all of a value is compared or printed
  // Values, charged.
  Value string(std::string s);
  Value list(std::vector<Value> items, bool tuple = false);
  Value dict(std::vector<std::pair<Value, Value>> items);
  Value space(std::vector<std::pair<std::string, Value>> fields);

  /// The elements that a for or a filter sees: of lists, keys of mappings, characters of strings, none of undefined.
  std::vector<Value> iterate(const Value& v);
  const std::string& text_of(const Value& v, const std::string& of);  // wants a string
  int64_t integer_of(const Value& v, const std::string& of);          // wants an integer or a boolean
  /// str(), charged.
  std::string str_of(const Value& v);
  bool contains(const Value& container, const Value& item);  // `in`

  /// Arguments by position or name, in the order of `names`; absent ones are nullopt. Fails on unknown and surplus
  /// ones.
  std::vector<std::optional<Value>> bind(const std::string& callee, Args& args,
                                         std::initializer_list<std::string_view> names) const;

  Value attribute(const Value& v, const std::string& name);  // v.name
  Value item(const Value& v, const Value& key);              // v[key]

  Value filter(const std::string& name, const Value& input, Args args);  // jinja_filters.cpp
  bool test(const std::string& name, const Value& input, Args args);     // jinja_filters.cpp
  static bool has_method(const Value& v, const std::string& name);       // jinja_methods.cpp
  Value method(const Value& self, const std::string& name, Args args);   // jinja_methods.cpp

 private:
  const std::string& name_;
  const std::tm& now_;
  const Limits& limits_;
  Place place_;
  uint64_t steps_ = 0, bytes_ = 0;
  static constexpr int kMaxCalls = 40;
  int calls_ = 0;             // of filters by filters
  std::deque<Space> spaces_;  // addresses stay
};

/// Parts of `text` between `separator`s, at most `most` cuts (-1: all), from the right where asked. Python's str.split
/// with a separator, which is not empty.
std::vector<std::string_view> split_text(std::string_view text, std::string_view separator, int64_t most,
                                         bool from_right);
/// At most `most` replacements (-1: all). An empty `from` stands before every character and at the end.
std::string replace_text(Context& c, std::string_view text, std::string_view from, std::string_view to, int64_t most);

}  // namespace assay::jinja
