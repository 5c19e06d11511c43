// The dtype in which values of a dtype are summed over ranks: fp32 for half types (256 + 1 is 256 in
// bf16), the dtype itself for all others. One rule for every backend and for gradients.
#pragma once

#include <c10/core/ScalarType.h>

namespace tessera::comm {

inline c10::ScalarType sum_dtype(c10::ScalarType dtype) {
  const bool half = dtype == c10::ScalarType::Half || dtype == c10::ScalarType::BFloat16;
  return half ? c10::ScalarType::Float : dtype;
}

}  // namespace tessera::comm
