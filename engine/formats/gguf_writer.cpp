#include "engine/formats/gguf_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "dumps/error.h"
#include "dumps/safetensors.h"
#include "dumps/text.h"
#include "engine/formats/provenance.h"

namespace fs = std::filesystem;

namespace assay {
namespace {

constexpr uint32_t kVersion3 = 3;

template <typename T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void append_string(std::string& out, std::string_view text) {
  append(out, uint64_t(text.size()));
  out.append(text);
}
template <typename T>
std::string bytes_of(T value) {
  std::string out;
  append(out, value);
  return out;
}
uint64_t align_up(uint64_t v) {
  return (v + GgufWriter::kAlignment - 1) / GgufWriter::kAlignment * GgufWriter::kAlignment;
}

struct Numbers {
  uint32_t tensor, file;
};
Numbers numbers_of(WeightType t) {
  switch (t) {  // ggml.h, enum ggml_type; llama.h, enum llama_ftype (K-quants: the plain "S" mixture)
    case WeightType::f32:
      return {0, 0};
    case WeightType::f16:
      return {1, 1};
    case WeightType::bf16:
      return {30, 32};
    case WeightType::q8_0:
      return {8, 7};
    case WeightType::q4_0:
      return {2, 2};
    case WeightType::q4_1:
      return {3, 3};
    case WeightType::q5_0:
      return {6, 8};
    case WeightType::q5_1:
      return {7, 9};
    case WeightType::q4_k:
      return {12, 14};
    case WeightType::q5_k:
      return {13, 16};
    case WeightType::q6_k:
      return {14, 18};
  }
  throw Error(ErrorKind::internal, "GGUF writer", "unknown weight type");
}

}  // namespace

uint32_t gguf_type_number(WeightType t) {
  return numbers_of(t).tensor;
}
uint32_t gguf_file_type(WeightType t) {
  return numbers_of(t).file;
}

GgufWriter::GgufWriter(fs::path path, bool replace) : path_(std::move(path)), partial_(path_), replace_(replace) {
  partial_ += ".partial";
}

GgufWriter::~GgufWriter() {
  if (!begun_ || finished_) return;
  std::error_code ignored;
  fs::remove(partial_, ignored);
}

bool GgufWriter::has(const std::string& key) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.key == key; });
}

void GgufWriter::add(const std::string& key, GgufType type, std::string bytes) {
  if (out_.is_open() || has(key)) {
    throw Error(ErrorKind::internal, "GGUF key " + in_quotes(key),
                out_.is_open() ? "comes after the list is written" : "stands twice");
  }
  entries_.push_back({key, type, std::move(bytes)});
}

void GgufWriter::u32(const std::string& key, uint32_t value) {
  add(key, GgufType::u32, bytes_of(value));
}
void GgufWriter::f32(const std::string& key, float value) {
  add(key, GgufType::f32, bytes_of(value));
}
void GgufWriter::boolean(const std::string& key, bool value) {
  add(key, GgufType::boolean, bytes_of(uint8_t(value)));
}
void GgufWriter::string(const std::string& key, std::string_view value) {
  std::string bytes;
  append_string(bytes, value);
  add(key, GgufType::string, std::move(bytes));
}
void GgufWriter::strings(const std::string& key, const std::vector<std::string>& values) {
  std::string bytes = bytes_of(uint32_t(GgufType::string));
  append(bytes, uint64_t(values.size()));
  for (const std::string& v : values) append_string(bytes, v);
  add(key, GgufType::array, std::move(bytes));
}
void GgufWriter::i32s(const std::string& key, const std::vector<int32_t>& values) {
  std::string bytes = bytes_of(uint32_t(GgufType::i32));
  append(bytes, uint64_t(values.size()));
  for (int32_t v : values) append(bytes, v);
  add(key, GgufType::array, std::move(bytes));
}
void GgufWriter::raw(const std::string& key, const GgufValue& value) {
  add(key, value.type, std::string(value.bytes));
}

