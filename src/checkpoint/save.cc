#include "checkpoint/save.h"

#include <c10/util/StringUtil.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "checkpoint/agree.h"
#include "checkpoint/box_writer.h"
#include "checkpoint/directory.h"
#include "checkpoint/file_plan.h"
#include "checkpoint/hash_sidecar.h"
#include "checkpoint/keys.h"
#include "checkpoint/manifest_check.h"
#include "checkpoint/reconcile.h"
#include "io/checksum.h"
#include "tessera/error.h"
#include "util/log.h"

namespace tessera::checkpoint {

namespace {

using Clock = std::chrono::steady_clock;

// How long a directory that another rank made may take to appear here.
constexpr auto kVisibilityLimit = std::chrono::seconds(30);
constexpr auto kVisibilityPoll = std::chrono::milliseconds(20);
// Room for the manifest and the sidecar beside the data.
constexpr uint64_t kSpareBytes = uint64_t{1} << 20;

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

StoredPlacement stored_placement(Placement placement) {
  switch (placement) {
    case Placement::kSharded:
      return StoredPlacement::kSharded;
    case Placement::kReplicated:
      return StoredPlacement::kReplicated;
    case Placement::kPerRank:
      return StoredPlacement::kPerRank;
  }
  return StoredPlacement::kReplicated;
}

// One box as a rank reports it.
struct BoxReport {
  uint64_t entry = 0;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t blocks = 0;
};

class SaveOperation {
 public:
  SaveOperation(io::FileSystem& files, const LiveState& state, const CkptSpec& spec,
                const SaveTarget& target, int64_t step, const SaveOptions& options)
      : files_(files), state_(state), spec_(spec), target_(target), step_(step), options_(options) {
    std::tie(root_, name_) = split_path(target.path);
  }

  std::string run() {
    agreement_ = agree_on_save(state_, spec_, target_.path, step_, context_);
    plan_ = plan_files(context_.entries(), spec_.kind(), state_.rank());
    try {
      create();
      const std::vector<std::string> reports = write();
      return publish_all(reports);
    } catch (...) {
      remove_temporary();
      throw;
    }
  }

 private:
  bool leader() const { return state_.rank() == 0; }

  // Rank 0 claims the directory and makes the files that all ranks write.
  void create() {
    const auto messages = agree(*state_.communicator, "starting the save of " + target_.path, [&] {
      if (!leader()) return std::string();
      check_target();
      const RunListing listing = list_run(files_, root_);
      temporary_ = claim_temporary(files_, root_, name_);
      for (const PlannedFile& file : plan_)
        if (file.shared) create_planned(files_, temporary_, file)->close();
      return MessageWriter()
          .add(listing.highest_sequence + 1)
          .add_text(temporary_)
          .add_text(host_name())
          .take();
    });
    MessageReader in(messages[0]);
    sequence_ = in.get<uint64_t>();
    directory_ = in.get_text();
    leader_host_ = in.get_text();
  }

  void check_target() {
    if (!target_.may_number && files_.exists(target_.path))
      throw UsageError(target_.path + " exists already; a checkpoint directory is never reused");
    files_.create_directories(root_);
    for (const std::string& line : clean_leftovers(files_, root_)) log::warning(line);
    const uint64_t needed = agreement_.total_bytes + agreement_.total_bytes / 4096 + kSpareBytes;
    const uint64_t free = files_.free_bytes(root_);
    if (free < needed)
      throw IoError(c10::str(root_, ": ", free, " bytes are free, the checkpoint needs ", needed),
                    ENOSPC);
  }

  void wait_until_visible() {
    const auto limit =
        std::min<Clock::duration>(kVisibilityLimit, state_.communicator->timeout() / 2);
    const auto deadline = Clock::now() + limit;
    while (!files_.is_directory(directory_)) {
      if (Clock::now() >= deadline)
        throw IoError(c10::str(directory_, " was made by rank 0 on host ", leader_host_,
                               " and is not visible on host ", host_name(),
                               ": checkpoints need a directory that all hosts share"));
      std::this_thread::sleep_for(kVisibilityPoll);
    }
  }

  std::vector<std::string> write() {
    return agree(*state_.communicator, "writing " + target_.path, [&] {
      if (!leader()) wait_until_visible();
      MessageWriter report;
      report.add(static_cast<uint64_t>(plan_.size()));
      for (const PlannedFile& file : plan_) write_file(file, report);
      return report.take();
    });
  }

  void write_file(const PlannedFile& file, MessageWriter& report) {
    auto out = file.shared
                   ? files_.open(io::join_path(directory_, file.name), io::OpenMode::kReadWrite)
                   : create_planned(files_, directory_, file);
    std::vector<uint64_t> hashes;
    write_boxes(*out, file, context_.entries(), hashes);
    if (options_.sync()) out->sync();
    out->close();
    std::vector<BoxReport> boxes;
    for (const PlannedBox& box : file.boxes)
      boxes.push_back({box.entry, box.row_begin, box.row_end, box.offset, box.bytes,
                       io::hash_block_count(box.bytes)});
    report.add_text(file.name).add(file.bytes).add(static_cast<uint64_t>(file.header.size()));
    report.add(io::hash_bytes(file.header.data(), file.header.size()));
    report.add_list(boxes).add_list(hashes);
  }

