#include "checkpoint/save_job.h"

#include <c10/util/StringUtil.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "checkpoint/agree.h"
#include "checkpoint/box_report.h"
#include "checkpoint/box_writer.h"
#include "checkpoint/directory.h"
#include "checkpoint/run_state.h"
#include "io/checksum.h"
#include "tessera/async_save.h"
#include "tessera/error.h"
#include "util/log.h"

namespace tessera::checkpoint {

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kVisibilityPoll = std::chrono::milliseconds(20);
// Room for the manifest and the sidecar beside the data.
constexpr uint64_t kSpareBytes = uint64_t{1} << 20;
// Large enough for one request of the disk to be efficient, small enough that it starts soon.
constexpr uint64_t kWritebackBytes = uint64_t{8} << 20;

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

std::string claim_directory(io::FileSystem& files, SaveJob& job) {
  if (!job.target.may_number && files.exists(job.target.path))
    throw UsageError(job.target.path + " exists already; a checkpoint directory is never reused");
  files.create_directories(job.root);
  if (job.target.run) job.target.run->lock.acquire();
  const RunListing listing = list_run(files, job.root);
  const Claim claim = claim_temporary(files, job.root, job.name, job.target.recycle);
  job.directory = claim.path;
  return MessageWriter()
      .add(listing.highest_sequence + 1)
      .add_text(claim.path)
      .add(claim.recycled)
      .add_text(host_name())
      .take();
}

void take_claim(SaveJob& job) {
  MessageReader in(job.agreement.claim);
  job.sequence = in.get<uint64_t>();
  job.directory = in.get_text();
  job.recycled = in.get<bool>();
  job.leader_host = in.get_text();
}

// Keeps the disk busy while later pieces are hashed and copied, so that the final sync has little
// left to wait for.
class EarlyWriteback {
 public:
  EarlyWriteback(io::File& file, bool wanted) : file_(file), wanted_(wanted) {}
  // Offsets ascend.
  void wrote(uint64_t offset, size_t bytes) {
    if (!wanted_) return;
    if (pending_ == 0) begin_ = offset;
    pending_ += bytes;
    if (pending_ < kWritebackBytes) return;
    file_.start_writeback(begin_, offset + bytes - begin_);
    pending_ = 0;
  }

 private:
  io::File& file_;
  const bool wanted_;
  uint64_t begin_ = 0;
  uint64_t pending_ = 0;
};

void write_file(io::FileSystem& files, const SaveJob& job, const PlannedFile& file,
                SaveMeter& meter, MessageWriter& report) {
  auto out = file.shared
                 ? files.open(io::join_path(job.directory, file.name), io::OpenMode::kReadWrite)
                 : create_planned(files, job.directory, file, job.recycled);
  std::vector<uint64_t> hashes;
  EarlyWriteback writeback(*out, job.options.sync());
  write_boxes(*out, file, job.context.entries(), hashes, [&](uint64_t offset, size_t bytes) {
    writeback.wrote(offset, bytes);
    meter.written.fetch_add(bytes, std::memory_order_relaxed);
    if (meter.cancelled.load(std::memory_order_relaxed)) throw SaveCancelled("cancelled");
  });
  if (job.options.sync()) out->sync();
  out->close();
  report_file(report, file, hashes);
}

}  // namespace

void prepare_job(io::FileSystem& files, const LiveState& state, const CkptSpec& spec,
                 const SaveTarget& target, int64_t step, const SaveOptions& options,
                 const std::function<void()>& first, SaveJob& job) {
  job.spec = spec;
  job.target = target;
  job.step = step;
  job.options = options;
  job.rank = state.rank();
  job.world_size = state.world_size();
  for (const ShardedParameter& parameter : state.parameters)
    for (const std::string& alias : parameter.aliases) job.aliases[alias] = parameter.fqn;
  std::tie(job.root, job.name) = split_path(target.path);
  PlanMemory none;
  PlanMemory& memory = target.run ? target.run->plans : none;
  job.agreement = agree_on_save(state, spec, target.path, step, job.context, memory, [&] {
    first();
    return job.leader() ? claim_directory(files, job) : std::string();
  });
  take_claim(job);
}

void prepare_root(io::FileSystem& files, const SaveJob& job) {
  for (const std::string& line : clean_leftovers(files, job.root, job.directory))
    log::warning(line);
  uint64_t data = job.agreement.total_bytes;
  if (job.recycled)
    for (const io::DirectoryEntry& entry : files.list(job.directory))
      data -= std::min(data, entry.size);
  const uint64_t needed = data + data / 4096 + kSpareBytes;
  const uint64_t free = files.free_bytes(job.root);
  if (free < needed)
    throw IoError(c10::str(job.root, ": ", free, " bytes are free, the checkpoint needs ", needed),
                  ENOSPC);
}

void create_shared_files(io::FileSystem& files, const SaveJob& job) {
  for (const PlannedFile& file : job.plan())
    if (file.shared) create_planned(files, job.directory, file)->close();
}

void wait_until_visible(io::FileSystem& files, const SaveJob& job,
                        std::chrono::milliseconds timeout) {
  const auto limit = std::min<std::chrono::milliseconds>(kVisibilityLimit, timeout / 2);
  const auto deadline = Clock::now() + limit;
  while (!files.is_directory(job.directory)) {
    if (Clock::now() >= deadline)
      throw IoError(c10::str(job.directory, " was made by rank 0 on host ", job.leader_host,
                             " and is not visible on host ", host_name(),
                             ": checkpoints need a directory that all hosts share"));
    std::this_thread::sleep_for(kVisibilityPoll);
  }
}

std::string write_files(io::FileSystem& files, const SaveJob& job, SaveMeter& meter) {
  MessageWriter report;
  report.add(static_cast<uint64_t>(job.plan().size()));
  for (const PlannedFile& file : job.plan()) write_file(files, job, file, meter, report);
  return report.take();
}

std::string publish_job(io::FileSystem& files, SaveJob& job,
                        const std::vector<std::string>& reports) {
  write_manifest(files, job, reports);
  if (job.options.sync()) files.sync_directory(job.directory);
  const std::string published = publish(files, job.directory, job.root, job.name,
                                        job.target.may_number, job.options.sync());
  job.directory.clear();
  if (!job.target.may_number) return published;
  try {
    write_latest_hint(files, job.root, published);
  } catch (const IoError& error) {
    log::warning(c10::str("the hint LATEST was not written: ", error.what()));
  }
  return published;
}

void remove_temporary(io::FileSystem& files, SaveJob& job) {
  if (!job.leader() || job.directory.empty()) return;
  try {
    files.remove_tree(job.directory);
  } catch (const IoError& error) {
    log::warning(c10::str(job.directory,
                          ": left over from a failed save, cannot be removed: ", error.what()));
  }
  job.directory.clear();
}

}  // namespace tessera::checkpoint
