// A run that saves a step at a time, one of whose processes is killed at a chosen file operation;
// checkpoint_kill_test.py starts it again and again. Arguments: directory, kind, steps.
//
// TESSERA_TEST_KILL = "rank save operation whom": in its `save`-th save, at its `operation`-th
// operation (a write has then written half), that rank kills itself ("self") or every rank ("all").
// "alone": rank 1 saves and the others never come.
// Rank 0 prints "resumed STEP LEFTOVERS", then "saving STEP" and "saved STEP" for each step.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <sstream>

#include "checkpoint/directory.h"
#include "checkpoint/verify.h"
#include "io/forwarding_file_system.h"
#include "tessera/error.h"
#include "tessera/runtime.h"
#include "unit/checkpoint_fleet.h"

namespace tessera::checkpoint {
namespace {

// Kills when its countdown ends; 0 never does.
struct Trigger {
  void step() {
    if (left > 0 && --left == 0) fire();
  }
  bool fires_now() const { return left == 1; }
  void fire() const {
    for (const pid_t pid : victims) ::kill(pid, SIGKILL);
    ::kill(::getpid(), SIGKILL);
  }
  int64_t left = 0;
  std::vector<pid_t> victims;
};

class KilledFile final : public io::ForwardingFile {
 public:
  KilledFile(std::unique_ptr<io::File> base, Trigger& trigger)
      : ForwardingFile(std::move(base)), trigger_(trigger) {}
  void write_at(uint64_t offset, const void* data, size_t size) override {
    if (trigger_.fires_now()) base_->write_at(offset, data, size / 2);
    trigger_.step();
    base_->write_at(offset, data, size);
  }
  void allocate(uint64_t size) override {
    trigger_.step();
    base_->allocate(size);
  }
  void sync() override {
    trigger_.step();
    base_->sync();
  }
  void close() override {
    trigger_.step();
    base_->close();
  }

 private:
  Trigger& trigger_;
};

class KilledFileSystem final : public io::ForwardingFileSystem {
 public:
  explicit KilledFileSystem(io::FileSystem& base) : ForwardingFileSystem(base) {}
  std::unique_ptr<io::File> open(const std::string& path, io::OpenMode mode) override {
    trigger.step();
    return std::make_unique<KilledFile>(base_.open(path, mode), trigger);
  }
  bool create_directory(const std::string& path) override {
    trigger.step();
    return base_.create_directory(path);
  }
  void rename(const std::string& from, const std::string& to) override {
    trigger.step();
    base_.rename(from, to);
  }
  void replace(const std::string& from, const std::string& to) override {
    trigger.step();
    base_.replace(from, to);
  }
  void remove_file(const std::string& path) override {
    trigger.step();
    base_.remove_file(path);
  }
  // File by file, so that a kill can leave half a tree.
  void remove_tree(const std::string& path) override {
    for (const io::DirectoryEntry& entry : base_.list(path)) {
      trigger.step();
      base_.remove_tree(io::join_path(path, entry.name));
    }
    trigger.step();
    base_.remove_tree(path);
  }
  void sync_directory(const std::string& path) override {
    trigger.step();
    base_.sync_directory(path);
  }
  Trigger trigger;
};

struct Order {
  int rank = -1;
  int64_t save = 0;
  int64_t operation = 0;
  std::string whom;
};

Order read_order() {
  Order order;
  const char* text = std::getenv("TESSERA_TEST_KILL");
  std::istringstream in(text == nullptr ? "" : text);
  in >> order.rank >> order.save >> order.operation >> order.whom;
  return order;
}

std::vector<ParameterSpec> model() {
  std::vector<ParameterSpec> specs = awkward_model();
  specs.push_back({"large", {37, 900}});
  return specs;
}

const MakeOptimizer kAdam = make_optimizer<torch::optim::Adam>(torch::optim::AdamOptions(1e-2));

class Run {
 public:
  Run(const Runtime& runtime, std::string root, const CkptSpec& spec)
      : runtime_(runtime),
        communicator_(*runtime.mesh().communicator()),
        root_(std::move(root)),
        spec_(spec),
        rank_(model(), runtime.rank(), runtime.world_size(), kAdam, even_split, 3) {}

