// Evaluates a parsed template: scopes, statements, operators, calls. Scopes follow Jinja: a loop and a macro have one
// of their own, an if has none; a macro sees the scope in which it was defined.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "dumps/error.h"
#include "dumps/text.h"
#include "engine/text/jinja_context.h"

namespace assay::jinja {
namespace {

constexpr int kMaxDepth = 800;  // of nested statements, expressions and macro calls, each a few hundred bytes of stack
constexpr int kMaxMacroDepth = 100;  // of macro calls

class Renderer {
 public:
  Renderer(Context& context) : c_(context) { scopes_.push_back({}); }

  std::string run(const Body& body, std::vector<std::pair<std::string, Value>> variables) {
    scopes_[0].variables = std::move(variables);
    std::string out;
    run_body(body, 0, out);
    return out;
  }

 private:
  using Type = Expr::Type;
  enum class Flow : uint8_t { on, leave, again };  // break, continue

  struct Scope {
    size_t parent = 0;  // index; the root is its own
    std::vector<std::pair<std::string, Value>> variables;
    bool kept = false;  // a macro was defined here or further in: it may be called later
  };

  struct Deeper {
    Renderer& r;
    explicit Deeper(Renderer& renderer) : r(renderer) {
      if (++r.depth_ > kMaxDepth)
        r.c_.fail("the template is nested too deeply", std::to_string(kMaxDepth) + " levels at most");
    }
    ~Deeper() { r.depth_--; }
  };

  // ------------------------------------------------------------------------------------------------------------------
  // scopes
  size_t open_scope(size_t parent) {
    c_.charge(64);
    scopes_.push_back({parent, {}, false});
    return scopes_.size() - 1;
  }
  /// Scopes nest, so the newest goes first; one that a macro needs stays.
  void close_scope(size_t scope) {
    if (scope == scopes_.size() - 1 && !scopes_[scope].kept) scopes_.pop_back();
  }
  const Value* find(size_t scope, const std::string& name) const {
    for (;;) {
      for (const auto& [key, value] : scopes_[scope].variables)
        if (key == name) return &value;
      if (scope == 0) return nullptr;
      scope = scopes_[scope].parent;
    }
  }
  void assign(size_t scope, const std::string& name, Value v) {
    for (auto& [key, value] : scopes_[scope].variables)
      if (key == name) {
        value = std::move(v);
        return;
      }
    c_.charge(sizeof(Value) + 64);
    scopes_[scope].variables.emplace_back(name, std::move(v));
  }
  void assign_targets(const Statement& s, size_t scope, const Value& v) {
    if (s.names.size() == 1 && !s.unpack) {
      assign(scope, s.names[0], v);
      return;
    }
    c_.at(s.place);
    const std::vector<Value> parts = c_.iterate(v);
    if (parts.size() != s.names.size())
      c_.fail("can't unpack", std::to_string(s.names.size()) + " values", std::to_string(parts.size()));
    for (size_t i = 0; i < parts.size(); i++) assign(scope, s.names[i], parts[i]);
  }

  // --------------------------------------------------------------------------------------------------------------
  // statements
  Flow run_body(const Body& body, size_t scope, std::string& out) {
    const Deeper deeper(*this);
    for (const auto& s : body.statements) {
      c_.step();
      const Flow flow = run_statement(*s, scope, out);
      if (flow != Flow::on) return flow;
    }
    return Flow::on;
  }

  void write(const std::string& text, std::string& out) {
    c_.check_size(out.size() + text.size());
    out += text;
  }

