// The safetensors container: 8 bytes of little-endian header length, a JSON header, then the bytes
// of all tensors back to back. Format: https://github.com/huggingface/safetensors (README,
// "Format").
//
// Reading is strict, because a file may come from anywhere: header at most 100 MB, no duplicate
// keys, offsets in bounds, no holes, no overlaps, no trailer, shape x dtype equals the length.
// Every breach is a CorruptionError that names the file and the tensor.
// Threads: values; free functions are reentrant. Cost: reads 8 + header bytes, never data.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "io/file_system.h"

namespace tessera::io {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // "F32", "BF16", "I64", ... as in the format's text
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // relative to the data section
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in file order of their data
  std::map<std::string, std::string> metadata;
  uint64_t data_offset = 0;  // absolute offset of the data section, a multiple of 64 when we write
  uint64_t data_bytes = 0;
};

// Bytes of one element, 0 for an unknown dtype string.
size_t safetensors_element_size(const std::string& dtype);

// Sorts the entries (name, dtype, shape given) by descending element size, then name; assigns
// begin/end in that order and fills in data_offset and data_bytes. Returns the first `data_offset`
// bytes of the file: the 8 length bytes, then the text, padded with spaces to a multiple of 64.
// UsageError for what the format cannot express.
std::string encode_safetensors_header(SafetensorsHeader& header);

// Reads and validates the header of an open file.
SafetensorsHeader read_safetensors_header(File& file);

// Parses header bytes (without the 8 length bytes) of a file with `file_size` bytes in all.
SafetensorsHeader parse_safetensors_header(const std::string& json, uint64_t file_size,
                                           const std::string& path);

}  // namespace tessera::io
