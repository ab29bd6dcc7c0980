#include "dumps/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <set>
#include <unordered_map>

#include "dumps/digest.h"
#include "dumps/error.h"
#include "dumps/folder_lock.h"
#include "dumps/names.h"
#include "dumps/outfile.h"
#include "dumps/text.h"

namespace assay {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int64_t kGatherBytes = int64_t{32} << 20;  // sets up to this size share a file, written at once
constexpr int64_t kFileBytes = int64_t{1} << 30;     // larger sets are cut into files of about this size
constexpr int64_t kChunkBytes = int64_t{256} << 10;  // values pass through in pieces that stay in the cache
constexpr size_t kHashBatch = 512;                   // row hashes that wait for one write

std::string part_name(size_t i) { return fmt::format("part-{:04}.safetensors", i); }

bool is_part_name(const std::string& s) {
  return s.starts_with("part-") && s.ends_with(".safetensors") && s.size() <= 40;
}

[[noreturn]] void misuse(const std::string& where, const std::string& what, const std::string& wanted = {},
                         const std::string& found = {}) {
  throw Error(ErrorKind::internal, where, what, wanted, found);
}

}  // namespace

std::string_view name_of(CaptureMode m) {
  return m == CaptureMode::hash ? "hash" : m == CaptureMode::stats ? "stats" : "full";
}

std::optional<CaptureMode> capture_mode_from_name(std::string_view s) {
  for (CaptureMode m : {CaptureMode::hash, CaptureMode::stats, CaptureMode::full}) {
    if (name_of(m) == s) return m;
  }
  return std::nullopt;
}

struct DumpWriter::Impl {
  struct Tensor {
    TensorDecl decl;
    int64_t first_axis = 1, inner = 1;  // rows that write_rows() counts, and elements in each
    int64_t columns = 1, rows = 1;      // as the row hashes count them
    int64_t bytes = 0;
    int64_t next_row = 0;
    int64_t nans = 0;
    uint64_t rows_at = 0, rows_flushed = 0;  // place in hashes/rows.u64, in rows
    std::vector<uint64_t> waiting;           // row hashes not yet written
    std::unique_ptr<TensorDigest> digest;    // from the first row to the last
    std::string hash;
    TensorStats stats;
    size_t part = 0;
    uint64_t offset = 0;             // of the values in the file; large parts only
    std::vector<std::byte> gathered; // the values; gathered parts only
    bool complete = false;
  };
  struct Part {
    OutFile file;
    std::vector<size_t> tensors;
    int64_t bytes = 0;       // of values
    int64_t header = 0;      // upper bound of the header, for reserving
    size_t incomplete = 0;
    bool gather = false, open = false;  // open: more sets may join
    uint64_t size = 0;       // of the finished file
  };

  Options options;
  Json blocks = Json::object();
  std::deque<Tensor> tensors;  // references stay valid while more are declared
  std::unordered_map<std::string, size_t> index;
  std::vector<Part> parts;
  std::vector<std::string> not_materialised;  // in the order of the calls
  std::set<std::string> not_materialised_set;
  OutFile rows_file;
  uint64_t rows = 0;
  int64_t total_bytes = 0;
  std::vector<std::byte> scratch;
  bool finished = false;
  std::optional<FolderLock> lock;   // of the folder, held while this writer lives

  fs::path manifest_path() const { return options.dir / "manifest.json"; }
  fs::path unfinished_path() const { return options.dir / "manifest.json.tmp"; }

  void prepare_folder();
  void remove_parts() noexcept;
  void declare(const std::vector<TensorDecl>& set);
  void place_set(size_t first, size_t last);
  void add_to_gather(size_t first, size_t last, int64_t bytes);
  void open_large(size_t first, size_t last);
  std::string place_values(const std::vector<size_t>& order);
  static int64_t header_bound(const Tensor& t);
  void write_rows(Tensor& t, int64_t first_row, int64_t n, const std::byte* data);
  void flush_hashes(Tensor& t);
  void complete(Tensor& t);
  void part_done(Part& part);
  Json tensor_json(const Tensor& t) const;
  void finish();
};

