#include "conformance/drill/graft.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <sstream>

#include "dumps/error.h"
#include "dumps/names.h"
#include "dumps/text.h"

namespace assay {
namespace {

// A full name or its end, with or without *: "layer.3/q_rope" and "layer.*/q_rope" are of any pass.
bool meant(const std::string& pattern, const std::string& name) {
  return glob_match(pattern, name) || glob_match("*/" + pattern, name);
}

/// The values to put in, by full name.
std::vector<std::string> chosen(const Dump& target, const std::string& nodes) {
  std::vector<std::string> out;
  std::stringstream in(nodes);
  for (std::string pattern; std::getline(in, pattern, ',');) {
    const size_t before = out.size();
    for (const DumpTensor& t : target.tensors()) {
      const auto n = parse_tensor_name(t.name);
      if (n && !n->is_state() && !n->pass.empty() && n->phase != "logits_last" && meant(pattern, t.name))
        out.push_back(t.name);
    }
    if (out.size() == before)
      throw Error(ErrorKind::usage, "--graft", "no such node in the target", "a name such as layer.3/q_rope, or a glob",
                  in_quotes(pattern), "`assay inspect " + shell_word(target.path().string()) + "` lists them");
  }
  return out;
}

}  // namespace

GraftResult graft(EngineReplayer& replayer, const Dump& base, const Dump& target, const std::string& nodes,
                  const CompareOptions& options, const std::filesystem::path& work) {
  if (!replayer.can_rerun(Side::target))
    throw Error(ErrorKind::usage, "--graft", "the target can't be run again", "a dump of this engine and of --model",
                replayer.origin(Side::target).why_not);
  GraftResult out;
  out.nodes = chosen(target, nodes);
  std::map<std::string, std::vector<float>> values;
  std::vector<std::string> meant_nodes;
  meant_nodes.swap(out.nodes);
  for (const std::string& name : meant_nodes) {
    auto x = replayer.base_value(name);
    if (!x) continue;  // an official case has some prompts whole, of others the logits alone
    values[name] = std::move(*x);
    out.nodes.push_back(name);
  }
  if (out.nodes.empty())
    throw Error(ErrorKind::usage, "--graft", "the baseline has no value of " + meant_nodes[0], "a node that it holds", "",
                "`assay inspect " + shell_word(base.path().string()) + " --tensors` lists them");
  const auto engine = replayer.engine_of(Side::target);
  std::set<std::string> used;
  for (Node& n : engine->plantable_program().nodes) {
    if (n.output == kNoValue) continue;
    const std::string own = n.name();
    if (std::none_of(out.nodes.begin(), out.nodes.end(), [&](auto& name) { return name.ends_with("/" + own); }))
      continue;
    wrap_node(*engine, n, [&, own](NodeContext& c, const std::function<void(NodeContext&)>& inner) {
      inner(c);
      int64_t start = 0, at = 0;  // batch row of the segment; row of the output
      for (const Segment& s : c.batch.segments) {
        const std::string name = fmt::format("prompt{}/{}/{}/{}", s.prompt, name_of(c.batch.pass), s.step, own);
        const auto it = values.find(name);
        for (int64_t r = 0; r < s.rows; r++) {
          if (c.node.requested_rows_only &&
              !std::binary_search(c.batch.logit_rows.begin(), c.batch.logit_rows.end(), start + r))
            continue;
          const int64_t row = c.batch.pass == Pass::prefill ? s.position + r : 0;
          if (it != values.end() && int64_t(it->second.size()) >= (row + 1) * c.columns) {
            std::memcpy(c.output + at * c.columns, &it->second[size_t(row * c.columns)],
                        size_t(c.columns) * sizeof(float));
            used.insert(name);
          }
          at++;
        }
        start += s.rows;
      }
    });
  }
  DumpSpec spec = replayer.origin(Side::target).spec;
  // The base's tokens are fed, so that a flip that the error caused leaves no step without a counterpart.
  const auto& fed = replayer.origin(Side::base).spec.requests;
  for (size_t i = 0; i < spec.requests.size() && i < fed.size(); i++)
    if (fed[i].ids == spec.requests[i].ids) {
      spec.requests[i].forced = fed[i].forced;
      spec.requests[i].forced.resize(std::min(fed[i].forced.size(), size_t(spec.requests[i].decode)));
    }
  spec.out = work;
  spec.replace = true;
  spec.sync = false;
  spec.mode = target.mode() == CaptureMode::full ? CaptureMode::full : CaptureMode::hash;
  spec.capture.state =
      std::any_of(target.tensors().begin(), target.tensors().end(), [](auto& t) { return t.role == "state"; });
  run_dump(*engine, spec);
  if (used.size() != out.nodes.size()) throw Error(ErrorKind::internal, "--graft", "a value was never put in");

  const CompareResult before = compare(base, target, options), after = compare(base, Dump::open(work), options);
  std::set<std::string> prompts;
  for (const std::string& n : out.nodes) prompts.insert(parse_tensor_name(n)->prompt);
  std::set<std::string> both, judged;  // after a flip one of the two runs was fed other tokens: not counted
  for (const CompareRecord& t : before.records)
    if (t.status != Status::skipped) judged.insert(t.name);
  for (const CompareRecord& t : after.records)
    if (t.status != Status::skipped && judged.contains(t.name) && !values.contains(t.name)) both.insert(t.name);
  // Behind the graft: what its prompts compute after the first value that was put in.
  const auto differing = [&](const CompareResult& r, int64_t* behind, std::string* first) {
    int64_t n = 0;
    for (const std::string& prompt : prompts) {
      bool reached = false;
      for (const CompareRecord& t : r.records) {
        const auto parts = parse_tensor_name(t.name);
        if (!parts || parts->prompt != prompt) continue;
        reached = reached || std::find(out.nodes.begin(), out.nodes.end(), t.name) != out.nodes.end();
        if (!reached || t.status == Status::skipped || !both.contains(t.name)) continue;
        if (behind) ++*behind;
        if (t.status != Status::fail) continue;
        if (n++ == 0 && first) *first = t.name;
      }
    }
    return n;
  };
  out.differed = differing(before, nullptr, nullptr);
  out.differs = differing(after, &out.behind, &out.first_left);
  std::string put =
      out.nodes.size() == 1 ? out.nodes[0] : fmt::format("{} values ({}, ...)", out.nodes.size(), out.nodes[0]);
  if (out.nodes.size() < meant_nodes.size())
    put += fmt::format(" (of {} others the baseline holds none)", meant_nodes.size() - out.nodes.size());
  if (out.differed == 0)
    out.text = fmt::format("nothing differed behind {}, so that its value in the target proves nothing", put);
  else if (out.vanished())
    out.text = fmt::format(
        "with the baseline's value of {} the error vanishes: {} tensors behind it differed, none does now. {} the cause",
        put, out.differed, out.nodes.size() == 1 ? "That node is" : "These nodes are");
  else
    out.text = fmt::format(
        "with the baseline's value of {} {} of {} tensors behind it still differ, first {}: it is not the only cause",
        put, out.differs, out.differed, out.first_left);
  return out;
}

nlohmann::ordered_json to_record(const GraftResult& r) {
  return {{"record", "graft"},      {"version", 1},         {"nodes", r.nodes},         {"behind", r.behind},
          {"differed", r.differed}, {"differs", r.differs}, {"vanished", r.vanished()}, {"first_left", r.first_left},
          {"text", r.text}};
}

std::string render_graft_text(const nlohmann::ordered_json& r) {
  return fmt::format("  {:<10} {}\n", "graft", r.at("text").get<std::string>());
}

}  // namespace assay
