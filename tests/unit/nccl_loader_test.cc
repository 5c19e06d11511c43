// The loader and the communicator around an NcclGroup, without CUDA: a stand-in for the library,
// and tensors on the meta device for those on a GPU.
#include "comm/nccl_loader.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "comm/backends.h"
#include "comm/nccl_communicator.h"
#include "tessera/error.h"

namespace tessera::comm {
namespace {

using namespace std::chrono_literals;
const torch::Device kDevice(torch::kMeta);

template <typename Kind, typename Function>
std::string message_of(Function function) {
  try {
    function();
  } catch (const Kind& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

GetEnv environment(std::optional<std::string> library) {
  return [library](const char* name) {
    return std::string(name) == "TESSERA_NCCL_LIBRARY" ? library : std::nullopt;
  };
}

class Loader : public testing::Test {
 protected:
  void SetUp() override {
    directory_ =
        std::filesystem::path(testing::TempDir()) / ("nccl_loader_" + std::to_string(::getpid()));
    std::filesystem::create_directories(directory_ / "bin");
    std::filesystem::create_directories(directory_ / "lib");
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string write(const std::string& name) const {
    std::ofstream(directory_ / name) << "not a library";
    return (directory_ / name).string();
  }
  std::filesystem::path directory_;
};

// First in the process: afterwards the real library may have brought CUDA.
TEST_F(Loader, ProgramThatAskedForCudaTooEarly) {
  at::manual_seed(1);
  const std::string text = message_of<UsageError>([] { check_torch_sees_cuda(); });
  expect_contains(text, "call Runtime::from_environment() first");
}

TEST_F(Loader, LibraryNextToTheProgramOrBesideIt) {
  const std::string bin = (directory_ / "bin").string();
  expect_contains(message_of<UsageError>([&] { find_nccl_library(environment({}), bin); }),
                  "TESSERA_NCCL_LIBRARY");
  write("lib/libtessera_nccl.so");
  EXPECT_TRUE(std::filesystem::equivalent(find_nccl_library(environment({}), bin),
                                          directory_ / "lib/libtessera_nccl.so"));
  const std::string beside = write("bin/libtessera_nccl.so");
  EXPECT_EQ(find_nccl_library(environment({}), bin), beside);
  const std::string named = write("mine.so");
  EXPECT_EQ(find_nccl_library(environment(named), bin), named);
  EXPECT_EQ(find_nccl_library(environment(""), bin), beside);
}

TEST_F(Loader, NamedLibraryThatIsMissing) {
  const std::string text = message_of<UsageError>(
      [&] { find_nccl_library(environment("/no/such.so"), directory_.string()); });
  EXPECT_EQ(text, "TESSERA_NCCL_LIBRARY=\"/no/such.so\" is not a file");
}

TEST_F(Loader, FileThatIsNoLibrary) {
  const std::string path = write("text.so");
  const std::string text = message_of<UsageError>([&] { load_nccl_library(path); });
  expect_contains(text, path);
  expect_contains(text, "cannot be loaded");
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST_F(Loader, LibraryWithoutTheSymbol) {
  const std::string text =
      message_of<UsageError>([&] { load_nccl_library(TESSERA_OTHER_LIBRARY); });
  expect_contains(text, "has no symbol tessera_make_nccl_group");
}

// The real library, where it was built, on an installation without CUDA: one line that says what is
// missing. (With CUDA it loads; scripts/gpu_check.sh goes on from there.)
#ifdef TESSERA_NCCL_LIBRARY_PATH
TEST_F(Loader, RealLibraryLoadsOrSaysWhatIsMissing) {
  MakeNcclGroup* make_group = nullptr;
  try {
    make_group = load_nccl_library(TESSERA_NCCL_LIBRARY_PATH);
  } catch (const UsageError& error) {
    expect_contains(error.what(), "cannot open shared object file");
    expect_contains(error.what(), "LibTorch with all of its CUDA libraries");
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return;
  }
  if (torch::cuda::is_available()) return;
  const StorePtr store = make_private_store();
  const std::string text = message_of<CommError>([&] {
    make_nccl(make_group, store, {}, {torch::kCUDA, 0}, 5s);
  });
  expect_contains(text, "rank 0 cannot start NCCL on cuda:0: ");
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}
#endif

TEST_F(Loader, LibraryOfAnotherInterface) {
  const StorePtr store = make_private_store();
  MakeNcclGroup* make_group = load_nccl_library(TESSERA_OLD_NCCL_LIBRARY);
  const std::string text =
      message_of<CommError>([&] { make_nccl(make_group, store, {}, kDevice, 5s); });
  expect_contains(text, "cannot start NCCL on meta: another interface version");
}

TEST_F(Loader, LoadedGroupTakesDeviceTensorsAndGlooTheRest) {
  const StorePtr store = make_private_store();
  auto communicator =
      make_nccl(load_nccl_library(TESSERA_FAKE_NCCL_LIBRARY), store, {}, kDevice, 5s);
  EXPECT_EQ(communicator->name(), "nccl");
  const torch::Tensor on_device = torch::empty({4}, kDevice);
  communicator->all_gather(on_device, on_device);
  communicator->reduce_scatter(on_device, on_device);
  communicator->all_reduce(on_device, ReduceOp::kSum);
  communicator->barrier();
  torch::Tensor host = torch::zeros({3});
  communicator->all_gather(host, torch::ones({3}));
  EXPECT_TRUE(torch::equal(host, torch::ones({3})));
  EXPECT_EQ(communicator->all_gather_bytes("abc"), std::vector<std::string>{"abc"});
  EXPECT_EQ(communicator->exchange_header("h"), std::vector<std::string>{"h"});
  communicator->shutdown();
  c10d::PrefixStore calls("nccl", store);
  EXPECT_EQ(calls.get_to_str("calls"), "all_gather reduce_scatter all_reduce barrier shutdown ");
}

// What the group and Gloo were told, in order.
struct Log {
  std::vector<std::string> calls;
};

class NotedGroup final : public NcclGroup {
 public:
  explicit NotedGroup(Log& log) : log_(log) {}
  void all_gather(at::Tensor, const at::Tensor&) override { log_.calls.push_back("all_gather"); }
  void reduce_scatter(at::Tensor, at::Tensor) override {}
  void all_reduce(at::Tensor, ReduceOp) override {}
  void broadcast(at::Tensor, int) override {
    throw std::runtime_error("unhandled system error\nbacktrace");
  }
  void barrier() override {}
  void shutdown() override { log_.calls.push_back("nccl shutdown"); }
  void abort() noexcept override { log_.calls.push_back("nccl abort"); }

 private:
  Log& log_;
};

class NotedControl final : public Communicator {
 public:
  NotedControl(Log& log, int world_size) : Communicator(0, world_size, 200ms), log_(log) {}
  std::string_view name() const override { return "control"; }
  void all_gather(torch::Tensor, const torch::Tensor&) override {
    throw CommError("rank 1 has died");
  }
  void reduce_scatter(torch::Tensor, torch::Tensor) override {}
  void broadcast(torch::Tensor, int) override {}
  void barrier() override { log_.calls.push_back("barrier"); }
  void shutdown() override { log_.calls.push_back("gloo shutdown"); }

 private:
  Log& log_;
};

std::unique_ptr<NcclCommunicator> make_noted(Log& log, int world_size = 1) {
  return std::make_unique<NcclCommunicator>(std::make_unique<NotedGroup>(log),
                                            std::make_shared<NotedControl>(log, world_size),
                                            make_private_store(), kDevice);
}

using Calls = std::vector<std::string>;

// BL-60: NCCL ends before Gloo, after all ranks have met; once.
TEST(NcclCommunicatorEnd, InOrder) {
  Log log;
  auto communicator = make_noted(log);
  communicator->shutdown();
  communicator->shutdown();
  communicator.reset();
  EXPECT_EQ(log.calls, (Calls{"barrier", "nccl shutdown", "gloo shutdown"}));
}

TEST(NcclCommunicatorEnd, CollectiveAfterwardsIsRefused) {
  Log log;
  auto communicator = make_noted(log);
  communicator->shutdown();
  const torch::Tensor tensor = torch::empty({2}, kDevice);
  expect_contains(message_of<CommError>([&] { communicator->all_gather(tensor, tensor); }),
                  "after the end of communication");
}

TEST(NcclCommunicatorEnd, AfterAFailureNobodyIsWaitedFor) {
  Log log;
  auto communicator = make_noted(log, 2);
  const torch::Tensor tensor = torch::empty({2}, kDevice);
  communicator->all_gather(tensor, tensor);
  EXPECT_EQ(message_of<CommError>([&] { communicator->broadcast(tensor, 1); }),
            "rank 0: broadcast number 2 over nccl failed: unhandled system error");
  communicator.reset();
  EXPECT_EQ(log.calls, (Calls{"all_gather", "nccl abort", "gloo shutdown"}));
}

TEST(NcclCommunicatorEnd, AfterALostPeerNobodyIsWaitedFor) {
  Log log;
  auto communicator = make_noted(log, 2);
  EXPECT_THROW(communicator->all_gather_bytes("x"), CommError);
  communicator.reset();
  EXPECT_EQ(log.calls, (Calls{"nccl abort", "gloo shutdown"}));
}

TEST(NcclCommunicatorEnd, WhileAnExceptionUnwinds) {
  Log log;
  try {
    const auto communicator = make_noted(log, 2);
    throw std::runtime_error("user code");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(log.calls, (Calls{"nccl abort", "gloo shutdown"}));
}

TEST(NcclCommunicatorEnd, PeerThatNeverEndsIsWaitedForUpToTheDeadline) {
  Log log;
  auto communicator = make_noted(log, 2);
  const auto begin = std::chrono::steady_clock::now();
  communicator->shutdown();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
  EXPECT_EQ(log.calls, (Calls{"nccl abort", "gloo shutdown"}));
}

TEST(NcclCommunicatorRouting, TensorOfAnotherDeviceIsRefused) {
  Log log;
  const auto communicator = std::make_unique<NcclCommunicator>(
      std::make_unique<NotedGroup>(log), std::make_shared<NotedControl>(log, 1),
      make_private_store(), torch::Device(torch::kCUDA, 1));
  const torch::Tensor tensor = torch::empty({2}, kDevice);
  EXPECT_THROW(communicator->all_gather(tensor, tensor), c10::Error);
}

}  // namespace
}  // namespace tessera::comm
