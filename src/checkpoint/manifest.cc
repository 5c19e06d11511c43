#include "checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoint/hash_sidecar.h"
#include "checkpoint/manifest_check.h"
#include "io/checksum.h"
#include "io/safetensors.h"
#include "tessera/error.h"

namespace tessera::checkpoint {

namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr const char* kFormatName = "tessera-checkpoint";
constexpr size_t kHeadBytes = 4096;

OrderedJson encode_tensor(const StoredTensor& tensor) {
  OrderedJson out;
  out["key"] = tensor.key;
  out["dtype"] = tensor.dtype;
  out["shape"] = tensor.shape;
  out["placement"] = to_string(tensor.placement);
  if (!tensor.name.empty()) out["name"] = tensor.name;
  if (!tensor.parameter.empty()) out["parameter"] = tensor.parameter;
  if (!tensor.state_key.empty()) out["state"] = tensor.state_key;
  if (tensor.integer) out["integer"] = *tensor.integer;
  OrderedJson boxes = OrderedJson::array();
  for (const StoredBox& box : tensor.boxes)
    boxes.push_back({box.row_begin, box.row_end, box.file, box.offset, box.bytes, box.rank});
  out["boxes"] = std::move(boxes);
  return out;
}

// A reader of one JSON object whose every complaint names the place.
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) fail("is not an object");
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw CorruptionError(fmt::format("{} {}", where_, what));
  }
  bool has(const char* name) const { return object_.contains(name); }
  const Json& at(const char* name) const {
    auto found = object_.find(name);
    if (found == object_.end()) fail(fmt::format("lacks '{}'", name));
    return *found;
  }
  std::string text(const char* name) const {
    const Json& value = at(name);
    if (!value.is_string()) fail(fmt::format("has a '{}' that is not text", name));
    return value.get<std::string>();
  }
  int64_t integer(const char* name, int64_t low, int64_t high) const {
    return checked_integer(at(name), low, high, name);
  }
  uint64_t size(const char* name) const {
    return static_cast<uint64_t>(integer(name, 0, kMaxStoredBytes));
  }
  uint64_t hash(const char* name) const {
    const std::string value = text(name);
    const bool valid =
        value.size() == 16 && value.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (!valid) fail(fmt::format("has a '{}' that is not a hash of 16 hex digits", name));
    return std::stoull(value, nullptr, 16);
  }
  int64_t checked_integer(const Json& value, int64_t low, int64_t high, const char* name) const {
    const bool fits =
        value.is_number_unsigned()
            ? value.get<uint64_t>() <= static_cast<uint64_t>(std::max<int64_t>(high, 0))
            : value.is_number_integer();
    if (!fits || value.get<int64_t>() < low || value.get<int64_t>() > high)
      fail(fmt::format("has a '{}' that is not an integer from {} to {}", name, low, high));
    return value.get<int64_t>();
  }
  const std::string& where() const { return where_; }

 private:
  const Json& object_;
  std::string where_;
};

StoredKind parse_kind(const Fields& fields) {
  const std::string text = fields.text("kind");
  for (StoredKind kind : {StoredKind::kSharded, StoredKind::kFull, StoredKind::kLocal})
    if (text == to_string(kind)) return kind;
  fields.fail(fmt::format("has an unknown kind '{}'", text));
}

StoredPlacement parse_placement(const Fields& fields) {
  const std::string text = fields.text("placement");
  for (StoredPlacement placement :
       {StoredPlacement::kSharded, StoredPlacement::kReplicated, StoredPlacement::kPerRank})
    if (text == to_string(placement)) return placement;
  fields.fail(fmt::format("has an unknown placement '{}'", text));
}

ManifestHead parse_head(const Json& json, const std::string& where) {
  const Fields fields(json, where + ": 'head'");
  if (fields.text("format") != kFormatName)
    fields.fail(fmt::format("has the format '{}', not '{}'", fields.text("format"), kFormatName));
  ManifestHead head;
  head.version = static_cast<int>(fields.integer("version", 1, 1'000'000));
  if (head.version != kFormatVersion)
    throw LayoutError(
        fmt::format("{}: format version {} is not known here (this library reads version {}); "
                    "use the release that wrote it: '{}'",
                    where, head.version, kFormatVersion,
                    fields.has("writer") ? fields.text("writer") : "unknown"));
  head.save_sequence = fields.size("save_sequence");
  head.step = fields.integer("step", 0, INT64_MAX);
  head.kind = parse_kind(fields);
  head.world_size = static_cast<int>(fields.integer("world_size", 1, kMaxWorldSize));
  head.writer = fields.text("writer");
  return head;
}

