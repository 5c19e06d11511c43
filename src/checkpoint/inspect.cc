#include "checkpoint/inspect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

namespace tessera::checkpoint {

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxHoldersShown = 4;

std::string human_bytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

uint64_t stored_bytes(const StoredTensor& tensor) {
  uint64_t bytes = 0;
  for (const StoredBox& box : tensor.boxes) bytes += box.bytes;
  return bytes;
}

std::string holders(const StoredTensor& tensor) {
  switch (tensor.placement) {
    case StoredPlacement::kReplicated:
      return "replicated";
    case StoredPlacement::kPerRank:
      return "one value a rank";
    case StoredPlacement::kSharded:
      break;
  }
  if (tensor.boxes.size() > kMaxHoldersShown)
    return fmt::format("rows over {} ranks", tensor.boxes.size());
  std::vector<std::string> parts;
  for (const StoredBox& box : tensor.boxes)
    parts.push_back(fmt::format("rank {}: rows {}-{}", box.rank, box.row_begin, box.row_end));
  return fmt::format("{}", fmt::join(parts, ", "));
}

// "model.block.7.weight" -> {"model.block.*.weight", {7}}.
std::pair<std::string, std::vector<int64_t>> fold_numbers(const std::string& key) {
  std::string pattern;
  std::vector<int64_t> numbers;
  for (size_t begin = 0; begin <= key.size();) {
    const size_t end = std::min(key.find('.', begin), key.size());
    const std::string_view part(key.data() + begin, end - begin);
    int64_t number = 0;
    const auto parsed = std::from_chars(part.data(), part.data() + part.size(), number);
    const bool numeric = parsed.ec == std::errc() && parsed.ptr == part.data() + part.size();
    if (begin > 0) pattern += '.';
    pattern += numeric ? "*" : std::string(part);
    if (numeric) numbers.push_back(number);
    begin = end + 1;
  }
  return {pattern, numbers};
}

struct Fold {
  std::vector<const StoredTensor*> tensors;
  std::vector<std::vector<int64_t>> numbers;
};

// The pattern with each * replaced by the values that occur there.
std::string fold_label(const std::string& pattern, const Fold& fold) {
  if (fold.tensors.size() == 1) return fold.tensors[0]->key;
  std::string label;
  size_t position = 0;
  for (const char c : pattern) {
    if (c != '*') {
      label += c;
      continue;
    }
    std::set<int64_t> values;
    for (const auto& numbers : fold.numbers) values.insert(numbers[position]);
    ++position;
    const bool dense =
        *values.rbegin() - *values.begin() + 1 == static_cast<int64_t>(values.size());
    if (values.size() == 1)
      label += fmt::format("{}", *values.begin());
    else if (dense)
      label += fmt::format("{{{}-{}}}", *values.begin(), *values.rbegin());
    else
      label += fmt::format("{{{}}}", fmt::join(values, ","));
  }
  return label;
}

std::string tensor_lines(const Manifest& manifest) {
  std::vector<std::string> order;
  std::map<std::string, Fold> folds;
  std::map<std::string, std::string> patterns;
  for (const StoredTensor& tensor : manifest.tensors) {
    auto [pattern, numbers] = fold_numbers(tensor.key);
    // A literal star in a name must not be taken for a number's place.
    if (tensor.key.find('*') != std::string::npos) pattern = tensor.key, numbers.clear();
    const std::string id =
        fmt::format("{}|{}|{}|{}|{}", pattern, tensor.dtype, fmt::join(tensor.shape, ","),
                    holders(tensor), tensor.integer ? std::to_string(*tensor.integer) : "");
    if (!folds.contains(id)) order.push_back(id);
    patterns[id] = pattern;
    folds[id].tensors.push_back(&tensor);
    folds[id].numbers.push_back(std::move(numbers));
  }
  std::string out;
  for (const std::string& id : order) {
    const Fold& fold = folds[id];
    const StoredTensor& first = *fold.tensors[0];
    uint64_t bytes = 0;
    for (const StoredTensor* tensor : fold.tensors) bytes += stored_bytes(*tensor);
    out += fmt::format("  {:<56} {:<5} [{}]{}{}  {}  {}\n", fold_label(patterns[id], fold),
                       first.dtype, fmt::join(first.shape, ", "),
                       first.integer ? fmt::format(" = {}", *first.integer) : "",
                       fold.tensors.size() > 1 ? fmt::format(" x{}", fold.tensors.size()) : "",
                       human_bytes(bytes), holders(first));
  }
  return out;
}

void add_scalar_lines(const Json& value, const std::string& path, std::string& out) {
  if (value.is_object()) {
    for (const auto& [name, inner] : value.items())
      add_scalar_lines(inner, path.empty() ? name : fmt::format("{}.{}", path, name), out);
  } else if (value.is_array() && value.size() > 8 && value[0].is_string()) {
    out += fmt::format("  {} = {} names, {} ... {}\n", path, value.size(), value.front().dump(),
                       value.back().dump());
  } else if (value.is_array() && !value.empty() && value[0].is_object()) {
    for (size_t i = 0; i < value.size(); ++i)
      add_scalar_lines(value[i], fmt::format("{}.{}", path, i), out);
  } else {
    out += fmt::format("  {} = {}\n", path, value.dump());
  }
}

uint64_t total_bytes(const Manifest& manifest) {
  uint64_t bytes = 0;
  for (const StoredTensor& tensor : manifest.tensors) bytes += stored_bytes(tensor);
  return bytes;
}

}  // namespace

