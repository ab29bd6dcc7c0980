// Reading a dump, an official case (golden.safetensors + its manifest: a partial baseline with noise floors) or a folder of
// bare safetensors. One type for all, so that whatever compares needs not know where values came from.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "dumps/digest.h"
#include "dumps/dtype.h"
#include "dumps/safetensors.h"
#include "dumps/writer.h"

namespace assay {

/// One tensor of a dump. `data` is null in hash and stats dumps.
struct DumpTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  int64_t order = 0;
  std::vector<std::string> inputs;
  std::string role;
  std::vector<std::string> axes;
  std::string xxh3_128;               // 32 hex digits, empty where the source has none (official cases)
  std::optional<TensorStats> stats;
  int64_t nans = 0;                   // as the writer counted them, in every mode
  const uint64_t* row_hashes = nullptr;  // one XXH3-64 per row (product of all axes but the last), or null
  const std::byte* data = nullptr;       // may be unaligned (files of others): read elements with memcpy
  std::string from;                      // names in another engine's dump that it was mapped from (map.h); empty: its own
  std::string fault;                     // why no value can be trusted: replicas of ranks that differ; empty: none
  int64_t rows() const;     // product of all axes but the last
  int64_t columns() const;  // last axis
  int64_t elements() const { return rows() * columns(); }
  size_t bytes() const { return size_t(elements()) * size_of(dtype); }
};

class Dump {
 public:
  enum class Kind { dump, official_case, bare };
  /// A dump's folder, an official case's folder, a folder of safetensors files, or one safetensors file. Reads headers,
  /// not values. Throws Error{malformed}: no such folder, unfinished dump, manifest that contradicts its files (dtype, shape,
  /// missing or unlisted file, tensor twice, ids that differ from the prompts'), bad hash table, ...
  static Dump open(const std::filesystem::path& path);
  /// Reads all values and holds them against the hashes of the manifest. One sentence per tensor that differs, naming its
  /// first differing row; empty: all agree, or nothing to hold against (no values, no hashes).
  std::vector<std::string> verify_hashes() const;
  /// XXH3-128 over name and hash of every tensor in execution order: byte-identical dumps have equal digests, so one line
  /// speaks for a dump across machines. Empty if a tensor has no hash.
  std::string digest() const;

  Kind kind() const { return kind_; }
  const std::filesystem::path& path() const { return path_; }
  const nlohmann::ordered_json& manifest() const { return manifest_; }
  CaptureMode mode() const { return mode_; }
  bool partial() const { return partial_; }  // extra tensors on the other side are no failure
  bool has_hashes() const { return has_hashes_; }  // a dump written by a small writer may have none: `assay import`
  /// In execution order: prompt, pass (mtp_* after decode), step, order; state and ids of a prompt last.
  const std::vector<DumpTensor>& tensors() const { return tensors_; }
  const DumpTensor* find(const std::string& name) const;
  /// Sorted; an entry with * stands for all names that fit.
  const std::vector<std::string>& not_materialised() const { return not_materialised_; }
  bool is_not_materialised(const std::string& name) const;
  /// Official cases: floors of the official float32 (max_rel by row) per phase ("q_rope", "state/k"), the larger of the
  /// full-capture prompt's and the others'. Empty for other kinds.
  const std::unordered_map<std::string, double>& noise_floor() const { return noise_floor_; }

 private:
  friend Dump align_rows(const Dump& dump);  // rows.h
  friend class Mapping;                      // map.h
  void read_manifest();
  void read_case();
  void read_bare(const std::vector<std::filesystem::path>& files);
  void sort_and_index();
  void check_prompts() const;

  Kind kind_ = Kind::dump;
  std::filesystem::path path_;
  nlohmann::ordered_json manifest_;
  CaptureMode mode_ = CaptureMode::full;
  bool partial_ = false;
  bool has_hashes_ = false;
  std::vector<DumpTensor> tensors_;
  std::unordered_map<std::string, size_t> index_;
  std::unordered_map<std::string, double> noise_floor_;
  std::vector<Safetensors> files_;
  std::vector<std::shared_ptr<MappedFile>> maps_;
  std::vector<std::string> not_materialised_;
  std::vector<std::shared_ptr<const void>> storage_;  // values and row hashes that no file holds (align_rows)
};

}  // namespace assay
