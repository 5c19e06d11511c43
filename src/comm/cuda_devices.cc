#include "comm/cuda_devices.h"

#include <dlfcn.h>

#include <charconv>
#include <cstdlib>

namespace tessera::comm {
namespace {

std::string devices_text(int count) {
  return std::to_string(count) + (count == 1 ? " CUDA device" : " CUDA devices");
}

std::string ranks_text(int count) {
  return std::to_string(count) + (count == 1 ? " rank" : " ranks");
}

// The part of the driver's interface that is needed here; its calls return 0 for success.
class Driver {
 public:
  Driver() : library_(::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {}
  // Never unloaded: LibTorch uses the same driver from here on.
  ~Driver() = default;
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  bool found() const { return library_ != nullptr; }
  template <typename Function>
  Function* get(const char* name) const {
    return reinterpret_cast<Function*>(::dlsym(library_, name));
  }

 private:
  void* library_;
};

struct DriverUuid {
  char bytes[16];
};
using DriverInit = int(unsigned);
using DriverDeviceCount = int(int*);
using DriverDevice = int(int*, int);
using DriverDeviceUuid = int(DriverUuid*, int);
using DriverErrorName = int(int, const char**);

std::string error_name(const Driver& driver, int code) {
  const char* name = nullptr;
  auto* ask = driver.get<DriverErrorName>("cuGetErrorName");
  if (ask == nullptr || ask(code, &name) != 0 || name == nullptr)
    return "error " + std::to_string(code);
  return name;
}

std::string uuid_text(const DriverUuid& uuid) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const char byte : uuid.bytes) {
    const auto value = static_cast<unsigned char>(byte);
    out += kDigits[value >> 4];
    out += kDigits[value & 15];
  }
  return out;
}

std::string visible_devices_note() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible == nullptr ? "" : " (CUDA_VISIBLE_DEVICES=\"" + std::string(visible) + "\")";
}

int parse_int(std::string_view text) {
  int value = -1;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace

CudaDevices find_cuda_devices() {
  CudaDevices out;
  const Driver driver;
  if (!driver.found()) {
    out.reason = "there is no CUDA driver on this host (libcuda.so.1)";
    return out;
  }
  auto* init = driver.get<DriverInit>("cuInit");
  auto* get_count = driver.get<DriverDeviceCount>("cuDeviceGetCount");
  auto* get_device = driver.get<DriverDevice>("cuDeviceGet");
  auto* get_uuid = driver.get<DriverDeviceUuid>("cuDeviceGetUuid_v2");
  if (get_uuid == nullptr) get_uuid = driver.get<DriverDeviceUuid>("cuDeviceGetUuid");
  if (init == nullptr || get_count == nullptr || get_device == nullptr || get_uuid == nullptr) {
    out.reason = "the CUDA driver of this host (libcuda.so.1) is too old";
    return out;
  }
  int count = 0;
  int code = init(0);
  if (code == 0) code = get_count(&count);
  if (code == 0 && count == 0) code = 100;  // CUDA_ERROR_NO_DEVICE
  for (int index = 0; code == 0 && index < count; ++index) {
    int device = 0;
    DriverUuid uuid{};
    code = get_device(&device, index);
    if (code == 0) code = get_uuid(&uuid, device);
    out.uuids.push_back(uuid_text(uuid));
  }
  if (code != 0) {
    out.uuids.clear();
    out.reason =
        "the CUDA driver shows no device: " + error_name(driver, code) + visible_devices_note();
  }
  return out;
}

DeviceChoice choose_device(int local_rank, int local_world_size, int device_count) {
  if (device_count <= 0) return {-1, "no CUDA device is visible to this process"};
  if (local_world_size <= device_count) return {local_rank, ""};
  if (device_count == 1) return {0, ""};
  return {-1, ranks_text(local_world_size) + " on this host, but " + devices_text(device_count) +
                  " visible" + visible_devices_note() + "; start at most one rank for each device"};
}

DeviceChoice choose_shared_device(int local_rank, int device_count) {
  if (device_count <= 0) return choose_device(local_rank, 1, device_count);
  return {local_rank % device_count, ""};
}

std::string encode(const CudaPlace& place) {
  return std::to_string(place.index) + "\n" + std::to_string(place.device_count) + "\n" +
         std::to_string(place.local_world_size) + "\n" + place.uuid + "\n" + place.error;
}

CudaPlace decode_cuda_place(std::string_view text) {
  std::string_view fields[4];
  for (std::string_view& field : fields) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return {-1, 0, 1, "", "said nothing of its CUDA devices"};
    field = text.substr(0, end);
    text.remove_prefix(end + 1);
  }
  return {parse_int(fields[0]), parse_int(fields[1]), parse_int(fields[2]), std::string(fields[3]),
          std::string(text)};
}

std::string first_error(const std::vector<std::string>& errors) {
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (errors[rank].empty()) continue;
    return errors.size() == 1 ? errors[0] : "rank " + std::to_string(rank) + ": " + errors[rank];
  }
  return "";
}

std::string agree_on_devices(const std::vector<CudaPlace>& places, bool exclusive) {
  std::vector<std::string> errors;
  for (const CudaPlace& place : places) errors.push_back(place.error);
  const std::string error = first_error(errors);
  if (!error.empty() || !exclusive) return error;
  for (size_t rank = 0; rank < places.size(); ++rank) {
    for (size_t other = 0; other < rank; ++other) {
      const CudaPlace& place = places[rank];
      if (place.uuid != places[other].uuid) continue;
      return ranks_text(place.local_world_size) + ", " + devices_text(place.device_count) +
             ": ranks " + std::to_string(other) + " and " + std::to_string(rank) +
             " would use the same device (GPU " + place.uuid +
             "); start at most one rank for each device";
    }
  }
  return "";
}

}  // namespace tessera::comm
