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
#include <tessera/ckpt_spec.h>
#include <tessera/fsdp.h>
#include <tessera/load_options.h>
#include <tessera/runtime.h>
#include <tessera/train_state.h>

namespace tessera {

namespace checkpoint {
class BackgroundSaver;
class ContextBuilder;
struct RunState;
}  // namespace checkpoint

class SaveOptions {
 public:
  // fsync every file and directory before the checkpoint is published (the default).
  SaveOptions& sync(bool value) {
    sync_ = value;
    return *this;
  }
  bool sync() const { return sync_; }
  // Only rank 0 touches the directory, which the hosts need not share: the others send it their
  // bytes, in memory bounded by one piece of 1 MiB. Slower by about the number of ranks. A load
  // needs the directory on every host.
  SaveOptions& through_rank0(bool value) {
    through_rank0_ = value;
    return *this;
  }
  bool through_rank0() const { return through_rank0_; }

 private:
  bool sync_ = true;
  bool through_rank0_ = false;
};

// How one tensor of the state is spread over the ranks.
enum class Placement {
  kSharded,     // rows [row_begin, row_end) of dim 0 are here
  kReplicated,  // the same on all ranks (checked by hash), stored once
  kPerRank,     // different on each rank, stored for each
};

enum class StateRole { kParameter, kBuffer, kOptimizer, kRng, kItem };

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

// Checkpoints of one run: `step-00000060` directories under one root, into which one job at a time
// may save: another gets a UsageError.
class CheckpointerOptions {
 public:
  CheckpointerOptions& keep_last(int64_t value) {
    keep_last_ = value;
    return *this;
  }  // 0: all
  int64_t keep_last() const { return keep_last_; }
  // Besides, those of steps that are a multiple of `value` stay for ever (0: none). So does one
  // beside which a file `<name>.pinned` lies.
  CheckpointerOptions& keep_every(int64_t value) {
    keep_every_ = value;
    return *this;
  }
  int64_t keep_every() const { return keep_every_; }
  // Keeps the files of the last expired checkpoint and overwrites them in the next save, which then
  // waits less for the disk. For kinds whose files each have one writer, and saves that sync; it
  // takes the space of one more checkpoint. Off by default: whoever still reads or maps an expired
  // checkpoint finds other bytes in it, which our own reader reports as damage.
  CheckpointerOptions& recycle(bool value) {
    recycle_ = value;
    return *this;
  }
  bool recycle() const { return recycle_; }
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
  int64_t keep_every_ = 0;
  bool recycle_ = false;
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
  std::shared_ptr<checkpoint::RunState> run_;
  std::shared_ptr<checkpoint::BackgroundSaver> background_;
};

}  // namespace tessera
