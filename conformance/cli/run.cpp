#include <iostream>
#include <nlohmann/json.hpp>

#include "conformance/cli/options.h"
#include "dumps/error.h"

namespace assay::cli {
namespace {
struct RunCommand {
  ModelOptions model;
  int64_t count = 16;
  bool ids = false;
  std::string json;
};

int run(const RunCommand& o) {
  if (o.count > (int64_t(1) << 31)) throw Error(ErrorKind::usage, "-n", "too many ids", "at most 2^31", std::to_string(o.count));
  if (o.count < 1) throw Error(ErrorKind::usage, "-n", "too few ids", ">= 1", std::to_string(o.count));
  if (!o.ids)
    throw Error(ErrorKind::usage, "assay run", "text needs a tokenizer, which this version does not have yet", "--ids", "",
                "Add --ids: token ids in, token ids out.");
  const DumpSpec spec = o.model.spec(o.count - 1);
  const DumpRun r = run_dump(o.model.load(), spec);
  int code = kPass;
  std::vector<nlohmann::ordered_json> records;
  for (size_t i = 0; i < r.generated.size(); i++) {
    const Generated& g = r.generated[i];
    if (o.json != "-") std::cout << join(g.greedy) << "\n";
    records.push_back({{"record", "run"}, {"prompt", "prompt" + std::to_string(i)}, {"ids", spec.requests[i].ids}, {"greedy_ids", g.greedy}});
    if (g.non_finite) {
      std::cerr << "assay: not finite, first at " << g.non_finite->text() << "\n";
      records.back()["non_finite"] = g.non_finite->text();
      code = kMismatch;
    }
  }
  if (!o.json.empty()) write_records(o.json, records);
  return code;
}
}  // namespace

void add_run(CLI::App& app, int& code) {
  auto o = std::make_shared<RunCommand>();
  CLI::App* c = app.add_subcommand("run", "generate greedily from token ids");
  o->model.add(*c);
  c->add_option("-n,--count", o->count, "ids to generate; EOS does not stop")->capture_default_str();
  c->add_flag("--ids", o->ids, "print generated ids, comma-separated, a line per prompt");
  c->add_option("--json", o->json, "write JSONL records to FILE (-: stdout)");
  c->footer("Example:\n  assay run goldens/official/trained-engine/model --tokens 256,75,58,99 -n 8 --ids");
  c->callback([o, &code] { code = run(*o); });
}

}  // namespace assay::cli