  Flow run_statement(const Statement& s, size_t scope, std::string& out) {
    c_.at(s.place);
    switch (s.type) {
      case Statement::Type::text:
        write(s.text, out);
        return Flow::on;
      case Statement::Type::output: {
        const Value v = eval(*s.exprs[0], scope);
        c_.at(s.exprs[0]->place);
        write(v.is(Kind::string) ? v.as_string() : c_.str_of(v), out);
        return Flow::on;
      }
      case Statement::Type::for_loop:
        return for_loop(s, scope, out);
      case Statement::Type::branch: {
        size_t i = 0;
        while (i < s.exprs.size() && !eval(*s.exprs[i], scope).truth()) i++;
        return i < s.bodies.size() ? run_body(s.bodies[i], scope, out) : Flow::on;
      }
      case Statement::Type::set:
        assign_targets(s, scope, eval(*s.exprs[0], scope));
        return Flow::on;
      case Statement::Type::set_field: {
        Value v = eval(*s.exprs[0], scope);
        c_.at(s.place);
        const Value* space = find(scope, s.names[0]);
        if (!space || !space->is(Kind::space))
          c_.fail_kind("attributes of " + in_quotes(s.names[0]) + " can't be set", "a namespace",
                       space ? *space : Value::undefined(s.names[0]));
        auto& fields = space->as_space()->fields;
        auto field = std::find_if(fields.begin(), fields.end(), [&](auto& f) { return f.first == s.names[1]; });
        if (field == fields.end()) {
          c_.charge(128);
          fields.emplace_back(s.names[1], std::move(v));
        } else {
          field->second = std::move(v);
        }
        return Flow::on;
      }
      case Statement::Type::set_block: {
        std::string text;
        const size_t inner = open_scope(scope);
        run_body(s.bodies[0], inner, text);
        close_scope(inner);
        Value v = c_.string(std::move(text));
        if (s.exprs[0]) v = eval(*s.exprs[0], scope, &v);
        assign(scope, s.names[0], std::move(v));
        return Flow::on;
      }
      case Statement::Type::macro: {
        c_.charge(sizeof(Function) + 64);
        auto f = std::make_shared<Function>();
        f->type = Function::Type::macro;
        f->name = s.text;
        f->macro = &s;
        f->scope = scope;
        for (size_t k = scope; !scopes_[k].kept && k != 0; k = scopes_[k].parent) scopes_[k].kept = true;
        assign(scope, s.text, Value::object(Kind::function, std::move(f)));
        return Flow::on;
      }
      case Statement::Type::generation:
        return run_body(s.bodies[0], scope, out);
      case Statement::Type::break_loop:
        return Flow::leave;
      case Statement::Type::continue_loop:
        return Flow::again;
    }
    return Flow::on;
  }

  Flow for_loop(const Statement& s, size_t scope, std::string& out) {
    const Value over = eval(*s.exprs[0], scope);
    c_.at(s.exprs[0]->place);
    auto loop = std::make_shared<Loop>();
    loop->items = c_.iterate(over);
    if (s.exprs[1]) {
      std::vector<Value> kept;
      for (Value& v : loop->items) {
        const size_t inner = open_scope(scope);
        assign_targets(s, inner, v);
        if (eval(*s.exprs[1], inner).truth()) kept.push_back(std::move(v));
        close_scope(inner);
      }
      loop->items = std::move(kept);
    }
    Flow flow = Flow::on;
    for (size_t i = 0; i < loop->items.size() && flow != Flow::leave; i++) {
      loop->index = i;
      const size_t inner = open_scope(scope);
      scopes_[inner].variables.emplace_back("loop", Value::object(Kind::loop, loop));
      assign_targets(s, inner, loop->items[i]);
      flow = run_body(s.bodies[0], inner, out);
      close_scope(inner);
    }
    if (loop->items.empty() && s.bodies.size() > 1) {
      const size_t inner = open_scope(scope);
      flow = run_body(s.bodies[1], inner, out);
      close_scope(inner);
      return flow;
    }
    return Flow::on;
  }

