// One rank of the checkpoint benchmark: does what its driver asks, on Tessera's public headers, and
// answers each command with one line of JSON. checkpoint_table.py drives it and PyTorch's side
// alike.
//
//   tessera-run --nproc N -- checkpoint_bench WORKLOAD CHANNEL
//
// Commands come through the FIFO CHANNEL.<rank>.in, answers go through CHANNEL.<rank>.out: a rank
// that waits for its turn sleeps and takes nothing from the side that is measured.
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>

#include "bench/bench_state.h"
#include "bench/raw_io.h"

namespace tessera::bench {
namespace {

using Clock = std::chrono::steady_clock;

class Bench {
 public:
  Bench(const std::string& workload, const Runtime& runtime)
      : runtime_(runtime), state_(workload, runtime), bytes_(state_.local_bytes()) {}

  std::string run(const std::string& line) {
    std::istringstream in(line);
    std::string verb;
    in >> verb;
    const auto command = commands_.find(verb);
    if (command == commands_.end()) throw std::invalid_argument("no command '" + verb + "'");
    return "{" + command->second(in) + "}";
  }

 private:
  static std::string field(const std::string& name, double value) {
    return c10::str('"', name, "\": ", value);
  }

  // All ranks begin together; the driver takes the slowest.
  std::string timed(const std::function<void()>& work) {
    runtime_.barrier();
    const auto start = Clock::now();
    work();
    return field("seconds", std::chrono::duration<double>(Clock::now() - start).count());
  }

  std::string hello(std::istream&) {
    return field("bytes", static_cast<double>(bytes_)) + ", " +
           field("tensors", static_cast<double>(state_.tensors()));
  }

  // One checkpointer for each way of saving, as in a training run.
  std::string save(std::istream& in) {
    std::string kind, root;
    bool sync = false;
    int64_t step = 0;
    in >> kind >> sync >> root >> step;
    const bool recycle = kind == "recycled";
    auto& checkpointer = checkpointers_[c10::str(root, " ", kind, " ", sync)];
    if (!checkpointer)
      checkpointer = std::make_unique<Checkpointer>(
          root, CkptSpec().kind(kind == "full" ? StateDictKind::kFull : StateDictKind::kSharded),
          runtime_,
          CheckpointerOptions().keep_last(recycle).recycle(recycle).save(SaveOptions().sync(sync)));
    return timed([&] { checkpointer->save(step, state_.train_state()); });
  }

  // How long the caller is held, until everything is copied, and until it is on disk.
  std::string async_save(std::istream& in) {
    std::string root;
    int64_t step = 0;
    in >> root >> step;
    Checkpointer& checkpointer = background(root);
    runtime_.barrier();
    const auto start = Clock::now();
    const auto since = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
    AsyncSave save = checkpointer.save_async(step, state_.train_state());
    const double called = since();
    save.staged().wait();
    const double staged = since();
    save.committed().get();
    const double committed = since();
    return field("seconds", called) + ", " + field("staged", staged) + ", " +
           field("committed", committed);
  }

  // Training steps, with a background save before every `every`-th (0: none). Only the last is
  // kept.
  std::string train(std::istream& in) {
    int64_t steps = 0, every = 0;
    std::string root;
    in >> steps >> every >> root;
    Checkpointer& checkpointer = background(root);
    return timed([&] {
      for (int64_t i = 0; i < steps; ++i) {
        if (every > 0 && i % every == 0) checkpointer.save_async(++trained_, state_.train_state());
        state_.train_step(++trained_);
      }
      checkpointer.wait();
    });
  }

  Checkpointer& background(const std::string& root) {
    auto& checkpointer = checkpointers_[root];
    if (!checkpointer)
      checkpointer = std::make_unique<Checkpointer>(root, CkptSpec(), runtime_,
                                                    CheckpointerOptions().keep_last(1));
    return *checkpointer;
  }

  std::string load(std::istream& in) {
    std::string path;
    bool verify = true;
    in >> path >> verify;
    LoadReport report;
    const std::string seconds = timed([&] {
      report =
          load_checkpoint(path, state_.train_state(), CkptSpec(), LoadOptions().verify(verify));
    });
    return seconds + ", " + field("bytes_read", static_cast<double>(report.bytes_read));
  }

  std::string keep(std::istream&) {
    state_.keep_copies();
    return "";
  }
  std::string poison(std::istream&) {
    state_.poison();
    return "";
  }
  std::string check(std::istream&) { return field("equal", state_.unchanged()); }
  std::string touch(std::istream&) {
    touch_memory(2 * bytes_);
    return "";
  }

