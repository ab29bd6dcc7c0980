// Which architectures a CUDA library holds code for. cuobjdump would say it too, and is not on every machine.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

#include "conformance/evidence.h"

namespace assay {
namespace {

// As nvcc 11 to 13 write it: a header, then entries one after the other.
struct FatHeader {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;  // of the entries
};
struct FatEntry {
  uint16_t kind;  // 1 PTX, 2 machine code
  uint16_t version;
  uint32_t header_bytes;
  uint64_t bytes;  // of the code behind the header
  uint32_t compressed, reserved;
  uint16_t minor, major;
  uint32_t architecture;
};
constexpr uint32_t kMagic = 0xba55ed50;

}  // namespace

std::vector<std::string> compiled_architectures(const std::filesystem::path& library) {
  std::ifstream in(library, std::ios::binary);
  const std::string all(std::istreambuf_iterator<char>(in), {});
  std::vector<std::pair<int, uint32_t>> found;  // PTX last
  const auto read = [&](size_t at, auto& into) {
    if (at > all.size() || all.size() - at < sizeof into) return false;
    std::memcpy(&into, all.data() + at, sizeof into);
    return true;
  };
  const std::string magic(reinterpret_cast<const char*>(&kMagic), sizeof kMagic);
  for (size_t at = all.find(magic); at != std::string::npos; at = all.find(magic, at + 1)) {
    FatHeader h;
    if (!read(at, h) || h.header_bytes < sizeof h) continue;
    const size_t begin = at + h.header_bytes,
                 end = h.bytes < all.size() ? std::min(all.size(), begin + size_t(h.bytes)) : all.size();
    FatEntry e;
    for (size_t next = begin; next < end && read(next, e); next += e.header_bytes + size_t(e.bytes)) {
      if ((e.kind != 1 && e.kind != 2) || e.header_bytes < sizeof e || e.bytes > all.size() || e.architecture < 30 ||
          e.architecture > 999)
        break;
      const std::pair<int, uint32_t> one{e.kind == 1, e.architecture};
      if (std::find(found.begin(), found.end(), one) == found.end()) found.push_back(one);
    }
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> out;
  for (const auto& [ptx, number] : found) out.push_back((ptx ? "compute_" : "sm_") + std::to_string(number));
  return out;
}

}  // namespace assay