  // -------------------------------------------------------------------------------------------------------------
  // expressions
  /// `piped` is what the innermost filter of a set block works on.
  Value eval(const Expr& e, size_t scope, const Value* piped = nullptr) {
    const Deeper deeper(*this);
    c_.at(e.place);
    c_.step();
    switch (e.type) {
      case Type::literal:
        return e.value;
      case Type::name:
        return name(e, scope);
      case Type::list:
      case Type::tuple: {
        std::vector<Value> items;
        for (const ExprPtr& p : e.parts) items.push_back(eval(*p, scope));
        c_.at(e.place);
        return c_.list(std::move(items), e.type == Type::tuple);
      }
      case Type::dict: {
        std::vector<std::pair<Value, Value>> items;
        for (size_t i = 0; i < e.parts.size(); i += 2) {
          Value key = eval(*e.parts[i], scope);
          items.emplace_back(std::move(key), eval(*e.parts[i + 1], scope));
        }
        c_.at(e.place);
        return c_.dict(std::move(items));
      }
      case Type::attribute: {
        const Value v = eval(*e.parts[0], scope);
        c_.at(e.place);
        Value found = c_.attribute(v, e.text);
        return found.is(Kind::undefined) && e.parts[0]->type == Type::name
                   ? Value::undefined(e.parts[0]->text + "." + e.text)
                   : found;
      }
      case Type::item: {
        const Value v = eval(*e.parts[0], scope), key = eval(*e.parts[1], scope);
        c_.at(e.place);
        return c_.item(v, key);
      }
      case Type::slice:
        return slice(e, scope);
      case Type::call:
        return call(e, scope);
      case Type::filter: {
        const Value input = e.parts[0] ? eval(*e.parts[0], scope, piped) : *piped;
        Args args = arguments(e, scope);
        c_.at(e.place);
        return c_.filter(e.text, input, std::move(args));
      }
      case Type::test: {
        const Value input = eval(*e.parts[0], scope);
        Args args = arguments(e, scope);
        c_.at(e.place);
        return Value::boolean(c_.test(e.text, input, std::move(args)));
      }
      case Type::logical_not:
        return Value::boolean(!eval(*e.parts[0], scope).truth());
      case Type::logical_and: {
        Value v = eval(*e.parts[0], scope);
        return v.truth() ? eval(*e.parts[1], scope) : v;
      }
      case Type::logical_or: {
        Value v = eval(*e.parts[0], scope);
        return v.truth() ? v : eval(*e.parts[1], scope);
      }
      case Type::conditional:
        if (eval(*e.parts[1], scope).truth()) return eval(*e.parts[0], scope);
        return e.parts[2] ? eval(*e.parts[2], scope) : Value();
      case Type::compare:
        return compare(e, scope);
      case Type::concatenate: {
        std::string text;
        for (const ExprPtr& p : e.parts) {
          const Value v = eval(*p, scope);
          c_.refuse_safe(v);
          write(v.is(Kind::string) ? v.as_string() : c_.str_of(v), text);
        }
        c_.at(e.place);
        return c_.string(std::move(text));
      }
      case Type::negate:
      case Type::plus: {
        const Value v = eval(*e.parts[0], scope);
        c_.at(e.place);
        if (v.is(Kind::real)) return Value::real(e.type == Type::negate ? -v.as_real() : v.as_real());
        const int64_t i = c_.integer_of(v, "the operand of a sign");
        if (e.type == Type::negate && i == INT64_MIN) overflow();
        return Value::integer(e.type == Type::negate ? -i : i);
      }
      default:
        return arithmetic(e, scope);
    }
  }

  Value name(const Expr& e, size_t scope) {
    if (const Value* v = find(scope, e.text)) return *v;
    for (const std::string_view g : {"namespace", "range", "dict", "raise_exception", "strftime_now"})
      if (e.text == g) {
        auto f = std::make_shared<Function>();
        f->name = e.text;
        c_.charge(256);
        return Value::object(Kind::function, std::move(f));
      }
    for (const std::string_view g : {"lipsum", "cycler", "joiner", "super", "self"})
      if (e.text == g) c_.fail("the global " + in_quotes(e.text) + " is not supported");
    return Value::undefined(e.text);
  }

  Value compare(const Expr& e, size_t scope) {
    Value left = eval(*e.parts[0], scope);
    for (size_t i = 0; i < e.operators.size(); i++) {
      Value right = eval(*e.parts[i + 1], scope);
      c_.at(e.place);
      const std::string& op = e.operators[i];
      bool holds;
      if (op == "in" || op == "not in") {
        holds = c_.contains(right, left) == (op == "in");
      } else if (op == "==" || op == "!=") {
        c_.walk(left);
        holds = equal(left, right) == (op == "==");
      } else {
        int order_of = 0;
        if (!order(left, right, order_of))
          c_.fail(std::string(name_of(left.kind())) + " and " + std::string(name_of(right.kind())) + " have no order",
                  "two numbers or two strings");
        holds = op == "<" ? order_of < 0 : op == "<=" ? order_of <= 0 : op == ">" ? order_of > 0 : order_of >= 0;
      }
      if (!holds) return Value::boolean(false);
      left = std::move(right);
    }
    return Value::boolean(true);
  }

