#include "dumps/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "dumps/error.h"

namespace assay {

FolderLock::FolderLock(const std::filesystem::path& folder) : descriptor_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (descriptor_ < 0) throw Error(ErrorKind::io, folder.string(), "can't be opened", "a folder", std::strerror(errno));
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  ::close(descriptor_);
  throw Error(ErrorKind::io, folder.string(), "another writer is at work in this folder", {}, {}, "Wait for it, or choose another --out");
}

FolderLock::~FolderLock() { ::close(descriptor_); }

}  // namespace assay
