#include "checkpoint/settle.h"

#include <c10/util/StringUtil.h>
#include <torch/torch.h>

#include <map>
#include <set>
#include <unordered_map>

#include "checkpoint/agree.h"
#include "checkpoint/context.h"
#include "checkpoint/host_bytes.h"
#include "io/checksum.h"
#include "tessera/error.h"

namespace tessera::checkpoint {

namespace {

// What one rank says about an entry in the second exchange.
struct Detail {
  std::string dtype;
  char placement = 0;
  bool buffer = false;
  bool integer = false;
  int64_t value = 0;      // of an integer
  bool rows_fit = false;  // the tensor has the rows that this rank holds of its parameter
  std::vector<int64_t> global_shape;
  std::vector<int64_t> local_shape;
  uint64_t hash = 0;
};

using ParametersByName = std::unordered_map<std::string_view, const ShardedParameter*>;

ParametersByName by_name(const LiveState& state) {
  ParametersByName found;
  for (const ShardedParameter& parameter : state.parameters)
    found.emplace(parameter.fqn, &parameter);
  return found;
}

bool rows_fit(const StateEntry& entry, const ParametersByName& parameters) {
  if (entry.role != StateRole::kOptimizer || entry.integer) return false;
  if (entry.placement == Placement::kSharded) return true;
  const auto found = parameters.find(entry.name);
  return found != parameters.end() && (entry.tensor.sizes() == found->second->leaf.sizes() ||
                                       has_rows_of(entry.tensor, found->second->leaf));
}

void add_detail(MessageWriter& out, const StateEntry& entry, const ParametersByName& parameters) {
  out.add_text(entry.key).add_text(entry.dtype).add(static_cast<char>(entry.placement));
  out.add(entry.role == StateRole::kBuffer)
      .add(entry.integer.has_value())
      .add(entry.integer.value_or(0))
      .add(rows_fit(entry, parameters));
  out.add_list(entry.shape);
  out.add_list(entry.integer ? std::vector<int64_t>{} : entry.tensor.sizes().vec());
  out.add(entry.placement == Placement::kSharded ? uint64_t{0} : content_hash(entry));
}

std::map<std::string, Detail> read_details(const std::string& message) {
  MessageReader in(message);
  std::map<std::string, Detail> details;
  for (auto count = in.get<uint64_t>(); count > 0; --count) {
    const std::string key = in.get_text();
    Detail& detail = details[key];
    detail.dtype = in.get_text();
    detail.placement = in.get<char>();
    detail.buffer = in.get<bool>();
    detail.integer = in.get<bool>();
    detail.value = in.get<int64_t>();
    detail.rows_fit = in.get<bool>();
    detail.global_shape = in.get_list<int64_t>();
    detail.local_shape = in.get_list<int64_t>();
    detail.hash = in.get<uint64_t>();
  }
  return details;
}

// Compares one entry over the ranks.
class EntryComparison {
 public:
  EntryComparison(const std::string& key, const std::vector<std::map<std::string, Detail>>& ranks)
      : key_(key) {
    for (const auto& rank : ranks) {
      const auto found = rank.find(key);
      details_.push_back(found == rank.end() ? nullptr : &found->second);
    }
  }

  // The placement that all ranks shall use, or a complaint.
  std::optional<Placement> placement(std::string& complaint) const {
    for (size_t r = 0; r < details_.size(); ++r) {
      if (!details_[r]) return complain(complaint, present_text());
      const Detail& mine = *details_[r];
      const Detail& first = *details_[0];
      if (mine.dtype != first.dtype || mine.integer != first.integer)
        return complain(complaint, c10::str("has the dtype ", first.dtype, " on rank 0 and ",
                                            mine.dtype, " on rank ", r));
      if (mine.integer && mine.value != first.value)
        return complain(
            complaint, c10::str("is ", first.value, " on rank 0 and ", mine.value, " on rank ", r));
    }
    const Detail& first = *details_[0];
    const bool same_placement =
        all([&](const Detail& d) { return d.placement == first.placement; });
    const bool same_shape =
        all([&](const Detail& d) { return d.local_shape == first.local_shape; });
    const bool same_global =
        all([&](const Detail& d) { return d.global_shape == first.global_shape; });
    const auto agreed = static_cast<Placement>(first.placement);
    if (same_placement && agreed != Placement::kReplicated && same_global) return agreed;
    const bool same_value = all([&](const Detail& d) { return d.hash == first.hash; });
    if (same_placement && same_shape && same_value) return agreed;
    if (same_shape && all([](const Detail& d) { return d.buffer; })) return Placement::kPerRank;
    if (all([](const Detail& d) { return d.rows_fit; })) return Placement::kSharded;
    if (!same_placement && same_shape) return Placement::kReplicated;
    return complain(complaint, same_shape
                                   ? "differs between ranks, but a value that is not sharded must "
                                     "be equal on all"
                                   : "has another shape on each rank, but not that of the "
                                     "parameter's rows");
  }