std::string inspect_text(const Manifest& manifest, const std::string& directory) {
  const ManifestHead& head = manifest.head;
  std::string out = fmt::format(
      "{}\nkind {}, step {}, save {} of its run, world size {}, written by {}\n{} tensors, {} in "
      "{} files\n",
      directory, to_string(head.kind), head.step, head.save_sequence, head.world_size, head.writer,
      manifest.tensors.size(), human_bytes(total_bytes(manifest)), manifest.files.size());
  out += "\nspec\n";
  for (const auto& [name, value] : manifest.spec) out += fmt::format("  {} = {}\n", name, value);
  out += "\nfiles\n";
  for (const StoredFile& file : manifest.files)
    out += fmt::format("  {:<56} {}\n", file.name, human_bytes(file.bytes));
  out += "\ntensors\n" + tensor_lines(manifest);
  if (!manifest.aliases.empty()) out += "\ntied\n";
  for (const auto& [alias, stored] : manifest.aliases)
    out += fmt::format("  {} = {}\n", alias, stored);
  std::string scalars;
  Json json = Json::parse(manifest.scalars_json);
  // They are the shapes of the parameters above.
  if (json.contains("optimizer") && json["optimizer"].is_object()) json["optimizer"].erase("shapes");
  add_scalar_lines(json, "", scalars);
  return out + "\nscalars\n" + scalars;
}

std::string inspect_json(const Manifest& manifest, const std::string& directory) {
  const ManifestHead& head = manifest.head;
  Json out = {{"directory", directory},
              {"kind", to_string(head.kind)},
              {"step", head.step},
              {"save_sequence", head.save_sequence},
              {"world_size", head.world_size},
              {"writer", head.writer},
              {"version", head.version},
              {"bytes", total_bytes(manifest)},
              {"spec", Json::object()},
              {"files", Json::array()},
              {"tensors", Json::array()},
              {"aliases", manifest.aliases},
              {"scalars", Json::parse(manifest.scalars_json)}};
  for (const auto& [name, value] : manifest.spec) out["spec"][name] = value;
  for (const StoredFile& file : manifest.files)
    out["files"].push_back({{"name", file.name}, {"bytes", file.bytes}});
  for (const StoredTensor& tensor : manifest.tensors) {
    Json item = {{"key", tensor.key},
                 {"dtype", tensor.dtype},
                 {"shape", tensor.shape},
                 {"bytes", stored_bytes(tensor)},
                 {"placement", to_string(tensor.placement)}};
    if (tensor.integer) item["integer"] = *tensor.integer;
    item["boxes"] = Json::array();
    for (const StoredBox& box : tensor.boxes)
      item["boxes"].push_back({{"rank", box.rank},
                               {"rows", {box.row_begin, box.row_end}},
                               {"file", manifest.files[static_cast<size_t>(box.file)].name},
                               {"offset", box.offset},
                               {"bytes", box.bytes}});
    out["tensors"].push_back(std::move(item));
  }
  return out.dump(2) + "\n";
}

}  // namespace tessera::checkpoint
