// Which CUDA device each rank uses, decided before anything of CUDA or NCCL is loaded.
//
// A rank's device comes from its place on its host (LOCAL_RANK), never from RANK, within the
// devices that CUDA_VISIBLE_DEVICES leaves. No torch; the driver is asked directly, because
// LibTorch's CUDA libraries take half a second to load and cannot be had on every host. Threads:
// any. Cost: find_cuda_devices() initialises the driver (0.1 to 1 s with a GPU, microseconds
// without a driver); everything else is arithmetic.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::comm {

struct CudaDevices {
  std::vector<std::string> uuids;  // of the visible devices, by index
  std::string reason;              // why there are none
  int count() const { return static_cast<int>(uuids.size()); }
};
CudaDevices find_cuda_devices();

struct DeviceChoice {
  int index = -1;
  std::string error;  // empty: `index` can be used
};
// A device of its own for each rank of a host. A host that shows each rank one device (Slurm can)
// gives index 0 to all; agree_on_devices() then tells whether it is the same one.
DeviceChoice choose_device(int local_rank, int local_world_size, int device_count);
// The same where ranks may share a device (they talk over the host).
DeviceChoice choose_shared_device(int local_rank, int device_count);

// What one rank found, as it tells its peers.
struct CudaPlace {
  int index = -1;
  int device_count = 0;
  int local_world_size = 1;
  std::string uuid;
  std::string error;  // why this rank cannot use CUDA
  bool usable() const { return error.empty(); }
};
std::string encode(const CudaPlace& place);
CudaPlace decode_cuda_place(std::string_view text);

// The first rank's error, with the rank where there are several; empty where none has one.
std::string first_error(const std::vector<std::string>& errors);

// Empty when every rank has a device, and (where `exclusive`) one that no other rank has; otherwise
// what is wrong, in terms of ranks and devices, the same text on every rank.
std::string agree_on_devices(const std::vector<CudaPlace>& places, bool exclusive);

}  // namespace tessera::comm
