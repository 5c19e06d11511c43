// What a load reads and what memory it takes: the rows of its rank, each byte once, into place.
#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>

#include "io/recording_file_system.h"
#include "unit/checkpoint_fleet.h"
#include "unit/io_temp_directory.h"

namespace tessera::checkpoint {
namespace {

constexpr int64_t kRows = 90001;  // no rank's boundary falls on a hash block
constexpr int64_t kWidth = 65;
constexpr uint64_t kStateBytes = 3 * kRows * kWidth * 4;  // 66.9 MiB: weight, exp_avg, exp_avg_sq

// Stands in for LibTorch's CPU allocator and keeps count.
class CountingAllocator : public c10::Allocator {
 public:
  CountingAllocator() : under_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, 100); }
  ~CountingAllocator() override { c10::SetCPUAllocator(under_, 100); }

  c10::DataPtr allocate(size_t bytes) override {
    for (size_t seen = largest; bytes > seen && !largest.compare_exchange_weak(seen, bytes);) {
    }
    total += bytes;
    return under_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return under_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    under_->copy_data(to, from, bytes);
  }

  std::atomic<size_t> largest = 0;
  std::atomic<size_t> total = 0;

 private:
  c10::Allocator* under_;
};

size_t peak_resident() {
  std::ifstream in("/proc/self/status");
  std::string line;
  while (std::getline(in, line))
    if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6)) * 1024;
  return 0;
}

void reset_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

std::vector<ParameterSpec> big_model() { return {{"table.weight", {kRows, kWidth}}}; }

// Unique in float over the whole table.
void number(FleetRank& rank, double offset) {
  torch::NoGradGuard no_grad;
  const ShardedParameter& table = rank.parameters[0];
  const Tensor first = torch::arange(table.row_begin * kWidth, table.row_end * kWidth, torch::kInt);
  table.leaf.copy_(first.add(static_cast<int>(offset)).view(torch::kFloat).view({-1, kWidth}));
}

class CheckpointBytes : public testing::TestWithParam<std::pair<int, StateDictKind>> {};

TEST_P(CheckpointBytes, ALoadReadsItsRowsAndLittleElse) {
  const auto [saved, kind] = GetParam();
  const CkptSpec spec = CkptSpec().kind(kind);
  const auto make = make_optimizer<torch::optim::Adam>(torch::optim::AdamOptions());
  io::TempDirectory temp;
  const std::string path = temp / "c";
  expect_no_errors(test::run_ranks(saved, [&](comm::Communicator& communicator) {
    FleetRank rank(big_model(), communicator.rank(), communicator.world_size(), make);
    rank.train(0, 1);
    number(rank, 1 << 24);
    save_state(io::real_file_system(), rank.live(communicator), spec, {path, false}, 1,
               SaveOptions().sync(false));
  }));
  for (const int loaded : {2, 3, 7}) {
    SCOPED_TRACE(std::to_string(saved) + " to " + std::to_string(loaded));
    std::vector<uint64_t> read(static_cast<size_t>(loaded));
    std::vector<uint64_t> needed(static_cast<size_t>(loaded));
    expect_no_errors(test::run_ranks(loaded, [&](comm::Communicator& communicator) {
      const auto mine = static_cast<size_t>(communicator.rank());
      FleetRank rank(big_model(), communicator.rank(), loaded, make);
      io::RecordingFileSystem recorder(io::real_file_system());
      communicator.barrier();
      load_state(recorder, path, rank.live(communicator), spec, {});
      read[mine] = recorder.bytes_read();
      needed[mine] = 3 * rank.parameters[0].leaf.nbytes();
      const Tensor loaded_rows = rank.parameters[0].leaf.detach().clone();
      number(rank, 1 << 24);
      EXPECT_TRUE(torch::equal(loaded_rows.view(torch::kInt),
                               rank.parameters[0].leaf.detach().view(torch::kInt)));
    }));
    double worst = 0, all = 0;
    for (size_t rank = 0; rank < read.size(); ++rank) {
      EXPECT_GE(read[rank], needed[rank]);
      worst = std::max(worst, static_cast<double>(read[rank]) / static_cast<double>(needed[rank]));
      all += static_cast<double>(read[rank]);
    }
    std::printf("%d to %d ranks: %.4f of the bytes needed, worst rank %.4f\n", saved, loaded,
                all / kStateBytes, worst);
    EXPECT_LE(all / kStateBytes, 1.02);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CheckpointBytes,
                         testing::Values(std::pair(3, StateDictKind::kSharded),
                                         std::pair(4, StateDictKind::kFull)));

// One allocation for what is read, none of a whole tensor, and nothing as large beside it.
TEST(CheckpointMemory, ALoadTakesOneCopyOfItsOwnRows) {
  static_assert(kStateBytes >= uint64_t{64} << 20);
  const auto make = make_optimizer<torch::optim::Adam>(torch::optim::AdamOptions());
  io::TempDirectory temp;
  const std::string path = temp / "c";
  const auto part = [&](comm::Communicator& communicator) {
    return FleetRank(big_model(), communicator.rank(), communicator.world_size(), make);
  };
  expect_no_errors(test::run_ranks(2, [&](comm::Communicator& communicator) {
    FleetRank rank = part(communicator);
    rank.train(0, 1);
    save_state(io::real_file_system(), rank.live(communicator), {}, {path, false}, 1,
               SaveOptions().sync(false));
  }));
  CountingAllocator counter;
  size_t before = 0;
  expect_no_errors(test::run_ranks(3, [&](comm::Communicator& communicator) {
    FleetRank rank = part(communicator);
    rank.train(0, 1);
    communicator.barrier();
    if (communicator.rank() == 0) {
      counter.largest = counter.total = 0;
      reset_peak();
      before = peak_resident();
    }
    communicator.barrier();
    load_state(io::real_file_system(), path, rank.live(communicator), {}, {});
    communicator.barrier();
    if (communicator.rank() == 0) {
      const size_t rows = static_cast<size_t>(kRows + 2) / 3 * kWidth * 4;
      std::printf("largest tensor %zu, a rank's rows %zu; all tensors %zu of %zu; resident + %zu\n",
                  counter.largest.load(), rows, counter.total.load(), kStateBytes,
                  peak_resident() - before);
      EXPECT_LE(counter.largest, rows);
      EXPECT_LE(counter.total, kStateBytes + (1 << 20));
      EXPECT_LE(peak_resident() - before, kStateBytes + (8 << 20));
    }
    communicator.barrier();
  }));
}

}  // namespace
}  // namespace tessera::checkpoint
