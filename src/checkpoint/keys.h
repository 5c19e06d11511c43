// The key scheme: how names of parameters, buffers and state become keys of a state dict.
#pragma once

#include <string>

#include "checkpoint/manifest.h"
#include "tessera/checkpoint.h"

namespace tessera::checkpoint {

// Names the rules below; stored in every checkpoint and compared at load.
inline constexpr const char* kKeyScheme = "fqn-1";

std::string model_key(const CkptSpec& spec, const std::string& name);
std::string optimizer_key(const CkptSpec& spec, const std::string& name,
                          const std::string& state_key);
// `device` is "cpu" or "cuda".
std::string rng_key(const CkptSpec& spec, const std::string& device);
std::string item_key(const CkptSpec& spec, const std::string& name);

StoredKind stored_kind(StateDictKind kind);
StateDictKind state_dict_kind(StoredKind kind);

}  // namespace tessera::checkpoint
