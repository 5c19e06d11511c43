#include "final_parameters.h"

#include <c10/util/StringUtil.h>
#include <fcntl.h>
#include <tessera/error.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

namespace tessera::train {
namespace {

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

[[noreturn]] void refuse(const std::string& path) {
  const int error_number = errno;
  throw IoError(
      c10::str("writing the parameters to ", path, " failed: ", std::strerror(error_number)),
      error_number);
}

// Eight bytes of little-endian length, then JSON. Parameter names need no escapes: LibTorch allows
// neither quotes nor control characters that matter here, and a name is checked all the same.
std::string header_of(const NamedTensors& tensors) {
  std::string json = "{";
  int64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    TORCH_CHECK(name.find_first_of("\"\\\n") == std::string::npos, "parameter name ", name);
    const char* dtype = tensor.scalar_type() == torch::kFloat64 ? "F64" : "F32";
    const int64_t end = offset + static_cast<int64_t>(tensor.nbytes());
    std::string shape;
    for (const int64_t size : tensor.sizes()) shape += c10::str(shape.empty() ? "" : ",", size);
    json +=
        c10::str(offset == 0 && json.size() == 1 ? "" : ",", "\"", name, "\":{\"dtype\":\"", dtype,
                 "\",\"shape\":[", shape, "],\"data_offsets\":[", offset, ",", end, "]}");
    offset = end;
  }
  json += "}";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  std::string header(8, '\0');
  for (size_t byte = 0; byte < 8; ++byte) {
    header[byte] = static_cast<char>(uint64_t{json.size()} >> (8 * byte));
  }
  return header + json;
}

void write_all(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) refuse(path);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

void write_file(const std::string& path, const NamedTensors& tensors) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) refuse(path);
  try {
    write_all(fd, header_of(tensors), path);
    for (const auto& [name, tensor] : tensors) {
      write_all(fd, {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()}, path);
    }
  } catch (...) {
    ::close(fd);
    ::unlink(path.c_str());
    throw;
  }
  if (::close(fd) != 0) refuse(path);
}

}  // namespace

void write_parameters(const std::string& path, NamedTensors tensors) {
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [name, tensor] : tensors) tensor = tensor.detach().to(torch::kCPU).contiguous();
  const std::string temporary = path + ".tmp";
  write_file(temporary, tensors);
  if (std::rename(temporary.c_str(), path.c_str()) != 0) refuse(path);
}

}  // namespace tessera::train
