#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "conformance/check.h"
#include "conformance/cli/options.h"
#include "conformance/evidence.h"
#include "dumps/error.h"
#include "dumps/text.h"

namespace assay::cli {

std::filesystem::path find_root(const std::string& option) {
  namespace fs = std::filesystem;
  const char* env = std::getenv("ASSAY_ROOT");
  const fs::path root = !option.empty() ? fs::path(option) : env && *env ? fs::path(env) : fs::path(ASSAY_SOURCE_DIR);
  if (!fs::is_directory(root / "goldens"))
    throw Error(ErrorKind::malformed, root.string(), "no goldens/ there", "the repository", "", "Name it with --root or ASSAY_ROOT.");
  return root;
}

namespace {

/// Which checks: every given option must hold; --filter is a substring or a glob with * over the id.
struct Selection {
  std::string filter, level, scope, family, kind, device;
  bool slow = false, slow_only = false;

  void add(CLI::App& c) {
    c.add_option("--filter", filter, "id, part of it, or a glob with *");
    c.add_option("--kind", kind, "value, counter, artifact or quality");
    c.add_option("--level", level, "byte_exact, max_rel or greedy_prefix");
    c.add_option("--scope", scope, "kernel or integration");
    c.add_option("--family", family, "llama, olmo2, qwen2, qwen3, qwen3_5, qwen3_5_moe, qwen3_moe, qwen3_next, qwen3_vl");
    c.add_option("--device", device, "cpu, simt (the CUDA sources, emulated) or cuda; cuda's checks run only where they are asked for");
    c.add_flag("--all", slow, "slow checks too");
  }
  /// `module` at max_rel: the checks of a stranger's module, else those of the registry.
  std::vector<const Check*> select(const std::string& module = {}) const {
    const bool stranger = !module.empty() && level == "max_rel";
    auto known = [](const std::string& value, const char* option, std::initializer_list<std::string_view> names) {
      if (!value.empty() && std::find(names.begin(), names.end(), value) == names.end()) {
        std::string list;
        for (auto n : names) list += (list.empty() ? "" : ", ") + std::string(n);
        throw Error(ErrorKind::usage, option, "unknown", list, "\"" + value + "\"");
      }
    };
    known(kind, "--kind", {"value", "counter", "artifact", "quality"});
    known(level, "--level", {"byte_exact", "max_rel", "greedy_prefix"});
    known(scope, "--scope", {"kernel", "integration"});
    known(device, "--device", {"cpu", "simt", "cuda"});
    if (stranger && (scope == "integration" || !device.empty()))
      throw Error(ErrorKind::usage, "--module", "is judged op by op at max_rel", "--scope kernel --level max_rel --module FILE alone",
                  scope == "integration" ? "--scope integration" : "--device " + device);
    std::vector<const Check*> out;
    for (const Check& c : stranger ? stranger_checks() : registry()) {
      if (c.cost == Cost::slow && !slow && c.id != filter) continue;
      if (!kind.empty() && name_of(c.kind) != kind) continue;
      if (!level.empty() && (c.kind != CheckKind::value || name_of(c.level) != level)) continue;
      if (!scope.empty() && (c.kind != CheckKind::value || name_of(c.scope) != scope)) continue;
      if (!family.empty() && c.family != family) continue;
      if (!device.empty() && c.device != device) continue;
      if (!stranger && device.empty() && c.device == "cuda" && filter.find("cuda") == std::string::npos) continue;
      if (!id_matches(filter, c.id)) continue;
      out.push_back(&c);
    }
    return out;
  }
};

struct CheckCommand {
  Selection selection;
  std::string root, work, json, junit, isa, shard, module, evidence, backend = "cpu";
  int threads = 0, repeat = 1;
  KernelRun kernel;
  bool verbose = false, until_fail = false, exact = false, this_cpu = false, no_evidence = false;
};

int run(const CheckCommand& o) {
  std::vector<const Check*> checks = o.selection.select(o.module);
  if (o.exact) std::erase_if(checks, [&](const Check* c) { return c->id != o.selection.filter; });
  if (o.this_cpu) std::erase_if(checks, [](const Check* c) { return c->isa && !isa_supported(*c->isa); });
  if (!o.shard.empty()) {
    const size_t slash = o.shard.find('/');
    const auto i = slash == std::string::npos ? std::vector<int32_t>{} : parse_ids(o.shard.substr(0, slash), "--shard");
    const auto n = slash == std::string::npos ? std::vector<int32_t>{} : parse_ids(o.shard.substr(slash + 1), "--shard");
    if (i.size() != 1 || n.size() != 1 || n[0] < 1 || i[0] >= n[0])
      throw Error(ErrorKind::usage, "--shard", "malformed", "i/n with 0 <= i < n", "\"" + o.shard + "\"");
    std::vector<const Check*> mine;
    for (size_t k = size_t(i[0]); k < checks.size(); k += size_t(n[0])) mine.push_back(checks[k]);
    checks = mine;
  }
  if (checks.empty()) throw Error(ErrorKind::usage, "assay check", "no check is selected", "", "", "assay list shows them all.");
  if (!o.module.empty()) {   // which checks of the CPU alone have no use for
    std::erase_if(checks, [](const Check* c) { return c->device == "cpu"; });
    if (checks.empty())
      throw Error(ErrorKind::usage, "--module", "no selected check runs a module",
                  "--scope kernel --level max_rel (anybody's module), or checks of --device cuda or simt (Assay's)", "");
  }
  if (o.repeat < 1) throw Error(ErrorKind::usage, "--repeat", "too few", ">= 1", std::to_string(o.repeat));
  CheckContext context;
  context.root = find_root(o.root);
  WorkFolder work(o.work, "assay-check");
  work.keep = true;  // what failed checks leave
  context.work = work.path;
  context.threads = o.threads;
  context.kernel = o.kernel;
  context.module = o.module;
  if (o.kernel.only >= 0 && (checks.size() != 1 || checks[0]->scope != Scope::kernel || checks[0]->kind != CheckKind::value))
    throw Error(ErrorKind::usage, "--case", "is for one kernel check", "--exact --filter kernel/OP/ISA", std::to_string(checks.size()) + " checks");
  if (!o.isa.empty()) context.isa = isa_from_name(o.isa);
  if (!isa_supported(context.isa)) throw Error(ErrorKind::usage, "--isa", "this CPU lacks it", "at most " + std::string(name_of(best_isa())), o.isa);

  std::vector<CheckResult> results;
  std::vector<nlohmann::ordered_json> records;
  if (!o.evidence.empty() && (o.no_evidence || !o.module.empty()))
    throw Error(ErrorKind::usage, "--evidence", "would answer nothing", "neither --no-evidence nor --module beside it", o.no_evidence ? "--no-evidence" : "--module");
  if (!o.evidence.empty() && !std::filesystem::is_directory(o.evidence))
    throw Error(ErrorKind::malformed, o.evidence, "is no folder", "one with evidence");
  // Checks of a device that is not here. A module that somebody names has to run itself, and evidence is of all cases as recorded.
  std::optional<EvidenceFolder> evidence;
  const bool as_recorded = o.kernel.only < 0 && o.kernel.seed == KernelRun{}.seed && o.isa.empty();
  if (!o.no_evidence && o.module.empty() && as_recorded && std::any_of(checks.begin(), checks.end(), [](const Check* c) { return c->device == "cuda"; })) {
    evidence = read_evidence_folder(o.evidence.empty() ? context.root / "conformance" / "evidence" : std::filesystem::path(o.evidence));
    for (const std::string& problem : evidence->problems) std::cerr << "assay: " << problem << "\n";
  }
  const bool progress = isatty(2);
  bool stop = false;
  for (int round = 0; round < o.repeat && !stop; round++)
    for (size_t i = 0; i < checks.size() && !stop; i++) {
      if (progress) std::cerr << fmt::format("\r\x1b[K{}/{} {}", i + 1, checks.size(), checks[i]->id) << std::flush;
      results.push_back(run_check(*checks[i], context));
      if (evidence && round == 0 && checks[i]->device == "cuda") answer_from_evidence(results.back(), *evidence);
      records.push_back(to_json(results.back()));
      stop = o.until_fail && results.back().exit_code != kPass && results.back().exit_code != kNotRun;
    }
  if (progress) std::cerr << "\r\x1b[K";
  std::error_code ignored;
  std::filesystem::remove(context.work, ignored);   // only if nothing failed: then it is empty
  if (!o.json.empty()) write_records(o.json, records);
  if (!o.junit.empty()) write_text(o.junit, render_junit(records));
  if (o.json != "-") {
    std::string again;   // what else the next command needs to select the same check
    if (!o.selection.device.empty()) again += " --device " + o.selection.device;
    if (!o.module.empty()) again += " --module " + shell_word(o.module);
    if (!o.module.empty() && o.selection.level == "max_rel") again += " --scope kernel --level max_rel";
    if (o.selection.slow) again += " --all";
    std::cout << render_checks_text(records, o.verbose, again);
    if (std::filesystem::exists(context.work)) std::cout << "kept     " << context.work.string() << "\n";
  }
  return combined_exit_code(results);
}

struct ListCommand {
  Selection selection;
  std::string json;
  bool ctest = false;
};

std::string labels_of(const Check& c) {
  std::string l = std::string(name_of(c.kind)) + ";" + std::string(name_of(c.cost)) + ";" + c.device;
  if (c.kind == CheckKind::value) l += ";" + std::string(name_of(c.level)) + ";" + std::string(name_of(c.scope));
  if (c.family != "-") l += ";" + c.family;
  return l;
}

int list(const ListCommand& o) {
  const std::vector<const Check*> checks = o.selection.select();
  if (o.ctest) {   // read by CTest through TEST_INCLUDE_FILES (conformance/CMakeLists.txt)
    std::string out = "# Written by assay list --ctest: one test per check.\n";
    for (const Check* c : checks)
      out += fmt::format("add_test([=[{0}]=] \"${{ASSAY_PROGRAM}}\" check --exact --all --filter [=[{0}]=])\n"
                         "set_tests_properties([=[{0}]=] PROPERTIES LABELS \"{1}\" SKIP_RETURN_CODE 77 TIMEOUT {2})\n",
                         c->id, labels_of(*c), c->cost == Cost::fast ? 300 : 3000);
    std::cout << out;
    return kPass;
  }
  std::vector<nlohmann::ordered_json> records;
  for (const Check* c : checks) records.push_back(to_json(*c));
  if (!o.json.empty()) write_records(o.json, records);
  if (o.json == "-") return kPass;
  size_t widest = 2;
  for (const Check* c : checks) widest = std::max(widest, c->id.size());
  std::cout << fmt::format("{:<{}}  {:<9}{:<14}{:<12}{:<10}{:<6}target against baseline\n", "id", widest, "kind", "level", "scope", "family", "cost");
  for (const Check* c : checks)
    std::cout << fmt::format("{:<{}}  {:<9}{:<14}{:<12}{:<10}{:<6}{} against {}\n", c->id, widest, name_of(c->kind),
                             c->kind == CheckKind::value ? name_of(c->level) : "-", c->kind == CheckKind::value ? name_of(c->scope) : "-", c->family,
                             name_of(c->cost), c->target, c->baseline);
  std::cout << fmt::format("\n{} checks{}\nnext     assay check --filter PART\n", checks.size(), o.selection.slow ? "" : " (fast ones; --all lists every one)");
  return kPass;
}

/// What needs no model and no golden: is this build right on this machine? All kernel-scope checks.
int selftest(CheckCommand o) {
  if (o.backend != "cpu" && o.backend != "cuda")
    throw Error(ErrorKind::usage, "--backend", "unknown backend", "cpu or cuda", "\"" + o.backend + "\"");
  o.selection.scope = "kernel";
  o.selection.device = o.backend;
  o.this_cpu = true;
  o.no_evidence = true;   // it is this machine that is asked about
  o.root = "";
  return run(o);
}

}  // namespace

void add_check(CLI::App& app, int& code) {
  auto o = std::make_shared<CheckCommand>();
  CLI::App* c = app.add_subcommand("check", "run checks from the registry");
  o->selection.add(*c);
  c->add_flag("--exact", o->exact, "--filter is a whole id");
  c->add_flag("--this-cpu", o->this_cpu, "leave out kernel checks of instruction sets that this CPU lacks (else: not run, exit 77)");
  c->add_option("--isa", o->isa, "instruction set of the target side (default: the best this CPU has)");
  c->add_option("--threads", o->threads, "0: all cores")->capture_default_str();
  c->add_option("--module", o->module, "a device module: with --scope kernel --level max_rel anybody's, judged by bounds; else what --device simt or cuda loads");
  c->add_option("--evidence", o->evidence, "folder whose evidence answers cuda's checks where there is no device (default: conformance/evidence of the repository)");
  c->add_flag("--no-evidence", o->no_evidence, "without a device they are not run");
  c->add_option("--shard", o->shard, "i/n, 0 <= i < n: every n-th check, from the i-th");
  c->add_option("--seed", o->kernel.seed, "of the random cases of kernel checks")->check(is_seed)->capture_default_str();
  c->add_option("--case", o->kernel.only, "run this case of one kernel check alone, as a failure names it")->check(CLI::Range(int64_t(0), int64_t(1) << 40));
  c->add_option("--repeat", o->repeat, "run the selection n times")->capture_default_str();
  c->add_flag("--until-fail", o->until_fail, "stop at the first failure");
  c->add_option("--root", o->root, "repository with goldens/ (default: ASSAY_ROOT, or where this program was built)");
  c->add_option("--work", o->work, "folder in which one for dumps of running and failed checks is made");
  c->add_option("--json", o->json, "write JSONL records to FILE (-: stdout)");
  c->add_option("--junit", o->junit, "write JUnit XML to FILE");
  c->add_flag("--verbose", o->verbose, "figures of passing checks too");
  c->footer("Example:\n  assay check --level max_rel --family qwen3\n  assay check --scope kernel --verbose --junit report.xml");
  c->callback([o, &code] { code = run(*o); });
}

void add_list(CLI::App& app, int& code) {
  auto o = std::make_shared<ListCommand>();
  CLI::App* c = app.add_subcommand("list", "list the checks: id, kind, level, scope, family, cost");
  o->selection.add(*c);
  c->add_option("--json", o->json, "write JSONL records to FILE (-: stdout)");
  c->add_flag("--ctest", o->ctest, "write CTest commands");
  c->footer("Example:\n  assay list --scope kernel\n  assay list --all --json -");
  c->callback([o, &code] { code = list(*o); });
}

void add_selftest(CLI::App& app, int& code) {
  auto o = std::make_shared<CheckCommand>();
  CLI::App* c = app.add_subcommand("selftest", "is this build right on this machine? every kernel of every instruction set it has");
  c->add_option("--backend", o->backend, "cpu, or cuda: every kernel of the device module")->capture_default_str();
  c->add_option("--module", o->module, "the module of --backend cuda (default: libassay_cuda.so beside this program)");
  c->add_option("--json", o->json, "write JSONL records to FILE (-: stdout)");
  c->add_flag("--verbose", o->verbose, "figures of passing checks too");
  c->footer("Example:\n  assay selftest --verbose\n  assay selftest --backend cuda");
  c->callback([o, &code] { code = selftest(*o); });
}

}  // namespace assay::cli
