#include "dumps/dump.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <unordered_set>

#include "dumps/error.h"
#include "dumps/json.h"
#include "dumps/listed.h"
#include "dumps/names.h"
#include "dumps/text.h"

namespace assay {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

[[noreturn]] void malformed(const std::string& where, const std::string& what, const std::string& wanted = {},
                            const std::string& found = {}, const std::string& hint = {}) {
  throw Error(ErrorKind::malformed, where, what, wanted, found, hint);
}

std::vector<fs::path> safetensors_in(const fs::path& dir) {
  std::vector<fs::path> out;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".safetensors") out.push_back(it->path());
  }
  if (error) throw Error(ErrorKind::io, dir.string(), "the folder can't be read", {}, error.message());
  std::sort(out.begin(), out.end());
  return out;
}

// A shape whose bytes, and the bytes of every part of it, fit into 63 bits.
void check_shape(const DumpTensor& t, const std::string& where) {
  int64_t bytes = int64_t(size_of(t.dtype));
  if (t.shape.size() > 64) malformed(where, "too many axes", "64 at most", std::to_string(t.shape.size()));
  for (int64_t d : t.shape) {
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(d, 1), &bytes)) {
      malformed(where, "the shape overflows", "less than 2^63 bytes", shape_text(t.shape));
    }
  }
}

// A file name inside the folder: nothing that a manifest says may lead out of it.
bool is_plain_file_name(const std::string& s) {
  return !s.empty() && s.size() <= 255 && s[0] != '.' && s.ends_with(".safetensors") && is_valid_name(s) &&
         s.find('/') == std::string::npos && s.find('\\') == std::string::npos;
}

std::optional<TensorStats> read_stats(const Json& entry, const DumpTensor& t, const std::string& where, bool required) {
  static constexpr const char* kKeys[] = {"min", "max", "mean", "rms", "non_finite"};
  int present = 0;
  for (const char* key : kKeys) present += entry.contains(key);
  if (present == 0 && !required) return std::nullopt;
  if (present != 5) malformed(where, "incomplete statistics", "min, max, mean, rms and non_finite");
  TensorStats out;
  out.min = json_finite(entry["min"], where + ".min");
  out.max = json_finite(entry["max"], where + ".max");
  out.mean = json_finite(entry["mean"], where + ".mean");
  out.rms = json_finite(entry["rms"], where + ".rms");
  out.non_finite = json_int(entry["non_finite"], where + ".non_finite", 0, t.elements());
  if (out.min > out.max || out.rms < 0) malformed(where, "impossible statistics", "min <= max and 0 <= rms");
  return out;
}

}  // namespace

int64_t DumpTensor::columns() const { return shape.empty() ? 1 : shape.back(); }
int64_t DumpTensor::rows() const {
  int64_t n = 1;
  for (size_t a = 0; a + 1 < shape.size(); ++a) n *= shape[a];
  return n;
}

Dump Dump::open(const fs::path& path) {
  Dump d;
  d.path_ = path;
  d.manifest_ = Json::object();
  std::error_code ignored;
  if (!is_there(path)) malformed(path.string(), "no such file or folder", "a dump, a case, or safetensors files");
  if (!fs::is_directory(path, ignored)) {
    d.read_bare({path});
  } else if (is_there(path / "manifest.json")) {
    d.manifest_ = read_json(path / "manifest.json");
    if (!d.manifest_.is_object()) {
      malformed((path / "manifest.json").string(), "wrong JSON type", "an object", d.manifest_.type_name());
    }
    if (d.manifest_.contains("format")) {
      d.read_manifest();
    } else if (is_there(path / "golden.safetensors")) {
      d.read_case();
    } else {
      malformed((path / "manifest.json").string(), "belongs neither to a dump nor to an official case",
                "the key \"format\", or golden.safetensors beside it");
    }
  } else if (is_there(path / "manifest.json.tmp")) {
    malformed(path.string(), "an unfinished dump: its writer was interrupted", "manifest.json", "manifest.json.tmp",
              "Write it again; the next writer replaces it");
  } else if (is_there(path / "hashes")) {
    malformed(path.string(), "a dump that lost its manifest", "manifest.json", "hashes/ without it",
              "Restore it, or import the part files as bare safetensors into a new dump");
  } else if (is_there(path / "golden.safetensors")) {
    malformed(path.string(), "an official case without its manifest", "manifest.json");
  } else {
    const std::vector<fs::path> files = safetensors_in(path);
    if (files.empty()) {
      malformed(path.string(), "holds no dump", "manifest.json or *.safetensors", "neither");
    }
    d.read_bare(files);
  }
  d.sort_and_index();
  d.check_prompts();
  return d;
}

