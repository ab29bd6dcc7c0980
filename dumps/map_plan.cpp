// From a map and a dump to our tensors: who takes what, ranks, sizes, pages. Values are moved in map_gather.cpp.
#include "dumps/map_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <unordered_set>

#include "dumps/error.h"
#include "dumps/json.h"
#include "dumps/listed.h"
#include "dumps/map_ranks.h"
#include "dumps/map_tables.h"
#include "dumps/names.h"
#include "dumps/text.h"

namespace assay::mapping {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxTensors = 1000000;  // that one axis may become
// Bytes that a mapped tensor may always have, and how many times the bytes of its sources a larger one.
constexpr int64_t kManyBytes = int64_t(1) << 30, kMostRepeats = 256;

// Ids are I64 in our dumps.
bool holds_ids(const std::string& name) {
  const auto n = parse_tensor_name(name);
  return n && (n->phase == "ids" || n->phase == "greedy_ids" || n->phase.ends_with("_ids"));
}

class MapPlanner {
 public:
  MapPlanner(const Dump& theirs, const DumpMap::Impl& map, MapPlan& out) : theirs(theirs), map(map), out(out) {}

  std::string at(const Rule& r) const { return map.at(r.line); }

  void plan() {
    if (theirs.mode() != CaptureMode::full) {
      throw Error(ErrorKind::usage, theirs.path().string(), "a map needs values", "mode full",
                  std::string(name_of(theirs.mode())));
    }
    take_manifest_rows();
    std::map<std::string, Group> groups;
    std::vector<std::string> order;
    std::vector<std::vector<size_t>> taken;
    assign(groups, order, taken);
    std::map<const Rule*, RankCounts> counts;
    for (const auto& [key, g] : groups) count_ranks(g, counts[g.rule]);
    for (const std::string& key : order) group(groups.at(key), counts.at(groups.at(key).rule));
    check_taken(taken);
    std::sort(out.outputs.begin(), out.outputs.end(),
              [](const Output& a, const Output& b) { return execution_key(a.line.name) < execution_key(b.line.name); });
    out.not_materialised = theirs.not_materialised();
    for (const std::string& n : out.not_materialised) check_absent(n, theirs.path().string() + ": not_materialised");
    for (const Absent& a : map.absent) {
      check_absent(a.name, map.at(a.line));
      out.not_materialised.push_back(a.name);
    }
    std::sort(out.not_materialised.begin(), out.not_materialised.end());
  }

 private:
  // A manifest's own rows block counts unless the map brings tables: its keys are prefixes of ours, the tables keep
  // their names.
  void take_manifest_rows() {
    const bool own =
        std::any_of(map.rules.begin(), map.rules.end(), [](const Rule& r) { return r.kind == Rule::Kind::rows; });
    if (own || !theirs.manifest().contains("rows")) return;
    const std::string where = theirs.path().string() + ": manifest.rows";
    const Json& block = theirs.manifest()["rows"];
    if (!block.is_object()) bad_map(where, "wrong JSON type", "an object", block.type_name());
    for (const auto& [key, value] : block.items()) {
      const std::string name = json_string(value, where + "." + in_quotes(key));
      const DumpTensor* t = theirs.find(name);
      if (!t) bad_map(where, "the table " + in_quotes(name) + " is not in the dump");
      out.rows.emplace_back(key, t);
      tables.insert(name);
    }
    for (const std::string& name : tables) own_name(*theirs.find(name), 0);
  }

  // Keeps its name: tables, ids.
  void own_name(const DumpTensor& t, int line) {
    Output o;
    o.line = {t.name, t.name, "", t.dtype, t.shape, t.shape, line};
    o.walk.sources = {{&t}};
    o.widen = is_integer(t.dtype) && t.dtype != DType::i64;
    if (o.widen) o.line.dtype = DType::i64;
    o.walk.axes.push_back({"", t.elements(), 1, 0, {}});
    finish(std::move(o), map.at(line));
  }

