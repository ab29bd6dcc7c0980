// From tokens to the tree, by the grammar and precedences of Jinja 3.1's parser. Depth is bounded here, so that nothing
// which walks the tree can exhaust the stack.
#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include "dumps/text.h"
#include "engine/text/jinja_ast.h"

namespace assay::jinja {
namespace {

constexpr int kMaxExprDepth = 200;      // of the tree of one expression
constexpr int kMaxStatementDepth = 60;  // of blocks

class Parser {
 public:
  Parser(const std::vector<Token>& tokens, const std::string& name) : tokens_(tokens), name_(name) {}

  Body run() {
    Body body = statements({});
    return body;
  }

 private:
  using Type = Expr::Type;

  // ------------------------------------------------------------------------------------------------------------------
  // tokens
  const Token& peek() const { return tokens_[at_]; }
  const Token& next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool is(TokenKind kind, std::string_view text) const { return peek().kind == kind && peek().text == text; }
  bool symbol(std::string_view text) const { return is(TokenKind::symbol, text); }
  bool word(std::string_view text) const { return is(TokenKind::name, text); }
  bool accept(TokenKind kind, std::string_view text) {
    if (!is(kind, text)) return false;
    next();
    return true;
  }
  static std::string shown(const Token& t) {
    switch (t.kind) {
      case TokenKind::end:
        return "the end of the template";
      case TokenKind::text:
        return "text";
      case TokenKind::output_end:
        return "}}";
      case TokenKind::block_end:
        return "%}";
      case TokenKind::string:
        return "a string";
      default:
        return in_quotes(t.text, 40);
    }
  }
  void expect(TokenKind kind, std::string_view text) {
    if (!accept(kind, text)) fail("unexpected " + shown(peek()), in_quotes(text));
  }
  std::string expect_name(const std::string& what) {
    if (peek().kind != TokenKind::name) fail("unexpected " + shown(peek()), what);
    return next().text;
  }
  [[noreturn]] void fail(const std::string& what, const std::string& wanted = {}) const {
    fail_at(name_, peek().place, what, wanted);
  }

  // -------------------------------------------------------------------------------------------------------------
  // expressions
  ExprPtr make(Type type, Place place, std::vector<ExprPtr> parts = {}, std::string text = {}) {
    auto e = std::make_unique<Expr>();
    e->type = type;
    e->place = place;
    e->text = std::move(text);
    e->parts = std::move(parts);
    for (const ExprPtr& p : e->parts)
      if (p) e->depth = std::max(e->depth, p->depth + 1);
    if (e->depth > kMaxExprDepth)
      fail_at(name_, place, "the expression is nested too deeply", std::to_string(kMaxExprDepth) + " levels at most");
    return e;
  }
  template <class... P>
  ExprPtr node(Type type, Place place, P... parts) {
    std::vector<ExprPtr> v;
    (v.push_back(std::move(parts)), ...);
    return make(type, place, std::move(v));
  }
  ExprPtr literal(Value v, Place place) {
    ExprPtr e = make(Type::literal, place);
    e->value = std::move(v);
    return e;
  }

  struct Nesting {
    Parser& parser;
    explicit Nesting(Parser& p) : parser(p) {
      if (++parser.nesting_ > kMaxExprDepth)
        parser.fail("the expression is nested too deeply", std::to_string(kMaxExprDepth) + " levels at most");
    }
    ~Nesting() { parser.nesting_--; }
  };

  ExprPtr expression() {
    const Nesting nesting(*this);
    ExprPtr e = logical_or();
    while (word("if")) {
      const Place place = next().place;
      ExprPtr condition = logical_or(), other;
      if (accept(TokenKind::name, "else")) other = expression();
      e = node(Type::conditional, place, std::move(e), std::move(condition), std::move(other));
    }
    return e;
  }

  ExprPtr logical_or() {
    ExprPtr e = logical_and();
    while (word("or")) {
      const Place place = next().place;
      e = node(Type::logical_or, place, std::move(e), logical_and());
    }
    return e;
  }
  ExprPtr logical_and() {
    ExprPtr e = logical_not();
    while (word("and")) {
      const Place place = next().place;
      e = node(Type::logical_and, place, std::move(e), logical_not());
    }
    return e;
  }
  ExprPtr logical_not() {
    if (!word("not")) return compare();
    const Nesting nesting(*this);
    const Place place = next().place;
    return node(Type::logical_not, place, logical_not());
  }

