// Memory of this process as the system counts it, and something measured in a process of its own, where nothing that
// was freed before is used again. For tests and checks of what a plan promises (plan.h).
#pragma once
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <type_traits>

namespace assay {

/// Bytes by a key of /proc/self/status: "VmRSS" resident now, "VmHWM" at most so far; 0: this system does not say.
inline uint64_t process_memory(const std::string& key) {
  std::ifstream in("/proc/self/status");
  uint64_t kilobytes = 0;
  for (std::string word; in >> word;)
    if (word == key + ":" && in >> kilobytes) return kilobytes * 1024;
  return 0;
}

/// Runs measure(out) in a child process and brings `out` here. False: there was no child, or it ended without a word;
/// `out` is then as it was. `measure` must not throw.
template <class T, class Measure>
bool measured_in_child(T& out, Measure&& measure) {
  static_assert(std::is_trivially_copyable_v<T>);
  int ends[2];
  if (pipe(ends) != 0) return false;
  const pid_t child = fork();
  if (child == 0) {
    T found = out;
    measure(found);
    _exit(write(ends[1], &found, sizeof found) == ssize_t(sizeof found) ? 0 : 1);
  }
  close(ends[1]);
  T found;
  const bool told = child > 0 && read(ends[0], &found, sizeof found) == ssize_t(sizeof found);
  close(ends[0]);
  if (child > 0) waitpid(child, nullptr, 0);
  if (told) out = found;
  return told;
}

}  // namespace assay