  // Each tensor goes to the first line that matches; what a rule takes falls into groups.
  void assign(std::map<std::string, Group>& groups, std::vector<std::string>& order,
              std::vector<std::vector<size_t>>& taken) {
    struct Try {
      size_t rule, pass;
      Pattern pattern;
    };
    std::vector<Try> tries;
    for (size_t r = 0; r < map.rules.size(); ++r) {
      taken.emplace_back(map.rules[r].full ? 1 : map.passes.size());
      for (size_t p = 0; p < taken.back().size(); ++p) {
        tries.push_back({r, p,
                         map.rules[r].full ? map.rules[r].theirs
                                           : joined(map.passes[p].theirs, map.rules[r].theirs, at(map.rules[r]))});
      }
    }
    find_tables();
    std::vector<std::string> untaken;
    for (const DumpTensor& t : theirs.tensors()) {
      if (tables.contains(t.name)) {  // taken by what names it; an ignore line may do so, too
        for (const Try& x : tries) {
          if (map.rules[x.rule].kind == Rule::Kind::ignore)
            taken[x.rule][x.pass] += match(x.pattern, t.name).has_value();
        }
        continue;
      }
      bool found = false;
      for (const Try& x : tries) {
        std::optional<Match> m = match(x.pattern, t.name);
        if (!m) continue;
        const Rule& rule = map.rules[x.rule];
        ++taken[x.rule][x.pass];
        found = true;
        if (rule.kind == Rule::Kind::ignore) {
          out.ignored.push_back(t.name);
        } else if (rule.kind == Rule::Kind::rows) {
          out.rows.emplace_back(rule.ours[0].fill(m->captures, m->stars, at(rule)), &t);
          own_name(t, rule.line);
        } else {
          join(groups, order, x.rule, x.pass, std::move(*m), t);
        }
        break;
      }
      if (found) continue;
      if (role_of(t.name) == "ids") {  // prompt<i>/ids and greedy_ids are the format's own
        own_name(t, 0);
      } else {
        untaken.push_back(t.name);
      }
    }
    if (!untaken.empty()) {
      bad_map(map.where,
              fmt::format("no line takes {}{}", in_quotes(untaken[0]),
                          untaken.size() > 1
                              ? fmt::format(" and {} more tensors of {}", untaken.size() - 1, theirs.path().string())
                              : ""),
              "a rule or an ignore line for every tensor");
    }
  }

  // Block tables and lengths that rules name are taken by that; their names may depend on captures, so all that fit
  // count.
  void find_tables() {
    for (const Rule& r : map.rules) {
      std::vector<const TableRef*> refs;
      if (r.pages) refs.push_back(&*r.pages);
      for (const Limit& l : r.limits) {
        if (l.table) refs.push_back(&*l.table);
      }
      for (const TableRef* ref : refs) {
        const Pattern p = parse_pattern(ref->name.source, at(r));
        for (const DumpTensor& t : theirs.tensors()) {
          if (match(p, t.name)) tables.insert(t.name);
        }
      }
    }
  }

  void join(std::map<std::string, Group>& groups, std::vector<std::string>& order, size_t rule, size_t pass, Match m,
            const DumpTensor& t) {
    const Rule& r = map.rules[rule];
    std::set<std::string> used;
    for (const Template& o : r.ours) {
      for (const std::string& c : o.captures()) used.insert(c);
    }
    if (!r.full) {
      for (const std::string& c : map.passes[pass].ours.captures()) used.insert(c);
    }
    Match fixed;
    fixed.stars = m.stars;
    std::string key = fmt::format("{} {}", rule, pass);
    for (const auto& [name, n] : m.captures) {
      if (!used.contains(name)) continue;
      fixed.captures[name] = n;
      key += fmt::format(" {}", n);
    }
    for (const std::string& s : m.stars) key += " " + s;
    auto [it, added] = groups.try_emplace(key);
    if (added) {
      it->second = {&r, r.full ? nullptr : &map.passes[pass], std::move(fixed), {}};
      order.push_back(key);
    }
    it->second.members.emplace_back(std::move(m), &t);
  }

  void check_taken(const std::vector<std::vector<size_t>>& taken) const {
    std::vector<size_t> by_pass(map.passes.size());
    for (size_t r = 0; r < taken.size(); ++r) {
      const size_t n = std::accumulate(taken[r].begin(), taken[r].end(), size_t(0));
      if (n == 0) {
        const Rule& rule = map.rules[r];
        size_t fits = 0;  // that a line above took
        for (const DumpTensor& t : theirs.tensors()) {
          for (size_t p = 0; p < taken[r].size(); ++p) {
            fits += match(rule.full ? rule.theirs : joined(map.passes[p].theirs, rule.theirs, at(rule)), t.name)
                        .has_value();
          }
        }
        bad_map(at(rule), "the line takes no tensor", in_quotes(rule.theirs.source, 200),
                fits ? fmt::format("{} such tensors, all taken by lines above", fits) : "none");
      }
      for (size_t p = 0; p < taken[r].size() && !map.rules[r].full; ++p) by_pass[p] += taken[r][p];
    }
    const bool relative = std::any_of(map.rules.begin(), map.rules.end(), [](const Rule& r) { return !r.full; });
    for (size_t p = 0; p < by_pass.size() && relative; ++p) {
      if (by_pass[p] == 0)
        bad_map(map.at(map.passes[p].line), "the pass takes no tensor", in_quotes(map.passes[p].theirs.source, 200),
                "none");
    }
  }

