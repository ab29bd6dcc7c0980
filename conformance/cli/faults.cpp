#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "conformance/cli/options.h"
#include "conformance/cli/progress.h"
#include "conformance/faults/judge.h"
#include "conformance/faults/mutations.h"
#include "dumps/error.h"
#include "dumps/report.h"

namespace assay::cli {
namespace {

struct FaultsCommand {
  std::string filter, row, json, html, root, work;
  int threads = 0;
  int64_t random = 0;
  uint64_t seed = 1;
  bool all = false, verbose = false;
};

int run(const FaultsCommand& o) {
  if (o.threads < 0 || o.threads > 1024)
    throw Error(ErrorKind::usage, "--threads", "out of range", "0 (all cores) to 1024", std::to_string(o.threads));
  different_outputs(o.json, o.html);
  if (o.random > 0 && (!o.filter.empty() || !o.row.empty() || o.all))
    throw Error(ErrorKind::usage, "--random", "plants mutations, none of the listed faults",
                "without --filter, --row and --all");
  const WorkFolder work(o.work, "assay-faults");
  CheckContext c;
  c.root = find_root(o.root);
  c.work = work.path;
  c.threads = o.threads;
  Progress progress;
  const auto finish = [&](const std::vector<nlohmann::ordered_json>& records, const std::string& text) {
    progress.clear();
    if (!o.json.empty()) write_text(o.json, kill_matrix(records).dump(1) + "\n");
    if (!o.html.empty()) write_text(o.html, render_html(records));
    if (o.json != "-") std::cout << text;
    return std::all_of(records.begin(), records.end(),
                       [](const auto& r) { return r.at("caught_as_expected").template get<bool>(); })
               ? kPass
               : kMismatch;
  };
  if (o.random > 0) {
    const auto records = random_mutations(c, o.random, o.seed, [&](int64_t i) { progress.begins(size_t(i), size_t(o.random), ""); });
    return finish(records, render_mutations_text(records));
  }
  const ExpectedFaults table = read_expected(c.root / "conformance" / "faults" / "expected.json");
  for (const auto& [id, rows] : table)
    if (fault_named(id).id != id)
      throw Error(ErrorKind::malformed, "expected.json", "is not a fault's id", fault_named(id).id, id);
  std::vector<const Fault*> chosen;
  int64_t slow = 0;
  for (const Fault& f : faults()) {
    if (!o.row.empty() && f.row() != o.row) continue;
    if (!id_matches(o.filter, f.id)) continue;
    if (f.slow && !o.all && f.id != o.filter) {
      slow++;
      continue;
    }
    chosen.push_back(&f);
  }
  if (chosen.empty())
    throw Error(ErrorKind::usage, "assay faults", "no fault is selected", "", "", "assay faults --all runs every one.");
  std::vector<nlohmann::ordered_json> records;
  for (size_t i = 0; i < chosen.size(); i++) {
    progress.begins(i, chosen.size(), chosen[i]->id);
    const auto row = std::find_if(table.begin(), table.end(), [&](const auto& r) { return r.first == chosen[i]->id; });
    records.push_back(judge_fault(c, *chosen[i], row == table.end() ? std::vector<Expectation>{} : row->second));
  }
  std::string text = render_faults_text(records, o.verbose);
  if (slow) text += fmt::format("{} slow faults were left out; --all plants them too\n", slow);
  return finish(records, text);
}

}  // namespace

void add_faults(CLI::App& app, int& code) {
  auto o = std::make_shared<FaultsCommand>();
  CLI::App* c = app.add_subcommand(
      "faults", "plant every known fault and show which check catches it, and where: the kill matrix");
  c->add_option("--filter", o->filter, "id, part of it, or a glob with *: B3/rope-pairs");
  c->add_option("--row", o->row, "all variants of one row: A29");
  c->add_option("--random", o->random, "instead, plant N random mutations of the tiny models")
      ->check(CLI::Range(int64_t(1), int64_t(1) << 30));
  c->add_option("--seed", o->seed, "of the random mutations")->check(is_seed)->capture_default_str();
  c->add_flag("--all", o->all, "slow faults too");
  c->add_option("--threads", o->threads, "0: all cores")->capture_default_str();
  c->add_option("--root", o->root, "repository with goldens/ (default: ASSAY_ROOT, or where this program was built)");
  c->add_option("--work", o->work, "folder in which a folder for dumps is made, and removed again");
  c->add_option("--json", o->json, "write the matrix as one JSON document to FILE (-: stdout)");
  c->add_option("--html", o->html, "write the report as one HTML file");
  c->add_flag("--verbose", o->verbose, "figures too");
  c->footer(
      "Example:\n  assay faults\n  assay faults --row A29 --verbose\n  assay faults --all --json faults.json --html "
      "faults.html\n  assay faults --random 200 --seed 7");
  c->callback([o, &code] { code = run(*o); });
}

}  // namespace assay::cli
