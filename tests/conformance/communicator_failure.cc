// One rank of communicator_failure_test.py: takes part in one collective, or does not, and prints
// what it learned as one line of JSON.
//   communicator_failure OPERATION BEHAVIOUR
// BEHAVIOUR of the rank that FAILING_RANK names: absent (alive, until standard input closes), exit,
// kill.
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "comm/communicator.h"
#include "tessera/error.h"
#include "tessera/runtime.h"

namespace {

using tessera::comm::Communicator;

void run(Communicator& communicator, const std::string& operation, int failing_rank) {
  const int world = communicator.world_size();
  torch::Tensor small = torch::ones({1000});
  torch::Tensor large = torch::ones({1000 * world});
  if (operation == "all_gather")
    communicator.all_gather(large, small);
  else if (operation == "reduce_scatter")
    communicator.reduce_scatter(small, large);
  else if (operation == "all_reduce")
    communicator.all_reduce(torch::ones({100000}), tessera::comm::ReduceOp::kSum);
  else if (operation == "broadcast")
    communicator.broadcast(small, failing_rank);
  else if (operation == "barrier")
    communicator.barrier();
  else if (operation == "exchange_header")
    communicator.exchange_header("hello");
  else if (operation == "all_gather_bytes")
    communicator.all_gather_bytes("hello");
  else
    throw std::invalid_argument("unknown operation " + operation);
}

void fail(const std::string& behaviour) {
  if (behaviour == "exit") ::_exit(0);
  if (behaviour == "kill") ::raise(SIGKILL);
  std::string line;
  while (std::getline(std::cin, line)) {
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  torch::set_num_threads(1);
  const int failing_rank = std::atoi(std::getenv("FAILING_RANK"));
  nlohmann::json report = {{"kind", "none"}, {"text", ""}};
  auto begin = std::chrono::steady_clock::now();
  try {
    const tessera::Runtime runtime = tessera::Runtime::from_environment();
    runtime.barrier();  // everybody is there, and all works
    begin = std::chrono::steady_clock::now();
    if (runtime.rank() == failing_rank) {
      fail(argv[2]);
    } else {
      run(*runtime.mesh().communicator(), argv[1], failing_rank);
    }
  } catch (const tessera::TimeoutError& error) {
    report = {{"kind", "TimeoutError"}, {"text", error.what()}};
  } catch (const tessera::CommError& error) {
    report = {{"kind", "CommError"}, {"text", error.what()}};
  } catch (const std::exception& error) {
    report = {{"kind", "other"}, {"text", error.what()}};
  }
  report["seconds"] =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("%s\n", report.dump().c_str());
  return report["kind"] == "none" ? 0 : 1;
}
