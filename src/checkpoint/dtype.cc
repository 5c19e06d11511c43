#include "checkpoint/dtype.h"

#include <array>
#include <utility>

namespace tessera::checkpoint {

namespace {

constexpr std::array<std::pair<c10::ScalarType, const char*>, 19> kNames = {{
    {c10::ScalarType::Bool, "BOOL"},
    {c10::ScalarType::Byte, "U8"},
    {c10::ScalarType::Char, "I8"},
    {c10::ScalarType::Short, "I16"},
    {c10::ScalarType::UInt16, "U16"},
    {c10::ScalarType::Int, "I32"},
    {c10::ScalarType::UInt32, "U32"},
    {c10::ScalarType::Long, "I64"},
    {c10::ScalarType::UInt64, "U64"},
    {c10::ScalarType::Half, "F16"},
    {c10::ScalarType::BFloat16, "BF16"},
    {c10::ScalarType::Float, "F32"},
    {c10::ScalarType::Double, "F64"},
    {c10::ScalarType::ComplexFloat, "C64"},
    {c10::ScalarType::Float8_e5m2, "F8_E5M2"},
    {c10::ScalarType::Float8_e4m3fn, "F8_E4M3"},
    {c10::ScalarType::Float8_e5m2fnuz, "F8_E5M2FNUZ"},
    {c10::ScalarType::Float8_e4m3fnuz, "F8_E4M3FNUZ"},
    {c10::ScalarType::Float8_e8m0fnu, "F8_E8M0"},
}};

}  // namespace

std::optional<std::string> dtype_name(c10::ScalarType type) {
  for (const auto& [known, name] : kNames)
    if (known == type) return name;
  return std::nullopt;
}

std::optional<c10::ScalarType> scalar_type(const std::string& name) {
  for (const auto& [type, known] : kNames)
    if (name == known) return type;
  return std::nullopt;
}

}  // namespace tessera::checkpoint