// A folder is taken only if all that is in it can be recognised as ours: nobody's files are deleted by a wrong --out.
void DumpWriter::Impl::prepare_folder() {
  std::error_code error;
  fs::create_directories(options.dir, error);
  if (error) throw Error(ErrorKind::io, options.dir.string(), "the folder can't be created", {}, error.message());
  lock.emplace(options.dir);   // two writers in one folder would delete and interleave each other's files
  std::vector<fs::path> ours;
  bool finished_dump = false, marked = false, empty = true;
  for (fs::directory_iterator it(options.dir, error), end; !error && it != end; it.increment(error)) {
    empty = false;
    const std::string name = it->path().filename().string();
    finished_dump = finished_dump || name == "manifest.json";
    marked = marked || name == "manifest.json.tmp";
    if (name == "manifest.json" || name == "manifest.json.tmp" || is_part_name(name)) {
      ours.push_back(it->path());
    } else if (name == "hashes" && it->is_directory(error)) {
      ours.push_back(it->path() / "rows.u64");
      ours.push_back(it->path());
    } else {
      throw Error(ErrorKind::usage, options.dir.string(), "the folder holds something that is no part of a dump",
                  "an empty folder or a new name", in_quotes(name), "Choose another --out");
    }
  }
  if (error) throw Error(ErrorKind::io, options.dir.string(), "the folder can't be read", {}, error.message());
  if (finished_dump && !options.replace) {
    throw Error(ErrorKind::usage, options.dir.string(), "the folder holds a finished dump already",
                "an empty folder or a new name", "manifest.json", "Choose another --out or replace it with --force");
  }
  if (!empty && !finished_dump && !marked) {
    throw Error(ErrorKind::usage, options.dir.string(), "the folder holds safetensors files that no dump wrote",
                "an empty folder or a new name", {}, "Choose another --out");
  }
  // The marker comes first: whatever happens from here on, the folder is an unfinished dump.
  const auto remove = [](const fs::path& p) {
    std::error_code e;
    fs::remove(p, e);
    if (e) throw Error(ErrorKind::io, p.string(), "can't be removed", {}, e.message());
  };
  if (finished_dump) remove(manifest_path());
  OutFile marker(unfinished_path());
  const std::string text = "{\"format\": {\"name\": \"assay-dump\", \"version\": 1}, \"unfinished\": true}\n";
  marker.write_at(0, text.data(), text.size());
  marker.close(false);
  for (const fs::path& p : ours) {
    if (p != manifest_path() && p != unfinished_path()) remove(p);
  }
  fs::create_directories(options.dir / "hashes", error);
  if (error) throw Error(ErrorKind::io, (options.dir / "hashes").string(), "can't be created", {}, error.message());
  rows_file = OutFile(options.dir / "hashes" / "rows.u64", options.when_full);
}

void DumpWriter::Impl::remove_parts() noexcept {
  std::error_code ignored;
  for (size_t i = 0; i < parts.size(); ++i) fs::remove(options.dir / part_name(i), ignored);
  fs::remove(options.dir / "hashes" / "rows.u64", ignored);
}

// More than the JSON of one entry can need; the exact header follows when the file is complete.
int64_t DumpWriter::Impl::header_bound(const Tensor& t) {
  return 2 * int64_t(t.decl.name.size()) + 24 * int64_t(t.decl.shape.size()) + 128;
}

// Gives every tensor its offset in the file, in this order, and returns length and header, padded to a multiple of 8.
std::string DumpWriter::Impl::place_values(const std::vector<size_t>& order) {
  std::string text = "{";
  uint64_t offset = 0;
  for (size_t i : order) {
    Tensor& t = tensors[i];
    const uint64_t end = offset + uint64_t(t.bytes);
    const Json entry = {{"dtype", name_of(t.decl.dtype)}, {"shape", t.decl.shape}, {"data_offsets", {offset, end}}};
    text += fmt::format("{}{}:{}", text.size() > 1 ? "," : "", Json(t.decl.name).dump(), entry.dump());
    t.offset = offset;
    offset = end;
  }
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string out(8, '\0');
  for (int i = 0; i < 8; ++i) out[size_t(i)] = char(uint64_t(text.size()) >> (8 * i));
  out += text;
  for (size_t i : order) tensors[i].offset += out.size();
  return out;
}