  void run(int64_t steps) {
    const Order order = read_order();
    std::vector<pid_t> everyone;
    for (const std::string& pid : runtime_.all_gather_bytes(std::to_string(::getpid())))
      everyone.push_back(std::stoi(pid));
    int64_t step = resume();
    for (int64_t save = 1; save <= steps; ++save) {
      rank_.train(step, 1);
      tell("saving", ++step);
      if (order.rank == runtime_.rank() && order.save == save) {
        files_.trigger.left = order.operation;
        if (order.whom == "all") files_.trigger.victims = everyone;
      }
      save_step(files_, root_, rank_.live(communicator_), spec_, step,
                CheckpointerOptions().keep_last(2));
      files_.trigger.left = 0;
      tell("saved", step);
      EXPECT_EQ(leftovers(), 0U) << "the save before cleans up";
    }
  }

  void save_alone() {
    if (runtime_.rank() != 1)
      while (true) ::pause();  // until the launcher ends it
    rank_.train(0, 1);
    save_step(files_, root_, rank_.live(communicator_), spec_, 1, {});
  }

 private:
  void tell(const char* what, int64_t step) const {
    if (runtime_.rank() != 0) return;
    std::printf("%s %lld\n", what, static_cast<long long>(step));
    std::fflush(stdout);
  }

  // The newest checkpoint there is, whole, and with the values of its step.
  int64_t resume() {
    size_t left = 0;
    std::string newest;
    if (runtime_.rank() == 0) {
      left = leftovers();
      const RunListing listing = list_run(files_, root_);
      for (const ListedCheckpoint& listed : listing.checkpoints) {
        const auto problems = verify_checkpoint(files_, io::join_path(root_, listed.name)).problems;
        EXPECT_TRUE(problems.empty()) << listed.name << ": " << problems[0];
      }
      if (!listing.checkpoints.empty()) newest = listing.checkpoints[0].name;
    }
    newest = runtime_.all_gather_bytes(newest)[0];
    const auto report = load_newest(files_, root_, rank_.live(communicator_), spec_, {});
    EXPECT_EQ(report.has_value(), !newest.empty());
    FleetRank expected(model(), runtime_.rank(), runtime_.world_size(), kAdam);
    if (report) {
      EXPECT_EQ(report->path, io::join_path(root_, newest));
      expected.train(0, report->step);
      expect_same_state(rank_, expected);
    } else {
      rank_ = std::move(expected);
    }
    const int64_t step = report ? report->step : 0;
    if (runtime_.rank() == 0) {
      std::printf("resumed %lld %zu\n", static_cast<long long>(step), left);
      std::fflush(stdout);
    }
    return step;
  }

  // What interrupted saves and deletions left behind.
  size_t leftovers() {
    size_t count = 0;
    if (runtime_.rank() != 0 || !files_.is_directory(root_)) return count;
    for (const io::DirectoryEntry& entry : files_.list(root_))
      count += entry.is_directory && entry.name[0] == '.' ? 1 : 0;
    return count;
  }

  const Runtime& runtime_;
  comm::Communicator& communicator_;
  const std::string root_;
  const CkptSpec spec_;
  FleetRank rank_;
  KilledFileSystem files_{io::real_file_system()};
};

int main_of(char** arguments) {
  const std::string kind = arguments[2];
  const auto spec = CkptSpec().kind(kind == "full"    ? StateDictKind::kFull
                                    : kind == "local" ? StateDictKind::kLocal
                                                      : StateDictKind::kSharded);
  const Runtime runtime = Runtime::from_environment();
  Run run(runtime, arguments[1], spec);
  const char* order = std::getenv("TESSERA_TEST_KILL");
  if (order != nullptr && std::string(order) == "alone")
    run.save_alone();
  else
    run.run(std::stoll(arguments[3]));
  return testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed() ? 3 : 0;
}

}  // namespace
}  // namespace tessera::checkpoint

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  torch::set_num_threads(1);
  if (argc != 4) return 2;
  try {
    return tessera::checkpoint::main_of(argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