size_t GgufWriter::tensor(const std::string& name, WeightType type, const std::vector<int64_t>& shape) {
  const bool known = std::any_of(tensors_.begin(), tensors_.end(), [&](const Tensor& t) { return t.name == name; });
  const int64_t columns = shape.empty() ? 0 : shape.back();
  if (out_.is_open() || known || shape.empty() || columns < 1 || columns % block_elements(type) != 0) {
    throw Error(ErrorKind::internal, "GGUF tensor " + in_quotes(name),
                out_.is_open() ? "comes after the list is written"
                : known        ? "stands twice"
                               : "has no usable shape for its type",
                {}, fmt::format("{} {}", name_of(type), shape_text(shape)));
  }
  uint64_t rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); i++) rows *= uint64_t(shape[i]);
  const uint64_t offset = tensors_.empty() ? 0 : align_up(tensors_.back().offset + tensors_.back().bytes);
  tensors_.push_back({name, type, shape, offset, rows * row_bytes(type, columns)});
  expected_ += tensors_.back().bytes;
  return tensors_.size() - 1;
}

std::string GgufWriter::tokenizer_hash() const {
  std::vector<GgufKeyBytes> keys;
  for (const Entry& e : entries_) keys.push_back({e.key, e.bytes});
  return assay::tokenizer_hash(std::move(keys));
}

void GgufWriter::begin() {
  if (is_there(path_) && !replace_) {
    throw Error(ErrorKind::usage, path_.string(), "is there already", {}, {}, "Choose another name, or --force");
  }
  std::string head = "GGUF";
  append(head, kVersion3);
  append(head, uint64_t(tensors_.size()));
  append(head, uint64_t(entries_.size()));
  for (const Entry& e : entries_) {
    append_string(head, e.key);
    append(head, uint32_t(e.type));
    head += e.bytes;
  }
  for (const Tensor& t : tensors_) {
    append_string(head, t.name);
    append(head, uint32_t(t.shape.size()));
    for (auto axis = t.shape.rbegin(); axis != t.shape.rend(); ++axis) append(head, uint64_t(*axis));
    append(head, gguf_type_number(t.type));
    append(head, t.offset);
  }
  data_start_ = align_up(head.size());
  head.resize(data_start_, '\0');
  // llama.cpp wants the last tensor padded too; the space in between was never written, so it reads as zeros.
  total_ = data_start_ + (tensors_.empty() ? 0 : align_up(tensors_.back().offset + tensors_.back().bytes));
  out_ = OutFile(partial_);
  begun_ = true;
  out_.reserve(total_);
  out_.write_at(0, head.data(), head.size());
}

void GgufWriter::write(size_t tensor, uint64_t offset, const void* data, size_t bytes) {
  const Tensor& t = tensors_.at(tensor);
  if (!out_.is_open() || offset > t.bytes || bytes > t.bytes - offset) {
    throw Error(ErrorKind::internal, "GGUF tensor " + in_quotes(t.name), "is written outside its bytes",
                fmt::format("at most {}", t.bytes), fmt::format("{} at {}", bytes, offset));
  }
  out_.write_at(data_start_ + t.offset + offset, data, bytes);
  written_ += bytes;
}

void GgufWriter::finish() {
  if (!out_.is_open() || written_ != expected_) {
    throw Error(ErrorKind::internal, path_.string(), "is finished before all tensors are written",
                fmt::format("{} bytes", expected_), fmt::format("{}", written_.load()));
  }
  out_.truncate(total_);
  out_.close(true);
  std::error_code error;
  fs::rename(partial_, path_, error);
  if (error) throw Error(ErrorKind::io, path_.string(), "can't be renamed into place", {}, error.message());
  finished_ = true;
  sync_folder(path_.parent_path().empty() ? "." : path_.parent_path());
}

}  // namespace assay