  [[noreturn]] void overflow() const { c_.fail("the number does not fit", "64 bits"); }

  Value arithmetic(const Expr& e, size_t scope) {
    const Value a = eval(*e.parts[0], scope), b = eval(*e.parts[1], scope);
    c_.at(e.place);
    if (e.type == Type::divide) c_.fail("the operator / gives a fraction, which is not supported", "//");
    if (e.type == Type::power) c_.fail("the operator ** is not supported");
    c_.refuse_safe(a);
    c_.refuse_safe(b);
    if (e.type == Type::add) {
      if (a.is(Kind::string) && b.is(Kind::string)) {
        c_.check_size(a.as_string().size() + b.as_string().size());
        return c_.string(a.as_string() + b.as_string());
      }
      if (a.is_sequence() && a.kind() == b.kind()) {
        c_.step(a.items().size() + b.items().size());
        std::vector<Value> items = a.items();
        items.insert(items.end(), b.items().begin(), b.items().end());
        return c_.list(std::move(items), a.is(Kind::tuple));
      }
    }
    if (e.type == Type::multiply && (a.is(Kind::string) || b.is(Kind::string) || a.is_sequence() || b.is_sequence()))
      return repeat(a, b);
    if (e.type == Type::modulo && a.is(Kind::string)) c_.fail("formatting by % is not supported", "~");
    const bool whole = (a.is(Kind::integer) || a.is(Kind::boolean)) && (b.is(Kind::integer) || b.is(Kind::boolean));
    if (a.is_number() && b.is_number() && !whole) c_.fail("arithmetic of fractions is not supported", "integers");
    if (!whole) {
      const Value& odd = a.is(Kind::undefined) || !(b.is(Kind::undefined) || a.is_number()) ? a : b;
      c_.fail_kind("can't compute with " + std::string(name_of(a.kind())) + " and " + std::string(name_of(b.kind())),
                   e.type == Type::add ? "two strings, two lists or two integers" : "two integers", odd);
    }
    const int64_t x = a.as_integer(), y = b.as_integer();
    int64_t r = 0;
    if (e.type == Type::floor_divide || e.type == Type::modulo) {
      if (y == 0) c_.fail("division by zero");
      if (x == INT64_MIN && y == -1) overflow();
      r = x / y;
      const int64_t rest = x % y;
      const bool down = rest != 0 && (rest < 0) != (y < 0);  // Python rounds towards minus infinity
      return Value::integer(e.type == Type::modulo ? (down ? rest + y : rest) : (down ? r - 1 : r));
    }
    const bool wrong = e.type == Type::add        ? __builtin_add_overflow(x, y, &r)
                       : e.type == Type::subtract ? __builtin_sub_overflow(x, y, &r)
                                                  : __builtin_mul_overflow(x, y, &r);
    if (wrong) overflow();
    return Value::integer(r);
  }

  Value repeat(const Value& a, const Value& b) {
    const Value& what = a.is_number() ? b : a;
    const int64_t times = std::max<int64_t>(0, c_.integer_of(a.is_number() ? a : b, "how often to repeat"));
    const uint64_t size = what.is(Kind::string) ? what.as_string().size() : what.items().size();
    if (size > 0 && uint64_t(times) > c_.limits().output / size) c_.check_size(UINT64_MAX);
    if (what.is(Kind::string)) {
      std::string text;
      for (int64_t i = 0; size > 0 && i < times; i++) text += what.as_string();
      return c_.string(std::move(text));
    }
    c_.step(size * uint64_t(times));
    std::vector<Value> items;
    for (int64_t i = 0; size > 0 && i < times; i++) items.insert(items.end(), what.items().begin(), what.items().end());
    return c_.list(std::move(items), what.is(Kind::tuple));
  }

