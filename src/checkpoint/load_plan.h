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
  std::vector<std::string> notes = {};
  std::vector<FreshTensor> tensors = {};

  // Reserves a tensor for rows of `stored`: `local_shape` on `device` with `dtype`.
  torch::Tensor reserve(const StoredTensor& stored, layout::RowRange rows,
                        torch::IntArrayRef local_shape, torch::ScalarType dtype,
                        torch::Device device);
  // The name under which the checkpoint stores what is called `name` there.
  const std::string& stored_name(const std::string& name) const;
};

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
  void check_ties(LoadPlan& plan);
  void check_unexpected(LoadPlan& plan);

  std::vector<Target> targets_;
  std::vector<const StoredTensor*> used_;
};

// Optimizer state and group options.
class OptimizerLoad {
 public:
  void plan(LoadPlan& plan);
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
  void check_shape(LoadPlan& plan, const nlohmann::json& stored, const std::string& stored_name,
                   const ShardedParameter& parameter);
  bool state_values(LoadPlan& plan, const nlohmann::json& others, const ShardedParameter& parameter,
                    const std::vector<const StoredTensor*>& tensors, ArchiveValues& out);
  torch::Tensor state_tensor(LoadPlan& plan, const StoredTensor& stored,
                             const ShardedParameter& parameter);
  void build_states(LoadPlan& plan);

  torch::optim::Optimizer* optimizer_ = nullptr;
  std::map<std::string, size_t> live_by_name_;  // stored name -> index of the live parameter
  std::map<size_t, size_t> stored_group_of_;    // live parameter -> group of the checkpoint
  std::vector<Group> groups_;
  std::vector<size_t> matched_;  // live group of each stored group, or npos
  std::vector<OptimStateSerializer::Wanted> wanted_;
  std::vector<std::unique_ptr<OptimState>> states_;  // of wanted_
  std::vector<void*> absent_;                        // parameters whose state goes
};

// Schedulers, items, generators.
class ScalarLoad {
 public:
  void plan(LoadPlan& plan, const StateDictContext& context);
  void commit();

 private:
  void plan_rng(LoadPlan& plan);
  void plan_named(LoadPlan& plan, const nlohmann::json& stored, const nlohmann::json& live);

  at::Generator generator_;
  torch::Tensor generator_state_;
  std::optional<uint64_t> seed_;
  std::vector<std::pair<torch::optim::LRScheduler*, int64_t>> schedulers_;
  std::vector<std::pair<const TrainState::Item*, ItemValue>> items_;
};

std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace tessera::checkpoint
