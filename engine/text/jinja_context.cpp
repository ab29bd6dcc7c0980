#include "engine/text/jinja_context.h"

#include <algorithm>

#include "dumps/error.h"
#include "dumps/text.h"

namespace assay::jinja {

void Context::fail_kind(const std::string& what, const std::string& wanted, const Value& found) const {
  std::string name(name_of(found.kind()));
  if (found.is(Kind::undefined) && !found.as_string().empty())
    name = in_quotes(found.as_string()) + ", which is undefined";
  fail(what, wanted, name);
}

void Context::step(uint64_t n) {
  steps_ += n;
  if (steps_ > limits_.steps) fail("the template takes too long", std::to_string(limits_.steps) + " steps at most");
}
void Context::charge(uint64_t bytes) {
  bytes_ += bytes;
  if (bytes_ > limits_.bytes) fail("the template takes too much memory", bytes_text(limits_.bytes) + " at most");
}
void Context::check_size(uint64_t bytes) {
  if (bytes > limits_.output)
    fail("the text becomes too long", bytes_text(limits_.output) + " at most", bytes_text(bytes));
}

void Context::refuse_safe(const Value& v) const {
  if (v.is_safe()) fail("text that the filter safe marked can only be printed or tested");
}

void Context::walk(const Value& v, uint64_t times) {
  if (v.depth() > 0) check_size(v.weight());
  step((v.weight() / 16 + 1) * times);
}

Value Context::string(std::string s) {
  check_size(s.size());
  charge(s.size() + 64);
  return Value::string(std::move(s));
}
Value Context::list(std::vector<Value> items, bool tuple) {
  charge(items.size() * sizeof(Value) + 64);
  Value v = Value::list(std::move(items), tuple);
  if (v.depth() > kMaxValueDepth)
    fail("lists are nested too deeply", std::to_string(kMaxValueDepth) + " levels at most");
  return v;
}
Value Context::dict(std::vector<std::pair<Value, Value>> items) {
  charge(items.size() * (2 * sizeof(Value) + 64) + 128);
  for (const auto& [key, value] : items)
    if (key.depth() > 0 || !(key.is_number() || key.is(Kind::string) || key.is(Kind::none)))
      fail_kind("not a key of a mapping", "a string, a number or none", key);
  size_t odd = 0;  // keys that are found by search
  for (const auto& [key, value] : items) odd += !key.is(Kind::string);
  step(odd * odd);
  Value v = Value::dict(std::move(items));
  if (v.depth() > kMaxValueDepth)
    fail("mappings are nested too deeply", std::to_string(kMaxValueDepth) + " levels at most");
  return v;
}
Value Context::space(std::vector<std::pair<std::string, Value>> fields) {
  charge(sizeof(Space) + fields.size() * 128);
  spaces_.push_back({std::move(fields)});
  return Value::space(&spaces_.back());
}

std::vector<Value> Context::iterate(const Value& v) {
  std::vector<Value> out;
  if (v.is_sequence()) {
    out = v.items();
  } else if (v.is(Kind::dict)) {
    for (const auto& [key, value] : v.pairs()) out.push_back(key);
  } else if (v.is(Kind::string)) {
    const std::string_view text = v.as_string();
    charge(text.size() * 128);
    for (size_t at = 0; at < text.size();) {
      const size_t start = at;
      next_code_point(text, at);
      out.push_back(Value::string(std::string(text.substr(start, at - start))));
    }
  } else if (!v.is(Kind::undefined)) {
    fail_kind("can't be iterated over", "a list, a mapping or a string", v);
  }
  step(out.size());
  charge(out.size() * sizeof(Value));
  return out;
}

const std::string& Context::text_of(const Value& v, const std::string& of) {
  if (!v.is(Kind::string)) fail_kind(of + " is no string", "a string", v);
  refuse_safe(v);
  return v.as_string();
}
int64_t Context::integer_of(const Value& v, const std::string& of) {
  if (!v.is(Kind::integer) && !v.is(Kind::boolean)) fail_kind(of + " is no integer", "an integer", v);
  return v.as_integer();
}

std::string Context::str_of(const Value& v) {
  refuse_safe(v);
  walk(v);
  std::string s = str(v);
  check_size(s.size());
  charge(s.size());
  return s;
}

bool Context::contains(const Value& container, const Value& item) {
  if (container.is(Kind::string)) {
    step(container.as_string().size() / 64);
    return container.as_string().find(text_of(item, "what is looked for in a string")) != std::string::npos;
  }
  if (container.is_sequence()) {
    walk(container);
    return std::any_of(container.items().begin(), container.items().end(),
                       [&](const Value& v) { return equal(v, item); });
  }
  if (container.is(Kind::dict)) {
    step(item.is(Kind::string) ? 1 : container.pairs().size());
    return container.find(item) != nullptr;
  }
  if (container.is(Kind::undefined)) return false;
  fail_kind("nothing can be looked for in it", "a string, a list or a mapping", container);
}

std::vector<std::optional<Value>> Context::bind(const std::string& callee, Args& args,
                                                std::initializer_list<std::string_view> names) const {
  std::vector<std::optional<Value>> out(names.size());
  if (args.positional.size() > names.size())
    fail(callee + " has too many arguments", std::to_string(names.size()) + " at most",
         std::to_string(args.positional.size()));
  for (size_t i = 0; i < args.positional.size(); i++) out[i] = std::move(args.positional[i]);
  for (auto& [key, value] : args.named) {
    const size_t at = size_t(std::find(names.begin(), names.end(), key) - names.begin());
    if (at == names.size()) fail(callee + " has no argument " + in_quotes(key));
    if (out[at]) fail(callee + ": the argument " + in_quotes(key) + " is given twice");
    out[at] = std::move(value);
  }
  return out;
}

Value Context::attribute(const Value& v, const std::string& name) {
  step();
  if (v.is(Kind::undefined))
    fail((v.as_string().empty() ? "the value" : in_quotes(v.as_string())) +
         " is undefined, so that it has no attribute " + in_quotes(name));
  if (has_method(v, name)) {
    auto f = std::make_shared<Function>();
    f->type = Function::Type::method;
    f->name = name;
    f->self = v;
    charge(256);
    return Value::object(Kind::function, std::move(f));
  }
  if (v.is(Kind::dict)) {
    if (const Value* found = v.find(std::string_view(name))) return *found;
  } else if (v.is(Kind::space)) {
    for (const auto& [key, value] : v.as_space()->fields)
      if (key == name) return value;
  } else if (v.is(Kind::loop)) {
    const Loop& l = *static_cast<const Loop*>(v.as_object());
    const int64_t n = int64_t(l.items.size()), i = int64_t(l.index);
    if (name == "index") return Value::integer(i + 1);
    if (name == "index0") return Value::integer(i);
    if (name == "revindex") return Value::integer(n - i);
    if (name == "revindex0") return Value::integer(n - i - 1);
    if (name == "first") return Value::boolean(i == 0);
    if (name == "last") return Value::boolean(i == n - 1);
    if (name == "length") return Value::integer(n);
    if (name == "depth") return Value::integer(1);  // it counts the levels of recursive loops
    if (name == "depth0") return Value::integer(0);
    if (name == "previtem") return i > 0 ? l.items[l.index - 1] : Value::undefined("loop.previtem");
    if (name == "nextitem") return i + 1 < n ? l.items[l.index + 1] : Value::undefined("loop.nextitem");
    if (name == "changed") fail("loop.changed is not supported");
  }
  return Value::undefined(name);
}

Value Context::item(const Value& v, const Value& key) {
  step();
  if (v.is(Kind::undefined))
    fail((v.as_string().empty() ? "the value" : in_quotes(v.as_string())) + " is undefined, so that it has no items");
  if (v.is(Kind::dict)) {
    if (!key.is(Kind::string)) step(v.pairs().size());
    if (const Value* found = v.find(key)) return *found;
  } else if ((v.is_sequence() || v.is(Kind::string)) && (key.is(Kind::integer) || key.is(Kind::boolean))) {
    int64_t i = key.as_integer();
    if (v.is_sequence()) {
      const int64_t n = int64_t(v.items().size());
      if (i < 0) i += n;
      if (i >= 0 && i < n) return v.items()[size_t(i)];
    } else {
      const std::string& text = v.as_string();
      step(text.size() / 8);
      const std::vector<size_t> starts = code_point_starts(text);
      const int64_t n = int64_t(starts.size()) - 1;
      if (i < 0) i += n;
      if (i >= 0 && i < n) return string(text.substr(starts[size_t(i)], starts[size_t(i) + 1] - starts[size_t(i)]));
    }
    return Value::undefined("[" + std::to_string(key.as_integer()) + "]");
  }
  if (key.is(Kind::string)) return attribute(v, key.as_string());
  return Value::undefined("[" + repr(key).substr(0, 40) + "]");
}

}  // namespace assay::jinja
