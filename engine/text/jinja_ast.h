// Tokens and the tree of a parsed template (jinja.h).
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/jinja_value.h"

namespace assay::jinja {

struct Place {
  int line = 1, column = 1;  // both from 1; columns count bytes
};

/// Throws Error{malformed} "NAME: line L, column C: WHAT; wanted W, found F".
[[noreturn]] void fail_at(const std::string& name, Place place, const std::string& what, const std::string& wanted = {},
                          const std::string& found = {}, const std::string& hint = {});

enum class TokenKind : uint8_t {
  text,
  output_begin,
  output_end,
  block_begin,
  block_end,
  name,
  string,
  integer,
  real,
  symbol,
  end
};
struct Token {
  TokenKind kind;
  std::string text;  // strings: with their escapes resolved
  Place place;
};
/// The whole template as tokens, white space control applied; the last is `end`.
std::vector<Token> tokenise(std::string_view source, const std::string& name);

struct Expr {
  enum class Type : uint8_t {
    literal,  // value
    name,     // text
    list,
    tuple,      // parts
    dict,       // parts: key, value, key, value ...
    attribute,  // parts[0] . text
    item,       // parts[0] [ parts[1] ]
    slice,      // parts[0] [ parts[1] : parts[2] : parts[3] ], the last three may be null
    call,       // parts[0] ( parts[1...], keywords )
    filter,     // parts[0] | text ( parts[1...], keywords ); parts[0] is null in a set block's filters
    test,       // parts[0] is text ( parts[1...] )
    negate,
    plus,
    logical_not,  // parts[0]
    add,
    subtract,
    multiply,
    floor_divide,
    modulo,  // parts[0], parts[1]
    divide,
    power,        // parsed so that they can be refused by name
    concatenate,  // parts
    compare,      // parts[0] operators[0] parts[1] operators[1] parts[2] ...
    logical_and,
    logical_or,   // parts[0], parts[1]
    conditional,  // parts[0] if parts[1] else parts[2], which may be null
  };
  Type type;
  Place place;
  int depth = 1;
  std::string text;
  Value value;
  std::vector<std::unique_ptr<Expr>> parts;
  std::vector<std::pair<std::string, std::unique_ptr<Expr>>> keywords;
  std::vector<std::string> operators;
};
using ExprPtr = std::unique_ptr<Expr>;

struct Statement;
struct Body {
  std::vector<std::unique_ptr<Statement>> statements;
};

struct Statement {
  enum class Type : uint8_t {
    text,        // text
    output,      // exprs[0]
    for_loop,    // names, exprs[0] the iterable, exprs[1] the condition or null; bodies[0], bodies[1] else
    branch,      // exprs[i] guards bodies[i]; one body more than exprs: else
    set,         // names, exprs[0]
    set_field,   // names[0].names[1], exprs[0]
    set_block,   // names[0], exprs[0] the innermost of its filters or null, bodies[0]
    macro,       // text, names are parameters, exprs[i] the default or null, bodies[0]
    generation,  // bodies[0]
    break_loop,
    continue_loop,
  };
  Type type;
  Place place;
  std::string text;
  std::vector<std::string> names;
  bool unpack = false;  // for, set: names are unpacked, even a single one ("for a, in")
  std::vector<ExprPtr> exprs;
  std::vector<Body> bodies;
};

/// Parses tokens. Throws by fail_at.
Body parse(const std::vector<Token>& tokens, const std::string& name);

}  // namespace assay::jinja
