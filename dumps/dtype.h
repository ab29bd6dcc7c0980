// Element types of dumped tensors and unquantised weights, with the names that safetensors uses.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace assay {

enum class DType : uint8_t { f64, f32, f16, bf16, i64, i32, i16, i8, u64, u32, u16, u8, boolean };

size_t size_of(DType t);                                     // bytes per element
std::string_view name_of(DType t);                           // "F32", "BF16", "I64", "BOOL", ...
std::optional<DType> dtype_from_name(std::string_view name); // the inverse; nullopt if unknown
bool is_float(DType t);

}  // namespace assay
