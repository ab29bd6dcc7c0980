// A file being written at known offsets, with its space reserved first, and messages that a person can act on.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

namespace assay {

class OutFile {
 public:
  OutFile() = default;
  /// Creates (or empties) the file. `when_full`: what a person can do besides freeing space, as the end of a sentence that
  /// begins with "or" ("write less (--mode stats)"). Throws Error{io}.
  explicit OutFile(std::filesystem::path path, std::string when_full = {});
  ~OutFile();
  OutFile(OutFile&& other) noexcept;
  OutFile& operator=(OutFile&& other) noexcept;

  /// Sees to it that `bytes` from the start have disk space. Throws Error{io} with the bytes needed and free. Where the file
  /// system can't reserve, free space is checked instead.
  void reserve(uint64_t bytes);
  void write_at(uint64_t offset, const void* data, size_t bytes);  // throws Error{io}
  void truncate(uint64_t bytes);
  void close(bool sync);  // flushes to the disk if `sync`; throws Error{io} (a delayed write error shows here)
  bool is_open() const { return fd_ >= 0; }
  const std::filesystem::path& path() const { return path_; }

 private:
  [[noreturn]] void fail(const char* what, int error, uint64_t needed) const;
  std::filesystem::path path_;
  std::string when_full_;
  int fd_ = -1;
  uint64_t reserved_ = 0;
};

void sync_folder(const std::filesystem::path& dir);  // makes a rename in it last; throws Error{io}

}  // namespace assay
