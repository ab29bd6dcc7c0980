// One writer in a folder at a time.
#pragma once
#include <filesystem>

namespace assay {

/// Holds a folder for this process while it lives; goes with the process, however that ends, and leaves no file. On a file system
/// without locks it holds nothing. Error{io}: the folder can't be opened, or another writer holds it.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace assay
