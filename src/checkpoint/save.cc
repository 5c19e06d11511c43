#include "checkpoint/save.h"

#include "checkpoint/agree.h"
#include "checkpoint/save_job.h"

namespace tessera::checkpoint {

namespace {

// Rank 0 claims the directory and makes the files that all ranks write.
void create(io::FileSystem& files, comm::Communicator& communicator, SaveJob& job) {
  const auto messages = agree(communicator, "starting the save of " + job.target.path, [&] {
    const std::string claim = claim_directory(files, job);
    if (job.leader()) {
      prepare_root(files, job);
      create_shared_files(files, job);
    }
    return claim;
  });
  take_claim(job, messages[0]);
}

std::vector<std::string> write(io::FileSystem& files, comm::Communicator& communicator,
                               const SaveJob& job) {
  return agree(communicator, "writing " + job.target.path, [&] {
    if (!job.leader()) wait_until_visible(files, job, communicator.timeout());
    SaveMeter meter;
    return write_files(files, job, meter);
  });
}

std::string publish_all(io::FileSystem& files, comm::Communicator& communicator, SaveJob& job,
                        const std::vector<std::string>& reports) {
  return agree(communicator, "publishing " + job.target.path, [&] {
    return job.leader() ? publish_job(files, job, reports) : std::string();
  })[0];
}

}  // namespace

std::string save_state(io::FileSystem& files, const LiveState& state, const CkptSpec& spec,
                       const SaveTarget& target, int64_t step, const SaveOptions& options) {
  comm::Communicator& communicator = *state.communicator;
  SaveJob job = prepare_job(state, spec, target, step, options);
  try {
    create(files, communicator, job);
    const std::vector<std::string> reports = write(files, communicator, job);
    return io::join_path(job.root, publish_all(files, communicator, job, reports));
  } catch (...) {
    remove_temporary(files, job);
    throw;
  }
}

}  // namespace tessera::checkpoint
