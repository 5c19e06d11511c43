#include "checkpoint/load.h"

#include <c10/util/StringUtil.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>

#include "checkpoint/agree.h"
#include "checkpoint/context.h"
#include "checkpoint/hash_sidecar.h"
#include "checkpoint/keys.h"
#include "checkpoint/load_plan.h"
#include "checkpoint/reconcile.h"
#include "tessera/error.h"

namespace tessera::checkpoint {

namespace {

const std::string* field(const std::vector<std::pair<std::string, std::string>>& fields,
                         const std::string& name) {
  for (const auto& [key, value] : fields)
    if (key == name) return &value;
  return nullptr;
}

// Fields that change keys or values must be equal; parts may be left out at load.
std::vector<std::string> spec_problems(const Manifest& manifest, const CkptSpec& spec) {
  std::vector<std::string> problems;
  for (const auto& [name, value] : spec.fields()) {
    const std::string* stored = field(manifest.spec, name);
    const std::string there = stored ? *stored : "(absent)";
    const bool part = name == "model" || name == "rng" || name == "items";
    if (name == "kind" || name == "optimizer") continue;
    if (part ? value == "yes" && there != "yes" : there != value)
      problems.push_back(c10::str("CkptSpec field '", name, "' is '", there,
                                  "' in the checkpoint, '", value, "' here"));
  }
  return problems;
}

class LoadOperation {
 public:
  LoadOperation(io::FileSystem& files, const std::string& path, const LiveState& state,
                const CkptSpec& spec, const LoadOptions& options)
      : files_(files), path_(path), state_(state), spec_(spec), options_(options) {}

  LoadReport run() {
    open();
    validate();
    read();
    agree(*state_.communicator, "taking over " + path_, [&] {
      for (OptimizerLoad& optimizer : optimizers_) optimizer.commit();
      model_.commit();
      tensors_.commit();
      scalars_.commit();
      return std::string();
    });
    return plan_.report;
  }

 private:
  // Rank 0 reads the manifest for all, so that no rank decides by its own view of the directory.
  void open() {
    const auto messages = agree(*state_.communicator, "opening " + path_, [&] {
      MessageWriter out;
      out.add_text(path_).add(local_layout(state_));
      if (state_.rank() == 0) out.add_text(manifest_text());
      return out.take();
    });
    std::string text;
    std::vector<uint64_t> layouts;
    for (size_t rank = 0; rank < messages.size(); ++rank) {
      MessageReader in(messages[rank]);
      const std::string path = in.get_text();
      if (path != path_) other_path_ = c10::str("rank ", rank, " loads '", path, "'");
      layouts.push_back(in.get<uint64_t>());
      if (rank == 0) text = in.get_text();
    }
    layout_ = join_layouts(layouts);
    agree(*state_.communicator, "opening " + path_, [&] {
      if (!other_path_.empty())
        throw UsageError(c10::str(other_path_, ", rank ", state_.rank(), " '", path_,
                                  "': all ranks must give the same path"));
      manifest_ = parse_manifest(text, io::join_path(path_, kManifestName));
      return std::string();
    });
    plan_.report.step = manifest_.head.step;
    plan_.report.path = path_;
    plan_.report.stored_kind = state_dict_kind(manifest_.head.kind);
    plan_.report.stored_world_size = manifest_.head.world_size;
  }

  std::string manifest_text() {
    if (!files_.is_directory(path_))
      throw UsageError(path_ + (files_.exists(path_) ? ": not a directory" : ": does not exist"));
    return read_manifest_text(files_, path_);
  }

  void validate() {
    const auto messages = agree(*state_.communicator, "checking " + path_, [&] {
      MessageWriter out;
      const std::vector<std::string> problems = find_problems();
      out.add(static_cast<uint64_t>(problems.size()));
      for (const std::string& problem : problems) out.add_text(problem);
      return out.take();
    });
    std::vector<std::string> order;
    std::map<std::string, std::vector<size_t>> ranks;
    for (size_t rank = 0; rank < messages.size(); ++rank) {
      MessageReader in(messages[rank]);
      for (auto count = in.get<uint64_t>(); count > 0; --count) {
        const std::string problem = in.get_text();
        if (ranks[problem].empty()) order.push_back(problem);
        ranks[problem].push_back(rank);
      }
    }
    if (order.empty()) return;
    std::string text =
        c10::str(path_, " does not fit (", order.size(), " mismatches); nothing was changed:");
    for (const std::string& problem : order) {
      const bool everywhere = ranks[problem].size() == messages.size();
      text += c10::str("\n  ",
                       everywhere ? "" : c10::str("rank ", c10::Join(", ", ranks[problem]), ": "),
                       problem);
    }
    throw LayoutError(text);
  }

