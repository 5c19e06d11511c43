// Sharded checkpoints that keep every number: parameters, buffers, optimizer state, param groups,
// schedulers, RNG and user items, saved on any number of ranks and resumed on any other.
//
// One immutable CkptSpec describes the form of the state; save and load both run through the
// StateDictContext that is made from it. How to write (fsync, retention) is SaveOptions and changes
// no key. On-disk format: src/checkpoint/FORMAT.md.
//
// Threads: call from the thread that trains. Everything here marked [collective] is entered by all
// ranks; a failure on one rank is an exception on every rank, naming that rank and the cause.
// Cost: a save writes 12 bytes a parameter for Adam in fp32, each rank its own rows, with one small
// exchange between ranks; a load reads the rows it needs into fresh tensors and takes them over
// only when every rank has verified its own: a failed load changes nothing.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <tessera/async_save.h>
#include <tessera/fsdp.h>
#include <tessera/runtime.h>

namespace tessera {

namespace checkpoint {
class BackgroundSaver;
class ContextBuilder;
}  // namespace checkpoint

enum class StateDictKind {
  kSharded,  // one file a rank, rows of each tensor; loads at any world size
  kFull,  // whole tensors under plain names; loads at any world size, any safetensors tool reads it
  kLocal,  // each rank's tensors as they are; loads only at the same layout and world size
};

enum class DtypePolicy {
  kExact,    // stored and live dtype must be equal
  kConvert,  // convert at load, report each tensor
};

// The only source of truth for the form of a state dict. Immutable: each setter returns a new
// value.
class CkptSpec {
 public:
  CkptSpec();
  [[nodiscard]] CkptSpec kind(StateDictKind value) const;
  [[nodiscard]] CkptSpec with_model(bool value) const;
  [[nodiscard]] CkptSpec with_optimizer(bool value) const;
  [[nodiscard]] CkptSpec with_rng(bool value) const;
  [[nodiscard]] CkptSpec with_items(bool value) const;
  [[nodiscard]] CkptSpec dtype_policy(DtypePolicy value) const;
  // Text in front of every key, e.g. "teacher."; part of the key scheme, checked at load.
  [[nodiscard]] CkptSpec key_prefix(std::string value) const;

  StateDictKind kind() const { return kind_; }
  bool with_model() const { return model_; }
  bool with_optimizer() const { return optimizer_; }
  bool with_rng() const { return rng_; }
  bool with_items() const { return items_; }
  DtypePolicy dtype_policy() const { return dtype_policy_; }
  const std::string& key_prefix() const { return key_prefix_; }

  // Field name -> value, in a fixed order: what the manifest stores.
  std::vector<std::pair<std::string, std::string>> fields() const;
  // XXH3-64 over `fields()`, as 16 hex digits.
  std::string fingerprint() const;
  bool operator==(const CkptSpec&) const = default;

 private:
  StateDictKind kind_ = StateDictKind::kSharded;
  bool model_ = true;
  bool optimizer_ = true;
  bool rng_ = true;
  bool items_ = true;
  DtypePolicy dtype_policy_ = DtypePolicy::kExact;
  std::string key_prefix_;
};

class SaveOptions {
 public:
  // fsync every file and directory before the checkpoint is published (the default).
  SaveOptions& sync(bool value) {
    sync_ = value;
    return *this;
  }
  bool sync() const { return sync_; }

 private:
  bool sync_ = true;
};

class LoadOptions {
 public:
  LoadOptions& verify(bool value) {
    verify_ = value;
    return *this;
  }  // check every block's hash
  bool verify() const { return verify_; }
  // Loads a checkpoint without this optimizer's state and leaves the optimizer as it is.
  LoadOptions& allow_fresh_optimizer(bool value) {
    fresh_optimizer_ = value;
    return *this;
  }
  bool allow_fresh_optimizer() const { return fresh_optimizer_; }

 private:
  bool verify_ = true;
  bool fresh_optimizer_ = false;
};

using ItemValue = std::variant<bool, int64_t, double, std::string>;

// Creates an empty state object of a custom optimizer whose states are made lazily.
using StateFactory = std::function<std::unique_ptr<torch::optim::OptimizerParamState>()>;

// What a checkpoint holds: references to live objects, which must outlive it. Cheap to build.
class TrainState {
 public:
  explicit TrainState(Sharded sharded);
  TrainState(Sharded sharded, torch::optim::Optimizer& optimizer);

  TrainState& state_factory(StateFactory factory);
  // A learning-rate scheduler: its step count is saved and restored.
  TrainState& scheduler(const std::string& name, torch::optim::LRScheduler& scheduler);
  // A value of the user, read by `get` at save and handed to `set` at load. It must be equal on all
  // ranks. `set` runs after everything else was taken over.
  TrainState& item(const std::string& name, std::function<ItemValue()> get,
                   std::function<void(const ItemValue&)> set);

  const Sharded& sharded() const { return sharded_; }
  torch::optim::Optimizer* optimizer() const { return optimizer_; }

  struct Item {
    std::function<ItemValue()> get;
    std::function<void(const ItemValue&)> set;
  };
  const std::map<std::string, Item>& items() const { return items_; }
  const std::map<std::string, torch::optim::LRScheduler*>& schedulers() const {
    return schedulers_;
  }
  const StateFactory& state_factory() const { return factory_; }

