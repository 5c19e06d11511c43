// torch's scalar types and the dtype strings of safetensors.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

namespace tessera::checkpoint {

// Nothing where the container has no string for the type (complex128, quantized types).
std::optional<std::string> dtype_name(c10::ScalarType type);
std::optional<c10::ScalarType> scalar_type(const std::string& name);

}  // namespace tessera::checkpoint