  // This rank's part where it has all rows there are: of a 0-dim parameter's state only its owner
  // can tell a scalar from one row.
  const std::vector<int64_t>* owner_shape() const {
    for (const Detail* detail : details_)
      if (detail && c10::multiply_integers(detail->local_shape) != 0) return &detail->local_shape;
    return nullptr;
  }

 private:
  template <typename Predicate>
  bool all(Predicate predicate) const {
    for (const Detail* detail : details_)
      if (!predicate(*detail)) return false;
    return true;
  }

  std::optional<Placement> complain(std::string& complaint, const std::string& what) const {
    complaint = c10::str("'", key_, "' ", what);
    return std::nullopt;
  }

  std::string present_text() const {
    std::string on, off;
    for (size_t r = 0; r < details_.size(); ++r) {
      std::string& list = details_[r] ? on : off;
      list += c10::str(list.empty() ? "" : ", ", r);
    }
    return c10::str("exists on rank ", on, " but not on rank ", off);
  }

  const std::string& key_;
  std::vector<const Detail*> details_;
};

// What the ranks agreed on for one entry.
struct Settled {
  Placement placement = Placement::kReplicated;
  std::vector<int64_t> owner_shape;
};

// The entry as sharded over its parameter's rows.
void make_sharded(StateEntry& entry, const ShardedParameter& parameter) {
  if (entry.tensor.sizes() == parameter.leaf.sizes())
    entry.shape = parameter.shape;
  else
    entry.shape[0] = parameter.shape.empty() ? 1 : parameter.shape[0];
  entry.row_begin = parameter.row_begin;
  entry.row_end = parameter.row_end;
  entry.placement = Placement::kSharded;
}

void settle(StateEntry& entry, const Settled& settled, const ParametersByName& parameters) {
  const bool moved = entry.placement != settled.placement;
  if (settled.placement == Placement::kSharded && entry.role == StateRole::kOptimizer) {
    const ShardedParameter& parameter = *parameters.at(entry.name);
    if (moved) make_sharded(entry, parameter);
    if (parameter.shape.empty()) entry.shape = settled.owner_shape;
  } else if (moved) {
    entry.placement = settled.placement;
    entry.shape = entry.tensor.sizes().vec();
  }
}

}  // namespace

uint64_t content_hash(const StateEntry& entry) {
  if (entry.integer) return io::hash_bytes(&*entry.integer, sizeof(*entry.integer));
  const HostBytes bytes(entry.tensor);
  return io::hash_bytes(bytes.data(), bytes.size());
}

void throw_differences(const std::vector<std::string>& complaints) {
  std::string text =
      c10::str("the ranks hold different states (", complaints.size(), " differences):");
  for (const std::string& complaint : complaints) text += "\n  " + complaint;
  throw LayoutError(text);
}

void settle_differences(const LiveState& state, StateDictContext& context) {
  std::vector<StateEntry>& entries = ContextBuilder::entries(context);
  const ParametersByName parameters = by_name(state);
  const auto messages = agree(*state.communicator, "comparing the state of the ranks", [&] {
    MessageWriter out;
    out.add(static_cast<uint64_t>(entries.size()));
    for (const StateEntry& entry : entries) add_detail(out, entry, parameters);
    return out.take();
  });
  std::vector<std::map<std::string, Detail>> ranks;
  std::set<std::string> keys;
  for (const std::string& message : messages) {
    ranks.push_back(read_details(message));
    for (const auto& [key, detail] : ranks.back()) keys.insert(key);
  }
  std::map<std::string, Settled> settled;
  std::vector<std::string> complaints;
  for (const std::string& key : keys) {
    std::string complaint;
    const EntryComparison comparison(key, ranks);
    if (const auto placement = comparison.placement(complaint)) {
      const std::vector<int64_t>* owner = comparison.owner_shape();
      settled[key] = {*placement, owner ? *owner : std::vector<int64_t>{}};
    } else {
      complaints.push_back(complaint);
    }
  }
  if (!complaints.empty()) throw_differences(complaints);
  for (StateEntry& entry : entries) settle(entry, settled.at(entry.key), parameters);
}

}  // namespace tessera::checkpoint
