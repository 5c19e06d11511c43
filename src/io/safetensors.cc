#include "io/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/safetensors_limits.h"
#include "tessera/error.h"

namespace tessera::io {
namespace {

constexpr uint64_t kDataAlignment = 64;

std::string json_text(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw UsageError(fmt::format("safetensors: {} is not valid UTF-8", printable_name(text)));
  }
}

uint64_t entry_bytes(const SafetensorsEntry& entry) {
  if (safetensors_element_size(entry.dtype) == 0) {
    throw UsageError(fmt::format("safetensors: tensor {} has dtype {}, which the format lacks",
                                 printable_name(entry.name), printable_name(entry.dtype)));
  }
  const auto bytes = safetensors_bytes(entry);
  if (!bytes) {
    throw UsageError(fmt::format("safetensors: the shape [{}] of tensor {} is not possible",
                                 fmt::join(entry.shape, ", "), printable_name(entry.name)));
  }
  return *bytes;
}

// By name, refusing what the format cannot tell apart, then by descending element size.
void sort_entries(std::vector<SafetensorsEntry>& entries) {
  std::sort(entries.begin(), entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) { return a.name < b.name; });
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].name == kMetadataKey) {
      throw UsageError(fmt::format("safetensors: no tensor may be called {}", kMetadataKey));
    }
    if (i > 0 && entries[i].name == entries[i - 1].name) {
      throw UsageError(
          fmt::format("safetensors: two tensors are called {}", printable_name(entries[i].name)));
    }
  }
  auto begin = entries.begin();
  for (const size_t bytes : {8, 4, 2}) {
    begin = std::stable_partition(begin, entries.end(), [&](const SafetensorsEntry& entry) {
      return safetensors_element_size(entry.dtype) == bytes;
    });
  }
}

std::string metadata_text(const std::map<std::string, std::string>& metadata) {
  std::string text = fmt::format("\"{}\":{{", kMetadataKey);
  const char* separator = "";
  for (const auto& [key, value] : metadata) {
    text.append(separator).append(json_text(key)).append(":").append(json_text(value));
    separator = ",";
  }
  return text + "}";
}

std::string length_bytes(uint64_t length) {
  std::string bytes(kLengthBytes, '\0');
  for (size_t i = 0; i < kLengthBytes; ++i) bytes[i] = static_cast<char>(length >> (8 * i));
  return bytes;
}

uint64_t length_from(const std::array<unsigned char, kLengthBytes>& bytes) {
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= uint64_t{bytes[i]} << (8 * i);
  return length;
}

}  // namespace

size_t safetensors_element_size(const std::string& dtype) {
  struct Dtype {
    std::string_view name;
    size_t bytes;
  };
  static constexpr Dtype kDtypes[] = {
      {"BOOL", 1},    {"U8", 1},          {"I8", 1},          {"F8_E5M2", 1}, {"F8_E4M3", 1},
      {"F8_E8M0", 1}, {"F8_E4M3FNUZ", 1}, {"F8_E5M2FNUZ", 1}, {"I16", 2},     {"U16", 2},
      {"F16", 2},     {"BF16", 2},        {"I32", 4},         {"U32", 4},     {"F32", 4},
      {"C64", 8},     {"F64", 8},         {"I64", 8},         {"U64", 8},
  };
  for (const Dtype& known : kDtypes) {
    if (known.name == dtype) return known.bytes;
  }
  return 0;
}

std::optional<uint64_t> safetensors_bytes(const SafetensorsEntry& entry) {
  int64_t bytes = static_cast<int64_t>(safetensors_element_size(entry.dtype));
  for (const int64_t size : entry.shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return static_cast<uint64_t>(bytes);
}

std::string printable_name(const std::string& name) {
  constexpr size_t kLongest = 200;
  std::string text = "'";
  for (const char c : name.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      text += fmt::format("\\x{:02x}", byte);
    } else {
      text += c;
    }
  }
  if (name.size() > kLongest) text += fmt::format("...({} bytes)", name.size());
  return text + "'";
}

std::string encode_safetensors_header(SafetensorsHeader& header) {
  sort_entries(header.entries);
  std::string text = "{";
  if (!header.metadata.empty()) text += metadata_text(header.metadata);
  uint64_t offset = 0;
  for (SafetensorsEntry& entry : header.entries) {
    const uint64_t bytes = entry_bytes(entry);
    entry.begin = offset;
    if (__builtin_add_overflow(offset, bytes, &offset)) {
      throw UsageError("safetensors: the tensors of one file exceed 2^64 bytes");
    }
    entry.end = offset;
    if (text.size() > 1) text += ",";
    text += fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                        json_text(entry.name), entry.dtype, fmt::join(entry.shape, ","),
                        entry.begin, entry.end);
  }
  text += "}";
  const uint64_t used = kLengthBytes + text.size();
  header.data_offset = (used + kDataAlignment - 1) / kDataAlignment * kDataAlignment;
  header.data_bytes = offset;
  text.append(header.data_offset - used, ' ');
  if (text.size() > kLongestHeader) {
    throw UsageError(
        fmt::format("safetensors: a header of {} bytes is over the format's limit of "
                    "{}; write the tensors to several files",
                    text.size(), kLongestHeader));
  }
  return length_bytes(text.size()) + text;
}

SafetensorsHeader read_safetensors_header(File& file) {
  const uint64_t file_size = file.size();
  if (file_size < kLengthBytes) {
    throw CorruptionError(
        fmt::format("{}: {} bytes are too few for a safetensors file", file.path(), file_size));
  }
  std::array<unsigned char, kLengthBytes> prefix{};
  file.read_at(0, prefix.data(), prefix.size());
  if (prefix[0] == 'P' && prefix[1] == 'K' && prefix[2] == 3 && prefix[3] == 4) {
    throw CorruptionError(fmt::format(
        "{}: begins with a zip archive instead of a safetensors header; PyTorch writes such files, "
        "which nothing can read, when a state dict of its HuggingFaceStorageWriter holds values "
        "that are no tensors (param_groups)",
        file.path()));
  }
  const uint64_t length = length_from(prefix);
  if (length > kLongestHeader) {
    throw CorruptionError(
        fmt::format("{}: not a safetensors file: a header of {} bytes is over "
                    "the format's limit of {}",
                    file.path(), length, kLongestHeader));
  }
  if (length > file_size - kLengthBytes) {
    throw CorruptionError(
        fmt::format("{}: truncated: {} bytes in all, but the header alone ends at "
                    "byte {}",
                    file.path(), file_size, length + kLengthBytes));
  }
  std::string json(length, '\0');
  file.read_at(kLengthBytes, json.data(), json.size());
  return parse_safetensors_header(json, file_size, file.path());
}

}  // namespace tessera::io
