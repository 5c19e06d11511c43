#include "checkpoint/reconcile.h"

#include <c10/util/StringUtil.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include "checkpoint/agree.h"
#include "checkpoint/context.h"
#include "checkpoint/manifest.h"
#include "checkpoint/settle.h"
#include "io/checksum.h"
#include "tessera/error.h"

namespace tessera::checkpoint {

namespace {

uint64_t hash_text(const std::string& text) { return io::hash_bytes(text.data(), text.size()); }

bool is_buffer(const StateEntry& entry) { return entry.role == StateRole::kBuffer; }

bool stored_once(const StateEntry& entry) { return entry.placement == Placement::kReplicated; }

// What a rank says in the first exchange.
struct Summary {
  std::string path;
  int64_t step = 0;
  std::string spec;  // one "field=value" a line
  uint64_t scalars = 0;
  uint64_t structure = 0;
  uint64_t replicated = 0;
  std::vector<uint64_t> buffers;
  uint64_t layout = 0;
  uint64_t bytes = 0;
  std::string claim;

  std::string encode() const {
    MessageWriter out;
    out.add_text(path).add(step).add_text(spec).add(scalars);
    out.add(structure).add(replicated).add_list(buffers).add(layout).add(bytes).add_text(claim);
    return out.take();
  }
  static Summary decode(const std::string& message) {
    MessageReader in(message);
    Summary summary;
    summary.path = in.get_text();
    summary.step = in.get<int64_t>();
    summary.spec = in.get_text();
    summary.scalars = in.get<uint64_t>();
    summary.structure = in.get<uint64_t>();
    summary.replicated = in.get<uint64_t>();
    summary.buffers = in.get_list<uint64_t>();
    summary.layout = in.get<uint64_t>();
    summary.bytes = in.get<uint64_t>();
    summary.claim = in.get_text();
    return summary;
  }
};

Summary summarize(const LiveState& state, const StateDictContext& context, const SavePlan& plan) {
  Summary summary;
  for (const auto& [name, value] : plan.spec.fields()) summary.spec += name + "=" + value + "\n";
  summary.scalars = hash_text(context.scalars_json());
  summary.structure = plan.structure;
  MessageWriter replicated;
  for (const StateEntry& entry : context.entries()) {
    if (!stored_once(entry)) continue;
    if (is_buffer(entry))
      summary.buffers.push_back(content_hash(entry));
    else
      replicated.add(content_hash(entry));
  }
  summary.replicated = hash_text(replicated.take());
  summary.layout = local_layout(state);
  summary.bytes = plan.bytes;
  return summary;
}

void check_same_request(const std::vector<Summary>& ranks) {
  const Summary& first = ranks[0];
  for (size_t r = 1; r < ranks.size(); ++r) {
    if (ranks[r].path != first.path)
      throw UsageError(c10::str("rank ", r, " saves to '", ranks[r].path, "', rank 0 to '",
                                first.path, "': all ranks must give the same path"));
    if (ranks[r].step != first.step)
      throw UsageError(
          c10::str("rank ", r, " saves step ", ranks[r].step, ", rank 0 step ", first.step));
    if (ranks[r].spec != first.spec)
      throw UsageError(c10::str("rank ", r, " saves with another CkptSpec than rank 0:\n",
                                ranks[r].spec, "rank 0:\n", first.spec));
  }
}

// Sent only where the hashes show a difference.
void tell_scalar_differences(const LiveState& state, const StateDictContext& context) {
  const auto texts = agree(*state.communicator, "comparing the scalars of the ranks",
                           [&] { return context.scalars_json(); });
  std::vector<std::string> complaints;
  const auto first = nlohmann::json::parse(texts[0]);
  for (size_t r = 1; r < texts.size(); ++r)
    for (const auto& change : nlohmann::json::diff(first, nlohmann::json::parse(texts[r])))
      complaints.push_back(c10::str("rank ", r, " differs from rank 0: ", change.dump()));
  throw_differences(complaints);
}

// Buffers are few, so their hashes travel with the first exchange.
void settle_buffers(const std::vector<Summary>& ranks, StateDictContext& context) {
  size_t index = 0;
  for (StateEntry& entry : ContextBuilder::entries(context)) {
    if (!is_buffer(entry) || !stored_once(entry)) continue;
    for (const Summary& rank : ranks)
      if (rank.buffers[index] != ranks[0].buffers[index]) entry.placement = Placement::kPerRank;
    ++index;
  }
}

// What is not sharded is stored for every rank.
void make_per_rank(std::vector<StateEntry>& entries) {
  for (StateEntry& entry : entries)
    if (stored_once(entry) && !entry.integer) entry.placement = Placement::kPerRank;
}

// Gives the entries their final form, or throws what differs.
void settle(const LiveState& state, const std::vector<Summary>& ranks, const SavePlan& plan,
            StateDictContext& context) {
  bool same_structure = true, same_values = true, same_scalars = true;
  for (const Summary& rank : ranks) {
    same_structure = same_structure && rank.structure == ranks[0].structure;
    same_values = same_values && rank.replicated == ranks[0].replicated;
    same_scalars = same_scalars && rank.scalars == ranks[0].scalars;
  }
  const bool compare = !same_structure || !same_values;
  // All ranks compare what they found, also those that know of an earlier agreement.
  if (compare) forget_agreement(plan, ContextBuilder::entries(context));
  if (same_structure) settle_buffers(ranks, context);
  // A difference in the entries explains one in the scalars, so it is told first.
  if (compare) settle_differences(state, context);
  if (!same_scalars) tell_scalar_differences(state, context);
}

}  // namespace

uint64_t local_layout(const LiveState& state) {
  std::string text;
  for (const ShardedParameter& parameter : state.parameters)
    text += c10::str(parameter.fqn, "|", parameter.row_begin, "|", parameter.row_end, "\n");
  return hash_text(text);
}

std::string join_layouts(const std::vector<uint64_t>& local) {
  return hex64(io::hash_bytes(local.data(), local.size() * sizeof(uint64_t)));
}

SaveAgreement agree_on_save(const LiveState& state, const CkptSpec& spec, const std::string& path,
                            int64_t step, StateDictContext& context, PlanMemory& memory,
                            const std::function<std::string()>& claim) {
  std::vector<StateEntry>& entries = ContextBuilder::entries(context);
  SavePlan made;
  const SavePlan* plan = nullptr;
  const auto messages = agree(*state.communicator, "preparing the save of " + path, [&] {
    context = ContextBuilder::build(state, spec);
    if (spec.kind() == StateDictKind::kLocal) make_per_rank(entries);
    plan = memory.recall(entries, spec);
    if (plan)
      adopt(*plan, entries);
    else
      plan = &(made = make_plan(entries, spec, state.rank()));
    Summary summary = summarize(state, context, *plan);
    summary.path = path;
    summary.step = step;
    summary.claim = claim();
    return summary.encode();
  });
  std::vector<Summary> ranks;
  for (const std::string& message : messages) ranks.push_back(Summary::decode(message));
  check_same_request(ranks);
  settle(state, ranks, *plan, context);
  SaveAgreement agreement;
  std::vector<uint64_t> layouts;
  for (const Summary& rank : ranks) {
    agreement.total_bytes += rank.bytes;
    layouts.push_back(rank.layout);
  }
  agreement.layout = join_layouts(layouts);
  agreement.claim = ranks[0].claim;
  if (!fits(*plan, entries))
    plan = &memory.remember(settled_plan(*plan, entries, state.rank()));
  else if (plan == &made)
    plan = &memory.remember(std::move(made));
  agreement.files = plan->files;
  return agreement;
}

}  // namespace tessera::checkpoint
