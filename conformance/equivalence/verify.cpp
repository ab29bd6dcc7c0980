// One set of bits, however rows came: prefill, decode, verify passes whose last rows are taken back, a copied slot, and drafts of an
// MTP head that are verified. States and logits of all of them are those of plain greedy decoding, byte for byte.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "conformance/integration/cases.h"
#include "dumps/digest.h"
#include "dumps/error.h"
#include "engine/device_backend.h"
#include "engine/mtp.h"

namespace assay {
namespace {

/// Plain greedy decoding of one prompt, row by row.
struct Plain {
  std::vector<int32_t> ids;                // the prompt and what follows it
  std::vector<std::string> states;         // behind each row of `ids` from the prompt's last on
  std::vector<std::vector<float>> logits;  // the same
};

const float* pass(Engine& e, Pass kind, int slot, std::span<const int32_t> ids) {
  Batch b;
  b.pass = kind;
  b.ids.assign(ids.begin(), ids.end());
  b.segments = {{slot, e.length(slot), int64_t(ids.size()), 0, 0}};
  for (int64_t r = 0; r < int64_t(ids.size()); r++) b.logit_rows.push_back(r);
  return e.forward(b);
}

Plain decode(Engine& e, int slot, const std::vector<int32_t>& prompt, int64_t steps) {
  const int64_t vocab = e.model().config.vocab;
  Plain p;
  p.ids = prompt;
  const float* logits = pass(e, Pass::prefill, slot, prompt) + (int64_t(prompt.size()) - 1) * vocab;
  for (int64_t s = 0;; s++) {
    p.states.push_back(e.state_hash(slot));
    p.logits.emplace_back(logits, logits + vocab);
    p.ids.push_back(e.greedy(s == 0 ? int64_t(prompt.size()) - 1 : 0));
    if (s == steps) return p;
    logits = pass(e, Pass::decode, slot, std::span(p.ids).last(1));
  }
}

/// Of the states behind all rows: what evidence of a device is held against.
NamedDigest digest_of(const Plain& p, size_t prompt) {
  std::string all;
  for (const std::string& s : p.states) all += s;
  return {fmt::format("states of prompt{}", prompt), xxh3_128_hex(all.data(), all.size())};
}

/// What is asked of a device, or of the CPU in its place.
DumpSpec spec_of(const CheckContext& c, const OfficialCase& oc, const std::string& device, int64_t steps) {
  DumpSpec spec = case_spec(c, oc, false);
  spec.engine.slots = 3;
  spec.engine.context = 0;
  if (device == "simt" && spec.requests.size() > 1) spec.requests = {spec.requests.back()};
  for (Request& r : spec.requests) r.decode = steps + 8;   // rows that are taken back need room
  return spec;
}
int64_t speculated_steps(const std::string& device) { return device == "simt" ? 12 : 40; }
int64_t verified_steps(const std::string& device) { return device == "simt" ? 9 : 24; }

/// One way of running everything: a set of instructions, or a device that does all or two nodes of three.
struct Way {
  std::string name;
  std::function<void(DumpSpec&)> apply;
};
/// The first node's number mod 3 that a device refuses; a recurrent layer's conv and delta_rule then part.
Way refusing_third(const Model& model, const std::string& module, int first) {
  const Program program = build_program(model);
  std::set<std::pair<int, std::string>> third;
  for (size_t i = size_t(first); i < program.nodes.size(); i += 3) third.emplace(program.nodes[i].layer, program.nodes[i].phase);
  return {fmt::format("every third node refused from {} on", first), [third, module](DumpSpec& s) {
            s.engine.device.module = module;
            s.engine.device.refuse = [third](const Node& n) { return third.contains({n.layer, n.phase}); };
          }};
}
/// device "": the CPU.
std::vector<Way> ways(const CheckContext& c, const Model& model, const std::string& device) {
  if (device.empty()) return {{"scalar", [](DumpSpec& s) { s.engine.isa = Isa::scalar; }}, {std::string(name_of(c.isa)), [](DumpSpec&) {}}};
  const std::string module = (c.module.empty() ? built_module(device) : c.module).string();
  std::vector<Way> all = {{device, [module](DumpSpec& s) { s.engine.device.module = module; }}};
  for (int first = 0; first < 3 && model.config.gdn_v_heads > 0; first++) all.push_back(refusing_third(model, module, first));
  return all;
}

/// Verify passes of 2, 3, 5 and 8 rows, of which 1, 2 ... are kept; then a prefill of as much, and a copy.
CheckOutcome verify(const CheckContext& c, const OfficialCase& oc, const std::string& device) {
  const int64_t kSteps = verified_steps(device);
  CheckOutcome out;
  std::shared_ptr<Device> opened;
  if (!device.empty() && !(opened = open_device(c, device, out))) return out;
  if (opened) out.ran = ran_on(*opened);
  const auto model = shared_model(case_dir(c, oc) / "model");
  for (const Way& way : ways(c, *model, device)) {
    DumpSpec spec = spec_of(c, oc, device, kSteps);
    const auto reference = device.empty() ? nullptr : make_engine(model, spec);   // the CPU's, for a device
    way.apply(spec);
    const auto engine = make_engine(model, spec);
    Engine& e = *engine;
    if (!device.empty() && !e.device()) throw Error(ErrorKind::io, device, e.device_problem());
    const int64_t vocab = model->config.vocab;
    for (size_t i = 0; i < spec.requests.size(); i++) {
      const std::vector<int32_t>& prompt = spec.requests[i].ids;
      const std::string where = fmt::format("{}, prompt{}: ", way.name, i);
      const int64_t length = int64_t(prompt.size());
      if (reference) reference->truncate(0, 0);
      const Plain plain = decode(reference ? *reference : e, 0, prompt, kSteps);
      if (reference) {
        if (out.digests.size() < spec.requests.size()) out.digests.push_back(digest_of(plain, i));
        const Plain own = decode(e, 0, prompt, kSteps);
        out.compared++;
        if (own.ids != plain.ids || own.states != plain.states) out.fail(where + "decoding on the device leaves other ids or states");
      }
      const auto same_state = [&](int slot, const std::string& what) {
        out.compared++;
        if (e.state_hash(slot) != plain.states[size_t(e.length(slot) - length)]) out.fail(where + what + ": another state than decoding leaves");
      };
      pass(e, Pass::prefill, 1, prompt);
      same_state(1, "prefill in another slot");
      for (int64_t round = 0; e.length(1) < length + kSteps; round++) {
        const int64_t at = e.length(1), left = length + kSteps - at;
        const int64_t rows = std::array<int64_t, 4>{2, 3, 5, 8}[size_t(round % 4)], kept = std::min(left, 1 + round % rows);
        std::vector<int32_t> ids(plain.ids.begin() + at, plain.ids.begin() + at + kept);
        for (int64_t r = kept; r < rows; r++) ids.push_back(int32_t((uint64_t(round * 31 + r) * 2654435761u) % uint64_t(vocab)));
        const float* logits = pass(e, Pass::verify, 1, ids);
        const std::string what = fmt::format("{} of {} rows kept at {}", kept, rows, at);
        for (int64_t r = 0; r < kept; r++) {
          out.compared++;
          if (std::memcmp(logits + r * vocab, plain.logits[size_t(at + r + 1 - length)].data(), size_t(vocab) * sizeof(float)) != 0)
            out.fail(fmt::format("{}{}: row {} has other logits", where, what, r));
        }
        e.truncate(1, at + kept);
        same_state(1, what);
      }
      for (int64_t rows : {int64_t(1), int64_t(2), kSteps}) {   // a prefill of what was decoded
        e.truncate(2, 0);
        pass(e, Pass::prefill, 2, std::span(plain.ids).first(size_t(length + rows)));
        same_state(2, fmt::format("prefill of {} ids", length + rows));
      }
      e.copy_slot(1, 2);
      same_state(2, "copied slot");
      const float* logits = pass(e, Pass::decode, 2, std::span(plain.ids).last(1));
      const std::vector<float> copied(logits, logits + vocab);
      logits = pass(e, Pass::decode, 0, std::span(plain.ids).last(1));
      out.compared++;
      if (std::memcmp(logits, copied.data(), size_t(vocab) * sizeof(float)) != 0) out.fail(where + "a copied slot goes on otherwise");
      for (int slot : {0, 1, 2}) e.truncate(slot, 0);
    }
  }
  return out;
}

std::vector<NamedDigest> plain_digests(const CheckContext& c, const OfficialCase& oc, const std::string& device, int64_t steps, const std::string& only) {
  const DumpSpec spec = spec_of(c, oc, device, steps);
  const auto engine = make_engine(shared_model(case_dir(c, oc) / "model"), spec);
  std::vector<NamedDigest> out;
  for (size_t i = 0; i < spec.requests.size(); i++) {
    engine->truncate(0, 0);
    out.push_back(digest_of(decode(*engine, 0, spec.requests[i].ids, steps), i));
  }
  std::erase_if(out, [&](const NamedDigest& n) { return !only.empty() && n.name != only; });
  return out;
}

/// Speculation of 1, 2, 3 and 5 drafts: ids and logits of plain decoding, and the head's cache of plain passes.
CheckOutcome speculation(const CheckContext& c, const OfficialCase& oc, const std::string& device) {
  CheckOutcome out;
  std::shared_ptr<Device> opened;
  if (!device.empty() && !(opened = open_device(c, device, out))) return out;
  if (opened) out.ran = ran_on(*opened);
  const auto model = shared_model(case_dir(c, oc) / "model");
  DumpSpec spec = case_spec(c, oc, false);
  spec.engine.context = 0;
  if (device == "simt") spec.requests = {spec.requests.back()};
  for (Request& r : spec.requests) r.decode = speculated_steps(device);
  const auto reference = make_engine(model, spec);
  if (!device.empty()) spec.engine.device.module = (c.module.empty() ? built_module(device) : c.module).string();
  const auto engine = device.empty() ? nullptr : make_engine(model, spec);
  Engine& e = engine ? *engine : *reference;
  if (!device.empty() && !e.device()) throw Error(ErrorKind::io, device, e.device_problem());
  const int64_t vocab = model->config.vocab;
  std::string curve;
  for (int64_t draft : {1, 2, 3, 5}) {
    int64_t rounds = 0, ids = 0;
    for (size_t i = 0; i < spec.requests.size(); i++) {
      const std::string where = fmt::format("prompt{}, {} drafts: ", i, draft);
      reference->truncate(0, 0);
      const Plain plain = decode(*reference, 0, spec.requests[i].ids, spec.requests[i].decode);
      if (!device.empty() && out.digests.size() < spec.requests.size()) out.digests.push_back(digest_of(plain, i));
      reference->truncate(0, 0);
      GenerateOptions with_head;
      with_head.mtp = true;
      const std::vector<Generated> generated = generate(*reference, {&spec.requests[i], 1}, with_head);
      const std::string state = reference->state_hash(0);
      SpeculationOptions o;
      o.draft = draft;
      o.chunk = draft == 3 ? 3 : 0;
      o.keep_logits = true;
      const Speculation s = speculate(e, spec.requests[i], o);
      const std::string speculated = e.state_hash(0);
      rounds += s.rounds;
      ids += int64_t(s.ids.size()) - 1;
      out.compared += 2;
      if (s.ids != generated[0].greedy) out.fail(where + "other ids than plain greedy decoding");
      if (speculated != state) out.fail(where + "another state than plain decoding leaves");
      for (size_t k = 0; k < s.ids.size() && k < plain.logits.size(); k++) {
        out.compared++;
        if (std::memcmp(&s.logits[k * size_t(vocab)], plain.logits[k].data(), size_t(vocab) * sizeof(float)) == 0) continue;
        out.fail(fmt::format("{}id {} was chosen from other logits", where, k));
        break;
      }
    }
    curve += fmt::format("{}{}: {:.2f}", curve.empty() ? "" : ", ", draft, double(ids) / double(rounds));
  }
  out.notes.push_back("ids per verify pass, by drafts: " + curve);
  return out;
}

/// 2000 tokens decoded: finite, and the state of a prefill of the same ids.
CheckOutcome long_decode(const CheckContext& c, const OfficialCase& oc) {
  constexpr int64_t kTokens = 2000;
  CheckOutcome out;
  EngineOptions o;
  o.isa = c.isa;
  o.threads = c.threads;
  o.kv = KvType::f32;
  o.slots = 2;
  o.poison = true;
  o.context = kTokens + 64;   // beyond what the model was trained for: it is the state that is looked at
  Engine e(shared_model(case_dir(c, oc) / "model"), o);
  const std::vector<int32_t> prompt = official_requests(case_dir(c, oc), false).back().ids;
  const std::vector<int32_t> start(prompt.begin(), prompt.begin() + std::min<std::ptrdiff_t>(32, std::ptrdiff_t(prompt.size())));
  const Plain plain = decode(e, 0, start, kTokens);
  pass(e, Pass::prefill, 1, std::span(plain.ids).first(plain.ids.size() - 1));
  out.compared += 2;
  if (e.state_hash(1) != plain.states.back()) out.fail("the state differs from that of a prefill of the same ids");
  double largest = 0;
  for (int l = 0; l < int(e.model().config.layers); l++) {
    const GdnLayer& g = e.gdn(l);
    for (int64_t i = 0; i < g.state_floats(); i++) {
      const double x = std::fabs(double(g.state_of(0)[i]));
      if (!std::isfinite(x)) out.fail(fmt::format("layer.{}/recurrent_state, element {}: not finite", l, i));
      largest = std::max(largest, x);
    }
  }
  out.notes.push_back(fmt::format("{} tokens; the largest element of a state is {:.3g}", kTokens, largest));
  return out;
}

}  // namespace

void add_verify_checks(std::vector<Check>& out) {
  for (const std::string device : {"", "simt", "cuda"})
    for (const OfficialCase& oc : official_cases()) {
      const bool emulated = device == "simt";
      const std::string on = device.empty() ? "" : "-" + device, name = oc.name;
      Check k;
      k.level = Level::byte_exact;
      k.family = oc.family;
      k.device = device.empty() ? k.device : device;
      k.cost = oc.trained || (emulated && name != "qwen3_5-mtp") ? Cost::slow : Cost::fast;
      k.baseline = device.empty() ? "plain greedy decoding, row by row" : "plain greedy decoding on the CPU, row by row";
      k.id = fmt::format("equivalence/{}/verify{}", name, on);
      k.target = "verify passes whose last rows are taken back, prefill of the same ids, a copied slot: states and logits";
      k.expected = emulated ? 20 : device.empty() ? 250 : 120;
      k.run = [&oc, device](const CheckContext& c) { return verify(c, oc, device); };
      if (!device.empty())
        k.cpu_digests = [&oc, device](const CheckContext& c, const std::string& only) { return plain_digests(c, oc, device, verified_steps(device), only); };
      out.push_back(k);
      if (name == "qwen3_5-mtp" || name == "trained-hybrid") {
        k.id = fmt::format("equivalence/{}/speculation{}", name, on);
        k.cost = emulated && oc.trained ? Cost::slow : Cost::fast;
        k.target = "1, 2, 3 and 5 drafts of the MTP head, verified in one pass: ids, logits, state";
        k.expected = emulated ? 50 : 600;
        k.run = [&oc, device](const CheckContext& c) { return speculation(c, oc, device); };
        if (!device.empty())
          k.cpu_digests = [&oc, device](const CheckContext& c, const std::string& only) { return plain_digests(c, oc, device, speculated_steps(device), only); };
        out.push_back(k);
      }
      if (name == "trained-hybrid" && device.empty()) {
        k.id = fmt::format("equivalence/{}/2000-tokens", name);
        k.cost = Cost::slow;
        k.target = "2000 decoded tokens: the state is finite, and that of a prefill";
        k.expected = 2;
        k.run = [&oc](const CheckContext& c) { return long_decode(c, oc); };
        out.push_back(k);
      }
    }
}

}  // namespace assay
