// A CUDA driver without a GPU, as far as Tessera asks one: shows the devices whose numbers
// FAKE_CUDA_DEVICES lists ("0,3"), one byte of UUID each. Stands in for libcuda.so.1 in tests.
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

std::vector<int> devices() {
  std::vector<int> out;
  const char* list = std::getenv("FAKE_CUDA_DEVICES");
  for (const char* at = list; at != nullptr && *at != '\0';
       at = std::strchr(at, ',') ? std::strchr(at, ',') + 1 : nullptr) {
    out.push_back(std::atoi(at));
  }
  return out;
}

}  // namespace

extern "C" {
int cuInit(unsigned) { return devices().empty() ? 100 : 0; }
int cuDeviceGetCount(int* count) {
  *count = static_cast<int>(devices().size());
  return 0;
}
int cuDeviceGet(int* device, int index) {
  *device = devices().at(static_cast<size_t>(index));
  return 0;
}
int cuDeviceGetUuid_v2(char* uuid, int device) {
  std::memset(uuid, 0, 16);
  uuid[0] = static_cast<char>(device);
  return 0;
}
int cuGetErrorName(int code, const char** name) {
  *name = code == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_UNKNOWN";
  return 0;
}
}
