// Maps: another engine's dump brought to our names and layouts. Grammar and meaning: MAP.md.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dumps/dump.h"
#include "dumps/writer.h"

namespace assay {

/// A map file, read and checked for itself.
class DumpMap {
 public:
  /// Throws Error{malformed} with file and line, or saying that the file can't be read.
  static DumpMap read(const std::filesystem::path& file);
  static DumpMap parse(std::string_view text, const std::string& where);
  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const Impl> impl_;
};

/// What becomes what: planned from names, shapes and block tables; values are read when they are asked for.
class Mapping {
 public:
  /// `theirs` must outlive the mapping. Throws Error{malformed} naming line and tensor: a tensor that no line takes, a
  /// line or pass that takes nothing, a name twice, sizes that disagree, missing ranks, pages outside the cache;
  /// Error{usage}: a dump without values.
  Mapping(const Dump& theirs, const DumpMap& map);
  ~Mapping();
  Mapping(const Mapping&) = delete;

  struct Line {
    std::string theirs, name;  // "rank0..1/step0/layers.3.qkv_proj, part 1 of 3"
    std::string how;           // "" (renamed), "moved", "sum of 2", "2 replicas"
    DType dtype;
    std::vector<int64_t> their_shape, shape;
    int line;  // of the map file
  };
  const std::vector<Line>& lines() const;           // in execution order
  const std::vector<std::string>& ignored() const;  // names, in their order
  /// The mapped dump. Tensors that are only renamed keep their place on the disk; what moves is held in memory.
  Dump dump() const;
  /// A sentence about each tensor whose replicas (`same R`) differ. Reads their values.
  std::vector<std::string> faults() const;
  /// The same as dump(), written one tensor at a time. Returns faults(); where there are any nothing is written, and a dump
  /// that options.dir holds stays. Throws Error{usage} if that is the dump it is made from.
  std::vector<std::string> write(DumpWriter::Options options) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// JSONL: a header, a record per mapped tensor, at the end the verdict. `file`: the map's. `out`: the folder that the mapped
/// dump was to go to; empty: none. `faults`: as Mapping found them.
std::vector<nlohmann::ordered_json> map_records(const Mapping& mapping, const Dump& theirs, const std::string& file,
                                                const std::string& out, const std::vector<std::string>& faults);
/// The table of what becomes what: one line for each rule and part with the first of its tensors, or (`verbose`) for
/// each tensor. Then the faults and, where there are none, what to do next.
std::string render_map(const std::vector<nlohmann::ordered_json>& records, bool verbose);

}  // namespace assay