StoredBox parse_box(const Json& json, const Fields& tensor) {
  if (!json.is_array() || json.size() != 6) tensor.fail("has a box that is not 6 integers");
  StoredBox box;
  box.row_begin = tensor.checked_integer(json[0], 0, INT64_MAX, "row_begin");
  box.row_end = tensor.checked_integer(json[1], box.row_begin, INT64_MAX, "row_end");
  box.file = static_cast<int>(tensor.checked_integer(json[2], 0, INT32_MAX, "file"));
  box.offset = static_cast<uint64_t>(tensor.checked_integer(json[3], 0, kMaxStoredBytes, "offset"));
  box.bytes = static_cast<uint64_t>(tensor.checked_integer(json[4], 0, kMaxStoredBytes, "bytes"));
  box.rank = static_cast<int>(tensor.checked_integer(json[5], 0, kMaxWorldSize, "rank"));
  return box;
}

StoredTensor parse_tensor(const Json& json, size_t index, const std::string& where) {
  const std::string place = fmt::format("{}: tensor {}", where, index);
  StoredTensor tensor;
  tensor.key = Fields(json, place).text("key");
  const Fields fields(json, fmt::format("{} '{}'", place, tensor.key));
  tensor.dtype = fields.text("dtype");
  const Json& shape = fields.at("shape");
  if (!shape.is_array() || shape.size() > kMaxDims)
    fields.fail("has a shape that is not a short list");
  for (const Json& size : shape)
    tensor.shape.push_back(fields.checked_integer(size, 0, INT64_MAX, "shape"));
  tensor.placement = parse_placement(fields);
  if (fields.has("name")) tensor.name = fields.text("name");
  if (fields.has("parameter")) tensor.parameter = fields.text("parameter");
  if (fields.has("state")) tensor.state_key = fields.text("state");
  if (fields.has("integer")) tensor.integer = fields.integer("integer", INT64_MIN, INT64_MAX);
  const Json& boxes = fields.at("boxes");
  if (!boxes.is_array()) fields.fail("has boxes that are not a list");
  for (const Json& box : boxes) tensor.boxes.push_back(parse_box(box, fields));
  return tensor;
}

void parse_files(const Json& json, const std::string& where, Manifest& out) {
  if (!json.is_array()) throw CorruptionError(where + ": 'files' is not a list");
  for (const Json& item : json) {
    const Fields fields(item, fmt::format("{}: file {}", where, out.files.size()));
    StoredFile file;
    file.name = fields.text("name");
    if (!is_plain_file_name(file.name))
      fields.fail(fmt::format("has the name '{}', which is not a plain file name", file.name));
    file.bytes = fields.size("bytes");
    file.data_offset = fields.size("data_offset");
    file.header_hash = fields.hash("header_xxh3");
    out.files.push_back(std::move(file));
  }
}

std::map<std::string, std::string> parse_text_map(const Json& json, const std::string& where) {
  std::map<std::string, std::string> out;
  if (!json.is_object()) throw CorruptionError(where + " is not an object");
  for (const auto& [name, value] : json.items()) {
    if (!value.is_string())
      throw CorruptionError(fmt::format("{} has a value that is not text: {}", where, name));
    out.emplace(name, value.get<std::string>());
  }
  return out;
}

void parse_hashes(const Json& json, const std::string& where, Manifest& out) {
  const Fields fields(json, where + ": 'hashes'");
  if (fields.text("file") != kHashesName) fields.fail("names another file than hashes.bin");
  if (fields.size("block_bytes") != io::kHashBlockBytes) fields.fail("has an unknown block size");
  out.block_count = fields.size("count");
  out.hashes_hash = fields.hash("xxh3");
}