  ExprPtr compare() {
    ExprPtr first = sum();
    std::vector<ExprPtr> parts;
    std::vector<std::string> operators;
    const Place place = peek().place;
    for (;;) {
      std::string op;
      if (peek().kind == TokenKind::symbol) {
        for (const std::string_view s : {"==", "!=", "<", "<=", ">", ">="})
          if (peek().text == s) op = s;
        if (!op.empty()) next();
      } else if (word("in")) {
        op = next().text;
      } else if (word("not") && tokens_[at_ + 1].kind == TokenKind::name && tokens_[at_ + 1].text == "in") {
        next();
        next();
        op = "not in";
      }
      if (op.empty()) break;
      if (parts.empty()) parts.push_back(std::move(first));
      operators.push_back(op);
      parts.push_back(sum());
    }
    if (operators.empty()) return first;
    ExprPtr e = make(Type::compare, place, std::move(parts));
    e->operators = std::move(operators);
    return e;
  }

  ExprPtr sum() {
    ExprPtr e = concatenation();
    while (symbol("+") || symbol("-")) {
      const Token& op = next();
      e = node(op.text == "+" ? Type::add : Type::subtract, op.place, std::move(e), concatenation());
    }
    return e;
  }
  ExprPtr concatenation() {
    ExprPtr e = product();
    if (!symbol("~")) return e;
    const Place place = peek().place;
    std::vector<ExprPtr> parts;
    parts.push_back(std::move(e));
    while (accept(TokenKind::symbol, "~")) parts.push_back(product());
    return make(Type::concatenate, place, std::move(parts));
  }
  ExprPtr product() {
    ExprPtr e = power();
    while (symbol("*") || symbol("/") || symbol("//") || symbol("%")) {
      const Token& op = next();
      const Type type = op.text == "*"    ? Type::multiply
                        : op.text == "/"  ? Type::divide
                        : op.text == "//" ? Type::floor_divide
                                          : Type::modulo;
      e = node(type, op.place, std::move(e), power());
    }
    return e;
  }
  ExprPtr power() {
    ExprPtr e = unary(true);
    while (symbol("**")) {
      const Place place = next().place;
      e = node(Type::power, place, std::move(e), unary(true));
    }
    return e;
  }
  ExprPtr unary(bool with_filter) {
    const Nesting nesting(*this);
    ExprPtr e;
    if (symbol("-") || symbol("+")) {
      const Token& op = next();
      e = node(op.text == "-" ? Type::negate : Type::plus, op.place, unary(false));
    } else {
      e = primary();
    }
    e = postfix(std::move(e));
    return with_filter ? filters(std::move(e)) : std::move(e);
  }

  ExprPtr primary() {
    const Token& t = peek();
    const Place place = t.place;
    switch (t.kind) {
      case TokenKind::name:
        next();
        if (t.text == "true" || t.text == "True") return literal(Value::boolean(true), place);
        if (t.text == "false" || t.text == "False") return literal(Value::boolean(false), place);
        if (t.text == "none" || t.text == "None") return literal(Value::none(), place);
        if (in_macro_ && (t.text == "caller" || t.text == "varargs" || t.text == "kwargs"))
          fail_at(name_, place, "the special variable " + in_quotes(t.text) + " of macros is not supported");
        return make(Type::name, place, {}, t.text);
      case TokenKind::string: {
        std::string text = next().text;
        while (peek().kind == TokenKind::string) text += next().text;
        return literal(Value::string(std::move(text)), place);
      }
      case TokenKind::integer: {
        int64_t v = 0;
        const auto [end, error] = std::from_chars(t.text.data(), t.text.data() + t.text.size(), v);
        if (error != std::errc()) fail("the number is too large", "64 bits");
        next();
        return literal(Value::integer(v), place);
      }
      case TokenKind::real: {
        double v = 0;
        const auto [end, error] = std::from_chars(t.text.data(), t.text.data() + t.text.size(), v);
        if (error != std::errc()) fail("the number is out of range");
        next();
        return literal(Value::real(v), place);
      }
      case TokenKind::symbol:
        if (t.text == "(") {
          next();
          if (accept(TokenKind::symbol, ")")) return make(Type::tuple, place);
          ExprPtr e = tuple_or_expression(")");
          expect(TokenKind::symbol, ")");
          return e;
        }
        if (t.text == "[") {
          next();
          std::vector<ExprPtr> parts;
          while (!symbol("]")) {
            parts.push_back(expression());
            if (!accept(TokenKind::symbol, ",")) break;
          }
          expect(TokenKind::symbol, "]");
          return make(Type::list, place, std::move(parts));
        }
        if (t.text == "{") {
          next();
          std::vector<ExprPtr> parts;
          while (!symbol("}")) {
            parts.push_back(expression());
            expect(TokenKind::symbol, ":");
            parts.push_back(expression());
            if (!accept(TokenKind::symbol, ",")) break;
          }
          expect(TokenKind::symbol, "}");
          return make(Type::dict, place, std::move(parts));
        }
        break;
      default:
        break;
    }
    fail("unexpected " + shown(t), "an expression");
  }

