// Reading safetensors files, memory-mapped and distrustful. Format: 8 bytes little-endian header length, a JSON object
// {name: {dtype, shape, data_offsets}}, then the data (github.com/huggingface/safetensors, "Format").
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dumps/dtype.h"

namespace assay {

/// Whether something of that name is in the folder, a link that leads nowhere included. Never throws.
bool is_there(const std::filesystem::path& path);

/// A read-only memory mapping of a whole file. Throws Error{malformed} if it does not exist, Error{io} if it can't be mapped.
class MappedFile {
 public:
  static std::shared_ptr<MappedFile> open(const std::filesystem::path& path);
  ~MappedFile();
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  MappedFile() = default;
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// One tensor of a file; `data` points into the mapping and lives as long as the file object (or `file`). The format does not
/// align data: read elements with memcpy, never through a cast pointer.
struct TensorView {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  const std::byte* data;
  size_t bytes;
  int64_t elements() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
};

class Safetensors {
 public:
  /// Checks everything before the first tensor is handed out: header length, JSON, dtype, negative or overflowing shapes,
  /// bytes = elements * size, ranges inside the file, no overlap, no gap, no duplicate name. Throws Error{malformed} with
  /// the offset, wanted and found.
  static Safetensors open(const std::filesystem::path& path);
  /// The same on bytes in memory (fuzzing, tests); `name` stands for the path in messages. The bytes must outlive the object.
  static Safetensors parse(const std::byte* data, size_t size, const std::string& name);

  const std::vector<TensorView>& tensors() const { return tensors_; }  // in the order of their offsets
  const TensorView* find(const std::string& name) const;               // nullptr if absent
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  std::shared_ptr<MappedFile> file() const { return file_; }

 private:
  std::shared_ptr<MappedFile> file_;
  std::vector<TensorView> tensors_;
  std::map<std::string, size_t> index_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace assay