  // The ceiling of a save: the same bytes, and, when synced, as many fsyncs in the same order.
  std::string raw_save(std::istream& in) {
    std::string folder;
    bool sync = false, one_file = false;
    std::string how;
    in >> folder >> sync >> one_file >> how;
    fill_buffer();
    RawWrite request;
    if (!how.empty()) request.piece_bytes = size_t{1} << 20;
    request.hashed = how == "hashed";
    request.path = folder + "/raw" + (one_file ? "" : std::to_string(runtime_.rank()));
    request.file_bytes = bytes_;
    request.sync = sync;
    if (one_file) {
      request.file_bytes = static_cast<size_t>(runtime_.sum(static_cast<double>(bytes_)));
      request.offset = runtime_.rank() == 0 ? 0 : request.file_bytes - bytes_;
      request.create = false;
    }
    return timed([&] {
      if (one_file) allocate_shared(request);
      raw_write(request, buffer_);
      runtime_.barrier();
      if (runtime_.rank() == 0) publish(folder, sync);
      runtime_.barrier();
    });
  }

  void allocate_shared(RawWrite request) {
    request.create = true;
    request.sync = false;
    if (runtime_.rank() == 0) raw_write(request, {});
    runtime_.barrier();
  }

  // What a save does besides the data: two small files and two directories.
  void publish(const std::string& folder, bool sync) {
    write_small(folder + "/hashes",
                8 * (bytes_ * static_cast<size_t>(runtime_.world_size()) / 65536), sync);
    write_small(folder + "/manifest", size_t{400} * state_.tensors(), sync);
    if (!sync) return;
    sync_directory(folder);
    sync_directory(std::filesystem::path(folder).parent_path());
  }

  std::string raw_load(std::istream& in) {
    std::string path;
    in >> path;
    fill_buffer();
    return timed([&] { raw_read(path + "/raw" + std::to_string(runtime_.rank()), buffer_); });
  }

  std::string copy(std::istream&) {
    fill_buffer();
    target_.resize(buffer_.size());
    std::fill(target_.begin(), target_.end(), 1);
    return timed([&] { std::copy(buffer_.begin(), buffer_.end(), target_.begin()); });
  }

  // The peak is that since the last time.
  std::string memory(std::istream&) {
    const Memory now = memory_now();
    reset_peak();
    return field("resident", static_cast<double>(now.resident)) + ", " +
           field("peak", static_cast<double>(now.peak)) + ", " +
           field("proportional", static_cast<double>(now.proportional));
  }

  std::string forget(std::istream&) {
    std::vector<char>().swap(buffer_);
    std::vector<char>().swap(target_);
    return "";
  }

  void fill_buffer() { buffer_.assign(bytes_, static_cast<char>(runtime_.rank() + 1)); }

  using Command = std::function<std::string(std::istream&)>;
  Command method(std::string (Bench::*member)(std::istream&)) {
    return [this, member](std::istream& in) { return (this->*member)(in); };
  }

  Runtime runtime_;
  BenchState state_;
  const size_t bytes_;
  std::map<std::string, std::unique_ptr<Checkpointer>> checkpointers_;
  std::vector<char> buffer_, target_;
  int64_t trained_ = 0;
  const std::map<std::string, Command> commands_ = {
      {"hello", method(&Bench::hello)},
      {"save", method(&Bench::save)},
      {"async_save", method(&Bench::async_save)},
      {"train", method(&Bench::train)},
      {"load", method(&Bench::load)},
      {"keep", method(&Bench::keep)},
      {"poison", method(&Bench::poison)},
      {"check", method(&Bench::check)},
      {"touch", method(&Bench::touch)},
      {"raw_save", method(&Bench::raw_save)},
      {"raw_load", method(&Bench::raw_load)},
      {"copy", method(&Bench::copy)},
      {"memory", method(&Bench::memory)},
      {"forget", method(&Bench::forget)},
  };
};

void serve(const std::string& workload, const std::string& channel) {
  const Runtime runtime = Runtime::from_environment();
  const std::string mine = channel + "." + std::to_string(runtime.rank());
  std::ifstream in(mine + ".in");
  std::ofstream out(mine + ".out");
  Bench bench(workload, runtime);
  std::string line;
  while (std::getline(in, line) && line != "quit") out << bench.run(line) << std::endl;
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  if (argc != 3) {
    std::cerr << "usage: checkpoint_bench WORKLOAD CHANNEL\n";
    return 2;
  }
  try {
    tessera::bench::serve(argv[1], argv[2]);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