void Dump::read_manifest() {
  const std::string file = (path_ / "manifest.json").string();
  const std::string at = file + ": ";
  const Json& format = json_get(manifest_, "format", file);
  if (json_string(json_get(format, "name", at + "format"), at + "format.name") != "assay-dump") {
    malformed(at + "format.name", "not a dump of this format", "\"assay-dump\"", format["name"].dump());
  }
  const int64_t version = json_int(json_get(format, "version", at + "format"), at + "format.version", 0, INT64_MAX);
  if (version != 1) {
    malformed(at + "format.version", "unknown version of the dump format", "1", std::to_string(version),
              "A newer program may read it");
  }
  if (manifest_.contains("unfinished")) malformed(file, "an unfinished dump: its writer was interrupted");

  const Json& capture = json_get(manifest_, "capture", file);
  const std::string mode = json_string(json_get(capture, "mode", at + "capture"), at + "capture.mode");
  const std::optional<CaptureMode> known = capture_mode_from_name(mode);
  if (!known) malformed(at + "capture.mode", "unknown capture mode", "full, stats or hash", in_quotes(mode));
  mode_ = *known;
  if (capture.contains("partial")) {
    if (!capture["partial"].is_boolean()) malformed(at + "capture.partial", "wrong JSON type", "true or false");
    partial_ = capture["partial"].get<bool>();
  }

  // The files, each opened and checked for itself.
  const Json& files = json_get(manifest_, "files", file);
  if (!files.is_array()) malformed(at + "files", "wrong JSON type", "an array", files.type_name());
  if (mode_ != CaptureMode::full && !files.empty()) malformed(at + "files", "a dump of mode " + mode + " has no values", "[]");
  std::unordered_map<std::string, size_t> file_index;
  size_t in_files = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string where = at + fmt::format("files[{}]", i);
    const std::string name = json_string(json_get(files[i], "name", where), where + ".name");
    if (!is_plain_file_name(name)) {
      malformed(where + ".name", "not the name of a file in this folder", "NAME.safetensors", in_quotes(name));
    }
    if (!file_index.emplace(name, i).second) malformed(where, "the file " + in_quotes(name) + " is listed twice");
    files_.push_back(Safetensors::open(path_ / name));
    in_files += files_.back().tensors().size();
    const int64_t bytes = json_int(json_get(files[i], "bytes", where), where + ".bytes", 0, INT64_MAX);
    if (uint64_t(bytes) != files_.back().file()->size()) {
      malformed((path_ / name).string(), "the size disagrees with the manifest", fmt::format("{} bytes", bytes),
                fmt::format("{} bytes", files_.back().file()->size()));
    }
  }
  for (const fs::path& p : safetensors_in(path_)) {
    if (!file_index.contains(p.filename().string())) malformed(p.string(), "the file is not listed in the manifest");
  }

  // The row hashes.
  const uint64_t* rows = nullptr;
  int64_t row_count = 0;
  has_hashes_ = manifest_.contains("hashes");
  if (!has_hashes_ && mode_ != CaptureMode::full) malformed(file, "a dump of mode " + mode + " without hashes", "\"hashes\"");
  if (has_hashes_) {
    const Json& hashes = manifest_["hashes"];
    const std::string name = json_string(json_get(hashes, "file", at + "hashes"), at + "hashes.file");
    if (name != "hashes/rows.u64") malformed(at + "hashes.file", "wrong name", "\"hashes/rows.u64\"", in_quotes(name));
    row_count = json_int(json_get(hashes, "rows", at + "hashes"), at + "hashes.rows", 0, INT64_MAX / 8);
    maps_.push_back(MappedFile::open(path_ / name));
    if (maps_.back()->size() != size_t(row_count) * 8) {
      malformed((path_ / name).string(), "the size of the hash table disagrees with the manifest",
                fmt::format("{} bytes", row_count * 8), fmt::format("{} bytes", maps_.back()->size()));
    }
    rows = reinterpret_cast<const uint64_t*>(maps_.back()->data());  // aligned: the file is mapped from its start
  }

  const Json& list = json_get(manifest_, "tensors", file);
  if (!list.is_array()) malformed(at + "tensors", "wrong JSON type", "an array", list.type_name());
  std::unordered_set<std::string> names;
  for (size_t i = 0; i < list.size(); ++i) {
    const Json& entry = list[i];
    std::string where = at + fmt::format("tensors[{}]", i);
    DumpTensor t;
    t.name = json_string(json_get(entry, "name", where), where + ".name");
    where += " " + in_quotes(t.name);
    if (!is_valid_name(t.name)) malformed(where, "not a tensor name", "1 to 512 printable ASCII characters");
    if (!names.insert(t.name).second) malformed(where, "the tensor is listed twice");
    const std::string dtype = json_string(json_get(entry, "dtype", where), where + ".dtype");
    const std::optional<DType> type = dtype_from_name(dtype);
    if (!type) malformed(where + ".dtype", "unknown dtype", "F64, F32, F16, BF16, I64, ...", in_quotes(dtype));
    t.dtype = *type;
    t.shape = json_ints(json_get(entry, "shape", where), where + ".shape", 0);
    check_shape(t, where);
    t.order = entry.contains("order") ? json_int(entry["order"], where + ".order", 0, INT64_MAX) : int64_t(i);
    if (entry.contains("role")) t.role = json_string(entry["role"], where + ".role");
    if (entry.contains("axes")) t.axes = json_strings(entry["axes"], where + ".axes");
    if (entry.contains("inputs")) t.inputs = json_strings(entry["inputs"], where + ".inputs");
    t.stats = read_stats(entry, t, where, mode_ == CaptureMode::stats);

    if (mode_ == CaptureMode::full) {
      const std::string name = json_string(json_get(entry, "file", where), where + ".file");
      const auto it = file_index.find(name);
      if (it == file_index.end()) malformed(where + ".file", "the file is not listed in the manifest", {}, in_quotes(name));
      const TensorView* view = files_[it->second].find(t.name);
      if (!view) malformed(where, "the tensor is not in its file", in_quotes(name));
      if (view->dtype != t.dtype || view->shape != t.shape) {
        malformed(where, "manifest and file " + in_quotes(name) + " disagree",
                  fmt::format("{} {} (manifest)", name_of(t.dtype), shape_text(t.shape)),
                  fmt::format("{} {} (file)", name_of(view->dtype), shape_text(view->shape)));
      }
      t.data = view->data;
    }
    if (entry.contains("nans")) t.nans = json_int(entry["nans"], where + ".nans", 1, t.elements());
    if (has_hashes_ != entry.contains("xxh3_128") || has_hashes_ != entry.contains("rows_at")) {
      malformed(where, has_hashes_ ? "the tensor has no hashes, the dump has" : "the tensor has hashes, the dump has none",
                has_hashes_ ? "xxh3_128 and rows_at" : "the key \"hashes\"");
    }
    if (has_hashes_) {
      t.xxh3_128 = json_string(entry["xxh3_128"], where + ".xxh3_128");
      if (t.xxh3_128.size() != 32 || t.xxh3_128.find_first_not_of("0123456789abcdef") != std::string::npos) {
        malformed(where + ".xxh3_128", "not a hash", "32 lower-case hex digits", in_quotes(t.xxh3_128));
      }
      const int64_t first = json_int(entry["rows_at"], where + ".rows_at", 0, row_count);
      const int64_t count = t.elements() > 0 ? t.rows() : 0;
      if (count > row_count - first) {
        malformed(where, "row hashes are missing", fmt::format("rows {} .. {}", first, first + count),
                  fmt::format("{} rows in hashes/rows.u64", row_count));
      }
      if (count > 0) t.row_hashes = rows + first;
    }
    tensors_.push_back(std::move(t));
  }
  // Names are unique and each was found in its file, so equal counts leave no tensor unlisted or twice.
  if (mode_ == CaptureMode::full && in_files != tensors_.size()) {
    for (const Safetensors& f : files_) {
      for (const TensorView& v : f.tensors()) {
        const auto listed = std::find_if(list.begin(), list.end(), [&](const Json& e) { return e["name"] == v.name; });
        if (listed == list.end() || path_ / (*listed)["file"].get<std::string>() != f.file()->path()) {
          malformed(f.file()->path().string(), "the tensor " + in_quotes(v.name) + " is not listed in the manifest as of this file");
        }
      }
    }
  }

  if (manifest_.contains("not_materialised")) {
    not_materialised_ = json_strings(manifest_["not_materialised"], at + "not_materialised");
    std::sort(not_materialised_.begin(), not_materialised_.end());
    for (const std::string& name : not_materialised_) {
      const auto it = find_listed(names, name);
      if (it != names.end()) malformed(at + "not_materialised", "the tensor " + in_quotes(*it) + " is there nevertheless");
    }
  }
}

