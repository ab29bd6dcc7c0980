#include "engine/formats/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "dumps/error.h"
#include "dumps/text.h"

namespace assay {

static_assert(std::endian::native == std::endian::little, "GGUF values are read in place");

namespace {

constexpr int kMaxArrayDepth = 4;
constexpr uint64_t kMaxKey = 65535;      // docs/gguf.md: keys are at most 2^16 - 1 bytes
constexpr uint64_t kMaxTensorName = 64;  // docs/gguf.md: tensor names are at most 64 bytes
constexpr uint32_t kMaxAxes = 4;
constexpr uint64_t kDefaultAlignment = 32;

/// Bytes of a scalar, or the least that a string (its length) or an array (type and count) takes.
uint64_t least_bytes(GgufType t) {
  switch (t) {
    case GgufType::u8:
    case GgufType::i8:
    case GgufType::boolean:
      return 1;
    case GgufType::u16:
    case GgufType::i16:
      return 2;
    case GgufType::u32:
    case GgufType::i32:
    case GgufType::f32:
      return 4;
    case GgufType::u64:
    case GgufType::i64:
    case GgufType::f64:
    case GgufType::string:
      return 8;
    case GgufType::array:
      return 12;
  }
  return 1;
}

/// ggml's numbers of tensor types (ggml.h, enum ggml_type). Gaps are types that were removed.
struct TensorTypeName {
  uint32_t number;
  const char* name;
  std::optional<WeightType> type;
};
constexpr TensorTypeName kTensorTypes[] = {{0, "F32", WeightType::f32},
                                           {1, "F16", WeightType::f16},
                                           {2, "Q4_0", WeightType::q4_0},
                                           {3, "Q4_1", WeightType::q4_1},
                                           {6, "Q5_0", WeightType::q5_0},
                                           {7, "Q5_1", WeightType::q5_1},
                                           {8, "Q8_0", WeightType::q8_0},
                                           {9, "Q8_1", {}},
                                           {10, "Q2_K", {}},
                                           {11, "Q3_K", {}},
                                           {12, "Q4_K", WeightType::q4_k},
                                           {13, "Q5_K", WeightType::q5_k},
                                           {14, "Q6_K", WeightType::q6_k},
                                           {15, "Q8_K", {}},
                                           {16, "IQ2_XXS", {}},
                                           {17, "IQ2_XS", {}},
                                           {18, "IQ3_XXS", {}},
                                           {19, "IQ1_S", {}},
                                           {20, "IQ4_NL", {}},
                                           {21, "IQ3_S", {}},
                                           {22, "IQ2_S", {}},
                                           {23, "IQ4_XS", {}},
                                           {24, "I8", {}},
                                           {25, "I16", {}},
                                           {26, "I32", {}},
                                           {27, "I64", {}},
                                           {28, "F64", {}},
                                           {29, "IQ1_M", {}},
                                           {30, "BF16", WeightType::bf16},
                                           {34, "TQ1_0", {}},
                                           {35, "TQ2_0", {}},
                                           {39, "MXFP4", {}},
                                           {40, "NVFP4", {}}};
constexpr const char* kSupportedTypes = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K";

uint64_t align_up(uint64_t v, uint64_t alignment) {
  return (v + alignment - 1) / alignment * alignment;
}

template <typename T>
T load(const std::byte* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <typename T>
T load(std::string_view bytes) {
  return load<T>(reinterpret_cast<const std::byte*>(bytes.data()));
}

}  // namespace

std::string_view name_of(GgufType t) {
  constexpr std::string_view names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                        "bool", "string", "array", "u64", "i64", "f64"};
  return names[size_t(t)];
}

class GgufParser {
 public:
  explicit GgufParser(GgufFile& f) : f_(f) {}

  void run() {
    header();
    for (uint64_t i = 0; i < metadata_count_; i++) key_value();
    alignment_ = kDefaultAlignment;
    if (const GgufValue* v = f_.find("general.alignment")) {
      alignment_ = uint64_t(*f_.integer("general.alignment", 1, int64_t{1} << 30));
      if (!std::has_single_bit(alignment_) || alignment_ % 8 != 0) {
        fail(v->offset, "general.alignment is not usable", "a power of two from 8 on", std::to_string(alignment_));
      }
    }
    for (uint64_t i = 0; i < tensor_count_; i++) tensor_info();
    place_tensors();
  }