  /// An expression, or a tuple where a comma follows. `end` may stand after the last comma.
  ExprPtr tuple_or_expression(std::string_view end) {
    const Place place = peek().place;
    ExprPtr first = expression();
    if (!symbol(",")) return first;
    std::vector<ExprPtr> parts;
    parts.push_back(std::move(first));
    while (accept(TokenKind::symbol, ",")) {
      if ((!end.empty() && symbol(end)) || peek().kind == TokenKind::block_end || peek().kind == TokenKind::output_end)
        break;
      parts.push_back(expression());
    }
    return make(Type::tuple, place, std::move(parts));
  }

  ExprPtr postfix(ExprPtr e) {
    for (;;) {
      const Place place = peek().place;
      if (accept(TokenKind::symbol, ".")) {
        if (peek().kind == TokenKind::integer) {
          ExprPtr index = primary();
          e = node(Type::item, place, std::move(e), std::move(index));
          continue;
        }
        std::string attribute = expect_name("an attribute's name");
        std::vector<ExprPtr> parts;
        parts.push_back(std::move(e));
        e = make(Type::attribute, place, std::move(parts), std::move(attribute));
      } else if (accept(TokenKind::symbol, "[")) {
        e = subscript(std::move(e), place);
      } else if (symbol("(")) {
        e = call(Type::call, std::move(e), {}, place);
      } else {
        return e;
      }
    }
  }

  ExprPtr subscript(ExprPtr e, Place place) {
    std::array<ExprPtr, 3> parts;
    int colons = 0;
    for (;;) {
      if (symbol("]")) break;
      if (accept(TokenKind::symbol, ":")) {
        if (++colons > 2) fail_at(name_, place, "a slice has three parts at most");
        continue;
      }
      if (parts[colons]) fail("unexpected " + shown(peek()), "\":\" or \"]\"");
      parts[colons] = expression();
      if (symbol(",")) fail("several subscripts are not supported", "one");
    }
    expect(TokenKind::symbol, "]");
    if (colons > 0)
      return node(Type::slice, place, std::move(e), std::move(parts[0]), std::move(parts[1]), std::move(parts[2]));
    if (!parts[0]) fail_at(name_, place, "the subscript is empty", "an index or a slice");
    return node(Type::item, place, std::move(e), std::move(parts[0]));
  }

  ExprPtr call(Type type, ExprPtr callee, std::string text, Place place) {
    std::vector<ExprPtr> parts;
    parts.push_back(std::move(callee));
    std::vector<std::pair<std::string, ExprPtr>> keywords;
    int deepest = 0;
    if (accept(TokenKind::symbol, "(")) {
      while (!symbol(")")) {
        if (symbol("*") || symbol("**")) fail("argument lists by * and ** are not supported");
        if (peek().kind == TokenKind::name && tokens_[at_ + 1].kind == TokenKind::symbol &&
            tokens_[at_ + 1].text == "=") {
          std::string key = next().text;
          next();
          for (const auto& [k, v] : keywords)
            if (k == key) fail("the argument " + in_quotes(key) + " is given twice");
          keywords.emplace_back(std::move(key), expression());
          deepest = std::max(deepest, keywords.back().second->depth);
        } else {
          if (!keywords.empty()) fail("a positional argument follows a keyword");
          parts.push_back(expression());
        }
        if (!accept(TokenKind::symbol, ",")) break;
      }
      expect(TokenKind::symbol, ")");
    }
    ExprPtr e = make(type, place, std::move(parts), std::move(text));
    e->depth = std::max(e->depth, deepest + 1);
    e->keywords = std::move(keywords);
    return e;
  }