  Value slice(const Expr& e, size_t scope) {
    const Value v = eval(*e.parts[0], scope);
    Value bounds[3];
    for (int i = 0; i < 3; i++) bounds[i] = e.parts[i + 1] ? eval(*e.parts[i + 1], scope) : Value::none();
    c_.at(e.place);
    if (!v.is(Kind::string) && !v.is_sequence()) c_.fail_kind("can't be sliced", "a string or a list", v);
    const int64_t step = bounds[2].is(Kind::none) ? 1 : c_.integer_of(bounds[2], "the step of a slice");
    if (step == 0) c_.fail("the step of a slice is 0");
    const std::vector<size_t> starts = v.is(Kind::string) ? code_point_starts(v.as_string()) : std::vector<size_t>();
    const int64_t n = v.is(Kind::string) ? int64_t(starts.size()) - 1 : int64_t(v.items().size());
    c_.step(uint64_t(n));
    auto bound = [&](const Value& b, int64_t missing) {  // as Python's slice.indices
      if (b.is(Kind::none)) return missing;
      int64_t i = c_.integer_of(b, "a bound of a slice");
      if (i < 0) i = i < -n ? -1 - n : i;
      if (i < 0) i += n;
      return step > 0 ? std::clamp<int64_t>(i, 0, n) : std::clamp<int64_t>(i, -1, n - 1);
    };
    const int64_t from = bound(bounds[0], step > 0 ? 0 : n - 1), to = bound(bounds[1], step > 0 ? n : -1);
    std::string text;
    std::vector<Value> items;
    const int64_t stride = std::clamp<int64_t>(step, -n - 1, n + 1);  // beyond the ends it makes no difference
    for (int64_t i = from; step > 0 ? i < to : i > to; i += stride) {
      if (v.is(Kind::string))
        text += std::string_view(v.as_string()).substr(starts[size_t(i)], starts[size_t(i) + 1] - starts[size_t(i)]);
      else
        items.push_back(v.items()[size_t(i)]);
    }
    return v.is(Kind::string) ? c_.string(std::move(text)) : c_.list(std::move(items), v.is(Kind::tuple));
  }

  // -------------------------------------------------------------------------------------------------------------------
  // calls
  Args arguments(const Expr& e, size_t scope) {
    Args args;
    for (size_t i = 1; i < e.parts.size(); i++) args.positional.push_back(eval(*e.parts[i], scope));
    for (const auto& [key, value] : e.keywords) args.named.emplace_back(key, eval(*value, scope));
    return args;
  }

  Value call(const Expr& e, size_t scope) {
    const Value callee = eval(*e.parts[0], scope);
    Args args = arguments(e, scope);
    c_.at(e.place);
    if (!callee.is(Kind::function)) {
      const std::string shown = e.parts[0]->text.empty() ? "the value" : in_quotes(e.parts[0]->text);
      c_.fail_kind(shown + " can't be called", "a function, a method or a macro", callee);
    }
    const Function& f = *static_cast<const Function*>(callee.as_object());
    if (f.type == Function::Type::method) c_.refuse_safe(f.self);
    if (f.type == Function::Type::method) return c_.method(f.self, f.name, std::move(args));
    if (f.type == Function::Type::macro) return call_macro(f, std::move(args));
    return call_global(f.name, std::move(args));
  }

  Value call_macro(const Function& f, Args args) {
    const Statement& m = *f.macro;
    if (++macro_depth_ > kMaxMacroDepth)
      c_.fail("macros call each other too deeply", std::to_string(kMaxMacroDepth) + " levels at most");
    if (args.positional.size() > m.names.size())
      c_.fail("macro " + in_quotes(f.name) + " has too many arguments", std::to_string(m.names.size()) + " at most",
              std::to_string(args.positional.size()));
    const size_t inner = open_scope(f.scope);
    for (const auto& [key, value] : args.named)
      if (std::find(m.names.begin(), m.names.end(), key) == m.names.end())
        c_.fail("macro " + in_quotes(f.name) + " has no argument " + in_quotes(key));
    for (size_t i = 0; i < m.names.size(); i++) {
      const auto named =
          std::find_if(args.named.begin(), args.named.end(), [&](auto& a) { return a.first == m.names[i]; });
      if (i < args.positional.size() && named != args.named.end())
        c_.fail("macro " + in_quotes(f.name) + ": the argument " + in_quotes(m.names[i]) + " is given twice");
      Value v = i < args.positional.size()  ? args.positional[i]
                : named != args.named.end() ? named->second
                : m.exprs[i]                ? eval(*m.exprs[i], inner)
                                            : Value::undefined(m.names[i]);
      assign(inner, m.names[i], std::move(v));
    }
    std::string text;
    run_body(m.bodies[0], inner, text);
    close_scope(inner);
    macro_depth_--;
    return c_.string(std::move(text));
  }

