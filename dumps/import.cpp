#include "dumps/import.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "dumps/dump.h"
#include "dumps/error.h"
#include "dumps/json.h"
#include "dumps/listed.h"
#include "dumps/names.h"
#include "dumps/text.h"

namespace assay {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

bool same_place(const fs::path& a, const fs::path& b) {
  std::error_code error;
  const fs::path x = fs::weakly_canonical(a, error), y = fs::weakly_canonical(b, error);
  return x == y || x.parent_path() == y;  // `b` itself, or a file in it
}

Dump open_input(const fs::path& path, const fs::path& out) {
  refuse_own_input(path, out);
  Dump d = Dump::open(path);
  if (d.kind() == Dump::Kind::official_case) {
    throw Error(ErrorKind::usage, path.string(), "an official case needs no import", {}, {}, "compare takes it as it is");
  }
  if (d.mode() != CaptureMode::full) {
    throw Error(ErrorKind::usage, path.string(), "a dump without values can't be imported", "mode full",
                std::string(name_of(d.mode())));
  }
  const std::vector<std::string> faults = d.verify_hashes();
  if (!faults.empty()) {
    throw Error(ErrorKind::malformed, path.string(), fmt::format("{} tensors disagree with their hashes", faults.size()),
                {}, {}, "First: " + faults[0]);
  }
  return d;
}

// Whether a dump lists `name` itself, or a glob of it fits.
void refuse_excused(const std::string& listed, const std::unordered_map<std::string, std::string>& tensors) {
  const auto it = find_listed(tensors, listed);
  if (it == tensors.end()) return;
  throw Error(ErrorKind::malformed, listed, "listed as not materialised, and there nevertheless", {},
              in_quotes(it->first) + " in " + it->second);
}

// Blocks that say how one dump came to be: they are not true of what several are merged into.
bool is_provenance(const std::string& key) { return key == "imported" || key == "mapped"; }

void add_block(Json& blocks, const std::string& key, const Json& value, const std::string& where) {
  if (blocks.contains(key) && blocks[key] != value) {
    throw Error(ErrorKind::usage, where, "the block " + in_quotes(key) + " differs between the inputs", "one value", {},
                "Give the right one with --manifest");
  }
  blocks[key] = value;
}

}  // namespace

void refuse_own_input(const fs::path& input, const fs::path& out) {
  if (same_place(input, out))
    throw Error(ErrorKind::usage, out.string(), "the output would replace its own input", "another --out");
}

int64_t import_safetensors(const std::vector<fs::path>& paths, const fs::path& out, const ImportOptions& options) {
  if (paths.empty()) throw Error(ErrorKind::usage, "import", "no input", "safetensors files, folders or dumps");
  std::vector<Dump> inputs;
  DumpWriter::Options writing;
  writing.dir = out;
  writing.mode = options.mode;
  writing.replace = options.replace;
  writing.partial = options.partial;
  writing.sync = options.sync;
  Json blocks = Json::object(), given = Json::object();
  std::vector<std::string> not_materialised;
  if (!options.manifest.empty()) {
    given = read_json(options.manifest);
    if (!given.is_object()) {
      throw Error(ErrorKind::malformed, options.manifest.string(), "wrong JSON type", "an object", given.type_name());
    }
    for (const auto& [key, value] : given.items()) {
      if (key == "not_materialised") {
        not_materialised = json_strings(value, options.manifest.string() + ": not_materialised");
      } else if (is_format_key(key)) {
        throw Error(ErrorKind::malformed, options.manifest.string(),
                    "the key " + in_quotes(key) + " belongs to the format itself");
      }
    }
  }
  std::unordered_map<std::string, std::string> seen;  // tensor -> input
  // What the parts left out is left out of the whole only where each part had a filter.
  std::vector<std::string> filters;
  bool all_filtered = true;
  for (const fs::path& path : paths) {
    inputs.push_back(open_input(path, out));
    const Dump& d = inputs.back();
    for (const DumpTensor& t : d.tensors()) {
      if (!is_valid_name(t.name)) {
        throw Error(ErrorKind::malformed, path.string(), "a tensor name that a dump can't hold",
                    "1 to 512 printable ASCII characters", in_quotes(t.name));
      }
      const auto [it, added] = seen.emplace(t.name, path.string());
      if (!added) {
        throw Error(ErrorKind::malformed, path.string(), "the tensor " + in_quotes(t.name) + " appears twice",
                    "each tensor once", "also in " + it->second);
      }
    }
    if (d.kind() != Dump::Kind::dump) {
      all_filtered = false;
      continue;
    }
    for (const auto& [key, value] : d.manifest().items()) {
      if (paths.size() > 1 && is_provenance(key)) continue;
      if (!is_format_key(key) && !given.contains(key)) add_block(blocks, key, value, path.string());
    }
    not_materialised.insert(not_materialised.end(), d.not_materialised().begin(), d.not_materialised().end());
    const Json& capture = d.manifest()["capture"];
    const std::string filter =
        capture.contains("filter") ? json_string(capture["filter"], path.string() + ": capture.filter") : "";
    all_filtered = all_filtered && !filter.empty();
    if (std::find(filters.begin(), filters.end(), filter) == filters.end()) filters.push_back(filter);
    writing.partial = writing.partial || d.partial();
  }
  for (const auto& [key, value] : given.items()) {
    if (key != "not_materialised") blocks[key] = value;
  }
  for (size_t i = 0; i < filters.size() && all_filtered; ++i) writing.filter += (i ? "," : "") + filters[i];
  for (const std::string& name : not_materialised) refuse_excused(name, seen);

  DumpWriter writer(writing);
  writer.manifest() = blocks;
  Json sources = Json::array();
  for (const fs::path& p : paths) {
    const fs::path name = p.filename().empty() ? p.parent_path().filename() : p.filename();
    sources.push_back(name.string());
  }
  writer.manifest()["imported"] = {{"sources", sources}};
  int64_t order = 0, count = 0;
  for (const Dump& d : inputs) {
    for (const DumpTensor& t : d.tensors()) {
      TensorDecl decl;
      decl.name = t.name;
      decl.dtype = t.dtype;
      decl.shape = t.shape;
      decl.order = d.kind() == Dump::Kind::dump ? t.order : order++;
      decl.inputs = t.inputs;
      decl.role = t.role;
      decl.axes = t.axes;
      writer.write(decl, t.data);
      ++count;
    }
  }
  writer.not_materialised(not_materialised);
  writer.finish();
  return count;
}

}  // namespace assay
