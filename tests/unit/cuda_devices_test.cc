#include "comm/cuda_devices.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace tessera::comm {
namespace {

CudaPlace place(int index, int count, int local_world, const std::string& uuid) {
  return {index, count, local_world, uuid, ""};
}

TEST(ChooseDevice, LocalRankIsTheIndex) {
  for (int local_rank = 0; local_rank < 4; ++local_rank) {
    const DeviceChoice choice = choose_device(local_rank, 4, 8);
    EXPECT_EQ(choice.index, local_rank);
    EXPECT_EQ(choice.error, "");
  }
}

// BL-82: on the second host RANK is 2 and 3, LOCAL_RANK 0 and 1; only the latter counts.
TEST(ChooseDevice, KnowsNothingOfTheGlobalRank) {
  EXPECT_EQ(choose_device(0, 2, 2).index, 0);
  EXPECT_EQ(choose_device(1, 2, 2).index, 1);
}

TEST(ChooseDevice, MoreRanksThanDevices) {
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  for (int local_rank = 0; local_rank < 3; ++local_rank) {
    const DeviceChoice choice = choose_device(local_rank, 3, 2);
    EXPECT_EQ(choice.index, -1);
    EXPECT_EQ(
        choice.error,
        "3 ranks on this host, but 2 CUDA devices visible; start at most one rank for each device");
  }
}

TEST(ChooseDevice, SaysWhatHidesDevices) {
  ::setenv("CUDA_VISIBLE_DEVICES", "4,5", 1);
  const DeviceChoice choice = choose_device(0, 3, 2);
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_NE(choice.error.find("CUDA_VISIBLE_DEVICES=\"4,5\""), std::string::npos) << choice.error;
}

TEST(ChooseDevice, NoDevice) {
  EXPECT_EQ(choose_device(0, 1, 0).error, "no CUDA device is visible to this process");
  EXPECT_EQ(choose_shared_device(2, 0).error, "no CUDA device is visible to this process");
}

TEST(ChooseDevice, SharedDevicesGoRound) {
  EXPECT_EQ(choose_shared_device(0, 2).index, 0);
  EXPECT_EQ(choose_shared_device(3, 2).index, 1);
  EXPECT_EQ(choose_shared_device(3, 1).index, 0);
}

// Slurm can show each task one device: all have index 0, and that is right where they differ.
TEST(AgreeOnDevices, OneDeviceEachUnderOneIndex) {
  for (int local_rank = 0; local_rank < 3; ++local_rank)
    EXPECT_EQ(choose_device(local_rank, 3, 1).index, 0);
  EXPECT_EQ(agree_on_devices({place(0, 1, 3, "a"), place(0, 1, 3, "b"), place(0, 1, 3, "c")}, true),
            "");
}

// BL-80: three ranks, one device.
TEST(AgreeOnDevices, SharedDeviceIsNamedWithItsRanks) {
  const std::string text =
      agree_on_devices({place(0, 1, 3, "a"), place(0, 1, 3, "b"), place(0, 1, 3, "a")}, true);
  EXPECT_EQ(text,
            "3 ranks, 1 CUDA device: ranks 0 and 2 would use the same device (GPU a); start at "
            "most one rank for each device");
  EXPECT_EQ(agree_on_devices({place(0, 1, 2, "a"), place(0, 1, 2, "a")}, /*exclusive=*/false), "");
}

TEST(AgreeOnDevices, FirstRankThatCannot) {
  CudaPlace broken = place(-1, 0, 2, "");
  broken.error = "there is no CUDA driver on this host (libcuda.so.1)";
  EXPECT_EQ(agree_on_devices({place(0, 2, 2, "a"), broken, broken}, true),
            "rank 1: " + broken.error);
  EXPECT_EQ(agree_on_devices({place(0, 2, 2, "a"), broken}, false), "rank 1: " + broken.error);
}

TEST(CudaPlaces, SurviveTheStore) {
  CudaPlace sent = place(3, 8, 4, "0123abcd");
  sent.error = "two\nlines";
  const CudaPlace got = decode_cuda_place(encode(sent));
  EXPECT_EQ(got.index, 3);
  EXPECT_EQ(got.device_count, 8);
  EXPECT_EQ(got.local_world_size, 4);
  EXPECT_EQ(got.uuid, "0123abcd");
  EXPECT_EQ(got.error, "two\nlines");
  EXPECT_TRUE(decode_cuda_place(encode(place(0, 1, 1, "a"))).usable());
  EXPECT_FALSE(decode_cuda_place("nonsense").usable());
}

TEST(FindCudaDevices, EitherDevicesOrAReason) {
  const CudaDevices devices = find_cuda_devices();
  EXPECT_EQ(devices.count() == 0, !devices.reason.empty());
}

}  // namespace
}  // namespace tessera::comm