 private:
  [[noreturn]] void fail(uint64_t offset, const std::string& what, const std::string& wanted, const std::string& found,
                         const std::string& hint = {}) const {
    throw Error(ErrorKind::malformed, fmt::format("{}: byte {}", f_.name_, offset), what, wanted, found, hint);
  }
  uint64_t left() const { return f_.size_ - at_; }
  void need(uint64_t bytes, const char* what) const {
    if (bytes > left())
      fail(at_, fmt::format("the file ends inside {}", what), fmt::format("{} bytes", bytes),
           fmt::format("{}", left()));
  }
  template <typename T>
  T take(const char* what) {
    need(sizeof(T), what);
    T v = load<T>(f_.data_ + at_);
    at_ += sizeof(T);
    return v;
  }
  std::string_view take_string(const char* what, uint64_t max) {
    const uint64_t start = at_;
    const uint64_t length = take<uint64_t>(what);
    if (length > left()) {
      fail(start, fmt::format("the length of {} runs past the end of the file", what),
           fmt::format("at most {}", left()), std::to_string(length));
    }
    if (length > max)
      fail(start, fmt::format("{} is too long", what), fmt::format("at most {} bytes", max), std::to_string(length));
    std::string_view s(reinterpret_cast<const char*>(f_.data_ + at_), length);
    at_ += length;
    return s;
  }

  void header() {
    if (f_.size_ < 24)
      fail(0, "is too short for a GGUF file", "a header of 24 bytes", fmt::format("{} bytes", f_.size_));
    const std::string_view magic(reinterpret_cast<const char*>(f_.data_), 4);
    if (magic != "GGUF") fail(0, "is not a GGUF file", "\"GGUF\"", in_quotes(magic));
    at_ = 4;
    f_.version_ = take<uint32_t>("the version");
    if (f_.version_ != 2 && f_.version_ != 3) {
      // A version whose low 16 bits are zero is a number in the other byte order.
      fail(4,
           (f_.version_ & 0xffff) == 0 ? "big-endian GGUF files are not supported"
                                       : "this GGUF version is not supported",
           "version 3 (or 2), little-endian", std::to_string(f_.version_));
    }
    tensor_count_ = take<uint64_t>("the tensor count");
    metadata_count_ = take<uint64_t>("the metadata count");
    // A tensor info takes 8 + 1 + 4 + 8 + 4 + 8 bytes at least, a key/value pair 8 + 1 + 4 + 1.
    count_fits(8, tensor_count_, 33, "tensors");
    count_fits(16, metadata_count_, 14, "metadata values");
  }
  void count_fits(uint64_t offset, uint64_t count, uint64_t each, const char* what) const {
    if (count > left() / each) {
      fail(offset, fmt::format("the number of {} is more than the file can hold", what),
           fmt::format("at most {}", left() / each), std::to_string(count));
    }
  }

  GgufType take_type(const char* what) {
    const uint64_t start = at_;
    const uint32_t t = take<uint32_t>(what);
    if (t > uint32_t(GgufType::f64)) fail(start, fmt::format("{} is unknown", what), "0 to 12", std::to_string(t));
    return GgufType(t);
  }

  void key_value() {
    const uint64_t start = at_;
    const std::string_view key = take_string("a metadata key", kMaxKey);
    if (key.empty()) fail(start, "a metadata key is empty", "a name", "no byte");
    GgufValue v;
    v.type = take_type("the type of a metadata value");
    v.offset = at_;
    if (v.type == GgufType::array) {
      v.element = take_type("the element type of an array");
      v.count = take<uint64_t>("the length of an array");
      at_ = v.offset;
    }
    skip_value(v.type, 0);
    v.bytes = std::string_view(reinterpret_cast<const char*>(f_.data_ + v.offset), at_ - v.offset);
    auto [it, fresh] = f_.metadata_index_.emplace(std::string(key), f_.metadata_.size());
    if (!fresh) {
      fail(start, fmt::format("metadata key {} stands twice", in_quotes(key)), "one value",
           fmt::format("another at byte {}", f_.metadata_[it->second].second.offset));
    }
    f_.metadata_.emplace_back(std::string(key), v);
  }

