#include "checkpoint/staging.h"

#include <sys/mman.h>
#include <torch/torch.h>

#include <cerrno>
#include <cstring>
#include <set>

#include "checkpoint/context.h"
#include "checkpoint/host_bytes.h"
#include "tessera/error.h"

namespace tessera::checkpoint {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kAlignment = 64;
// Below this a copy at once costs less than a guard at every later operator.
constexpr size_t kSmallBytes = size_t{16} << 10;

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// The memory can be read as it is, by another thread.
bool is_plain(const torch::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.is_contiguous() && !tensor.is_conj() &&
         !tensor.is_neg();
}

bool may_wait(const StateEntry& entry) {
  const bool guarded = entry.role == StateRole::kParameter || entry.role == StateRole::kOptimizer;
  return guarded && entry.tensor.nbytes() > kSmallBytes && is_plain(entry.tensor);
}

std::set<size_t> planned_entries(const SaveJob& job) {
  std::set<size_t> planned;
  for (const PlannedFile& file : job.plan())
    for (const PlannedBox& box : file.boxes) planned.insert(box.entry);
  return planned;
}

}  // namespace

StagingArea::~StagingArea() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

std::byte* StagingArea::reserve(size_t bytes) {
  if (bytes <= size_) return data_;
  if (data_ != nullptr) ::munmap(data_, size_);
  data_ = nullptr;
  size_ = 0;
  const size_t wanted = round_up(bytes, kHugePage);
  void* memory =
      ::mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    throw IoError("no memory for the copy that a background save needs: " +
                      std::to_string(wanted) + " bytes; use a synchronous save",
                  ENOMEM);
  // Only advice: without huge pages the first copy is slower.
  ::madvise(memory, wanted, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(memory);
  size_ = wanted;
  return data_;
}

void StagingGate::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

void StagingGate::open() {
  const std::lock_guard lock(mutex_);
  closed_ = false;
  opened_.notify_all();
}

void StagingGate::before_write() {
  std::unique_lock lock(mutex_);
  ++waiting_;
  opened_.wait(lock, [&] { return !closed_; });
  --waiting_;
}

int StagingGate::waiting() const {
  const std::lock_guard lock(mutex_);
  return waiting_;
}

Staged stage(SaveJob& job, StagingArea& area, const std::shared_ptr<StagingGate>& gate) {
  std::vector<StateEntry>& entries = ContextBuilder::entries(job.context);
  const std::set<size_t> planned = planned_entries(job);
  size_t needed = 0;
  for (const size_t index : planned)
    if (!entries[index].integer) needed += round_up(entries[index].tensor.nbytes(), kAlignment);
  std::byte* to = area.reserve(needed);
  Staged staged;
  for (size_t index = 0; index < entries.size(); ++index) {
    StateEntry& entry = entries[index];
    if (entry.integer || !entry.tensor.defined()) continue;
    const torch::Tensor live = entry.tensor;
    if (!planned.contains(index)) {
      entry.tensor = torch::Tensor();
      continue;
    }
    const size_t bytes = live.nbytes();
    if (may_wait(entry)) {
      fsdp::guard_writes(live, gate);
      staged.pending.push_back(
          {live.storage(), static_cast<const std::byte*>(live.const_data_ptr()), to, bytes});
    } else if (bytes > 0) {
      const HostBytes host(live);
      std::memcpy(to, host.data(), bytes);
      staged.copied_bytes += bytes;
    }
    entry.tensor =
        torch::from_blob(to, live.sizes(), torch::TensorOptions().dtype(live.scalar_type()));
    staged.total_bytes += bytes;
    to += round_up(bytes, kAlignment);
  }
  return staged;
}

}  // namespace tessera::checkpoint
