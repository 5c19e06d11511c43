// The one interface through which ranks exchange tensors and small messages.
//
// All members are collective: every rank calls them in the same order. Sums run in rank order, so
// that every rank and every run gets the same bits. Each wait has the communicator's deadline and
// names the rank that it waited for (TimeoutError, or CommError where that rank is known dead).
// Threads: one thread at a time.
// Cost on W ranks, n bytes a rank: all_gather n(W-1) received; reduce_scatter n(W-1) received of an
// input of nW; all_reduce 2n(W-1)/W (nW up to 16,384
// elements, and for min and max); broadcast n.
#pragma once

#include <torch/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::comm {

enum class ReduceOp { kSum, kMax, kMin };

class SharedMemory;

class Communicator {
 public:
  Communicator(int rank, int world_size, std::chrono::milliseconds timeout)
      : rank_(rank), world_size_(world_size), timeout_(timeout) {}
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  virtual std::string_view name() const = 0;

  // out has world_size * input.numel() elements; input may be this rank's slice of out.
  virtual void all_gather(torch::Tensor out, const torch::Tensor& input) = 0;
  // input has world_size * out.numel() elements; out = sum over ranks of its segment. input is
  // scratch afterwards.
  virtual void reduce_scatter(torch::Tensor out, torch::Tensor input) = 0;
  virtual void all_reduce(torch::Tensor tensor, ReduceOp op);
  virtual void broadcast(torch::Tensor tensor, int root) = 0;
  virtual void barrier();

  // Small control message: every rank's, in rank order.
  static constexpr size_t kMaxHeaderBytes = 248;
  virtual std::vector<std::string> exchange_header(std::string_view header);
  // Messages of any size, different on each rank.
  std::vector<std::string> all_gather_bytes(std::string_view bytes);

  // Where ranks share memory: the shm backend's regions and epochs; null elsewhere.
  virtual SharedMemory* shared_memory() { return nullptr; }
  // Ordered end of communication; waits for peers up to the deadline. Idempotent.
  virtual void shutdown() {}

 private:
  const int rank_;
  const int world_size_;
  const std::chrono::milliseconds timeout_;
};

}  // namespace tessera::comm