  void skip_value(GgufType type, int depth) {
    switch (type) {
      case GgufType::string:
        take_string("a metadata string", UINT64_MAX);
        return;
      case GgufType::array:
        skip_array(depth);
        return;
      case GgufType::boolean: {
        const uint64_t start = at_;
        const uint8_t b = take<uint8_t>("a boolean");
        if (b > 1) fail(start, "a boolean has another value", "0 or 1", std::to_string(b));
        return;
      }
      default:
        need(least_bytes(type), "a metadata value");
        at_ += least_bytes(type);
    }
  }

  void skip_array(int depth) {
    const uint64_t start = at_;
    if (depth >= kMaxArrayDepth)
      fail(start, "arrays are nested too deep", fmt::format("at most {} levels", kMaxArrayDepth), "more");
    const GgufType element = take_type("the element type of an array");
    const uint64_t count = take<uint64_t>("the length of an array");
    if (count > left() / least_bytes(element)) {
      fail(start + 4, "an array is longer than the file",
           fmt::format("at most {} elements of {}", left() / least_bytes(element), name_of(element)),
           std::to_string(count));
    }
    if (element == GgufType::string || element == GgufType::array || element == GgufType::boolean) {
      for (uint64_t i = 0; i < count; i++) skip_value(element, depth + 1);
    } else {
      at_ += count * least_bytes(element);
    }
  }

  void tensor_info() {
    const uint64_t start = at_;
    GgufTensor t;
    const std::string_view name = take_string("a tensor name", kMaxTensorName);
    t.name = std::string(name);
    const std::string quoted = in_quotes(name);
    if (name.empty()) fail(start, "a tensor name is empty", "a name", "no byte");
    const uint64_t axes_at = at_;
    const uint32_t axes = take<uint32_t>("the number of axes");
    if (axes < 1 || axes > kMaxAxes) {
      fail(axes_at, fmt::format("tensor {}: the number of axes is not usable", quoted),
           fmt::format("1 to {}", kMaxAxes), std::to_string(axes));
    }
    int64_t elements = 1;
    for (uint32_t i = 0; i < axes; i++) {
      const uint64_t dim_at = at_;
      const uint64_t dim = take<uint64_t>("a tensor's shape");
      if (dim < 1 || dim > uint64_t(INT64_MAX / elements)) {
        fail(dim_at,
             fmt::format("tensor {}: axis {} is {}", quoted, i, dim < 1 ? "zero" : "absurd: the shape overflows"),
             dim < 1 ? "at least 1" : fmt::format("at most {}", INT64_MAX / elements), std::to_string(dim));
      }
      elements *= int64_t(dim);
      t.shape.insert(t.shape.begin(), int64_t(dim));
    }
    const uint64_t type_at = at_;
    t.type = tensor_type(take<uint32_t>("a tensor's type"), type_at, quoted);
    const int64_t columns = t.shape.back(), block = block_elements(t.type);
    if (columns % block != 0) {
      fail(axes_at + 4, fmt::format("tensor {}: rows do not divide into {} blocks", quoted, name_of(t.type)),
           fmt::format("a multiple of {}", block), std::to_string(columns));
    }
    if (uint64_t(elements / block) > uint64_t(INT64_MAX) / block_bytes(t.type)) {
      fail(axes_at + 4, fmt::format("tensor {}: the shape is absurd", quoted), "fewer bytes than 2^63",
           shape_text(t.shape));
    }
    t.bytes = size_t(elements / block) * block_bytes(t.type);
    offsets_at_.push_back(at_);
    t.offset = take<uint64_t>("a tensor's offset");  // relative to the data section until place_tensors()
    auto [it, fresh] = f_.tensor_index_.emplace(t.name, f_.tensors_.size());
    if (!fresh)
      fail(start, fmt::format("tensor {} stands twice", quoted), "one tensor of this name",
           fmt::format("another as number {}", it->second));
    f_.tensors_.push_back(std::move(t));
  }

  WeightType tensor_type(uint32_t number, uint64_t offset, const std::string& tensor) const {
    for (const TensorTypeName& t : kTensorTypes) {
      if (t.number != number) continue;
      if (t.type) return *t.type;
      fail(offset, fmt::format("tensor {}: type {} is not supported", tensor, t.name),
           fmt::format("one of {}", kSupportedTypes), t.name);
    }
    fail(offset, fmt::format("tensor {}: the type is unknown", tensor), fmt::format("one of {}", kSupportedTypes),
         fmt::format("type number {}", number));
  }

