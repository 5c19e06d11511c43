#include <torch/torch.h>

#include <algorithm>
#include <cstring>

#include "comm/backends.h"
#include "comm/shared_memory.h"
#include "comm/sum_dtype.h"
#include "tessera/error.h"

namespace tessera::comm {
namespace {

// Collectives on arbitrary tensors go through each rank's window in chunks. Two window halves
// alternate: nobody publishes chunk n + 2 before everybody has read chunk n.
class ShmCommunicator final : public Communicator {
 public:
  ShmCommunicator(std::unique_ptr<SharedMemory> memory, std::chrono::milliseconds timeout)
      : Communicator(memory->rank(), memory->world_size(), timeout), memory_(std::move(memory)) {}
  ~ShmCommunicator() override { shutdown(); }

  std::string_view name() const override { return "shm"; }
  SharedMemory* shared_memory() override { return memory_.get(); }

  std::vector<std::string> exchange_header(std::string_view header) override {
    TORCH_CHECK(header.size() <= kMaxHeaderBytes, "control message of ", header.size(), " bytes");
    return memory_->exchange_header(header);
  }

  void all_gather(torch::Tensor out, const torch::Tensor& input) override {
    const torch::Tensor source = input.contiguous();
    const size_t bytes = source.nbytes();
    auto* target = static_cast<std::byte*>(out.data_ptr());
    const auto* data = static_cast<const std::byte*>(source.data_ptr());
    for (size_t done = 0; done < bytes; done += SharedMemory::kWindowBytes) {
      const size_t chunk = std::min(SharedMemory::kWindowBytes, bytes - done);
      const int half = publish(data + done, chunk);
      for (int r = 0; r < world_size(); ++r) {
        std::byte* place = target + static_cast<size_t>(r) * bytes + done;
        const std::byte* from = r == rank() ? data + done : memory_->window(r, half);
        if (place != from) std::memmove(place, from, chunk);
      }
    }
  }

  void reduce_scatter(torch::Tensor out, torch::Tensor input) override {
    torch::NoGradGuard no_grad;
    const int64_t n = out.numel();
    const int64_t item = static_cast<int64_t>(input.element_size());
    const int64_t step = static_cast<int64_t>(SharedMemory::kWindowBytes) / (world_size() * item);
    const torch::Tensor source = input.contiguous().view({world_size(), n});
    torch::Tensor target = out.view({-1});
    const torch::Dtype dtype = sum_dtype(out.scalar_type());
    const bool in_place = dtype == out.scalar_type();
    for (int64_t done = 0; done < n; done += step) {
      const int64_t count = std::min(step, n - done);
      torch::Tensor sum = in_place ? target.narrow(0, done, count) : torch::empty({count}, out.options().dtype(dtype));
      const int half = begin_chunk();
      for (int r = 0; r < world_size(); ++r) {
        std::memcpy(memory_->window(rank(), half) + r * count * item,
                    static_cast<const std::byte*>(source.data_ptr()) + (r * n + done) * item,
                    static_cast<size_t>(count * item));
      }
      finish_chunk();
      for (int r = 0; r < world_size(); ++r) {
        const torch::Tensor part = torch::from_blob(memory_->window(r, half) + rank() * count * item, {count}, input.options());
        r == 0 ? sum.copy_(part) : sum.add_(part);
      }
      if (!in_place) target.narrow(0, done, count).copy_(sum);
    }
  }

  void broadcast(torch::Tensor tensor, int root) override {
    const torch::Tensor source = tensor.contiguous();
    auto* data = static_cast<std::byte*>(source.data_ptr());
    const size_t bytes = source.nbytes();
    for (size_t done = 0; done < bytes; done += SharedMemory::kWindowBytes) {
      const size_t chunk = std::min(SharedMemory::kWindowBytes, bytes - done);
      const int half = publish(data + done, rank() == root ? chunk : 0);
      if (rank() != root) std::memcpy(data + done, memory_->window(root, half), chunk);
    }
    if (rank() != root && source.data_ptr() != tensor.data_ptr()) tensor.copy_(source);
  }

  void shutdown() override { memory_->leave(); }

 private:
  int begin_chunk() {
    memory_->end_write();
    return static_cast<int>(chunk_++ % 2);
  }
  void finish_chunk() {
    memory_->wait_all(SharedMemory::kWindow, memory_->advance(SharedMemory::kWindow), "a collective over shared memory");
  }
  int publish(const std::byte* data, size_t bytes) {
    const int half = begin_chunk();
    if (bytes > 0) std::memcpy(memory_->window(rank(), half), data, bytes);
    finish_chunk();
    return half;
  }

  std::unique_ptr<SharedMemory> memory_;
  uint64_t chunk_ = 0;
};

}  // namespace

std::shared_ptr<Communicator> make_shm(const StorePtr& store, const RankEnvironment& environment,
                                       std::chrono::milliseconds timeout, std::string& reason) {
  const auto exchange = [&](const std::string& name, const std::string& value) {
    return store_all_gather(*store, name, environment.rank, environment.world_size, value, timeout);
  };
  auto memory = SharedMemory::create(environment.rank, environment.world_size, timeout, exchange, reason);
  if (!memory) return nullptr;
  return std::make_shared<ShmCommunicator>(std::move(memory), timeout);
}

}  // namespace tessera::comm