  // What a map excuses must not be there: a glob too wide would hide what a comparison should find.
  void check_absent(const std::string& absent, const std::string& where) const {
    const auto it = find_listed(names, absent);
    if (it == names.end()) return;
    bad_map(where, in_quotes(absent) + " is said to be absent, and fits a mapped tensor", "names that nothing becomes",
            in_quotes(it->first) + " from " + in_quotes(it->second));
  }

  void group(const Group& g, const RankCounts& counts) {
    const std::string where = at(*g.rule) + ": " + g.members[0].second->name;
    const Pattern pattern = g.pass ? joined(g.pass->theirs, g.rule->theirs, where) : g.rule->theirs;
    const std::vector<Gather> gathers = gathers_of(g, pattern, counts);
    const std::vector<const DumpTensor*> grid = grid_of(g, gathers, at(*g.rule), where);
    const DumpTensor& first = *grid[0];
    const Rule& r = *g.rule;
    Sizes sizes;
    const size_t parts = r.ours.size();
    if (r.axes) {
      sizes = solve_sizes(r.axes->theirs, first.shape, map.sizes, where);
    }
    for (size_t part = 0; part < parts; ++part) {
      View view;
      Layout layout;
      if (r.axes) {
        view = view_of(r.axes->theirs, first.shape, sizes, part, where);
        layout = r.axes->ours.empty() ? own_layout(r.axes->theirs, part) : r.axes->ours[part];
      } else {
        int64_t stride = 1;
        for (size_t i = first.shape.size(); i-- > 0;) {
          const std::string name = std::to_string(i);
          view.axes[name] = {name, first.shape[i], stride, 0, {}};
          Axis a;
          a.name = name;
          layout.insert(layout.begin(), a);
          stride *= std::max<int64_t>(first.shape[i], 1);
        }
      }
      enumerate(g, gathers, grid, part, view, layout, pattern, where);
    }
  }

  // Without a layout of ours: theirs, with the part in place of the split and without axes of size 1 and gone ones.
  static Layout own_layout(const Layout& theirs, size_t part) {
    Layout out;
    for (const Axis& a : theirs) {
      Axis product;
      product.kind = Axis::Kind::product;
      flatten(a, part, product.parts);
      if (!product.parts.empty()) out.push_back(std::move(product));
    }
    return out;
  }
  static void flatten(const Axis& a, size_t part, std::vector<Axis>& atoms) {
    if (a.kind == Axis::Kind::atom) {
      Axis atom;
      atom.name = a.name;
      atoms.push_back(atom);
    }
    if (a.kind == Axis::Kind::split) return flatten(a.parts[part], part, atoms);
    for (const Axis& p : a.parts) flatten(p, part, atoms);
  }

  // Our tensors of one part: one, or one for each value of axes and table rows that stand in its name.
  void enumerate(const Group& g, const std::vector<Gather>& gathers, const std::vector<const DumpTensor*>& grid,
                 size_t part, View view, const Layout& layout, const Pattern& pattern, const std::string& where) {
    const Template ours = g.pass ? joined(g.pass->ours, g.rule->ours[part]) : g.rule->ours[part];
    std::vector<std::pair<std::string, int64_t>> loops;  // name, count
    std::set<std::string> seen;
    int64_t total = 1;
    for (const std::string& c : ours.captures()) {
      if (g.fixed.captures.contains(c) || !seen.insert(c).second) continue;
      for (const Limit& l : g.rule->limits) {
        if (l.axis == c) limit_axis(view, l, limit_in_name(g, l, where), where);
      }
      int64_t n = 0;
      if (const auto it = view.axes.find(c); it != view.axes.end()) {
        n = it->second.size;
      } else if (g.rule->pages && g.rule->pages->row == c) {
        const DumpTensor& table = table_of(theirs, *g.rule->pages, g.fixed.captures, where);
        if (table.shape.size() != 2)
          bad_map(where, "the block table " + table.name, "[sequences, blocks]", shape_text(table.shape));
        n = table.shape[0];
      } else {
        bad_map(where, "{" + c + "} has no value in this part", "an axis of the part", in_quotes(ours.source));
      }
      if (__builtin_mul_overflow(total, n, &total) || total > kMaxTensors) {
        bad_map(where, "too many tensors from one", std::to_string(kMaxTensors),
                fmt::format("{} values of {{{}}}", n, c));
      }
      loops.emplace_back(c, n);
    }
    for (int64_t i = 0; i < total; ++i) {
      std::map<std::string, int64_t> bound = g.fixed.captures;
      int64_t rest = i;
      for (size_t k = loops.size(); k-- > 0; rest /= loops[k].second) bound[loops[k].first] = rest % loops[k].second;
      output(g, gathers, grid, part, view, layout, pattern, ours, bound, where);
    }
  }

