// prim_compare A.so B.so: every check of prim_check.h in both libraries on the same inputs; 1 where a byte differs. Meant for
// libassay_prim_check_simt.so and libassay_prim_check_cuda.so on a machine with a GPU.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "cuda/prim_check.h"

namespace {
struct Library {
  decltype(&assay_primitive_name) name = nullptr;
  decltype(&assay_check_primitive) check = nullptr;
  explicit Library(const char* path) {
    void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
      fprintf(stderr, "%s\n", dlerror());
      return;
    }
    name = reinterpret_cast<decltype(name)>(dlsym(handle, "assay_primitive_name"));
    check = reinterpret_cast<decltype(check)>(dlsym(handle, "assay_check_primitive"));
  }
};
}  // namespace

int main(int count, char** arguments) {
  if (count != 3) {
    fprintf(stderr, "usage: prim_compare A.so B.so\n");
    return 2;
  }
  const Library libraries[2] = {Library(arguments[1]), Library(arguments[2])};
  for (const Library& l : libraries)
    if (!l.name || !l.check) return 2;
  constexpr int kSeeds = 20;
  int differing = 0;
  for (int which = 0; libraries[0].name(which); which++) {
    long words = 0;
    for (uint64_t seed = 1; seed <= kSeeds; seed++) {
      std::mt19937_64 rng(seed);
      std::vector<uint32_t> in(ASSAY_PRIMITIVE_WORDS), out[2];
      for (uint32_t& v : in) v = uint32_t(rng());
      for (int i = 0; i < 2; i++) {
        char said[512];
        out[i].assign(in.size(), 0xffffffffu);
        if (libraries[i].check(0, which, in.data(), out[i].data(), said) == 1) continue;
        fprintf(stderr, "%s: %s: %s\n", arguments[i + 1], libraries[0].name(which), said);
        return 2;
      }
      for (size_t i = 0; i < in.size(); i++) {
        if (out[0][i] == out[1][i]) continue;
        if (!words++)
          printf("%s: seed %d, word %zu: %08x and %08x\n", libraries[0].name(which), int(seed), i, out[0][i], out[1][i]);
      }
    }
    printf("%-20s %s\n", libraries[0].name(which), words ? "DIFFERS" : "same bytes");
    differing += words != 0;
  }
  return differing ? 1 : 0;
}