  void place_tensors() {
    const uint64_t base = align_up(at_, alignment_);
    if (f_.tensors_.empty()) return;
    if (base > f_.size_)
      fail(at_, "the file ends before the tensor data", fmt::format("data at byte {}", base),
           fmt::format("{} bytes", f_.size_));
    // Padding is zero bytes: anything else is an info that the tensor count leaves out.
    for (uint64_t i = at_; i < base; i++) {
      if (f_.data_[i] != std::byte{0}) {
        fail(i, "the padding before the tensor data is not zero", fmt::format("0 up to byte {}", base),
             fmt::format("0x{:02x}", unsigned(f_.data_[i])), "The tensor count may be wrong");
      }
    }
    const uint64_t room = f_.size_ - base;
    std::vector<size_t> order(f_.tensors_.size());
    for (size_t i = 0; i < order.size(); i++) {
      order[i] = i;
      GgufTensor& t = f_.tensors_[i];
      const std::string quoted = in_quotes(t.name);
      if (t.offset % alignment_ != 0) {
        fail(offsets_at_[i], fmt::format("tensor {}: the offset is not aligned", quoted),
             fmt::format("a multiple of {}", alignment_), std::to_string(t.offset));
      }
      if (t.offset > room || t.bytes > room - t.offset) {
        fail(offsets_at_[i], fmt::format("tensor {}: the data runs past the end of the file", quoted),
             fmt::format("{} bytes at {} within {} bytes of data", t.bytes, t.offset, room),
             t.offset > room ? "an offset beyond the end" : fmt::format("{} bytes there", room - t.offset),
             "The file may be truncated");
      }
      t.offset += base;
      t.data = f_.data_ + t.offset;
    }
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return f_.tensors_[a].offset < f_.tensors_[b].offset; });
    for (size_t i = 1; i < order.size(); i++) {
      const GgufTensor &a = f_.tensors_[order[i - 1]], &b = f_.tensors_[order[i]];
      if (b.offset < a.offset + a.bytes) {
        fail(offsets_at_[order[i]], fmt::format("tensors {} and {} overlap", in_quotes(a.name), in_quotes(b.name)),
             fmt::format("an offset from {} on", a.offset + a.bytes - base), std::to_string(b.offset - base));
      }
    }
    const GgufTensor& last = f_.tensors_[order.back()];
    const uint64_t end = last.offset + last.bytes;
    if (f_.size_ - end >= alignment_) {
      fail(end, "the file goes on after its last tensor", fmt::format("an end by byte {}", end + alignment_ - 1),
           fmt::format("{} bytes more", f_.size_ - end), "The tensor count may be wrong");
    }
  }

  GgufFile& f_;
  uint64_t at_ = 0;
  uint64_t tensor_count_ = 0, metadata_count_ = 0;
  uint64_t alignment_ = kDefaultAlignment;
  std::vector<uint64_t> offsets_at_;  // where each tensor's offset field lies
};

GgufFile GgufFile::parse(const std::byte* data, size_t size, const std::string& name) {
  GgufFile f;
  f.name_ = name;
  f.data_ = data;
  f.size_ = size;
  GgufParser(f).run();
  return f;
}

GgufFile GgufFile::open(const std::filesystem::path& path) {
  auto file = MappedFile::open(path);
  GgufFile f = parse(file->data(), file->size(), path.string());
  f.file_ = std::move(file);
  return f;
}

