// What a save works out from the layout of the state, kept for the next save of the same layout:
// what the ranks agreed on for each entry, and the headers and boxes of all files.
//
// Threads: one at a time. Cost: one comparison of all entries a save; memory of about 500 bytes an
// entry.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "checkpoint/file_plan.h"
#include "tessera/checkpoint.h"

namespace tessera::checkpoint {

using PlannedFiles = std::vector<PlannedFile>;

struct SavePlan {
  CkptSpec spec;
  std::vector<StateEntry> found;    // as this rank lists them; without tensors and values
  std::vector<StateEntry> settled;  // as the ranks agreed
  uint64_t structure = 0;           // fingerprint of the entries that `adopt` makes
  uint64_t bytes = 0;               // that this rank adds to the checkpoint
  std::shared_ptr<const PlannedFiles> files;
};

// The plan for entries that the ranks have not compared, or do not need to.
SavePlan make_plan(const std::vector<StateEntry>& entries, const CkptSpec& spec, int rank);
// The plan for what `entries`, found as in `before`, became.
SavePlan settled_plan(const SavePlan& before, const std::vector<StateEntry>& entries, int rank);

// Takes over what was agreed on for optimizer state. That of buffers depends on their values.
void adopt(const SavePlan& plan, std::vector<StateEntry>& entries);
// Undoes it.
void forget_agreement(const SavePlan& plan, std::vector<StateEntry>& entries);
// Whether `entries` are what the plan's files were laid out for.
bool fits(const SavePlan& plan, const std::vector<StateEntry>& entries);

class PlanMemory {
 public:
  // The last plan, where it was made for entries like these; null otherwise.
  const SavePlan* recall(const std::vector<StateEntry>& found, const CkptSpec& spec) const;
  const SavePlan& remember(SavePlan plan);
  // How many plans were made: for tests.
  int64_t made() const { return made_; }

 private:
  std::optional<SavePlan> last_;
  int64_t made_ = 0;
};

}  // namespace tessera::checkpoint
