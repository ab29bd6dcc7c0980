// What the environment says of the emulated device (runtime.h lists it).
#pragma once
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace simt {

/// A number, or `otherwise` where the variable is not set. Anything else ends the program with its name: an emulation that is not
/// the one asked for proves something else.
inline uint64_t number_from(const char* name, uint64_t otherwise) {
  const char* text = getenv(name);
  if (!text || !*text) return otherwise;
  char* end = nullptr;
  errno = 0;
  const uint64_t number = strtoull(text, &end, 10);
  if (*text >= '0' && *text <= '9' && *end == 0 && errno == 0) return number;
  fprintf(stderr, "%s=%s: a number is wanted\n", name, text);
  abort();
}

}  // namespace simt