// The parser needs no stack for a nested value, but writing and walking through it does.
void require_shallow(const std::string& text, const std::string& where) {
  size_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') in_string = !in_string;
    if (in_string && c == '\\') ++i;
    if (in_string) continue;
    if (c == ']' || c == '}') depth -= depth > 0 ? 1 : 0;
    if (c != '[' && c != '{') continue;
    if (++depth > kMaxManifestDepth)
      throw CorruptionError(fmt::format("{}: values are nested deeper than {} at byte {}", where,
                                        kMaxManifestDepth, i));
  }
}

Json parse_json(const std::string& text, const std::string& where) {
  require_shallow(text, where);
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    throw CorruptionError(fmt::format("{}: not valid JSON: {}", where, error.what()));
  }
}

// The text after the first line, after checking that the first line seals it.
void check_seal(const std::string& text, const std::string& where) {
  constexpr std::string_view kOpen = "{\"seal\":\"";
  const size_t line_end = kOpen.size() + 16 + 2;
  if (text.size() <= line_end || text.compare(0, kOpen.size(), kOpen) != 0 ||
      text[line_end] != '\n')
    throw CorruptionError(where + ": does not begin with a seal: not a manifest, or truncated");
  const std::string stored = text.substr(kOpen.size(), 16);
  const std::string actual =
      hex64(io::hash_bytes(text.data() + line_end + 1, text.size() - line_end - 1));
  if (stored != actual)
    throw CorruptionError(
        fmt::format("{}: the text does not match its seal (stored {}, computed {}): "
                    "the manifest was edited or damaged",
                    where, stored, actual));
}

}  // namespace

std::string to_string(StoredKind kind) {
  switch (kind) {
    case StoredKind::kSharded:
      return "sharded";
    case StoredKind::kFull:
      return "full";
    case StoredKind::kLocal:
      return "local";
  }
  return "unknown";
}

std::string to_string(StoredPlacement placement) {
  switch (placement) {
    case StoredPlacement::kSharded:
      return "sharded";
    case StoredPlacement::kReplicated:
      return "replicated";
    case StoredPlacement::kPerRank:
      return "per_rank";
  }
  return "unknown";
}

std::string hex64(uint64_t value) { return fmt::format("{:016x}", value); }

std::string writer_version() { return "tessera " TESSERA_VERSION; }

bool is_plain_file_name(const std::string& name) {
  constexpr std::string_view kAllowed =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  return !name.empty() && name.size() <= 200 && name[0] != '.' &&
         name.find_first_not_of(kAllowed) == std::string::npos;
}

uint64_t StoredTensor::row_bytes() const {
  uint64_t bytes = io::safetensors_element_size(dtype);
  for (size_t dim = 1; dim < shape.size(); ++dim) bytes *= static_cast<uint64_t>(shape[dim]);
  return bytes;
}

const StoredTensor* Manifest::find(const std::string& key) const {
  if (index_.size() != tensors.size()) {
    index_.clear();
    for (size_t i = 0; i < tensors.size(); ++i) index_.emplace(tensors[i].key, i);
  }
  auto found = index_.find(key);
  return found == index_.end() ? nullptr : &tensors[found->second];
}

void Manifest::number_blocks() {
  block_count = 0;
  for (StoredTensor& tensor : tensors) {
    for (StoredBox& box : tensor.boxes) {
      box.first_block = block_count;
      block_count += io::hash_block_count(box.bytes);
    }
  }
}