void DumpWriter::Impl::declare(const std::vector<TensorDecl>& set) {
  if (finished) misuse(options.dir.string(), "declare() after finish()");
  const size_t first = tensors.size();
  std::vector<Tensor> added;
  std::set<std::string> names;
  int64_t bytes = 0;
  uint64_t hash_rows = 0;
  for (const TensorDecl& decl : set) {
    if (!is_valid_name(decl.name)) {
      misuse(options.dir.string(), "a tensor name that a dump can't hold", "1 to 512 printable ASCII characters",
             in_quotes(decl.name));
    }
    if (index.contains(decl.name) || !names.insert(decl.name).second) misuse(decl.name, "declared twice");
    Tensor t;
    t.decl = decl;
    int64_t size = int64_t(size_of(decl.dtype));
    for (int64_t d : decl.shape) {
      if (d < 0 || __builtin_mul_overflow(size, std::max<int64_t>(d, 1), &size)) {
        misuse(decl.name, "a shape that no tensor can have", "axes of 0 or more, less than 2^63 bytes",
               shape_text(decl.shape));
      }
    }
    for (size_t a = 0; a < decl.shape.size(); ++a) {
      if (a > 0) t.inner *= decl.shape[a];
      if (a + 1 < decl.shape.size()) t.rows *= decl.shape[a];
    }
    if (!decl.shape.empty()) t.first_axis = decl.shape.front(), t.columns = decl.shape.back();
    t.bytes = t.first_axis * t.inner * int64_t(size_of(decl.dtype));
    if (t.bytes == 0) t.rows = 0;  // no elements, no row hashes: [2^40, 0] must not ask for 2^40 of them
    if (__builtin_add_overflow(bytes, t.bytes, &bytes)) misuse(decl.name, "a set of tensors that no disk can hold");
    t.rows_at = rows + hash_rows;
    hash_rows += uint64_t(t.rows);
    added.push_back(std::move(t));
  }
  if (options.mode == CaptureMode::full && options.max_bytes &&
      uint64_t(total_bytes) + uint64_t(bytes) > options.max_bytes) {
    throw Error(ErrorKind::usage, options.dir.string(), "the dump would grow beyond its limit",
                fmt::format("{} bytes at most", options.max_bytes),
                fmt::format("{} bytes ({})", total_bytes + bytes, bytes_text(uint64_t(total_bytes + bytes))),
                "Raise the limit or write less (--mode stats, --filter, --layers)");
  }
  rows_file.reserve((rows + hash_rows) * 8);
  rows += hash_rows;
  total_bytes += bytes;
  for (Tensor& t : added) {
    index.emplace(t.decl.name, tensors.size());
    tensors.push_back(std::move(t));
  }
  if (options.mode == CaptureMode::full) place_set(first, tensors.size());
  for (size_t i = first; i < tensors.size(); ++i) {
    if (tensors[i].bytes == 0) write_rows(tensors[i], 0, tensors[i].first_axis, nullptr);
  }
}

void DumpWriter::Impl::place_set(size_t first, size_t last) {
  int64_t bytes = 0;
  for (size_t i = first; i < last; ++i) bytes += tensors[i].bytes;
  if (bytes <= kGatherBytes) return add_to_gather(first, last, bytes);
  while (first < last) {
    size_t end = first;
    int64_t size = 0;
    while (end < last && (end == first || size + tensors[end].bytes <= kFileBytes)) size += tensors[end++].bytes;
    open_large(first, end);
    first = end;
  }
}

void DumpWriter::Impl::add_to_gather(size_t first, size_t last, int64_t bytes) {
  if (first == last) return;
  auto it = std::find_if(parts.begin(), parts.end(), [](const Part& p) { return p.open; });
  if (it != parts.end() && it->bytes + bytes > kGatherBytes) {
    it->open = false;
    if (it->incomplete == 0) part_done(*it);
    it = parts.end();
  }
  if (it == parts.end()) {
    parts.emplace_back();
    it = parts.end() - 1;
    it->file = OutFile(options.dir / part_name(parts.size() - 1), options.when_full);
    it->gather = it->open = true;
  }
  it->bytes += bytes;
  for (size_t i = first; i < last; ++i) {
    it->header += header_bound(tensors[i]);
    it->tensors.push_back(i);
    tensors[i].part = size_t(it - parts.begin());
    ++it->incomplete;
  }
  it->file.reserve(uint64_t(it->bytes + it->header) + 16);
  for (size_t i = first; i < last; ++i) tensors[i].gathered.reserve(size_t(tensors[i].bytes));
}