  Value call_global(const std::string& name, Args args) {
    if (name == "namespace" || name == "dict") {
      std::vector<std::pair<Value, Value>> items;
      if (args.positional.size() > 1) c_.fail(name + " has too many arguments", "a mapping and keywords");
      if (!args.positional.empty()) {
        if (!args.positional[0].is(Kind::dict))
          c_.fail_kind("the argument of " + name, "a mapping", args.positional[0]);
        items = args.positional[0].pairs();
      }
      for (auto& [key, value] : args.named) items.emplace_back(Value::string(key), std::move(value));
      Value d = c_.dict(std::move(items));
      if (name == "dict") return d;
      std::vector<std::pair<std::string, Value>> fields;
      for (const auto& [key, value] : d.pairs()) fields.emplace_back(c_.text_of(key, "an attribute's name"), value);
      return c_.space(std::move(fields));
    }
    if (name == "range") {
      if (args.positional.empty() || args.positional.size() > 3 || !args.named.empty())
        c_.fail("range wants one to three integers");
      int64_t n[3] = {0, 0, 1};
      for (size_t i = 0; i < args.positional.size(); i++)
        n[i] = c_.integer_of(args.positional[i], "an argument of range");
      if (args.positional.size() == 1) std::swap(n[0], n[1]);
      if (n[2] == 0) c_.fail("the step of range is 0");
      std::vector<Value> items;
      for (int64_t i = n[0]; n[2] > 0 ? i < n[1] : i > n[1];) {
        c_.step();
        items.push_back(Value::integer(i));
        if (__builtin_add_overflow(i, n[2], &i)) break;
      }
      return c_.list(std::move(items));
    }
    if (name == "raise_exception") {
      const auto a = c_.bind(name, args, {"message"});
      throw Error(
          ErrorKind::usage,
          c_.name() + ": line " + std::to_string(c_.place().line) + ", column " + std::to_string(c_.place().column),
          "the template refuses this conversation: " + in_quotes(a[0] ? str(*a[0]) : "", 400));
    }
    const auto a = c_.bind(name, args, {"format"});  // strftime_now
    if (!a[0]) c_.fail("strftime_now wants a format");
    const std::string format =
        c_.text_of(*a[0], "the format of strftime_now") + " ";  // never empty, so 0 means no room
    std::string text(256, '\0');
    if (format.size() > 64) c_.fail("the format of strftime_now is too long", "63 bytes at most");
    const size_t n = std::strftime(text.data(), text.size(), format.c_str(), &c_.now());
    if (n == 0) c_.fail("the time does not fit the format of strftime_now");
    return c_.string(text.substr(0, n - 1));
  }

  Context& c_;
  std::vector<Scope> scopes_;
  int depth_ = 0, macro_depth_ = 0;
};

}  // namespace

Template Template::parse(std::string_view source, const std::string& name) {
  Template t;
  t.name_ = name;
  t.body_ = std::make_shared<const Body>(jinja::parse(tokenise(source, name), name));
  return t;
}

std::string Template::render(const nlohmann::ordered_json& variables, const std::tm& now, const Limits& limits) const {
  const Value root = from_json(variables);
  if (!root.is(Kind::dict)) throw Error(ErrorKind::internal, "template variables", "are no object");
  std::vector<std::pair<std::string, Value>> names;
  for (const auto& [key, value] : root.pairs()) names.emplace_back(key.as_string(), value);
  Context context(name_, now, limits);
  return Renderer(context).run(*body_, std::move(names));
}

}  // namespace assay::jinja