void Dump::read_case() {
  kind_ = Kind::official_case;
  partial_ = true;
  const std::string at = (path_ / "manifest.json").string() + ": ";
  for (const char* table : {"noise_floor", "noise_floor_other_prompts"}) {
    // The second table is absent where the case has one prompt only.
    if (!manifest_.contains(table) && std::strcmp(table, "noise_floor") != 0) continue;
    const Json& floors = json_get(json_get(manifest_, table, at + "the case"), "float32", at + table);
    if (!floors.is_object()) malformed(at + table + ".float32", "wrong JSON type", "an object", floors.type_name());
    for (const auto& [phase, floor] : floors.items()) {
      const std::string where = at + fmt::format("{}.float32.{}", table, phase.substr(0, 80));
      const double v = json_finite(json_get(floor, "max_rel_row", where), where + ".max_rel_row");
      if (v < 0) malformed(where + ".max_rel_row", "a negative noise floor", "0 or more", fmt::format("{}", v));
      double& most = noise_floor_[phase];
      most = std::max(most, v);
    }
  }
  read_bare({path_ / "golden.safetensors"});
  kind_ = Kind::official_case;
}

void Dump::read_bare(const std::vector<fs::path>& files) {
  kind_ = Kind::bare;
  std::unordered_map<std::string, fs::path> names;
  for (const fs::path& file : files) {
    files_.push_back(Safetensors::open(file));
    for (const TensorView& v : files_.back().tensors()) {
      const auto [it, added] = names.emplace(v.name, file);
      if (!added) {
        malformed(file.string(), "the tensor " + in_quotes(v.name) + " appears twice", "each tensor once",
                  "also in " + it->second.string());
      }
      DumpTensor t;
      t.name = v.name;
      t.dtype = v.dtype;
      t.shape = v.shape;
      t.order = -1;
      t.role = role_of(v.name);
      t.data = v.data;
      tensors_.push_back(std::move(t));
    }
  }
}

