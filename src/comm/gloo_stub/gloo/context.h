// Declarations that ProcessGroupGloo.hpp mentions; the classes themselves live in libtorch_cpu.
// Nothing here is ever constructed or called by Tessera.
#pragma once

#include <chrono>

namespace gloo {
class Context {
 public:
  void setTimeout(std::chrono::milliseconds);
};
}  // namespace gloo
