// Several ranks in one process, as threads: fast enough to run many worlds in one unit test, and
// each rank may have its own file system, generator and faults.
#pragma once

#include <torch/torch.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "tessera/error.h"

namespace tessera::test {

// Exchanges through memory; a rank that never comes is a TimeoutError on the others.
class ThreadWorld {
 public:
  explicit ThreadWorld(int world_size)
      : world_size_(world_size), inputs_(static_cast<size_t>(world_size)) {}

  // Every rank hands in bytes; all get everybody's, in rank order.
  std::vector<std::string> exchange(int rank, std::string bytes,
                                    std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    const uint64_t round = round_;
    inputs_[static_cast<size_t>(rank)] = std::move(bytes);
    if (++arrived_ == world_size_) {
      result_ = inputs_;
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
    } else if (!changed_.wait_for(lock, timeout, [&] { return round_ != round; })) {
      throw TimeoutError("a simulated rank did not arrive");
    }
    return result_;
  }
  int world_size() const { return world_size_; }

 private:
  const int world_size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> inputs_;
  std::vector<std::string> result_;
  int arrived_ = 0;
  uint64_t round_ = 0;
};

class ThreadCommunicator : public comm::Communicator {
 public:
  ThreadCommunicator(ThreadWorld& world, int rank, std::chrono::milliseconds timeout)
      : Communicator(rank, world.world_size(), timeout), world_(world) {}
  std::string_view name() const override { return "thread"; }
  // How many all-gathers there were.
  int exchanges() const { return exchanges_; }
  void all_gather(torch::Tensor out, const torch::Tensor& input) override {
    ++exchanges_;
    const torch::Tensor mine = input.contiguous();
    const auto all = world_.exchange(
        rank(), std::string(static_cast<const char*>(mine.data_ptr()), mine.nbytes()), timeout());
    char* to = static_cast<char*>(out.data_ptr());
    for (const std::string& part : all) {
      std::copy(part.begin(), part.end(), to);
      to += part.size();
    }
  }
  void reduce_scatter(torch::Tensor, torch::Tensor) override { throw Error("not simulated"); }
  void all_reduce(torch::Tensor, comm::ReduceOp) override { throw Error("not simulated"); }
  void broadcast(torch::Tensor tensor, int root) override {
    const bool sends = rank() == root;
    const std::string mine =
        sends ? std::string(static_cast<const char*>(tensor.data_ptr()), tensor.nbytes()) : "";
    const std::string sent =
        world_.exchange(rank(), mine, timeout())[static_cast<size_t>(root)];
    if (!sends) std::copy(sent.begin(), sent.end(), static_cast<char*>(tensor.data_ptr()));
  }
  void barrier() override { world_.exchange(rank(), {}, timeout()); }

 private:
  ThreadWorld& world_;
  int exchanges_ = 0;
};

// Runs `body` on every rank; returns what each threw, null where nothing.
inline std::vector<std::exception_ptr> run_ranks(
    int world_size, const std::function<void(comm::Communicator&)>& body,
    std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  ThreadWorld world(world_size);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ThreadCommunicator communicator(world, rank, timeout);
        body(communicator);
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

inline std::string message_of(const std::exception_ptr& error) {
  if (!error) return "";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& caught) {
    // LibTorch appends a stack trace.
    const std::string text = caught.what();
    return text.substr(0, text.find("\nException raised from"));
  } catch (...) {
    return "not a std::exception";
  }
}

}  // namespace tessera::test
