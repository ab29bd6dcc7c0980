#include "dumps/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "dumps/error.h"
#include "dumps/text.h"

namespace assay {

std::shared_ptr<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO must not block us
  if (fd < 0) {
    const int error = errno;
    const bool absent = error == ENOENT || error == ENOTDIR || error == ENAMETOOLONG || error == ELOOP;
    throw Error(absent ? ErrorKind::malformed : ErrorKind::io, path.string(), "can't be opened", "a readable file",
                std::strerror(error));
  }
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    throw Error(ErrorKind::malformed, path.string(), "is not a regular file", "a file", "a folder or a device");
  }
  std::shared_ptr<MappedFile> out(new MappedFile());
  out->path_ = path;
  out->size_ = static_cast<size_t>(info.st_size);
  if (out->size_ > 0) {
    void* p = ::mmap(nullptr, out->size_, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
      const int error = errno;
      ::close(fd);
      out->size_ = 0;
      throw Error(ErrorKind::io, path.string(), fmt::format("can't be mapped ({} bytes)", info.st_size), {},
                  std::strerror(error));
    }
    out->data_ = static_cast<const std::byte*>(p);
  }
  ::close(fd);
  return out;
}

bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;   // a link that leads nowhere must not turn a dump into bare files
  const auto type = std::filesystem::symlink_status(path, ignored).type();
  return type != std::filesystem::file_type::not_found && type != std::filesystem::file_type::none;
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

namespace {

// The same limit as in the reference implementation (safetensors/src/tensor.rs, MAX_HEADER_SIZE).
constexpr uint64_t kMaxHeader = 100'000'000;
constexpr size_t kMaxAxes = 64;

struct Entry {
  std::string name;
  DType dtype = DType::u8;
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;  // data_offsets
  size_t at = 0;               // file offset of the entry's name, for messages
  bool has_dtype = false, has_shape = false, has_range = false;
};

// Iterates over the header and keeps its place, so that every message can name a byte offset. The lexer reads at most one
// byte ahead.
struct CountingIterator {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;
  const char* p;
  const char** place;
  reference operator*() const { return *p; }
  CountingIterator& operator++() {
    *place = ++p;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator old = *this;
    ++*this;
    return old;
  }
  bool operator==(const CountingIterator& o) const { return p == o.p; }
  bool operator!=(const CountingIterator& o) const { return p != o.p; }
};

// Takes the header apart as it is parsed. There is no tree and no recursion: depth beyond {tensor: {key: [..]}} is refused
// at its first bracket.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(std::string file, const char* begin) : file_(std::move(file)), begin_(begin), place(begin) {}

  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_float(number_float_t, const string_t& text) override { return unexpected("the number " + text.substr(0, 40)); }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool number_integer(number_integer_t v) override {
    if (!in_array_) return unexpected("a number");
    if (v < 0) fail(here(), fmt::format("negative number in {}", in_quotes(key_)), "0 or more", std::to_string(v));
    return element(static_cast<uint64_t>(v));
  }
  bool number_unsigned(number_unsigned_t v) override { return in_array_ ? element(v) : unexpected("a number"); }

  bool string(string_t& s) override {
    if (depth_ == 2 && in_metadata_ && !in_array_) {
      metadata[key_] = s;
      return true;
    }
    if (depth_ != 2 || in_array_ || key_ != "dtype") return unexpected("the string " + in_quotes(s));
    const std::optional<DType> dtype = dtype_from_name(s);
    if (!dtype) {
      fail(here(), "unsupported dtype", "one of F64 F32 F16 BF16 I64 I32 I16 I8 U64 U32 U16 U8 BOOL", in_quotes(s));
    }
    entries.back().dtype = *dtype;
    entries.back().has_dtype = true;
    return true;
  }

