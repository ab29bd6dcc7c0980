// Running the program in tests, as a person or a script does.
#pragma once
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>

namespace cli_test {  // not in assay: the function has that name

struct Output {
  int code;
  std::string text;  // stdout and stderr
};

inline Output assay(const std::string& arguments) {
  const std::string command = std::string("'") + ASSAY_PROGRAM + "' " + arguments + " 2>&1";
  Output o{-1, ""};
  FILE* pipe = popen(command.c_str(), "r");
  char buffer[4096];
  while (const size_t n = fread(buffer, 1, sizeof buffer, pipe)) o.text.append(buffer, n);
  const int status = pclose(pipe);
  o.code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  return o;
}

/// A folder of its own, removed at the end.
class Folder {
 public:
  Folder()
      : path_(std::filesystem::temp_directory_path() /
              ("assay-cli-" + std::to_string(getpid()) + "-" + std::to_string(count_++))) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  static inline int count_ = 0;
  std::filesystem::path path_;
};

}  // namespace cli_test
