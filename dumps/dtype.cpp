#include "dumps/dtype.h"

#include <iterator>

namespace assay {
namespace {

struct Info {
  std::string_view name;
  uint8_t size;
  bool floating;
};

// In the order of the enum.
constexpr Info kInfo[] = {{"F64", 8, true},  {"F32", 4, true},  {"F16", 2, true},  {"BF16", 2, true}, {"I64", 8, false},
                          {"I32", 4, false}, {"I16", 2, false}, {"I8", 1, false},  {"U64", 8, false}, {"U32", 4, false},
                          {"U16", 2, false}, {"U8", 1, false},  {"BOOL", 1, false}};
static_assert(std::size(kInfo) == size_t(DType::boolean) + 1);

}  // namespace

size_t size_of(DType t) { return kInfo[size_t(t)].size; }
std::string_view name_of(DType t) { return kInfo[size_t(t)].name; }
bool is_float(DType t) { return kInfo[size_t(t)].floating; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < std::size(kInfo); ++i) {
    if (kInfo[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

}  // namespace assay
