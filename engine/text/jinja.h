// Chat templates: the subset of Jinja2 that the models' templates use, written from the template designer documentation
// of Jinja 3.1 (jinja.palletsprojects.com) with the settings of transformers' `render_jinja_template`: trim_blocks,
// lstrip_blocks, no autoescape, an immutable sandbox, loop controls, `{% generation %}`, and its tojson. What stands
// outside the subset is an Error{malformed} "NAME: line L, column C: ..." that names the construct.
//
// In: text, comments, raw; for (with if, else, unpacking, break, continue, loop.*), if/elif/else, set (names,
// unpacking, namespace attributes, blocks), macro (defaults, keywords); literals, attributes, items, slices, calls,
// filters, tests, arithmetic of integers, comparisons and `in`, `~`, and/or/not, inline if. Filters, tests and methods:
// jinja_filters.cpp, jinja_methods.cpp. Out: inheritance, include and import, call, filter and with blocks, recursive
// loops, arithmetic of fractions, case mapping beyond ASCII, and everything that would change a value in place.
#pragma once
#include <cstdint>
#include <ctime>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace assay::jinja {

/// What one rendering may take; beyond it: Error{malformed}. Templates come from files that strangers wrote.
struct Limits {
  size_t output = size_t(16) << 20;    // bytes of the rendered text, and of any string on the way
  uint64_t steps = 20'000'000;         // nodes visited and elements looked at
  uint64_t bytes = uint64_t(1) << 30;  // of all values ever made, together
};

struct Body;

class Template {
 public:
  /// Parses `source` (UTF-8). `name` stands before the place in messages.
  static Template parse(std::string_view source, const std::string& name);

  /// Renders with `variables` (a JSON object; integers beyond 64 bits are refused) and the globals namespace, range,
  /// dict, raise_exception and strftime_now, which formats `now` in the C locale. raise_exception is an Error{usage}
  /// with the template's own message. The same arguments give the same bytes.
  std::string render(const nlohmann::ordered_json& variables, const std::tm& now, const Limits& limits = {}) const;

 private:
  std::string name_;
  std::shared_ptr<const Body> body_;
};

}  // namespace assay::jinja