void Dump::sort_and_index() {
  std::vector<std::pair<ExecutionKey, size_t>> keys;
  keys.reserve(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) keys.emplace_back(execution_key(tensors_[i].name, tensors_[i].order), i);
  std::sort(keys.begin(), keys.end());
  std::vector<DumpTensor> sorted;
  sorted.reserve(tensors_.size());
  for (const auto& [key, i] : keys) {
    sorted.push_back(std::move(tensors_[i]));
    if (kind_ != Kind::dump) sorted.back().order = int64_t(sorted.size()) - 1;  // no manifest gave one
  }
  tensors_ = std::move(sorted);
  index_.clear();
  for (size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
}

// Prompts and greedy ids stand in the manifest for people and as tensors for machines; both must say the same.
void Dump::check_prompts() const {
  if (!manifest_.contains("prompts")) return;
  const std::string at = (path_ / "manifest.json").string() + ": ";
  const Json& prompts = manifest_["prompts"];
  if (!prompts.is_array()) malformed(at + "prompts", "wrong JSON type", "an array", prompts.type_name());
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::string where = at + fmt::format("prompts[{}]", i);
    if (!prompts[i].is_object()) malformed(where, "wrong JSON type", "an object", prompts[i].type_name());
    for (const char* what : {"ids", "greedy_ids"}) {
      if (!prompts[i].contains(what)) continue;
      // -1 among greedy ids: a NaN left no choice, and the run went on with forced ids.
      const std::vector<int64_t> ids = json_ints(prompts[i][what], where + "." + what, std::string_view(what) == "ids" ? 0 : -1);
      const DumpTensor* t = find(fmt::format("prompt{}/{}", i, what));
      if (!t || !t->data) continue;
      if (t->dtype != DType::i64 || t->shape.size() != 1) {
        malformed(path_.string() + ": " + t->name, "ids of an odd type", "I64 [n]",
                  fmt::format("{} {}", name_of(t->dtype), shape_text(t->shape)));
      }
      if (t->bytes() != ids.size() * 8 || std::memcmp(t->data, ids.data(), t->bytes()) != 0) {
        malformed(where + "." + what, "manifest and tensor " + in_quotes(t->name) + " disagree");
      }
    }
  }
}