void DumpWriter::Impl::open_large(size_t first, size_t last) {
  parts.emplace_back();
  Part& part = parts.back();
  part.file = OutFile(options.dir / part_name(parts.size() - 1), options.when_full);
  for (size_t i = first; i < last; ++i) {
    part.tensors.push_back(i);
    part.bytes += tensors[i].bytes;
    tensors[i].part = parts.size() - 1;
  }
  part.incomplete = part.tensors.size();
  // Large elements first keeps every tensor aligned to its element size.
  std::stable_sort(part.tensors.begin(), part.tensors.end(), [&](size_t a, size_t b) {
    return size_of(tensors[a].decl.dtype) > size_of(tensors[b].decl.dtype);
  });
  const std::string header = place_values(part.tensors);
  part.size = header.size() + uint64_t(part.bytes);
  part.file.reserve(part.size);
  part.file.write_at(0, header.data(), header.size());
}

void DumpWriter::Impl::write_rows(Tensor& t, int64_t first_row, int64_t n, const std::byte* data) {
  if (t.complete && n == 0 && first_row == t.first_axis) return;
  if (t.complete || first_row != t.next_row || n < 0 || n > t.first_axis - first_row) {
    misuse(t.decl.name, "rows out of order", fmt::format("row {} of {}", t.next_row, t.first_axis),
           fmt::format("rows {} .. {}", first_row, first_row + n));
  }
  if (!t.digest) {
    t.digest = std::make_unique<TensorDigest>(t.decl.dtype, std::max<int64_t>(t.columns, 1),
                                              options.mode != CaptureMode::hash, [this, &t](uint64_t hash) {
                                                t.waiting.push_back(hash);
                                                if (t.waiting.size() >= kHashBatch) flush_hashes(t);
                                              });
  }
  const int64_t size = int64_t(size_of(t.decl.dtype));
  const bool full = options.mode == CaptureMode::full, gather = full && parts[t.part].gather;
  int64_t left = n * t.inner, offset = first_row * t.inner * size;
  while (left > 0) {
    const int64_t elements = std::min(left, kChunkBytes / size), bytes = elements * size;
    std::byte* chunk;
    if (gather) {
      t.gathered.insert(t.gathered.end(), data, data + bytes);
      chunk = t.gathered.data() + (t.gathered.size() - size_t(bytes));
    } else {
      scratch.resize(size_t(kChunkBytes));
      std::memcpy(scratch.data(), data, size_t(bytes));
      chunk = scratch.data();
    }
    t.nans += canonicalise(t.decl.dtype, chunk, elements);
    t.digest->update(chunk, elements);
    if (full && !gather) parts[t.part].file.write_at(t.offset + uint64_t(offset), chunk, size_t(bytes));
    data += bytes;
    offset += bytes;
    left -= elements;
  }
  t.next_row += n;
  if (t.next_row == t.first_axis) complete(t);
}

void DumpWriter::Impl::flush_hashes(Tensor& t) {
  rows_file.write_at((t.rows_at + t.rows_flushed) * 8, t.waiting.data(), t.waiting.size() * 8);
  t.rows_flushed += t.waiting.size();
  t.waiting.clear();
}

void DumpWriter::Impl::complete(Tensor& t) {
  flush_hashes(t);
  t.hash = t.digest->hash();
  t.stats = t.digest->stats();
  t.digest.reset();
  t.waiting = {};
  t.complete = true;
  if (options.mode != CaptureMode::full) return;
  Part& part = parts[t.part];
  if (--part.incomplete == 0 && !part.open) part_done(part);
}

void DumpWriter::Impl::part_done(Part& part) {
  if (part.gather) {
    std::stable_sort(part.tensors.begin(), part.tensors.end(), [&](size_t a, size_t b) {
      return size_of(tensors[a].decl.dtype) > size_of(tensors[b].decl.dtype);
    });
    const std::string header = place_values(part.tensors);
    part.size = header.size() + uint64_t(part.bytes);
    part.file.write_at(0, header.data(), header.size());
    for (size_t i : part.tensors) {
      part.file.write_at(tensors[i].offset, tensors[i].gathered.data(), tensors[i].gathered.size());
      tensors[i].gathered = {};
    }
  }
  part.file.truncate(part.size);
  part.file.close(options.sync);
}

Json DumpWriter::Impl::tensor_json(const Tensor& t) const {
  Json out = {{"name", t.decl.name},   {"dtype", name_of(t.decl.dtype)}, {"shape", t.decl.shape},
              {"order", t.decl.order}, {"role", t.decl.role},            {"axes", t.decl.axes},
              {"inputs", t.decl.inputs}};
  if (options.mode == CaptureMode::full) out["file"] = part_name(t.part);
  if (t.nans > 0) out["nans"] = t.nans;
  out["xxh3_128"] = t.hash;
  out["rows_at"] = t.rows_at;
  if (options.mode != CaptureMode::hash) {
    out["min"] = t.stats.min;
    out["max"] = t.stats.max;
    out["mean"] = t.stats.mean;
    out["rms"] = t.stats.rms;
    out["non_finite"] = t.stats.non_finite;
  }
  return out;
}

