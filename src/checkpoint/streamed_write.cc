#include "checkpoint/streamed_write.h"

#include <torch/torch.h>

#include <cstring>

#include "checkpoint/agree.h"
#include "checkpoint/box_report.h"
#include "checkpoint/box_writer.h"
#include "tessera/error.h"

namespace tessera::checkpoint {

namespace {

enum class Kind : uint64_t { kOpen, kWrite, kEnd };

struct Frame {
  Kind kind = Kind::kEnd;
  uint64_t offset = 0;
  uint64_t bytes = 0;  // of the payload that follows
};

torch::Tensor bytes_of(const void* data, size_t size) {
  return torch::from_blob(const_cast<void*>(data), {static_cast<int64_t>(size)}, torch::kUInt8);
}

// The sending side looks like a file to what writes boxes.
class SentFile : public io::File {
 public:
  SentFile(comm::Communicator& communicator, std::string path)
      : communicator_(communicator), path_(std::move(path)) {}

  const std::string& path() const override { return path_; }
  uint64_t size() override { return 0; }
  void read_at(uint64_t, void*, size_t) override { throw Error(path_ + ": is only written"); }
  void write_at(uint64_t offset, const void* data, size_t size) override {
    send({Kind::kWrite, offset, size}, data);
  }
  void allocate(uint64_t) override {}
  void truncate(uint64_t) override {}
  void sync() override {}
  void close() override {}

  void send(Frame frame, const void* payload) {
    communicator_.broadcast(bytes_of(&frame, sizeof(frame)), communicator_.rank());
    if (frame.bytes > 0)
      communicator_.broadcast(bytes_of(payload, frame.bytes), communicator_.rank());
  }

 private:
  comm::Communicator& communicator_;
  const std::string path_;
};

std::string encode_file(const PlannedFile& file) {
  return MessageWriter()
      .add_text(file.name)
      .add_text(file.header)
      .add(file.bytes)
      .add(file.shared)
      .take();
}

PlannedFile decode_file(const std::string& text) {
  MessageReader in(text);
  PlannedFile file;
  file.name = in.get_text();
  file.header = in.get_text();
  file.bytes = in.get<uint64_t>();
  file.shared = in.get<bool>();
  return file;
}

// Sends this rank's files, and the end whatever happens, so that the others do not wait for more.
std::string send_files(comm::Communicator& communicator, const SaveJob& job) {
  SentFile out(communicator, job.directory);
  std::string outcome = outcome_of([&] {
    MessageWriter report;
    report.add(static_cast<uint64_t>(job.plan().size()));
    for (const PlannedFile& file : job.plan()) {
      const std::string description = encode_file(file);
      out.send({Kind::kOpen, 0, description.size()}, description.data());
      std::vector<uint64_t> hashes;
      write_boxes(out, file, job.context.entries(), hashes, [](uint64_t, size_t) {});
      report_file(report, file, hashes);
    }
    return report.take();
  });
  out.send({Kind::kEnd, 0, 0}, nullptr);
  return outcome;
}

// What rank 0 does with the frames; the other ranks take part and keep nothing.
class Receiver {
 public:
  Receiver(io::FileSystem& files, comm::Communicator& communicator, const SaveJob& job)
      : files_(files), communicator_(communicator), job_(job) {}

  void receive(int sender) {
    for (;;) {
      Frame frame;
      communicator_.broadcast(bytes_of(&frame, sizeof(frame)), sender);
      if (frame.kind == Kind::kEnd) break;
      payload_.resize(frame.bytes);
      if (frame.bytes > 0)
        communicator_.broadcast(bytes_of(payload_.data(), payload_.size()), sender);
      if (job_.leader()) attempt([&] { take(frame); });
    }
    if (job_.leader()) attempt([&] { finish_file(); });
  }
  // Empty where everything was written.
  const std::string& failure() const { return failure_; }

 private:
  void attempt(const std::function<void()>& action) {
    if (!failure_.empty()) return;
    const std::string outcome = outcome_of([&] {
      action();
      return std::string();
    });
    if (!succeeded(outcome)) failure_ = outcome;
  }

  void take(const Frame& frame) {
    if (frame.kind == Kind::kWrite) return open_->write_at(frame.offset, payload_.data(), payload_.size());
    finish_file();
    const PlannedFile file = decode_file(payload_);
    open_ = file.shared
                ? files_.open(io::join_path(job_.directory, file.name), io::OpenMode::kReadWrite)
                : create_planned(files_, job_.directory, file);
  }

  void finish_file() {
    if (!open_) return;
    if (job_.options.sync()) open_->sync();
    open_->close();
    open_.reset();
  }

  io::FileSystem& files_;
  comm::Communicator& communicator_;
  const SaveJob& job_;
  std::string payload_;
  std::unique_ptr<io::File> open_;
  std::string failure_;
};

}  // namespace

std::vector<std::string> write_through_rank0(io::FileSystem& files,
                                             comm::Communicator& communicator, const SaveJob& job) {
  SaveMeter meter;
  std::string own;
  if (job.leader()) own = outcome_of([&] { return write_files(files, job, meter); });
  Receiver receiver(files, communicator, job);
  for (int sender = 1; sender < job.world_size; ++sender) {
    if (sender == job.rank)
      own = send_files(communicator, job);
    else
      receiver.receive(sender);
  }
  if (!receiver.failure().empty()) own = receiver.failure();
  return require_success(communicator.all_gather_bytes(own), "writing " + job.target.path);
}

}  // namespace tessera::checkpoint
