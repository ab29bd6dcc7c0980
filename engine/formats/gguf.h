// Reading GGUF files, memory-mapped and distrustful. Format: github.com/ggml-org/ggml, docs/gguf.md: "GGUF", u32
// version, u64 tensor count, u64 metadata count, key/value pairs, tensor infos, padding to the alignment, tensor data.
// Little-endian. Version 2 has the layout of version 3 (which added big-endian files) and is read too; version 1 is
// refused.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dumps/safetensors.h"
#include "engine/model.h"

namespace assay {

/// Types of metadata values, with their numbers in the file.
enum class GgufType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };
std::string_view name_of(GgufType t);

/// One metadata value. Nothing is copied: strings and arrays point into the file's bytes.
struct GgufValue {
  GgufType type = GgufType::u8;
  uint64_t offset = 0;              // of the value in the file
  std::string_view bytes;           // the value's raw bytes, including lengths and counts
  GgufType element = GgufType::u8;  // arrays: type of the elements
  uint64_t count = 0;               // arrays: number of elements
};

struct GgufTensor {
  std::string name;
  WeightType type = WeightType::f32;
  std::vector<int64_t> shape;  // row-major: the file's ne reversed, so [rows, columns]; a vector has one axis
  uint64_t offset = 0;         // of the data in the file
  const std::byte* data = nullptr;
  size_t bytes = 0;
};

class GgufFile {
 public:
  /// Checks everything before the first tensor is handed out: magic, version, counts against the bytes that are there,
  /// string lengths, value types, array sizes and nesting, duplicate keys and names, dims (1 to 4 axes, none zero, no
  /// overflow, rows of whole blocks), tensor types, alignment, offsets inside the file and not overlapping. Memory is
  /// bounded by the file's size. Throws Error{malformed} with the offset, wanted and found.
  static GgufFile open(const std::filesystem::path& path);
  /// The same on bytes in memory (fuzzing, tests); `name` stands for the path in messages. The bytes must outlive the
  /// object.
  static GgufFile parse(const std::byte* data, size_t size, const std::string& name);

  uint32_t version() const { return version_; }
  const std::string& name() const { return name_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::shared_ptr<MappedFile> file() const { return file_; }  // null after parse()
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* find_tensor(const std::string& name) const;

  const std::vector<std::pair<std::string, GgufValue>>& metadata() const { return metadata_; }  // in file order
  const GgufValue* find(const std::string& key) const;                                          // nullptr if absent
  /// Typed reads. Absent: nullopt. Throw Error{malformed} naming key, offset, wanted and found type or range.
  std::optional<int64_t> integer(const std::string& key, int64_t low, int64_t high) const;  // any integer type
  std::optional<double> number(const std::string& key) const;                               // f32 or f64, finite
  std::optional<bool> boolean(const std::string& key) const;
  std::optional<std::string> string(const std::string& key) const;
  std::optional<std::vector<std::string_view>> strings(const std::string& key) const;  // an array of strings
  std::optional<std::vector<int64_t>> integers(const std::string& key) const;          // an array of any integer type
  /// "FILE: byte N: key "..."", for messages about a value.
  std::string where(const std::string& key) const;

 private:
  friend class GgufParser;
  std::shared_ptr<MappedFile> file_;
  std::string name_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  uint32_t version_ = 0;
  std::vector<std::pair<std::string, GgufValue>> metadata_;
  std::unordered_map<std::string, size_t> metadata_index_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string, size_t> tensor_index_;
};

}  // namespace assay