  bool start_object(size_t) override {
    if (in_array_ || depth_ >= 2) return unexpected("an object");
    ++depth_;
    return true;
  }
  bool end_object() override {
    if (depth_ == 2 && !in_metadata_) {
      const Entry& e = entries.back();
      const char* missing = !e.has_dtype ? "dtype" : !e.has_shape ? "shape" : !e.has_range ? "data_offsets" : nullptr;
      if (missing) fail(e.at, "tensor " + in_quotes(e.name) + " has no " + missing, "dtype, shape and data_offsets");
    }
    in_metadata_ = false;
    --depth_;
    return true;
  }
  bool start_array(size_t) override {
    if (depth_ != 2 || in_array_ || in_metadata_ || (key_ != "shape" && key_ != "data_offsets")) {
      return unexpected("an array");
    }
    in_array_ = true;
    array_.clear();
    return true;
  }
  bool end_array() override {
    in_array_ = false;
    if (key_ == "shape") {
      entries.back().shape = array_;
      entries.back().has_shape = true;
    } else {
      if (array_.size() != 2) fail(here(), "data_offsets of a tensor", "2 numbers", std::to_string(array_.size()));
      entries.back().begin = array_[0];
      entries.back().end = array_[1];
      entries.back().has_range = true;
    }
    return true;
  }
  bool key(string_t& k) override {
    if (depth_ == 1) {
      in_metadata_ = k == "__metadata__";
      if (!names_.emplace(k, offset()).second) {
        fail(here(), "the name " + in_quotes(k) + " appears twice", "each tensor once",
             fmt::format("first at byte {}", names_.at(k)));
      }
      keys_.clear();
      if (!in_metadata_) {
        entries.emplace_back();
        entries.back().name = k;
        entries.back().at = offset();
      }
      key_ = k;
      return true;
    }
    if (!keys_.emplace(k, offset()).second) fail(here(), "the key " + in_quotes(k) + " appears twice", "each key once");
    if (!in_metadata_ && k != "dtype" && k != "shape" && k != "data_offsets") {
      fail(here(), "unknown key " + in_quotes(k), "dtype, shape or data_offsets");
    }
    key_ = k;
    return true;
  }
  bool parse_error(size_t, const std::string& token, const nlohmann::detail::exception& e) override {
    const std::string text = e.what();
    fail(here(), "the header is not JSON", "a JSON object padded with spaces", in_quotes(token, 40),
         text.substr(0, 200));
  }

  [[noreturn]] void fail(size_t at, const std::string& what, const std::string& wanted = {}, const std::string& found = {},
                         const std::string& hint = {}) const {
    const bool inside = depth_ == 2 && !in_metadata_ && !entries.empty();
    throw Error(ErrorKind::malformed,
                fmt::format("{}: header byte {}{}", file_, at, inside ? ", tensor " + in_quotes(entries.back().name) : ""),
                what, wanted, found, hint);
  }
  size_t here() const { return offset(); }

 private:
  size_t offset() const { return 8 + static_cast<size_t>(place - begin_); }
  bool element(uint64_t v) {
    if (v > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      fail(here(), fmt::format("absurd number in {}", in_quotes(key_)), "less than 2^63", std::to_string(v));
    }
    if (array_.size() >= kMaxAxes) {
      fail(here(), fmt::format("too many numbers in {}", in_quotes(key_)), fmt::format("{} at most", kMaxAxes));
    }
    array_.push_back(static_cast<int64_t>(v));
    return true;
  }
  bool unexpected(const std::string& found) {
    std::string wanted = depth_ == 0                    ? "an object at the top"
                         : depth_ == 1                  ? "an object {dtype, shape, data_offsets}"
                         : in_array_                    ? "integers"
                         : in_metadata_                 ? "a string"
                         : key_ == "dtype"              ? "a string"
                                                        : "an array of integers";
    fail(here(), "unexpected value" + (key_.empty() ? std::string() : " of " + in_quotes(key_)), wanted, found);
  }

  std::string file_;
  const char* begin_;

 public:
  const char* place;  // moved on by the iterator

 private:
  int depth_ = 0;
  bool in_metadata_ = false;
  bool in_array_ = false;
  std::string key_;
  std::vector<int64_t> array_;
  std::map<std::string, size_t> names_, keys_;
};