  std::string publish_all(const std::vector<std::string>& reports) {
    const auto messages = agree(*state_.communicator, "publishing " + target_.path, [&] {
      if (!leader()) return std::string();
      write_manifest(reports);
      if (options_.sync()) files_.sync_directory(temporary_);
      const std::string published =
          publish(files_, temporary_, root_, name_, target_.may_number, options_.sync());
      temporary_.clear();
      return published;
    });
    const std::string& published = messages[0];
    if (leader() && target_.may_number) hint_latest(published);
    return io::join_path(root_, published);
  }

  void hint_latest(const std::string& published) {
    try {
      write_latest_hint(files_, root_, published);
    } catch (const IoError& error) {
      log::warning(c10::str("the hint LATEST was not written: ", error.what()));
    }
  }

  void write_manifest(const std::vector<std::string>& reports) {
    Manifest manifest;
    manifest.head.save_sequence = sequence_;
    manifest.head.step = step_;
    manifest.head.kind = stored_kind(spec_.kind());
    manifest.head.world_size = state_.world_size();
    manifest.head.writer = writer_version();
    manifest.spec = spec_.fields();
    manifest.layout = agreement_.layout;
    manifest.scalars_json = context_.scalars_json();
    for (const ShardedParameter& parameter : state_.parameters)
      for (const std::string& alias : parameter.aliases) manifest.aliases[alias] = parameter.fqn;
    for (const StateEntry& entry : context_.entries())
      manifest.tensors.push_back(stored_tensor(entry));
    const std::vector<uint64_t> hashes = collect_boxes(reports, manifest);
    manifest.number_blocks();
    const std::string sidecar = encode_hashes(hashes);
    manifest.hashes_hash = io::hash_bytes(sidecar.data(), sidecar.size());
    // What was just written must be what a load accepts.
    check_manifest(manifest, "the checkpoint that is being saved");
    write_new_file(files_, io::join_path(temporary_, kHashesName), sidecar, options_.sync());
    write_new_file(files_, io::join_path(temporary_, kManifestName), encode_manifest(manifest),
                   options_.sync());
  }

  StoredTensor stored_tensor(const StateEntry& entry) const {
    StoredTensor tensor;
    tensor.key = entry.key;
    tensor.dtype = entry.dtype;
    tensor.shape = entry.shape;
    tensor.placement = stored_placement(entry.placement);
    if (spec_.kind() == StateDictKind::kFull && full_name(entry) != entry.key)
      tensor.name = full_name(entry);
    if (entry.role == StateRole::kOptimizer) {
      tensor.parameter = entry.name;
      tensor.state_key = entry.state_key;
    }
    tensor.integer = entry.integer;
    return tensor;
  }

  // Puts the boxes of all ranks into the manifest; returns their hashes in its order.
  std::vector<uint64_t> collect_boxes(const std::vector<std::string>& reports,
                                      Manifest& manifest) const {
    std::map<std::string, int> file_index;
    std::vector<std::vector<std::vector<uint64_t>>> hashes(manifest.tensors.size());
    for (size_t rank = 0; rank < reports.size(); ++rank) {
      MessageReader in(reports[rank]);
      for (auto count = in.get<uint64_t>(); count > 0; --count) {
        StoredFile file;
        file.name = in.get_text();
        file.bytes = in.get<uint64_t>();
        file.data_offset = in.get<uint64_t>();
        file.header_hash = in.get<uint64_t>();
        const auto [known, added] =
            file_index.emplace(file.name, static_cast<int>(manifest.files.size()));
        if (added) manifest.files.push_back(file);
        const auto boxes = in.get_list<BoxReport>();
        const auto blocks = in.get_list<uint64_t>();
        auto next = blocks.begin();
        for (const BoxReport& box : boxes) {
          manifest.tensors.at(box.entry).boxes.push_back({box.row_begin, box.row_end, known->second,
                                                          box.offset, box.bytes,
                                                          static_cast<int>(rank), 0});
          hashes[box.entry].emplace_back(next, next + static_cast<ptrdiff_t>(box.blocks));
          next += static_cast<ptrdiff_t>(box.blocks);
        }
      }
    }
    std::vector<uint64_t> ordered;
    for (const auto& tensor : hashes)
      for (const auto& box : tensor) ordered.insert(ordered.end(), box.begin(), box.end());
    return ordered;
  }

  void remove_temporary() {
    if (temporary_.empty()) return;
    try {
      files_.remove_tree(temporary_);
    } catch (const IoError& error) {
      log::warning(c10::str(temporary_,
                            ": left over from a failed save, cannot be removed: ", error.what()));
    }
  }

  io::FileSystem& files_;
  const LiveState& state_;
  const CkptSpec& spec_;
  const SaveTarget& target_;
  const int64_t step_;
  const SaveOptions& options_;
  std::string root_;
  std::string name_;
  StateDictContext context_;
  SaveAgreement agreement_;
  std::vector<PlannedFile> plan_;
  uint64_t sequence_ = 0;
  std::string temporary_;  // on rank 0 while it exists
  std::string directory_;  // the same, on every rank
  std::string leader_host_;
};

}  // namespace

std::string save_state(io::FileSystem& files, const LiveState& state, const CkptSpec& spec,
                       const SaveTarget& target, int64_t step, const SaveOptions& options) {
  return SaveOperation(files, state, spec, target, step, options).run();
}

}  // namespace tessera::checkpoint