  // The limit of an axis that stands in our name: how many tensors there are can't depend on which of them it is.
  int64_t limit_in_name(const Group& g, const Limit& l, const std::string& where) {
    if (l.table) {
      std::vector<std::string> needed = l.table->name.captures();
      if (!l.table->row.empty()) needed.push_back(l.table->row);
      for (const std::string& c : needed) {
        if (!g.fixed.captures.contains(c)) {
          bad_map(where, "the limit of " + in_quotes(l.axis) + ", which stands in our name, changes with {" + c + "}",
                  "one size, or a table of theirs alone", in_quotes(l.table->name.source));
        }
      }
    }
    return limit_of(theirs, l, g.fixed.captures, where);
  }

  static void limit_axis(View& v, const Limit& l, int64_t n, const std::string& where) {
    const auto it = v.axes.find(l.axis);
    if (it == v.axes.end()) bad_map(where, "the axis " + in_quotes(l.axis) + " of the limit is not in this part");
    if (n < 0 || n > it->second.size)
      bad_map(where, "more valid entries than the axis " + in_quotes(l.axis) + " has",
              fmt::format("0 .. {}", it->second.size), std::to_string(n));
    it->second.size = n;
    if (!it->second.offsets.empty()) it->second.offsets.resize(size_t(n));
  }

  void output(const Group& g, const std::vector<Gather>& gathers, const std::vector<const DumpTensor*>& grid,
              size_t part, const View& view, const Layout& layout, const Pattern& pattern, const Template& ours,
              const std::map<std::string, int64_t>& bound, const std::string& where) {
    const Rule& r = *g.rule;
    Output o;
    o.line.name = ours.fill(bound, g.fixed.stars, where);
    o.line.line = r.line;
    o.line.dtype = grid[0]->dtype;
    o.line.their_shape = grid[0]->shape;
    o.line.theirs = from_text(g, gathers, pattern);
    if (r.ours.size() > 1) o.line.theirs += fmt::format(", part {} of {}", part + 1, r.ours.size());
    View v = view;
    // Before pages become positions: a limit of page or slot says how the cache was cut.
    for (const Limit& l : r.limits) {
      const bool in_name = bound.contains(l.axis) && v.axes.contains(l.axis);  // enumerate() applied it
      if (in_name || (l.axis == "position" && r.pages)) continue;
      limit_axis(v, l, limit_of(theirs, l, bound, where), where);
    }
    if (r.pages) v.axes["position"] = position_axis(theirs, r, v, o.line.name, bound, where);
    for (auto& [name, axis] : v.axes) {  // axes that stand in the name of ours
      const auto it = bound.find(name);
      if (it == bound.end()) continue;
      v.base += axis.offsets.empty() ? it->second * axis.stride : axis.offsets[size_t(it->second)];
      axis = {name, 1, 0, 0, {}};
    }
    // Ranks: axes of ours, or terms and replicas.
    const std::string& reduced = r.sum.empty() ? r.same : r.sum;
    o.walk.reduce = !r.sum.empty() ? Walk::Reduce::sum : !r.same.empty() ? Walk::Reduce::same : Walk::Reduce::none;
    if (o.walk.reduce == Walk::Reduce::sum && !is_float(o.line.dtype))
      bad_map(where, "a sum of what is no float", "F64, F32, F16 or BF16", std::string(name_of(o.line.dtype)));
    place_ranks(o.walk, v, gathers, grid, reduced);
    for (const Axis& a : layout) {
      int64_t size = 1;
      for (const std::string& name : atoms_of({a})) {
        const ViewAxis& axis = v.axes.at(name);
        if (__builtin_mul_overflow(size, axis.size, &size)) bad_map(where, "the sizes of the axes overflow");
        if (!bound.contains(name)) o.walk.axes.push_back(axis);
      }
      const bool gone = a.kind != Axis::Kind::one && all_bound(a, bound);
      if (!gone) o.line.shape.push_back(size);
    }
    o.walk.base = v.base;
    if (is_integer(o.line.dtype) && o.line.dtype != DType::i64 && holds_ids(o.line.name)) {
      o.widen = true;
      o.line.dtype = DType::i64;
    }
    finish(std::move(o), where);
  }

