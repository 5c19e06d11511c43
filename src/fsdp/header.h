// The control message that precedes every gather and reduction, so that ranks which run different
// programs learn it from an error that names both, and not from a hang.
#pragma once

#include <array>
#include <cstdint>

#include "fsdp/engine.h"

namespace tessera::fsdp {

struct Engine::Header {
  // Parameters of a unit whose "gradient arrived" flags fit into the message itself.
  static constexpr size_t kInlineFlags = 1280;

  Phase phase{};
  int32_t unit = -1;
  uint64_t sequence = 0;
  double weight = 1.0;
  int32_t grad_slot = -1;
  uint32_t has_late = 0;
  std::array<uint64_t, kInlineFlags / 64> used{};
};

}  // namespace tessera::fsdp
