// Writing GGUF files (gguf.h has the format): metadata and tensor list first, in the order in which they are given,
// then the data, from any thread and in any order. The file appears under its name complete or not at all: it is
// written as NAME.partial, its space is reserved before the first byte of data, and a writer that is destroyed
// unfinished removes what it wrote.
#pragma once
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "dumps/outfile.h"
#include "engine/formats/gguf.h"
#include "engine/model.h"

namespace assay {

/// ggml's number of a tensor type (enum ggml_type) and of a file whose matrices have it (enum llama_ftype).
uint32_t gguf_type_number(WeightType t);
uint32_t gguf_file_type(WeightType t);

class GgufWriter {
 public:
  static constexpr uint64_t kAlignment = 32;

  /// Nothing is opened before begin(). `replace`: a file of that name may be there and is replaced by finish().
  explicit GgufWriter(std::filesystem::path path, bool replace = false);
  ~GgufWriter();  // removes the partial file unless finish() has run
  GgufWriter(const GgufWriter&) = delete;
  GgufWriter& operator=(const GgufWriter&) = delete;

  // ---- metadata, before begin(). A key that is there already is Error{internal}.
  void u32(const std::string& key, uint32_t value);
  void f32(const std::string& key, float value);
  void boolean(const std::string& key, bool value);
  void string(const std::string& key, std::string_view value);
  void strings(const std::string& key, const std::vector<std::string>& values);
  void i32s(const std::string& key, const std::vector<int32_t>& values);
  /// A value as it lies in another file.
  void raw(const std::string& key, const GgufValue& value);
  bool has(const std::string& key) const;

  /// Declares a tensor, before begin(); returns its index. `shape` is row-major ([rows, columns], [n]).
  size_t tensor(const std::string& name, WeightType type, const std::vector<int64_t>& shape);

  /// The hash that a reader gets of the tokenizer.* keys given so far (Provenance::tokenizer_hash); empty: there is no
  /// vocabulary.
  std::string tokenizer_hash() const;

  /// Writes keys and tensor list and reserves the space. Throws Error{usage} if the file is there and may not be
  /// replaced, Error{io} with the bytes needed and free when the disk can't take it.
  void begin();
  /// Bytes [offset, offset + bytes) of a tensor's data. From any thread, each byte once. Throws Error{io}.
  void write(size_t tensor, uint64_t offset, const void* data, size_t bytes);
  /// Flushes to the disk and renames into place. Throws Error{internal} unless every byte of every tensor was written,
  /// Error{io}.
  void finish();

  uint64_t file_bytes() const { return total_; }  // after begin()

 private:
  struct Entry {
    std::string key;
    GgufType type;
    std::string bytes;  // the value as it lies in a file
  };
  struct Tensor {
    std::string name;
    WeightType type;
    std::vector<int64_t> shape;
    uint64_t offset = 0;  // in the data section
    uint64_t bytes = 0;
  };
  void add(const std::string& key, GgufType type, std::string bytes);

  std::filesystem::path path_, partial_;
  bool replace_, begun_ = false, finished_ = false;
  std::vector<Entry> entries_;
  std::vector<Tensor> tensors_;
  OutFile out_;
  uint64_t data_start_ = 0, total_ = 0, expected_ = 0;
  std::atomic<uint64_t> written_{0};
};

}  // namespace assay