// Bytes of a tensor, or a failure. Zero axes count as one here: [2^62, 2^62, 0] has no element, but every partial product
// that a reader may form (its rows, say) has to fit too.
int64_t checked_bytes(const HeaderReader& reader, const Entry& e) {
  int64_t bytes = static_cast<int64_t>(size_of(e.dtype));
  bool empty = false;
  for (int64_t d : e.shape) {
    empty = empty || d == 0;
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(d, 1), &bytes)) {
      reader.fail(e.at, "tensor " + in_quotes(e.name) + ": the shape overflows", "less than 2^63 bytes", shape_text(e.shape));
    }
  }
  return empty ? 0 : bytes;
}

}  // namespace

Safetensors Safetensors::open(const std::filesystem::path& path) {
  std::shared_ptr<MappedFile> file = MappedFile::open(path);
  Safetensors out = parse(file->data(), file->size(), path.string());
  out.file_ = std::move(file);
  return out;
}

Safetensors Safetensors::parse(const std::byte* data, size_t size, const std::string& name) {
  const auto refuse = [&](size_t at, const std::string& what, const std::string& wanted, const std::string& found) {
    throw Error(ErrorKind::malformed, fmt::format("{}: byte {}", name, at), what, wanted, found,
                "The file is truncated or is not a safetensors file");
  };
  if (size < 8) refuse(0, "too short for a safetensors file", "8 bytes of header length", fmt::format("{} bytes", size));
  uint64_t header = 0;
  for (int i = 0; i < 8; ++i) header |= std::to_integer<uint64_t>(data[i]) << (8 * i);
  if (header > kMaxHeader) {
    refuse(0, "absurd header length", fmt::format("{} at most", kMaxHeader), std::to_string(header));
  }
  if (header > size - 8) {
    refuse(0, "the header is longer than the file", fmt::format("{} bytes at most", size - 8), std::to_string(header));
  }
  const char* text = reinterpret_cast<const char*>(data + 8);
  if (header < 2 || text[0] != '{') {
    refuse(8, "the header is not a JSON object", "\"{\"", header == 0 ? "nothing" : in_quotes({text, 1}));
  }

  HeaderReader reader(name, text);
  nlohmann::json::sax_parse(CountingIterator{text, &reader.place}, CountingIterator{text + header, &reader.place}, &reader);

  const int64_t data_size = static_cast<int64_t>(size - 8 - header);
  std::vector<Entry>& entries = reader.entries;
  for (const Entry& e : entries) {
    const int64_t begin = e.begin, end = e.end;
    const std::string tensor = "tensor " + in_quotes(e.name);
    if (begin > end || end > data_size) {
      reader.fail(e.at, tensor + ": data_offsets outside the file", fmt::format("0 <= begin <= end <= {}", data_size),
                  fmt::format("[{}, {}]", begin, end), "The file may be truncated");
    }
    const int64_t bytes = checked_bytes(reader, e);
    if (bytes != end - begin) {
      reader.fail(e.at, tensor + ": data_offsets disagree with dtype and shape",
                  fmt::format("{} bytes for {} {}", bytes, name_of(e.dtype), shape_text(e.shape)),
                  fmt::format("{} bytes", end - begin));
    }
  }
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });

  Safetensors out;
  out.metadata_ = std::move(reader.metadata);
  int64_t next = 0;
  for (Entry& e : entries) {
    const int64_t begin = e.begin, end = e.end;
    if (begin != next) {
      reader.fail(e.at, "tensor " + in_quotes(e.name) + (begin < next ? ": data overlap the tensor before" : ": a gap in the data"),
                  fmt::format("begin {}", next), std::to_string(begin));
    }
    next = end;
    out.index_.emplace(e.name, out.tensors_.size());
    out.tensors_.push_back({std::move(e.name), e.dtype, std::move(e.shape), data + 8 + header + begin,
                            static_cast<size_t>(end - begin)});
  }
  if (next != data_size) {
    throw Error(ErrorKind::malformed, fmt::format("{}: byte {}", name, 8 + header + static_cast<uint64_t>(next)),
                "bytes behind the last tensor", fmt::format("{} bytes of data", next), std::to_string(data_size));
  }
  return out;
}

const TensorView* Safetensors::find(const std::string& name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

}  // namespace assay