std::string encode_manifest(const Manifest& manifest) {
  const ManifestHead& head = manifest.head;
  const OrderedJson head_json = {{"format", kFormatName},
                                 {"version", head.version},
                                 {"save_sequence", head.save_sequence},
                                 {"step", head.step},
                                 {"kind", to_string(head.kind)},
                                 {"world_size", head.world_size},
                                 {"writer", head.writer}};
  OrderedJson spec = OrderedJson::object();
  for (const auto& [name, value] : manifest.spec) spec[name] = value;
  std::string body = fmt::format("\"head\":{},\n\"spec\":{},\n\"layout\":{},\n\"files\":[",
                                 head_json.dump(), spec.dump(), Json(manifest.layout).dump());
  for (const StoredFile& file : manifest.files) {
    const OrderedJson json = {{"name", file.name},
                              {"bytes", file.bytes},
                              {"data_offset", file.data_offset},
                              {"header_xxh3", hex64(file.header_hash)}};
    body += (&file == manifest.files.data() ? "\n" : ",\n") + json.dump();
  }
  const OrderedJson hashes = {{"file", kHashesName},
                              {"block_bytes", io::kHashBlockBytes},
                              {"count", manifest.block_count},
                              {"xxh3", hex64(manifest.hashes_hash)}};
  body += fmt::format("],\n\"hashes\":{},\n\"aliases\":{},\n\"scalars\":{},\n\"tensors\":[",
                      hashes.dump(), Json(manifest.aliases).dump(), manifest.scalars_json);
  for (const StoredTensor& tensor : manifest.tensors)
    body += (&tensor == manifest.tensors.data() ? "\n" : ",\n") + encode_tensor(tensor).dump();
  body += "]}\n";
  return fmt::format("{{\"seal\":\"{}\",\n{}", hex64(io::hash_bytes(body.data(), body.size())),
                     body);
}

Manifest parse_manifest(const std::string& text, const std::string& where) {
  check_seal(text, where);
  const Json json = parse_json(text, where);
  const Fields top(json, where + ":");
  Manifest manifest;
  manifest.head = parse_head(top.at("head"), where);
  for (auto& [name, value] : parse_text_map(top.at("spec"), where + ": 'spec'"))
    manifest.spec.emplace_back(name, value);
  manifest.layout = top.text("layout");
  parse_files(top.at("files"), where, manifest);
  parse_hashes(top.at("hashes"), where, manifest);
  manifest.aliases = parse_text_map(top.at("aliases"), where + ": 'aliases'");
  if (!top.at("scalars").is_object()) top.fail("'scalars' is not an object");
  manifest.scalars_json = top.at("scalars").dump();
  const Json& tensors = top.at("tensors");
  if (!tensors.is_array()) top.fail("'tensors' is not a list");
  for (const Json& tensor : tensors)
    manifest.tensors.push_back(parse_tensor(tensor, manifest.tensors.size(), where));
  check_manifest(manifest, where);
  return manifest;
}

ManifestHead parse_manifest_head(const std::string& first_bytes, const std::string& where) {
  constexpr std::string_view kOpen = "\"head\":";
  const size_t line = first_bytes.find('\n');
  const size_t end = line == std::string::npos ? line : first_bytes.find(",\n", line + 1);
  if (end == std::string::npos || first_bytes.compare(line + 1, kOpen.size(), kOpen) != 0)
    throw CorruptionError(where + ": has no head in its second line: not a manifest, or truncated");
  const size_t begin = line + 1 + kOpen.size();
  return parse_head(parse_json(first_bytes.substr(begin, end - begin), where), where);
}

std::string read_manifest_text(io::FileSystem& files, const std::string& directory) {
  const std::string path = io::join_path(directory, kManifestName);
  if (!files.exists(path))
    throw CorruptionError(
        fmt::format("{}: no {} in it: not a checkpoint directory, or an incomplete one", directory,
                    kManifestName));
  const auto file = open_listed(files, directory, kManifestName);
  const uint64_t size = file->size();
  if (size > kMaxManifestBytes)
    throw CorruptionError(fmt::format("{}: {} bytes are too many for a manifest", path, size));
  std::string text(size, '\0');
  file->read_at(0, text.data(), text.size());
  return text;
}

Manifest read_manifest(io::FileSystem& files, const std::string& directory) {
  return parse_manifest(read_manifest_text(files, directory),
                        io::join_path(directory, kManifestName));
}

ManifestHead read_manifest_head(io::FileSystem& files, const std::string& directory) {
  const std::string path = io::join_path(directory, kManifestName);
  // A run's listing must tell one that was just removed from one that is damaged.
  if (!files.exists(path)) throw IoError(path + ": removed since", ENOENT);
  auto file = open_listed(files, directory, kManifestName);
  std::string bytes(std::min<uint64_t>(kHeadBytes, file->size()), '\0');
  file->read_at(0, bytes.data(), bytes.size());
  file->close();
  return parse_manifest_head(bytes, path);
}

}  // namespace tessera::checkpoint
