// Templates against Jinja2 itself (testdata/jinja_pairs.jsonl: what jinja2 rendered or refused), errors with their
// places, and budgets that hold against templates written to exhaust them.
#include "engine/text/jinja.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "dumps/error.h"

namespace assay::jinja {
namespace {

using Json = nlohmann::ordered_json;

std::tm july() {  // Friday, 26 July 2024
  std::tm t{};
  t.tm_year = 124;
  t.tm_mon = 6;
  t.tm_mday = 26;
  t.tm_wday = 5;
  return t;
}
std::string rendered(const std::string& source, const Json& variables = Json::object(), const Limits& limits = {}) {
  return Template::parse(source, "t").render(variables, july(), limits);
}
std::string error_of(const std::string& source, const Limits& limits = {}) {
  try {
    return "rendered: " + rendered(source, Json::object(), limits).substr(0, 80);
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), kUsage) << e.what();
    return e.what();
  }
}

TEST(Jinja, RendersAndRefusesAsJinja2Does) {
  std::ifstream in(std::string(ASSAY_SOURCE_DIR) + "/engine/text/testdata/jinja_pairs.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(in, line));
  const Json variables = Json::parse(line).at("variables");
  int equal = 0, refused = 0;
  while (std::getline(in, line)) {
    const Json row = Json::parse(line);
    const std::string source = row.at("template");
    std::string text;
    bool failed = false;
    try {
      text = rendered(source, variables);
    } catch (const Error& e) {
      failed = true;
      EXPECT_EQ(e.exit_code(), kUsage) << source << "\n" << e.what();
      EXPECT_EQ(std::string(e.what()).rfind("t: line ", 0), 0u) << "no place: " << e.what();
      text = e.what();
    }
    if (row.contains("error")) {
      EXPECT_TRUE(failed) << source << "\njinja2: " << row.at("error") << "\nhere:   " << text;
      refused++;
    } else {
      EXPECT_FALSE(failed) << source << "\n" << text;
      EXPECT_EQ(text, row.at("rendered").get<std::string>()) << source;
      equal++;
    }
  }
  EXPECT_GE(equal, 900);
  EXPECT_GE(refused, 250);
}

TEST(Jinja, ErrorsNameLineColumnAndConstruct) {
  const std::pair<const char*, const char*> rows[] = {
      {"a\nb {{ x.y }}", "t: line 2, column 7: \"x\" is undefined, so that it has no attribute \"y\""},
      {"\n{% include 'x' %}", "t: line 2, column 4: the tag {% \"include\" %} is not supported"},
      {"{{ 'x'|wordwrap }}", "t: line 1, column 7: the filter \"wordwrap\" is not supported; wanted abs, capitalize"},
      {"{{ 1 is filter }}", "the test \"filter\" is not supported"},
      {"{{ 'a'.format(1) }}", "the string method \"format\" is not supported"},
      {"{{ [].append(1) }}", "would change a list"},
      {"{% for i in [] recursive %}{% endfor %}", "recursive loops are not supported"},
      {"{% macro m() %}{{ caller() }}{% endmacro %}", "special variable \"caller\""},
      {"{{ cycler(1) }}", "the global \"cycler\" is not supported"},
      {"{{ 1 / 2 }}", "the operator / gives a fraction"},
      {"{{ 2 ** 2 }}", "the operator ** is not supported"},
      {"{{ 1.5 + 1 }}", "arithmetic of fractions"},
      {"{{ '%s' % 1 }}", "formatting by %"},
      {"{{ 'a'|safe ~ '<' }}", "the filter safe"},
      {"{{ 9223372036854775807 + 1 }}", "does not fit"},
      {"{{ '\xc3\xa4'|upper }}", "beyond ASCII"},
      {"{{ raise_exception('Only\nuser roles!') }}",
       "the template refuses this conversation: \"Only\\x0auser roles!\""},
      {"{{ f(*[1]) }}", "argument lists by * and **"},
      {"\xff", "not UTF-8"},
      {"{{ 'a", "the string is not closed"},
      {"x {# y", "t: line 1, column 3: the comment is not closed"},
      {"{{ ( ]", "unexpected ']'"},
      {"{% for i in [1] %}x", "the template ends inside a block; wanted {% endfor %}"},
  };
  for (const auto& [source, says] : rows)
    EXPECT_NE(error_of(source).find(says), std::string::npos) << source << "\n" << error_of(source);
}

TEST(Jinja, BudgetsHold) {
  const Limits small{.output = 1 << 16, .steps = 200'000, .bytes = 8 << 20};
  auto repeat = [](const std::string& s, int n) {
    std::string out;
    for (int i = 0; i < n; i++) out += s;
    return out;
  };
  const std::pair<std::string, const char*> rows[] = {
      {"{% for i in range(999999999) %}{% endfor %}", "takes too long"},
      {"{% for i in range(1000) %}{% for j in range(1000) %}x{% endfor %}{% endfor %}", "too"},
      {"{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}", "too long"},
      {"{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", "too long"},
      {"{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", "too"},
      {"{{ 'abc' * 999999999999 }}", "too long"},
      {"{{ [1] * 999999999 }}", "too long"},
      {"{{ 'ab'|replace('', 'x' * 60000) }}", "too long"},
      {"{% for i in range(99999) %}xxxxxxxxxx{% endfor %}", "too"},
      {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "too deeply"},
      {"{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}", "too deeply"},
      {"{% set ns = namespace(v=[]) %}{% for i in range(999) %}{% set ns.v = [ns.v] %}{% endfor %}",
       "nested too deeply"},
      {"{% set ns = namespace(v={}) %}{% for i in range(999) %}{% set ns.v = {'k': ns.v} %}{% endfor %}",
       "nested too deeply"},
      // Shared values print and compare as often as they stand: 2^90 elements in 90 lists.
      {"{% set ns = namespace(v=[1]) %}{% for i in range(90) %}{% set ns.v = [ns.v, ns.v] %}{% endfor %}{{ ns.v }}",
       "too long"},
      {"{% set ns = namespace(v=[1]) %}{% for i in range(90) %}{% set ns.v = [ns.v, ns.v] %}{% endfor %}{{ ns.v|tojson "
       "}}",
       "too long"},
      {"{% set ns = namespace(v=[1], w=[1]) %}{% for i in range(90) %}{% set ns.v = [ns.v, ns.v] %}{% set ns.w = "
       "[ns.w, ns.w] %}"
       "{% endfor %}{{ ns.v == ns.w }}",
       "too long"},
      {"{{ " + repeat("(", 5000) + "1" + repeat(")", 5000) + " }}", "nested too deeply"},
      {"{{ " + repeat("[", 5000) + repeat("]", 5000) + " }}", "nested too deeply"},
      {"{{ " + repeat("not ", 5000) + "1 }}", "nested too deeply"},
      {"{{ " + repeat("-", 5000) + "1 }}", "nested too deeply"},
      {"{{ 1" + repeat("+1", 5000) + " }}", "nested too deeply"},
      {"{{ x" + repeat(".x", 5000) + " }}", "nested too deeply"},
      {"{{ x" + repeat("|trim", 5000) + " }}", "nested too deeply"},
      {repeat("{% if 1 %}", 5000), "nested too deeply"},
      {"{{ [1]|map(" + repeat("'map',", 100) + "'string')|list }}", ""},
  };
  for (const auto& [source, says] : rows) {
    const std::string e = error_of(source, small);
    if (*says) {
      EXPECT_NE(e.find(says), std::string::npos) << source.substr(0, 120) << "\n" << e.substr(0, 300);
    }
  }
}

TEST(Jinja, DeepestAllowedNestingFitsTheStack) {  // every level of macros, blocks and parentheses that the bounds allow
  std::string body = "{{ " + std::string(60, '(') + "m(n - 1) if n else 0" + std::string(60, ')') + " }}";
  for (int i = 0; i < 10; i++) body = "{% if true %}" + body + "{% endif %}";
  const std::string source = "{% macro m(n) %}" + body + "{% endmacro %}{{ m(90) }}";
  EXPECT_NE(error_of(source).find("too deeply"), std::string::npos) << error_of(source);
  EXPECT_EQ(rendered("{% macro m(n) %}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}[{{ m(60) }}]"), "[]");
}

TEST(Jinja, VariablesAreCheckedOnce) {
  EXPECT_THROW(rendered("", Json::array()), Error);
  EXPECT_THROW(rendered("", {{"n", uint64_t(1) << 63}}), Error);
  EXPECT_THROW(rendered("", {{"s", "\xff"}}), Error);
  Json deep = 1;
  for (int i = 0; i < 200; i++) deep = Json::array({deep});
  EXPECT_THROW(rendered("", {{"v", deep}}), Error);
  EXPECT_EQ(rendered("{{ n }}", {{"n", INT64_MIN}}), "-9223372036854775808");
}

}  // namespace
}  // namespace assay::jinja
