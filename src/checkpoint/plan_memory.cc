#include "checkpoint/plan_memory.h"

#include <algorithm>

#include "checkpoint/agree.h"
#include "io/checksum.h"

namespace tessera::checkpoint {

namespace {

std::vector<StateEntry> without_values(const std::vector<StateEntry>& entries) {
  std::vector<StateEntry> forms = entries;
  for (StateEntry& form : forms) {
    form.tensor = torch::Tensor();
    if (form.integer) form.integer = 0;
  }
  return forms;
}

bool same_form(const StateEntry& a, const StateEntry& b) {
  return a.placement == b.placement && a.row_begin == b.row_begin && a.row_end == b.row_end &&
         a.integer.has_value() == b.integer.has_value() && a.role == b.role && a.shape == b.shape &&
         a.dtype == b.dtype && a.key == b.key && a.name == b.name && a.state_key == b.state_key;
}

bool same_forms(const std::vector<StateEntry>& a, const std::vector<StateEntry>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_form);
}

void take_form(const StateEntry& form, StateEntry& entry) {
  entry.placement = form.placement;
  entry.shape = form.shape;
  entry.row_begin = form.row_begin;
  entry.row_end = form.row_end;
}

// Rows are not part of it: each rank has its own.
uint64_t fingerprint(const std::vector<StateEntry>& entries) {
  MessageWriter text;
  for (const StateEntry& entry : entries) {
    text.add_text(entry.key).add_text(entry.dtype).add(entry.placement);
    text.add(entry.integer.has_value()).add_list(entry.shape);
  }
  const std::string bytes = text.take();
  return io::hash_bytes(bytes.data(), bytes.size());
}

void lay_out(SavePlan& plan, const std::vector<StateEntry>& entries, int rank) {
  plan.files = std::make_shared<const PlannedFiles>(plan_files(entries, plan.spec.kind(), rank));
  plan.bytes = 0;
  for (const PlannedFile& file : *plan.files)
    if (!file.shared || rank == 0) plan.bytes += file.bytes;
}

}  // namespace

SavePlan make_plan(const std::vector<StateEntry>& entries, const CkptSpec& spec, int rank) {
  SavePlan plan;
  plan.spec = spec;
  plan.found = without_values(entries);
  plan.settled = plan.found;
  plan.structure = fingerprint(entries);
  lay_out(plan, entries, rank);
  return plan;
}

SavePlan settled_plan(const SavePlan& before, const std::vector<StateEntry>& entries, int rank) {
  SavePlan plan;
  plan.spec = before.spec;
  plan.found = before.found;
  plan.settled = without_values(entries);
  std::vector<StateEntry> adopted = plan.found;
  adopt(plan, adopted);
  plan.structure = fingerprint(adopted);
  lay_out(plan, entries, rank);
  return plan;
}

void adopt(const SavePlan& plan, std::vector<StateEntry>& entries) {
  for (size_t i = 0; i < entries.size(); ++i)
    if (entries[i].role == StateRole::kOptimizer) take_form(plan.settled[i], entries[i]);
}

void forget_agreement(const SavePlan& plan, std::vector<StateEntry>& entries) {
  for (size_t i = 0; i < entries.size(); ++i) take_form(plan.found[i], entries[i]);
}

bool fits(const SavePlan& plan, const std::vector<StateEntry>& entries) {
  return same_forms(plan.settled, entries);
}

const SavePlan* PlanMemory::recall(const std::vector<StateEntry>& found,
                                   const CkptSpec& spec) const {
  const bool known = last_ && last_->spec == spec && same_forms(last_->found, found);
  return known ? &*last_ : nullptr;
}

const SavePlan& PlanMemory::remember(SavePlan plan) {
  ++made_;
  return last_.emplace(std::move(plan));
}

}  // namespace tessera::checkpoint
