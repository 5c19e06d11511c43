#include "checkpoint/checkpointer.h"

#include <c10/util/StringUtil.h>

#include "checkpoint/agree.h"
#include "checkpoint/directory.h"
#include "checkpoint/load.h"
#include "tessera/error.h"
#include "util/log.h"

namespace tessera::checkpoint {

namespace {

struct Candidates {
  std::vector<std::string> names;    // newest first
  std::vector<std::string> skipped;  // "name: why"
};

// As rank 0 sees the directory: no rank decides by its own view of it.
Candidates find_candidates(io::FileSystem& files, const std::string& root, const LiveState& state) {
  const auto messages = agree(*state.communicator, "looking for checkpoints in " + root, [&] {
    MessageWriter out;
    out.add_text(root);
    if (state.rank() != 0) return out.take();
    const RunListing listing = list_run(files, root);
    out.add(static_cast<uint64_t>(listing.checkpoints.size()));
    for (const ListedCheckpoint& listed : listing.checkpoints) out.add_text(listed.name);
    out.add(static_cast<uint64_t>(listing.skipped.size()));
    for (const std::string& skipped : listing.skipped) out.add_text(skipped);
    return out.take();
  });
  Candidates candidates;
  for (size_t rank = messages.size(); rank-- > 0;) {
    MessageReader in(messages[rank]);
    const std::string other = in.get_text();
    if (other != MessageReader(messages[0]).get_text())
      throw UsageError(c10::str("rank ", rank, " looks for checkpoints in '", other,
                                "', rank 0 in '", MessageReader(messages[0]).get_text(), "'"));
    if (rank != 0) continue;
    for (auto count = in.get<uint64_t>(); count > 0; --count)
      candidates.names.push_back(in.get_text());
    for (auto count = in.get<uint64_t>(); count > 0; --count)
      candidates.skipped.push_back(in.get_text());
  }
  return candidates;
}

// Returns what became of it.
std::string move_damaged(io::FileSystem& files, const std::string& root, const std::string& name,
                         const LiveState& state) {
  const auto messages = agree(*state.communicator, "setting a damaged checkpoint aside", [&] {
    if (state.rank() != 0) return std::string();
    try {
      return "set aside as " + set_aside(files, root, name);
    } catch (const IoError& error) {
      return std::string("it stays in place: ") + error.what();
    }
  });
  return messages[0];
}

void tell(const LiveState& state, std::vector<std::string>& notes, const std::string& note) {
  if (state.rank() == 0) log::warning(note);
  notes.push_back(note);
}

}  // namespace

SaveTarget step_target(const std::string& root, int64_t step, RunState* run,
                       const CheckpointerOptions& options) {
  return {io::join_path(root, step_name(step)), /*may_number=*/true, run, options.recycle()};
}

void expire_others(io::FileSystem& files, const std::string& root, const std::string& just_saved,
                   const CheckpointerOptions& options) {
  try {
    expire(files, root, {options.keep_last(), options.keep_every(), options.recycle()}, just_saved);
  } catch (const IoError& error) {
    log::warning(c10::str("an old checkpoint was not removed: ", error.what()));
  }
}

std::string save_step(io::FileSystem& files, const std::string& root, const LiveState& state,
                      const CkptSpec& spec, int64_t step, const CheckpointerOptions& options,
                      RunState* run) {
  const std::string path =
      save_state(files, state, spec, step_target(root, step, run, options), step, options.save());
  if (state.rank() == 0) expire_others(files, root, split_path(path).second, options);
  return path;
}

std::optional<LoadReport> load_newest(io::FileSystem& files, const std::string& root,
                                      const LiveState& state, const CkptSpec& spec,
                                      const LoadOptions& options) {
  const Candidates candidates = find_candidates(files, root, state);
  std::vector<std::string> notes;
  for (const std::string& skipped : candidates.skipped)
    tell(state, notes, "passed over " + skipped);
  // Damaged ones are set aside only once a good one is found: where none is, the next start must
  // find them again and refuse too, not begin a new run beside them.
  std::vector<std::pair<std::string, std::string>> damaged;
  for (const std::string& name : candidates.names) {
    try {
      LoadReport report = load_state(files, io::join_path(root, name), state, spec, options);
      for (const auto& [bad, why] : damaged) {
        const std::string outcome = move_damaged(files, root, bad, state);
        tell(state, notes, c10::str("passed over ", bad, ", which is damaged; ", outcome, ": ", why));
      }
      report.notes.insert(report.notes.begin(), notes.begin(), notes.end());
      return report;
    } catch (const CorruptionError& error) {
      damaged.emplace_back(name, error.what());
    }
  }
  for (const auto& [bad, why] : damaged) notes.push_back(c10::str(bad, " is damaged: ", why));
  if (notes.empty()) return std::nullopt;
  std::string text = root + ": no checkpoint of this run is whole; remove or move it to start over";
  for (const std::string& note : notes) text += "\n  " + note;
  throw CorruptionError(text);
}

}  // namespace tessera::checkpoint