  ExprPtr filters(ExprPtr e) {
    for (;;) {
      const Place place = peek().place;
      if (accept(TokenKind::symbol, "|")) {
        e = filter(std::move(e), place);
      } else if (accept(TokenKind::name, "is")) {
        e = test(std::move(e), place);
      } else if (symbol("(")) {
        e = call(Type::call, std::move(e), {}, place);
      } else {
        return e;
      }
    }
  }
  ExprPtr filter(ExprPtr e, Place place) {
    std::string name = expect_name("a filter's name");
    return call(Type::filter, std::move(e), std::move(name), place);
  }
  ExprPtr test(ExprPtr e, Place place) {
    const bool negated = accept(TokenKind::name, "not");
    std::string name = expect_name("a test's name");
    ExprPtr t;
    const TokenKind k = peek().kind;
    const bool argument = k == TokenKind::string || k == TokenKind::integer || k == TokenKind::real || symbol("[") ||
                          symbol("{") ||
                          (k == TokenKind::name && !word("else") && !word("or") && !word("and") && !word("if") &&
                           !word("is") && !word("in") && !word("not"));
    if (symbol("(")) {
      t = call(Type::test, std::move(e), std::move(name), place);
    } else if (argument) {  // "is divisibleby 3"
      std::vector<ExprPtr> parts;
      parts.push_back(std::move(e));
      parts.push_back(postfix(primary()));
      t = make(Type::test, place, std::move(parts), std::move(name));
    } else {
      std::vector<ExprPtr> parts;
      parts.push_back(std::move(e));
      t = make(Type::test, place, std::move(parts), std::move(name));
    }
    return negated ? node(Type::logical_not, place, std::move(t)) : std::move(t);
  }

  // --------------------------------------------------------------------------------------------------------------
  // statements
  std::unique_ptr<Statement> statement(Statement::Type type, Place place) {
    auto s = std::make_unique<Statement>();
    s->type = type;
    s->place = place;
    return s;
  }

  /// Statements up to a block whose first word is one of `ends`, which is left unread after its block_begin.
  Body statements(const std::vector<std::string_view>& ends) {
    if (++statement_nesting_ > kMaxStatementDepth)
      fail("blocks are nested too deeply", std::to_string(kMaxStatementDepth) + " levels at most");
    Body body;
    for (;;) {
      const Token& t = peek();
      if (t.kind == TokenKind::end) {
        if (!ends.empty()) fail("the template ends inside a block", "{% " + std::string(ends.back()) + " %}");
        break;
      }
      if (t.kind == TokenKind::text) {
        auto s = statement(Statement::Type::text, t.place);
        s->text = next().text;
        body.statements.push_back(std::move(s));
      } else if (t.kind == TokenKind::output_begin) {
        next();
        auto s = statement(Statement::Type::output, t.place);
        s->exprs.push_back(tuple_or_expression({}));
        expect(TokenKind::output_end, "}}");
        body.statements.push_back(std::move(s));
      } else {  // block_begin: the lexer lets nothing else stand here
        next();
        if (peek().kind == TokenKind::name && std::find(ends.begin(), ends.end(), peek().text) != ends.end()) break;
        body.statements.push_back(block());
      }
    }
    statement_nesting_--;
    return body;
  }
  void end_block() { expect(TokenKind::block_end, "%}"); }

  std::unique_ptr<Statement> block() {
    const Place place = peek().place;
    const std::string tag = expect_name("a tag's name");
    if (tag == "for") return for_loop(place);
    if (tag == "if") return branch(place);
    if (tag == "set") return set(place);
    if (tag == "macro") return macro(place);
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) fail_at(name_, place, "{% " + tag + " %} stands outside a loop");
      end_block();
      return statement(tag == "break" ? Statement::Type::break_loop : Statement::Type::continue_loop, place);
    }
    if (tag == "generation") {
      end_block();
      auto s = statement(Statement::Type::generation, place);
      s->bodies.push_back(statements({"endgeneration"}));
      next();
      end_block();
      return s;
    }
    fail_at(name_, place, "the tag {% " + in_quotes(tag, 40) + " %} is not supported or closes nothing here",
            "for, if, set, macro, break, continue or generation");
  }

  /// Names that a for or set assigns: "a", "a, b", "(a, b)".
  void targets(Statement& s) {
    const bool parenthesis = accept(TokenKind::symbol, "(");
    do {
      const bool in = s.type == Statement::Type::for_loop && word("in");
      if (!s.names.empty() && (in || peek().kind != TokenKind::name)) break;  // "a, in"
      const Token& t = peek();
      if (t.kind == TokenKind::symbol && t.text == "(") fail("nested targets are not supported", "names");
      const std::string name = expect_name("a variable's name");
      for (const std::string_view reserved : {"true", "false", "none", "True", "False", "None", "not", "in", "loop"})
        if (name == reserved && !(name == "loop" && s.type != Statement::Type::for_loop))
          fail_at(name_, t.place, "can't assign to " + in_quotes(name));
      s.names.push_back(name);
      if (symbol(",")) s.unpack = true;
    } while (accept(TokenKind::symbol, ","));
    if (parenthesis) expect(TokenKind::symbol, ")");
  }

