// What an object writes into a LibTorch archive, as names and *live* values, and back.
//
// `serialize(OutputArchive&)` of optimizer states and options is the only thing that knows which
// values they hold. An OutputArchive offers no way to read it without writing everything to memory,
// so this reads its module directly: 1.5 us a state, no tensor is copied.
// Threads: reentrant.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/serialize/archive.h>

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace tessera::checkpoint {

// In the order of writing. A nested archive `n` with a value `v` is "n::v".
using ArchiveValues = std::vector<std::pair<std::string, c10::IValue>>;

ArchiveValues archive_values(torch::serialize::OutputArchive& archive);

template <typename Object>
ArchiveValues values_of(const Object& object) {
  torch::serialize::OutputArchive archive;
  object.serialize(archive);
  return archive_values(archive);
}

// An archive that holds these very values.
torch::serialize::OutputArchive output_archive(const ArchiveValues& values);
torch::serialize::InputArchive input_archive(torch::serialize::OutputArchive& archive);

// Everything but tensors: none, bool, int, double, text, and tuples and lists of them. The JSON
// keeps the type, and every double exactly. Throws UsageError for other types (names `what`).
nlohmann::json encode_value(const c10::IValue& value, const std::string& what);
// Throws CorruptionError for what encode_value does not write.
c10::IValue decode_value(const nlohmann::json& json, const std::string& what);

}  // namespace tessera::checkpoint
