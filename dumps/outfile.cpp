#include "dumps/outfile.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "dumps/error.h"
#include "dumps/text.h"

namespace assay {

OutFile::OutFile(std::filesystem::path path, std::string when_full)
    : path_(std::move(path)), when_full_(std::move(when_full)) {
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) fail("can't be created", errno, 0);
}
OutFile::~OutFile() {
  if (fd_ >= 0) ::close(fd_);
}
OutFile::OutFile(OutFile&& other) noexcept
    : path_(std::move(other.path_)),
      when_full_(std::move(other.when_full_)),
      fd_(std::exchange(other.fd_, -1)),
      reserved_(other.reserved_) {}
OutFile& OutFile::operator=(OutFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(when_full_, other.when_full_);
  std::swap(fd_, other.fd_);
  std::swap(reserved_, other.reserved_);
  return *this;
}

void OutFile::fail(const char* what, int error, uint64_t needed) const {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  std::string wanted, found = std::strerror(error);
  if (full) {
    struct statvfs fs {};
    const bool known = ::statvfs(path_.parent_path().empty() ? "." : path_.parent_path().c_str(), &fs) == 0;
    const uint64_t free = known ? uint64_t(fs.f_bavail) * fs.f_frsize : 0;
    if (needed) wanted = fmt::format("{} bytes ({})", needed, bytes_text(needed));
    found = fmt::format("{} bytes free ({})", free, std::strerror(error));
  }
  throw Error(ErrorKind::io, path_.string(), full ? "the disk is full or a limit is reached" : what, wanted, found,
              full ? "Free space" + (when_full_.empty() ? " or choose another place" : ", choose another place or " + when_full_) : "");
}

void OutFile::reserve(uint64_t bytes) {
  if (bytes <= reserved_) return;
  int result = 0;
  do {
    result = ::fallocate(fd_, 0, off_t(reserved_), off_t(bytes - reserved_));
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    if (errno != EOPNOTSUPP && errno != ENOSYS) fail("can't reserve space", errno, bytes - reserved_);
    // glibc's posix_fallocate would write every block here; asking for the free space is as good a warning.
    struct statvfs fs {};
    if (::fstatvfs(fd_, &fs) == 0 && uint64_t(fs.f_bavail) * fs.f_frsize < bytes - reserved_) {
      fail("can't reserve space", ENOSPC, bytes - reserved_);
    }
  }
  reserved_ = bytes;
}

void OutFile::write_at(uint64_t offset, const void* data, size_t bytes) {
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd_, p, bytes, off_t(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("can't be written", n < 0 ? errno : ENOSPC, bytes);
    p += n;
    offset += uint64_t(n);
    bytes -= size_t(n);
  }
}

void OutFile::truncate(uint64_t bytes) {
  if (::ftruncate(fd_, off_t(bytes)) != 0) fail("can't be cut to its length", errno, bytes);
}

void OutFile::close(bool sync) {
  if (sync && ::fsync(fd_) != 0) fail("can't be flushed to the disk", errno, 0);
  if (::close(std::exchange(fd_, -1)) != 0) fail("can't be closed", errno, 0);
}

void sync_folder(const std::filesystem::path& dir) {
  const int fd = ::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool ok = fd >= 0 && ::fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  // Some network file systems refuse to sync a folder; the files themselves are safe then.
  if (!ok && error != EINVAL && error != ENOTSUP) {
    throw Error(ErrorKind::io, dir.string(), "can't be flushed to the disk", {}, std::strerror(error));
  }
}

}  // namespace assay