const GgufTensor* GgufFile::find_tensor(const std::string& name) const {
  auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

const GgufValue* GgufFile::find(const std::string& key) const {
  auto it = metadata_index_.find(key);
  return it == metadata_index_.end() ? nullptr : &metadata_[it->second].second;
}

std::string GgufFile::where(const std::string& key) const {
  const GgufValue* v = find(key);
  return v ? fmt::format("{}: byte {}: {}", name_, v->offset, in_quotes(key))
           : fmt::format("{}: {}", name_, in_quotes(key));
}

namespace {

[[noreturn]] void wrong_type(const GgufFile& f, const std::string& key, const char* wanted, const GgufValue& v) {
  throw Error(
      ErrorKind::malformed, f.where(key), "has the wrong type", wanted,
      v.type == GgufType::array ? fmt::format("an array of {}", name_of(v.element)) : std::string(name_of(v.type)));
}

/// nullopt if `t` is no integer type, or the value does not fit int64.
std::optional<int64_t> integer_at(GgufType t, const char* p) {
  const auto* b = reinterpret_cast<const std::byte*>(p);
  switch (t) {
    case GgufType::u8:
      return load<uint8_t>(b);
    case GgufType::i8:
      return load<int8_t>(b);
    case GgufType::u16:
      return load<uint16_t>(b);
    case GgufType::i16:
      return load<int16_t>(b);
    case GgufType::u32:
      return load<uint32_t>(b);
    case GgufType::i32:
      return load<int32_t>(b);
    case GgufType::i64:
      return load<int64_t>(b);
    case GgufType::u64: {
      const uint64_t v = load<uint64_t>(b);
      return v > uint64_t(INT64_MAX) ? std::nullopt : std::optional<int64_t>(int64_t(v));
    }
    default:
      return std::nullopt;
  }
}

bool is_integer(GgufType t) {
  return t <= GgufType::i32 || t == GgufType::u64 || t == GgufType::i64;
}

}  // namespace

std::optional<int64_t> GgufFile::integer(const std::string& key, int64_t low, int64_t high) const {
  const GgufValue* v = find(key);
  if (!v) return std::nullopt;
  if (!is_integer(v->type)) wrong_type(*this, key, "an integer", *v);
  auto i = integer_at(v->type, v->bytes.data());
  if (!i || *i < low || *i > high) {
    throw Error(ErrorKind::malformed, where(key), "is not a usable value", fmt::format("{} to {}", low, high),
                i ? std::to_string(*i) : "2^63 or more");
  }
  return i;
}

std::optional<double> GgufFile::number(const std::string& key) const {
  const GgufValue* v = find(key);
  if (!v) return std::nullopt;
  if (v->type != GgufType::f32 && v->type != GgufType::f64) wrong_type(*this, key, "f32 or f64", *v);
  const double d = v->type == GgufType::f32 ? double(load<float>(v->bytes)) : load<double>(v->bytes);
  if (!std::isfinite(d))
    throw Error(ErrorKind::malformed, where(key), "is not a usable value", "a finite number", fmt::format("{}", d));
  return d;
}

std::optional<bool> GgufFile::boolean(const std::string& key) const {
  const GgufValue* v = find(key);
  if (!v) return std::nullopt;
  if (v->type != GgufType::boolean) wrong_type(*this, key, "a boolean", *v);
  return load<uint8_t>(v->bytes) != 0;
}

std::optional<std::string> GgufFile::string(const std::string& key) const {
  const GgufValue* v = find(key);
  if (!v) return std::nullopt;
  if (v->type != GgufType::string) wrong_type(*this, key, "a string", *v);
  return std::string(v->bytes.substr(8));
}

std::optional<std::vector<std::string_view>> GgufFile::strings(const std::string& key) const {
  const GgufValue* v = find(key);
  if (!v) return std::nullopt;
  if (v->type != GgufType::array || v->element != GgufType::string) wrong_type(*this, key, "an array of strings", *v);
  std::vector<std::string_view> out;
  out.reserve(v->count);
  std::string_view rest = v->bytes.substr(12);  // after element type and count; lengths were checked by the parser
  for (uint64_t i = 0; i < v->count; i++) {
    const uint64_t length = load<uint64_t>(rest);
    out.push_back(rest.substr(8, length));
    rest.remove_prefix(8 + length);
  }
  return out;
}

std::optional<std::vector<int64_t>> GgufFile::integers(const std::string& key) const {
  const GgufValue* v = find(key);
  if (!v) return std::nullopt;
  if (v->type != GgufType::array || !is_integer(v->element)) wrong_type(*this, key, "an array of integers", *v);
  std::vector<int64_t> out;
  out.reserve(v->count);
  const uint64_t step = least_bytes(v->element);
  for (uint64_t i = 0; i < v->count; i++) {
    auto value = integer_at(v->element, v->bytes.data() + 12 + i * step);
    if (!value)
      throw Error(ErrorKind::malformed, where(key), fmt::format("element {} is not usable", i), "less than 2^63",
                  "more");
    out.push_back(*value);
  }
  return out;
}

}  // namespace assay
