#include "checkpoint/save.h"

#include "checkpoint/agree.h"
#include "checkpoint/save_job.h"
#include "checkpoint/streamed_write.h"

namespace tessera::checkpoint {

namespace {

// The files that all ranks write must be there before they do.
void create(io::FileSystem& files, comm::Communicator& communicator, const SaveJob& job) {
  const auto prepare = [&] {
    if (!job.leader()) return std::string();
    prepare_root(files, job);
    create_shared_files(files, job);
    return std::string();
  };
  agree(communicator, "starting the save of " + job.target.path, prepare);
}

// Whether rank 0 has work to do that the others must wait for.
bool created_before(const SaveJob& job) {
  return job.spec.kind() == StateDictKind::kFull || job.options.through_rank0();
}

std::vector<std::string> write(io::FileSystem& files, comm::Communicator& communicator,
                               const SaveJob& job) {
  if (job.options.through_rank0()) return write_through_rank0(files, communicator, job);
  return agree(communicator, "writing " + job.target.path, [&] {
    if (!job.leader()) wait_until_visible(files, job, communicator.timeout());
    if (job.leader() && !created_before(job)) prepare_root(files, job);
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
  SaveJob job;
  try {
    prepare_job(files, state, spec, target, step, options, [] {}, job);
    if (created_before(job)) create(files, communicator, job);
    const std::vector<std::string> reports = write(files, communicator, job);
    return io::join_path(job.root, publish_all(files, communicator, job, reports));
  } catch (...) {
    remove_temporary(files, job);
    throw;
  }
}

}  // namespace tessera::checkpoint