  std::vector<std::string> find_problems() {
    std::vector<std::string> problems = spec_problems(manifest_, spec_);
    if (problems.empty()) problems = local_problems();
    if (!problems.empty()) return problems;
    note_conversion();
    const StateDictContext context = ContextBuilder::build(state_, spec_);
    if (spec_.with_model()) model_.plan(plan_, context);
    if (spec_.with_optimizer()) plan_optimizers();
    if (spec_.with_items()) tensors_.plan(plan_, context);
    scalars_.plan(plan_, context);
    return plan_.problems;
  }

  void plan_optimizers() {
    check_states_declared(plan_);
    optimizers_.resize(1 + state_.more_optimizers.size());
    auto next = optimizers_.begin();
    (next++)->plan(plan_, state_.optimizer, "");
    for (const auto& [name, optimizer] : state_.more_optimizers)
      (next++)->plan(plan_, optimizer, name);
  }

  std::vector<std::string> local_problems() const {
    const bool local = manifest_.head.kind == StoredKind::kLocal;
    if (spec_.kind() == StateDictKind::kLocal && !local)
      return {c10::str(
          "the checkpoint is of kind ", to_string(manifest_.head.kind),
          "; a load of kind local takes only local ones: load it with kind sharded or full")};
    if (!local) return {};
    if (manifest_.head.world_size != state_.world_size())
      return {c10::str("a checkpoint of kind local, saved by ", manifest_.head.world_size,
                       " ranks, cannot be loaded by ", state_.world_size(),
                       ": save with kind sharded or full for another world size")};
    if (manifest_.layout != layout_)
      return {
          c10::str("a checkpoint of kind local, saved with layout ", manifest_.layout,
                   ", cannot be loaded with layout ", layout_,
                   " (other units or shapes): save with kind sharded or full for another layout")};
    return {};
  }

  void note_conversion() {
    const StoredKind asked = stored_kind(spec_.kind());
    if (asked != manifest_.head.kind)
      plan_.note(c10::str("converted from kind ", to_string(manifest_.head.kind), " to ",
                                     to_string(asked)));
  }

  void read() {
    agree(*state_.communicator, "reading " + path_, [&] {
      std::vector<uint64_t> hashes;
      if (options_.verify()) hashes = read_hashes(files_, path_, manifest_);
      BoxReader reader(files_, path_, manifest_, std::move(hashes));
      std::vector<ReadRequest> requests;
      for (const FreshTensor& tensor : plan_.tensors) requests.push_back(tensor.request);
      reader.read(requests);
      torch::NoGradGuard no_grad;
      for (FreshTensor& tensor : plan_.tensors)
        if (!tensor.fresh.is_same(tensor.host)) tensor.fresh.copy_(tensor.host);
      tensors_.merge();
      plan_.report.bytes_read = reader.bytes_read();
      return std::string();
    });
  }

  io::FileSystem& files_;
  const std::string& path_;
  const LiveState& state_;
  const CkptSpec& spec_;
  const LoadOptions& options_;
  std::string other_path_;
  std::string layout_;
  Manifest manifest_;
  LoadPlan plan_{manifest_, state_, spec_, options_};
  ModelLoad model_;
  std::vector<OptimizerLoad> optimizers_;
  ItemTensorLoad tensors_;
  ScalarLoad scalars_;
};

}  // namespace

LoadReport load_state(io::FileSystem& files, const std::string& path, const LiveState& state,
                      const CkptSpec& spec, const LoadOptions& options) {
  return LoadOperation(files, path, state, spec, options).run();
}

}  // namespace tessera::checkpoint