void DumpWriter::Impl::finish() {
  if (finished) misuse(options.dir.string(), "finish() twice");
  for (const Tensor& t : tensors) {
    if (!t.complete) {
      misuse(t.decl.name, "the tensor is incomplete", fmt::format("{} rows", t.first_axis), std::to_string(t.next_row));
    }
  }
  for (const std::string& name : not_materialised) {
    if (index.contains(name)) misuse(name, "written and listed as not materialised");
  }
  for (const auto& [key, value] : blocks.items()) {
    if (is_format_key(key)) misuse("manifest block " + in_quotes(key), "the key belongs to the format itself");
  }
  for (Part& part : parts) {
    if (part.file.is_open()) part_done(part);
  }
  rows_file.truncate(rows * 8);
  rows_file.close(options.sync);

  // One tensor per line: a manifest of ten thousand tensors stays readable, and diff and grep work.
  Json head = {{"format", {{"name", "assay-dump"}, {"version", 1}}}, {"capture", {{"mode", name_of(options.mode)}}}};
  if (!options.filter.empty()) head["capture"]["filter"] = options.filter;
  if (options.partial) head["capture"]["partial"] = true;
  for (const auto& [key, value] : blocks.items()) head[key] = value;
  head["files"] = Json::array();
  for (size_t i = 0; i < parts.size(); ++i) head["files"].push_back({{"name", part_name(i)}, {"bytes", parts[i].size}});
  head["hashes"] = {{"file", "hashes/rows.u64"}, {"rows", rows}};
  head["not_materialised"] = not_materialised;
  std::string text;
  try {
    text = head.dump(1);
  } catch (const nlohmann::json::exception& e) {
    misuse(options.dir.string(), "a manifest block is not valid UTF-8", {}, e.what());
  }
  text.erase(text.size() - 2);  // "\n}"
  text += ",\n \"tensors\": [";
  OutFile file(unfinished_path());
  uint64_t written = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    text += i ? ",\n  " : "\n  ";
    text += tensor_json(tensors[i]).dump();
    if (text.size() > (size_t{1} << 20)) {
      file.write_at(written, text.data(), text.size());
      written += text.size();
      text.clear();
    }
  }
  text += "\n ]\n}\n";
  file.write_at(written, text.data(), text.size());
  file.close(options.sync);
  if (options.sync) {
    sync_folder(options.dir / "hashes");
    sync_folder(options.dir);
  }
  std::error_code error;
  fs::rename(unfinished_path(), manifest_path(), error);
  if (error) throw Error(ErrorKind::io, manifest_path().string(), "can't be renamed into place", {}, error.message());
  if (options.sync) sync_folder(options.dir);
  finished = true;
}

bool is_format_key(const std::string& key) {
  static const std::set<std::string> keys = {"format", "capture", "files", "hashes", "not_materialised", "tensors"};
  return keys.contains(key);
}

DumpWriter::DumpWriter(Options options) : impl_(std::make_unique<Impl>()) {
  impl_->options = std::move(options);
  impl_->prepare_folder();
}
DumpWriter::~DumpWriter() {
  if (impl_ && !impl_->finished) impl_->remove_parts();
}
void DumpWriter::declare(const std::vector<TensorDecl>& tensors) { impl_->declare(tensors); }
void DumpWriter::write_rows(const std::string& name, int64_t first_row, int64_t n, const void* data) {
  const auto it = impl_->index.find(name);
  if (it == impl_->index.end()) misuse(name, "rows of a tensor that was not declared");
  impl_->write_rows(impl_->tensors[it->second], first_row, n, static_cast<const std::byte*>(data));
}
void DumpWriter::write(const TensorDecl& tensor, const void* data) {
  declare({tensor});
  Impl::Tensor& t = impl_->tensors.back();
  if (!t.complete) impl_->write_rows(t, 0, t.first_axis, static_cast<const std::byte*>(data));
}
void DumpWriter::not_materialised(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (impl_->not_materialised_set.insert(name).second) impl_->not_materialised.push_back(name);
  }
}
nlohmann::ordered_json& DumpWriter::manifest() { return impl_->blocks; }
void DumpWriter::finish() { impl_->finish(); }

}  // namespace assay
