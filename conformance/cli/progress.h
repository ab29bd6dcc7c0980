// How far long work is, on stderr: a line that is written over on a terminal, elsewhere a plain line now and then.
#pragma once
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <string>

namespace assay::cli {

class Progress {
 public:
  ~Progress() { clear(); }
  /// "3/65 kernel/rope/simt": part i (from 0) of n begins.
  void begins(size_t i, size_t n, const std::string& what) {
    say(std::to_string(i + 1) + "/" + std::to_string(n) + (what.empty() ? "" : " " + what));
  }
  void say(const std::string& text) {
    if (terminal_) {
      std::cerr << "\r\x1b[K" << text << std::flush;
    } else if (const auto now = Clock::now(); now - last_ >= std::chrono::seconds(30)) {
      last_ = now;
      std::cerr << "assay: " << text << std::endl;
    }
  }
  /// Before anything else is written.
  void clear() {
    if (terminal_) std::cerr << "\r\x1b[K" << std::flush;
  }

 private:
  using Clock = std::chrono::steady_clock;
  const bool terminal_ = isatty(2);
  Clock::time_point last_ = Clock::now();
};

}  // namespace assay::cli
