// Faults of other engines' dumps: ranks, partial sums, pages, low precision. The dumps are those of emulated engines,
// made by conformance/subjects/emulate.py with and without the fault, and come to our names through their maps.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "conformance/check.h"
#include "conformance/faults/faults.h"
#include "conformance/integration/quantised.h"
#include "dumps/map.h"
#include "oracle/window.h"

namespace assay {
namespace {

namespace fs = std::filesystem;

/// "subject/<engine>/<case>/<check>".
struct Asked {
  std::string engine, case_name, check;
};
Asked parse(const std::string& id) {
  const size_t a = id.find('/'), b = id.find('/', a + 1), d = id.find('/', b + 1);
  if (id.rfind("subject/", 0) != 0 || d == std::string::npos)
    throw Error(ErrorKind::malformed, "expected.json", "is no check of a subject", "subject/ENGINE/CASE/CHECK", id);
  return {id.substr(a + 1, b - a - 1), id.substr(b + 1, d - b - 1), id.substr(d + 1)};
}

int run_quietly(const std::string& command) {
  const int status = std::system((command + " >/dev/null 2>&1").c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// The emulated engine's dump below c.work. False: there is no Python with numpy.
bool make_subject(const CheckContext& c, const Asked& a, const std::string& fault, const fs::path& out) {
  if (run_quietly("'" ASSAY_PYTHON "' -c 'import numpy'") != 0) return false;
  const std::string command = fmt::format("'" ASSAY_PYTHON "' '{}' {} '{}' --out '{}' --force{}",
                                          (c.root / "conformance" / "subjects" / "emulate.py").string(), a.engine,
                                          (c.root / "goldens" / "official" / a.case_name).string(), out.string(),
                                          fault.empty() ? "" : " --fault " + fault);
  if (const int code = run_quietly(command); code == 3)
    throw NoPlace(fault);
  else if (code != 0)
    throw Error(ErrorKind::internal, command, "did not make the dump", "exit 0", std::to_string(code));
  return true;
}

Dump mapped(const fs::path& theirs) {
  return Mapping(Dump::open(theirs), DumpMap::read(theirs.string() + ".map")).dump();
}

/// Where a mapped subject parts from the official goldens; with a model by the error that each of its windows adds.
Finding compared(const fs::path& official, const Dump& judged, const char* preset, bool by_added_error) {
  CompareOptions options;
  options.level = Level::max_rel;
  options.tolerance = presets().at(preset);
  if (by_added_error) options.added = oracle::window_errors(official / "model", judged);
  const CompareResult r = compare(Dump::open(official), judged, options);
  Finding f;
  f.failed = r.exit_code() != kPass;
  if (f.failed)
    f.place = r.divergence ? r.divergence->name + (r.divergence->where.empty() ? "" : ", " + r.divergence->where)
                           : "nothing was compared";
  f.note = fmt::format("{} of {} tensors beyond {}", r.failed, r.compared,
                       by_added_error ? "what they may add" : "their tolerance");
  if (r.divergence) f.note += "; " + r.divergence->text;
  return f;
}

Finding judge(const CheckContext& c, const std::string& fault, const std::string& check, bool planted) {
  const Asked a = parse(check);
  const fs::path theirs = c.work / "theirs";
  fs::create_directories(c.work);
  Finding f;
  if (!make_subject(c, a, planted ? fault : "", theirs)) {
    f.not_run = "needs numpy, which " ASSAY_PYTHON " does not have";
    return f;
  }
  f = compared(c.root / "goldens" / "official" / a.case_name, mapped(theirs),
               a.engine == "bf16" ? "official-bf16" : "official-f32", a.check == "added");
  f.changed = planted;  // emulate.py refuses a fault that changes no byte
  return f;
}

}  // namespace

void add_subject_faults(std::vector<Fault>& out) {
  const auto add = [&](const char* id, const char* what, const char* note, const char* fault) {
    Fault f{id, what, How::value, note};
    f.own = [fault](const CheckContext& c, const std::string& check, bool planted) {
      return judge(c, fault, check, planted);
    };
    out.push_back(std::move(f));
  };
  add("E1/shard-order", "the loader halves q|k|v as it lies instead of giving each rank its own", "", "shard-order");
  add("E2/one-rank", "one rank's part of a sum is read as the whole", "", "one-rank");
  add("E3/pages-exchanged", "two pages of a block table are exchanged", "", "pages-exchanged");
  add("E7/stale-v-row", "the last V row of the last layer of a bfloat16 engine is stale",
      "the window that adds the error is named: the one node, not what follows from it", "stale-v-row");
  add("E7/coarse-sums", "a bfloat16 engine rounds a running sum of one o_proj after every 16 inputs",
      "accumulated error, which the official bfloat16 code has too, hides it", "coarse-sums");
  add("E7/final-norm-weight", "a bfloat16 engine's final norm has a weight of eight bits",
      "accumulated error, which the official bfloat16 code has too, hides it", "final-norm-weight");
}

}  // namespace assay
