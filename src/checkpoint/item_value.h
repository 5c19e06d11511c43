// The user's values as JSON and back. The JSON keeps every type, and every double exactly: scalars
// and text as encode_value writes them, {"list": [...]}, {"dict": {...}}.
//
// Threads: reentrant. Cost: linear.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tessera/train_state.h"

namespace tessera::checkpoint {

// Throws UsageError where values are nested deeper than 64; `what` names the value.
nlohmann::json encode_item(const ItemValue& value, const std::string& what);
// Throws CorruptionError for what encode_item does not write.
ItemValue decode_item(const nlohmann::json& json, const std::string& what);

// "bool", "integer", "double", "text", "list" or "dict".
const char* type_name(const ItemValue& value);

}  // namespace tessera::checkpoint
