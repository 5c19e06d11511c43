// What a load will read, where it goes, and everything that speaks against it, found before any
// live value is touched.
//
// Threads: the training thread. Cost: no data is read; memory for one copy of this rank's part of
// what is loaded is reserved.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/box_reader.h"
#include "checkpoint/live_state.h"
#include "checkpoint/manifest.h"
#include "checkpoint/optim_state.h"
#include "checkpoint/state_keys.h"

namespace tessera::checkpoint {

// A tensor that is read: into `host` first, which is `fresh` itself where device and dtype allow.
struct FreshTensor {
  torch::Tensor host;
  torch::Tensor fresh;
  ReadRequest request;
};

struct LoadPlan {
  const Manifest& manifest;
  const LiveState& state;
  const CkptSpec& spec;
  const LoadOptions& options;

  std::vector<std::string> problems = {};
  LoadReport report = {};  // what will have happened, should the load succeed
  std::vector<FreshTensor> tensors = {};

  // Reserves a tensor for rows of `stored`: `local_shape` on `device` with `dtype`. What the rows do
  // not cover, at the end, is taken from `rest`.
  torch::Tensor reserve(const StoredTensor& stored, layout::RowRange rows,
                        torch::IntArrayRef local_shape, torch::ScalarType dtype,
                        torch::Device device, const torch::Tensor& rest = {});
  // The name under which the checkpoint stores what is called `name` here.
  std::string stored_name(const std::string& name) const;
  // Whether only the number of rows differs and the user lets it.
  bool may_resize(const std::string& name, const std::vector<int64_t>& stored,
                  const std::vector<int64_t>& here) const;
  // The dtypes differ: notes a conversion of `key`, or a problem.
  void convert(const std::string& key, const std::string& stored, const std::string& here);
  // Live but not stored, stored but not live: noted where `part` allows it, else a problem.
  void missing(StatePart part, const std::string& key, const std::string& problem);
  void unexpected(StatePart part, const std::string& key, const std::string& problem);
  void note(const std::string& text) { report.notes.push_back(text); }
};

// The rows that a rank holds here and the checkpoint has.
layout::RowRange common_rows(int64_t row_begin, int64_t row_end, int64_t stored_rows);

// Parameters and buffers.
class ModelLoad {
 public:
  void plan(LoadPlan& plan, const StateDictContext& context);
  void commit();

 private:
  struct Target {
    torch::Tensor live;
    torch::Tensor fresh;
  };
  const StoredTensor* find(LoadPlan& plan, const StateEntry& entry,
                           const std::vector<std::string>& aliases);
  void plan_entry(LoadPlan& plan, const StateEntry& entry, const StoredTensor& stored);
  void plan_rows(LoadPlan& plan, const StateEntry& entry, const StoredTensor& stored);
  void check_ties(LoadPlan& plan);
  void check_unexpected(LoadPlan& plan);

  std::vector<Target> targets_;
  std::vector<const StoredTensor*> used_;
};

// Optimizer state and group options.
class OptimizerLoad {
 public:
  // `name` is that of the further model whose optimizer it is, or empty.
  void plan(LoadPlan& plan, torch::optim::Optimizer* optimizer, const std::string& name);
  void commit();

 private:
  struct Group {
    torch::optim::OptimizerOptions* options = nullptr;
    ArchiveValues values;
  };
  void plan_groups(LoadPlan& plan, const nlohmann::json& stored);
  void match_group(LoadPlan& plan, const nlohmann::json& stored, size_t live_index);
  std::map<size_t, std::string> origins_of(LoadPlan& plan, const std::set<const void*>& held);
  void take_group(LoadPlan& plan, const nlohmann::json& stored, size_t stored_index,
                  size_t live_index);
  void check_left_out(LoadPlan& plan, const nlohmann::json& stored);
  void plan_options(LoadPlan& plan, const nlohmann::json& stored, size_t stored_index,
                    size_t live_index);
  void plan_states(LoadPlan& plan, const nlohmann::json& stored);
  void name_parameters(LoadPlan& plan);
  bool is_left_out(LoadPlan& plan, const std::string& stored_name) const;
  void check_shape(LoadPlan& plan, const nlohmann::json& stored, const std::string& stored_name,
                   const ShardedParameter& parameter);
  void plan_state(LoadPlan& plan, const nlohmann::json& stored, const std::string& name,
                  const std::vector<const StoredTensor*>& tensors);
  torch::Tensor rest_of(const StoredTensor& stored, const ShardedParameter& parameter,
                        torch::IntArrayRef local_shape, torch::ScalarType dtype) const;
  bool state_values(LoadPlan& plan, const nlohmann::json& others, const ShardedParameter& parameter,
                    const std::vector<const StoredTensor*>& tensors, ArchiveValues& out);
  torch::Tensor state_tensor(LoadPlan& plan, const StoredTensor& stored,
                             const ShardedParameter& parameter);
  void build_states(LoadPlan& plan);

  torch::optim::Optimizer* optimizer_ = nullptr;
  std::map<std::string, size_t> live_by_name_;  // stored name -> index of the live parameter
  std::set<std::string> left_out_;              // stored names that are not chosen
  std::vector<int64_t> stored_shape_;           // of the parameter whose state is being planned
  std::vector<StateKeys> keys_;
  std::set<size_t> with_state_;
  std::map<size_t, size_t> stored_group_of_;    // live parameter -> group of the checkpoint
  std::vector<Group> groups_;
  std::vector<size_t> matched_;  // live group of each stored group, or npos
  std::vector<OptimStateSerializer::Wanted> wanted_;
  std::vector<std::unique_ptr<OptimState>> states_;  // of wanted_
  std::vector<void*> absent_;                        // parameters whose state goes
};

// Tensors of the user.
class ItemTensorLoad {
 public:
  void plan(LoadPlan& plan, const StateDictContext& context);
  // After reading: what needs all of it.
  void merge();
  void commit();

 private:
  struct Target {
    const ItemTensor* item = nullptr;
    std::string key;
    torch::Tensor fresh;
    std::vector<torch::Tensor> of_ranks;  // to be merged
  };
  void plan_entry(LoadPlan& plan, const StateEntry& entry, const StoredTensor& stored);
  void plan_other_world(LoadPlan& plan, const StateEntry& entry, const StoredTensor& stored,
                        Target& target);

  std::vector<Target> targets_;
};

// Schedulers, items, generators.
class ScalarLoad {
 public:
  void plan(LoadPlan& plan, const StateDictContext& context);
  void commit();

 private:
  struct Generator {
    at::Generator generator;
    torch::Tensor state;  // undefined: it starts from `seed`
    uint64_t seed = 0;
  };
  void plan_rng(LoadPlan& plan, const std::string& device, const at::Generator& generator);
  void plan_schedulers(LoadPlan& plan, const nlohmann::json& stored);
  void plan_items(LoadPlan& plan, const nlohmann::json& stored, const nlohmann::json& live);

  std::vector<Generator> generators_;
  std::vector<std::pair<torch::optim::LRScheduler*, int64_t>> schedulers_;
  std::vector<std::pair<const TrainState::Item*, ItemValue>> items_;
};

// Optimizer state that no optimizer's section declares is a problem.
void check_states_declared(LoadPlan& plan);

std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace tessera::checkpoint
