#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "conformance/cli/options.h"
#include "dumps/error.h"
#include "dumps/map.h"
#include "dumps/suggest.h"

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
  const auto records = map_records(mapping, theirs, o.map);
  std::vector<std::string> faults;
  if (!o.out.empty()) {
    DumpWriter::Options options;
    options.dir = o.out;
    options.replace = o.force;
    faults = mapping.write(options);
  }
  if (!o.json.empty()) write_records(o.json, records);
  if (o.json != "-") std::cout << render_map(records, o.verbose);
  if (!faults.empty()) {
    std::cout << fmt::format("FAIL     {} tensors whose replicas differ; nothing was written\n", faults.size());
    for (size_t i = 0; i < faults.size() && (i < 10 || o.verbose); ++i) std::cout << "  " << faults[i] << "\n";
    return kMismatch;
  }
  if (o.json != "-") {
    std::cout << (o.out.empty()
                      ? fmt::format("next     assay compare BASE {} --map {} --preset f32\n", o.paths[0], o.map)
                      : fmt::format("next     assay compare BASE {} --preset f32\n", o.out));
  }
  return kPass;
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
  const std::string file = o.out.empty() ? "FILE" : o.out;
  std::cerr << fmt::format(
      "{} rules agree with {}, {} lines are for you to decide (# ?); nothing was applied\nnext     assay map {} --map "
      "{}\n",
      s.rules, o.paths[0], s.unsure, o.paths[1], file);
  return kPass;
}

int run(const MapCommand& o) {
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
  c->add_flag("--force", o->force, "replace a finished dump");
  c->footer(
      "Example:\n  assay map /tmp/theirs --map their.map\n  assay map /tmp/theirs --map their.map --out /tmp/mapped\n"
      "  assay map --suggest goldens/official/qwen3-odd /tmp/theirs --out their.map");
  c->callback([o, &code] { code = run(*o); });
}

}  // namespace assay::cli