  std::unique_ptr<Statement> for_loop(Place place) {
    auto s = statement(Statement::Type::for_loop, place);
    targets(*s);
    expect(TokenKind::name, "in");
    s->exprs.push_back(iterable());
    s->exprs.push_back(accept(TokenKind::name, "if") ? expression() : nullptr);
    if (word("recursive")) fail("recursive loops are not supported");
    end_block();
    loops_++;
    s->bodies.push_back(statements({"else", "endfor"}));
    loops_--;
    if (next().text == "else") {
      end_block();
      s->bodies.push_back(statements({"endfor"}));
      next();
    }
    end_block();
    return s;
  }
  /// What a for runs over: a tuple without parentheses is allowed, an inline if is not, since "if" filters.
  ExprPtr iterable() {
    const Place place = peek().place;
    ExprPtr first = logical_or();
    if (!symbol(",")) return first;
    std::vector<ExprPtr> parts;
    parts.push_back(std::move(first));
    while (accept(TokenKind::symbol, ",")) {
      if (peek().kind == TokenKind::block_end || word("if")) break;
      parts.push_back(logical_or());
    }
    return make(Type::tuple, place, std::move(parts));
  }

  std::unique_ptr<Statement> branch(Place place) {
    auto s = statement(Statement::Type::branch, place);
    for (bool more = true; more;) {
      s->exprs.push_back(tuple_or_expression({}));
      end_block();
      s->bodies.push_back(statements({"elif", "else", "endif"}));
      const std::string tag = next().text;
      more = tag == "elif";
      if (tag == "else") {
        end_block();
        s->bodies.push_back(statements({"endif"}));
        next();
      }
      if (!more) end_block();
    }
    return s;
  }

  std::unique_ptr<Statement> set(Place place) {
    auto s = statement(Statement::Type::set, place);
    targets(*s);
    if (accept(TokenKind::symbol, ".")) {
      if (s->names.size() != 1) fail("unpacking into attributes is not supported");
      s->type = Statement::Type::set_field;
      s->names.push_back(expect_name("an attribute's name"));
      if (symbol(".") || symbol("[")) fail("only attributes of a namespace can be set", "namespace.name");
    }
    if (symbol("[")) fail("items can't be set: values never change", "a namespace's attribute");
    if (accept(TokenKind::symbol, "=")) {
      s->exprs.push_back(tuple_or_expression({}));
      end_block();
      return s;
    }
    if (s->type == Statement::Type::set_field || s->unpack) fail("a block can be set to one name only", "\"=\"");
    s->type = Statement::Type::set_block;
    ExprPtr e;
    while (symbol("|")) {
      const Place at = next().place;
      e = filter(std::move(e), at);
    }
    s->exprs.push_back(std::move(e));
    end_block();
    s->bodies.push_back(statements({"endset"}));
    next();
    end_block();
    return s;
  }

  std::unique_ptr<Statement> macro(Place place) {
    auto s = statement(Statement::Type::macro, place);
    if (in_macro_) fail_at(name_, place, "a macro inside a macro is not supported");
    s->text = expect_name("a macro's name");
    expect(TokenKind::symbol, "(");
    while (!symbol(")")) {
      s->names.push_back(expect_name("a parameter's name"));
      s->exprs.push_back(accept(TokenKind::symbol, "=") ? expression() : nullptr);
      if (!s->exprs.back() && s->exprs.size() > 1 && s->exprs[s->exprs.size() - 2])
        fail("a parameter without a default follows one with a default");
      if (!accept(TokenKind::symbol, ",")) break;
    }
    expect(TokenKind::symbol, ")");
    end_block();
    in_macro_ = true;
    const int loops = std::exchange(loops_, 0);
    s->bodies.push_back(statements({"endmacro"}));
    loops_ = loops;
    in_macro_ = false;
    next();
    end_block();
    return s;
  }

  const std::vector<Token>& tokens_;
  const std::string& name_;
  size_t at_ = 0;
  int nesting_ = 0, statement_nesting_ = 0, loops_ = 0;
  bool in_macro_ = false;
};

}  // namespace

Body parse(const std::vector<Token>& tokens, const std::string& name) {
  return Parser(tokens, name).run();
}

}  // namespace assay::jinja
