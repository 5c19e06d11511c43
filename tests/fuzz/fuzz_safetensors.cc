// Any bytes are either refused with a CorruptionError or give a header that is consistent and
// survives being written and read again.
#include <cstdint>
#include <cstring>
#include <string>

#include "fuzz/require.h"
#include "io/safetensors.h"
#include "tessera/error.h"

namespace tessera::io {
namespace {

using fuzz::require;

class MemoryFile final : public File {
 public:
  MemoryFile(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  const std::string& path() const override { return path_; }
  uint64_t size() override { return size_; }
  void read_at(uint64_t offset, void* out, size_t size) override {
    require(size <= size_ && offset <= size_ - size, "a read stays inside the file");
    if (size > 0) std::memcpy(out, data_ + offset, size);
  }
  void write_at(uint64_t, const void*, size_t) override { require(false, "a reader never writes"); }
  void allocate(uint64_t) override { require(false, "a reader never allocates"); }
  void truncate(uint64_t) override { require(false, "a reader never truncates"); }
  void sync() override {}
  void close() override {}

 private:
  const std::string path_ = "memory";
  const uint8_t* data_;
  size_t size_;
};

void require_tiles(const SafetensorsHeader& header, uint64_t file_size) {
  uint64_t end = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    require(entry.begin == end && entry.end >= end, "tensors tile the data section");
    end = entry.end;
    uint64_t bytes = safetensors_element_size(entry.dtype);
    for (const int64_t size : entry.shape) bytes *= static_cast<uint64_t>(size);
    require(bytes == entry.end - entry.begin, "shape and dtype give the length");
  }
  require(end == header.data_bytes, "the data section ends with the last tensor");
  require(header.data_offset + header.data_bytes == file_size, "the file ends with the data");
}

void require_round_trip(const SafetensorsHeader& header) {
  SafetensorsHeader written = header;
  const std::string text = encode_safetensors_header(written);
  require(written.data_bytes == header.data_bytes, "writing keeps the data's size");
  const SafetensorsHeader again =
      parse_safetensors_header(text.substr(8), text.size() + written.data_bytes, "again");
  require(again.metadata == header.metadata, "metadata survives");
  require(again.entries.size() == header.entries.size(), "every tensor survives");
  for (size_t i = 0; i < again.entries.size(); ++i) {
    // Empty tensors at equal offsets may change places, so only offsets compare by position.
    require(again.entries[i].begin == written.entries[i].begin, "offsets survive");
  }
}

}  // namespace
}  // namespace tessera::io

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera::io;
  MemoryFile file(data, size);
  try {
    const SafetensorsHeader header = read_safetensors_header(file);
    require_tiles(header, size);
    require_round_trip(header);
  } catch (const tessera::CorruptionError&) {
  }
  return 0;
}
