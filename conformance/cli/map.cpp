#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "conformance/cli/options.h"
#include "dumps/error.h"
#include "dumps/map.h"
#include "dumps/suggest.h"
#include "dumps/text.h"

namespace assay::cli {
namespace {

struct MapCommand {
  std::vector<std::string> paths;
  std::string map, out, json;
  bool suggest = false, force = false, verbose = false;
};

int apply(const MapCommand& o) {
  const Dump theirs = Dump::open(o.paths[0]);
  const DumpMap map = DumpMap::read(o.map);
  const Mapping mapping(theirs, map);
  std::vector<std::string> faults;
  if (o.out.empty()) {
    faults = mapping.faults();
  } else {
    DumpWriter::Options options;
    options.dir = o.out;
    options.replace = o.force;
    faults = mapping.write(options);
  }
  const auto records = map_records(mapping, theirs, o.map, o.out, faults);
  if (!o.json.empty()) write_records(o.json, records);
  if (o.json != "-") std::cout << render_map(records, o.verbose);
  return faults.empty() ? kPass : kMismatch;
}

// What would have no effect is refused: who says --json waits for records.
void refuse_unused(const MapCommand& o) {
  const auto refuse = [](const char* option, const char* wanted) {
    throw Error(ErrorKind::usage, option, "has no effect here", wanted);
  };
  if (o.force && o.out.empty()) refuse("--force", "--out, whose dump or file it replaces");
  if (!o.suggest) return;
  if (!o.json.empty()) refuse("--json", "--map; a suggestion is a map file (--out)");
  if (o.verbose) refuse("--verbose", "--map; a suggestion holds all of its lines");
  if (!o.out.empty() && o.out != "-" && !o.force && is_there(o.out)) {
    throw Error(ErrorKind::usage, o.out, "the file is there already", "a new name", {},
                "Choose another --out or replace it with --force");
  }
}

int propose(const MapCommand& o) {
  if (o.paths.size() != 2) {
    throw Error(ErrorKind::usage, "--suggest", "takes two dumps", "BASE THEIRS",
                std::to_string(o.paths.size()) + " paths");
  }
  if (!o.map.empty()) throw Error(ErrorKind::usage, "--map", "can't be used with --suggest", "one of both");
  const Suggestion s = suggest_map(Dump::open(o.paths[0]), Dump::open(o.paths[1]));
  if (o.out.empty()) {
    std::cout << s.text;
  } else {
    write_text(o.out, s.text);
  }
  const std::string file = o.out.empty() || o.out == "-" ? "FILE" : shell_word(o.out);
  std::cerr << fmt::format(
      "{} rules agree with {}, {} lines are for you to decide (# ?); nothing was applied\nnext     assay map {} --map "
      "{}\n",
      s.rules, o.paths[0], s.unsure, shell_word(o.paths[1]), file);
  return kPass;
}

int run(const MapCommand& o) {
  refuse_unused(o);
  if (o.suggest) return propose(o);
  if (o.map.empty()) throw Error(ErrorKind::usage, "assay map", "no map", "--map FILE, or --suggest");
  if (o.paths.size() != 1) {
    throw Error(ErrorKind::usage, "assay map", "--map takes one dump", "THEIRS",
                std::to_string(o.paths.size()) + " paths");
  }
  return apply(o);
}

}  // namespace

void add_map(CLI::App& app, int& code) {
  auto o = std::make_shared<MapCommand>();
  CLI::App* c = app.add_subcommand("map", "bring another engine's dump to our names and layouts (dumps/MAP.md)");
  c->add_option("paths", o->paths, "THEIRS; for --suggest BASE THEIRS")->required()->expected(1, 2);
  c->add_option("--map", o->map, "map file: what becomes what");
  c->add_flag("--suggest", o->suggest, "propose a map by names and values; applies nothing");
  c->add_option("--out", o->out, "write the mapped dump into this folder; of --suggest the map into this file");
  c->add_option("--json", o->json, "write JSONL records to FILE (-: stdout)");
  c->add_flag("--verbose", o->verbose, "a line per tensor");
  c->add_flag("--force", o->force, "replace a finished dump; of --suggest the file of --out");
  c->footer(
      "Example:\n  assay map /tmp/theirs --map their.map\n  assay map /tmp/theirs --map their.map --out /tmp/mapped\n"
      "  assay map --suggest goldens/official/qwen3-odd /tmp/theirs --out their.map");
  c->callback([o, &code] { code = run(*o); });
}

}  // namespace assay::cli