  static bool all_bound(const Axis& a, const std::map<std::string, int64_t>& bound) {
    const std::vector<std::string> names = atoms_of({a});
    return !names.empty() &&
           std::all_of(names.begin(), names.end(), [&](const std::string& n) { return bound.contains(n); });
  }

  // An index may repeat entries without end, and a whole tensor is held in memory: its bytes must be a number at all, and
  // one that a repetition of heads explains.
  static void check_size(const Output& o, const std::string& where) {
    const int64_t wide = o.widen || o.walk.reduce == Walk::Reduce::sum ? 8 : int64_t(size_of(o.line.dtype));
    int64_t bytes = wide, source = 0;
    bool fits = true, empty = false;
    for (int64_t d : o.line.shape) {
      fits = fits && !__builtin_mul_overflow(bytes, std::max<int64_t>(d, 1), &bytes);
      empty = empty || d == 0;
    }
    for (const DumpTensor* t : o.walk.sources[0]) source += int64_t(std::min(t->bytes(), size_t(1) << 42));
    const int64_t most = std::max(kManyBytes, kMostRepeats * std::min(source, INT64_MAX / kMostRepeats));
    if (fits && (empty || bytes <= most)) return;
    bad_map(where, "the tensor " + in_quotes(o.line.name) + " would be absurdly large",
            fmt::format("at most {}", bytes_text(uint64_t(most))),
            shape_text(o.line.shape) + " " + std::string(name_of(o.line.dtype)));
  }

  void finish(Output o, const std::string& where) {
    if (!is_valid_name(o.line.name))
      bad_map(where, "not a tensor name", "1 to 512 printable ASCII characters", in_quotes(o.line.name));
    const auto [it, added] = names.emplace(o.line.name, o.line.theirs);
    if (!added) bad_map(where, "two tensors get the name " + in_quotes(o.line.name), it->second, o.line.theirs);
    check_size(o, where);
    const size_t n = o.walk.sources.size();
    simplify(o.walk);
    o.one_piece = !o.widen && is_one_piece(o.walk, &o.first);
    o.whole = o.one_piece && o.first == 0 && o.line.shape == o.line.their_shape;
    if (o.walk.reduce == Walk::Reduce::sum) {
      o.line.how = fmt::format("sum of {}", n);
    } else if (o.walk.reduce == Walk::Reduce::same) {
      o.line.how = fmt::format("{} replicas", n);
    } else if (!o.one_piece) {
      o.line.how = o.widen ? "widened" : "moved";
    }
    out.outputs.push_back(std::move(o));
  }

  const Dump& theirs;
  const DumpMap::Impl& map;
  MapPlan& out;
  std::unordered_set<std::string> tables;    // names of block tables and lengths: taken
  std::map<std::string, std::string> names;  // of ours -> theirs, for messages
};

}  // namespace

Gathered MapPlan::values(const Output& o) const {
  const DType theirs_type = o.walk.sources[0][0]->dtype;
  Gathered g = gather(o.walk, theirs_type, o.line.shape, o.line.name);
  if (!o.widen) return g;
  DumpTensor narrow;
  narrow.dtype = theirs_type;
  narrow.data = g.values.data();
  const int64_t n = int64_t(g.values.size() / size_of(theirs_type));
  std::vector<std::byte> wide(size_t(n) * 8);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t x = int_at(narrow, i);
    std::memcpy(wide.data() + i * 8, &x, 8);
  }
  g.values = std::move(wide);
  return g;
}

nlohmann::ordered_json MapPlan::rows_block() const {
  Json out = Json::object();
  for (const auto& [prefix, table] : rows) {
    if (out.contains(prefix)) bad_map(where, "two rows tables for the prefix " + in_quotes(prefix));
    out[prefix] = table->name;
  }
  return out;
}

MapPlan plan_map(const Dump& theirs, const DumpMap::Impl& map) {
  MapPlan out;
  out.where = map.where;
  MapPlanner(theirs, map, out).plan();
  return out;
}

}  // namespace assay::mapping