 private:
  Sharded sharded_;
  torch::optim::Optimizer* optimizer_ = nullptr;
  std::map<std::string, Item> items_;
  std::map<std::string, torch::optim::LRScheduler*> schedulers_;
  StateFactory factory_;
};

// How one tensor of the state is spread over the ranks.
enum class Placement {
  kSharded,     // rows [row_begin, row_end) of dim 0 are here
  kReplicated,  // the same on all ranks (checked by hash), stored once
  kPerRank,     // different on each rank, stored for each
};

enum class StateRole { kParameter, kBuffer, kOptimizer, kRng };

struct StateEntry {
  std::string key;  // e.g. model.<fqn>, optim.state.<fqn>.<state key>
  StateRole role = StateRole::kParameter;
  std::string name;            // the parameter's or buffer's name, where there is one
  std::string state_key;       // of optimizer state, as its own serialize() names it
  torch::Tensor tensor;        // live, this rank's part; undefined where `integer` is set
  std::string dtype;           // as in safetensors
  std::vector<int64_t> shape;  // global
  Placement placement = Placement::kReplicated;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  // Set where the live value is an integer (LibTorch's `step`): stored as a 0-dim F32 tensor, so
  // that Python reads it, and exactly in the manifest, which wins.
  std::optional<int64_t> integer;
};

// The key space of a state under a spec: the only way to enumerate what is saved or loaded.
class StateDictContext {
 public:
  const CkptSpec& spec() const { return spec_; }
  const std::vector<StateEntry>& entries() const { return entries_; }
  // Everything that is not a tensor (param groups, schedulers, items), as JSON text; equal on all
  // ranks.
  const std::string& scalars_json() const { return scalars_json_; }
  // The entries whose keys begin with `prefix`, e.g. "optim.state.<fqn>.".
  std::vector<const StateEntry*> entries_of(const std::string& prefix) const;

 private:
  friend class checkpoint::ContextBuilder;
  CkptSpec spec_;
  std::vector<StateEntry> entries_;
  std::string scalars_json_;
};

// Reads the live state; changes nothing, runs no optimizer step, copies no tensor.
StateDictContext make_state_dict_context(const TrainState& state, const CkptSpec& spec);

// What a load did beyond copying equal entries.
struct LoadReport {
  int64_t step = 0;
  std::string path;
  StateDictKind stored_kind = StateDictKind::kSharded;
  int stored_world_size = 1;
  std::vector<std::string>
      notes;                // conversions, states removed or created, rank-0 buffers taken, ...
  uint64_t bytes_read = 0;  // by this rank
};

// Saves into the new directory `path`; it appears complete or not at all. [collective]
void save_checkpoint(const std::string& path, const TrainState& state, const CkptSpec& spec,
                     int64_t step, const SaveOptions& options = {});

// Validates everything on all ranks first: all mismatches come in one LayoutError and nothing has
// changed. Damaged data is a CorruptionError naming file and tensor, and nothing has changed.
// [collective]
LoadReport load_checkpoint(const std::string& path, TrainState& state, const CkptSpec& spec,
                           const LoadOptions& options = {});

// Throws UsageError naming every parameter that has optimizer state but lacks a state key that the
// other parameters of its optimizer have (LibTorch: `step`, `exp_avg`, `sum`, ...).
void assert_step_present(const torch::optim::Optimizer& optimizer, const Sharded& sharded);

// Checkpoints of one run: `step-00000060` directories under one root.
class CheckpointerOptions {
 public:
  CheckpointerOptions& keep_last(int64_t value) {
    keep_last_ = value;
    return *this;
  }  // 0: all
  int64_t keep_last() const { return keep_last_; }
  CheckpointerOptions& save(SaveOptions value) {
    save_ = value;
    return *this;
  }
  const SaveOptions& save() const { return save_; }
  CheckpointerOptions& load(LoadOptions value) {
    load_ = value;
    return *this;
  }
  const LoadOptions& load() const { return load_; }

 private:
  int64_t keep_last_ = 3;
  SaveOptions save_;
  LoadOptions load_;
};

class Checkpointer {
 public:
  Checkpointer(std::string root, CkptSpec spec, const Runtime& runtime,
               CheckpointerOptions options = {});
  // Returns the directory that was published. [collective]
  std::string save(int64_t step, const TrainState& state);
  // Saves the values of this moment while training goes on. One save runs at a time: the next call
  // of any member waits for it and throws, on all ranks, what it failed with. [collective]
  AsyncSave save_async(int64_t step, const TrainState& state);
  // Waits for the running save and throws what it failed with. [collective]
  void wait();
  // The newest checkpoint that is complete and loads, by save sequence; its step, or nothing where
  // the root holds none. Checkpoints passed over are reported; a damaged one is moved aside.
  // [collective]
  std::optional<int64_t> load_latest(TrainState& state);
  const LoadReport& last_report() const { return report_; }

 private:
  std::string root_;
  CkptSpec spec_;
  Runtime runtime_;
  CheckpointerOptions options_;
  LoadReport report_;
  std::shared_ptr<checkpoint::BackgroundSaver> background_;
};

}  // namespace tessera