const DumpTensor* Dump::find(const std::string& name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

bool Dump::is_not_materialised(const std::string& name) const {
  if (std::binary_search(not_materialised_.begin(), not_materialised_.end(), name)) return true;
  return std::any_of(not_materialised_.begin(), not_materialised_.end(),
                     [&](const std::string& s) { return s.find('*') != std::string::npos && glob_match(s, name); });
}

std::string Dump::digest() const {
  std::string all;
  for (const DumpTensor& t : tensors_) {
    if (t.xxh3_128.empty()) return {};
    all += t.name + ' ' + t.xxh3_128 + '\n';
  }
  return xxh3_128_hex(all.data(), all.size());
}

std::vector<std::string> Dump::verify_hashes() const {
  std::vector<std::string> faults;
  for (const DumpTensor& t : tensors_) {
    if (!t.data || t.xxh3_128.empty()) continue;
    int64_t row = 0, first_bad = -1;
    TensorDigest digest(t.dtype, std::max<int64_t>(t.columns(), 1), false, [&](uint64_t hash) {
      if (first_bad < 0 && t.row_hashes && t.row_hashes[row] != hash) first_bad = row;
      ++row;
    });
    digest.update(t.data, t.elements());
    const std::string hash = digest.hash();
    if (hash == t.xxh3_128 && first_bad < 0) continue;
    std::string text = t.name + ": ";
    text += hash != t.xxh3_128 ? fmt::format("the values hash to {}, the manifest says {}", hash, t.xxh3_128)
                               : "the values are right, the table of row hashes is not";
    if (first_bad >= 0) text += fmt::format("; first differing row {} of {}", first_bad, t.rows());
    faults.push_back(std::move(text));
  }
  return faults;
}

}  // namespace assay
