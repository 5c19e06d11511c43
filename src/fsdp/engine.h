// The state machine of one wrapped module: which units are gathered, when they are given back, when
// leaves may be written, and what happens to gradients in a backward.
//
// Threads: one thread (CPU backwards run on the thread that calls backward).
// Order of a step: touches gather units (pin, run the operator, unpin, evict) -> gradient hooks
// install views of the flat gradient buffer -> a unit whose gradients are complete is reduced when
// its turn comes -> the final callback of the outermost backward reduces the rest -> the optimizer's
// first write to a leaf opens the write epoch, the next touch closes it.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/shared_memory.h"
#include "fsdp/gradient_slots.h"
#include "fsdp/unit.h"
#include "fsdp/write_guard.h"
#include "tessera/fsdp.h"

namespace tessera::fsdp {

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  Engine(torch::nn::Module& module, const Mesh& mesh, const FsdpOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // -- called by the dispatcher (engine.cc)
  void pin(Unit& unit);
  void unpin(Unit& unit) { --unit.pins; }
  // Gives back what no running operator needs, except the root unit and what was just touched.
  void evict_all_but_pinned();
  void on_leaf_write(FlatBuffer& buffer, const torch::Tensor& tensor);
  void check_full_write(FlatBuffer& buffer, const torch::Tensor& tensor, const std::string& operation) const;
  // `guard` is asked before the next write to any leaf, or at the end of the next backward.
  void guard_leaves(const std::shared_ptr<WriteGuard>& guard) { leaf_guard_ = guard; }
  // The flag lives on the leaf; a change on either side reaches the other at the next touch.
  void sync_requires_grad(FlatBuffer& buffer, const torch::Tensor& tensor);

  // -- Gathered scopes (gathered.cc)
  void enter_gathered(std::span<const int> units);
  void leave_gathered(std::span<const int> units) noexcept;
  void write_back(std::span<const int> units);

  // -- gradients (backward.cc, reduce.cc)
  void set_gradient_weight(double samples) { gradient_weight_ = samples; }
  void on_gradient(Param& param);     // before accumulation
  void on_accumulated(Param& param);  // after it

  double clip_grad_norm(double max_norm, double norm_type);

  // -- wrapping (wrap.cc) fills these in
  std::vector<std::unique_ptr<Unit>>& units() { return units_; }
  std::vector<std::unique_ptr<FlatBuffer>>& buffers() { return buffers_; }
  std::vector<std::unique_ptr<Param>>& params() { return params_; }
  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  const std::vector<std::unique_ptr<Param>>& params() const { return params_; }
  // Allocates storage for planned buffers, moves this rank's rows in, and swaps the tensors.
  void install();
  void register_gradient_hooks(Param& param);

  const std::vector<ShardedParameter>& sharded_parameters() const { return sharded_parameters_; }
  torch::nn::Module& module() const { return module_; }
  const Mesh& mesh() const { return mesh_; }
  const FsdpOptions& options() const { return options_; }
  comm::Communicator& comm() const { return *comm_; }
  std::string summary() const;

 private:
  enum class Phase : uint32_t { kGather = 1, kReduce, kLate, kScope, kOrder };
  struct Header;

  // engine.cc
  void gather(Unit& unit);
  void reshard(Unit& unit);
  void attach(FlatBuffer& buffer, bool private_copy);
  void detach(FlatBuffer& buffer);
  void begin_read();
  std::vector<Header> announce(Header header);
  std::string describe(const Header& header) const;
  void check_leaves() const;
  void pass_guard();

  // wrap.cc
  void allocate_buffers();
  void create_tensors(FlatBuffer& buffer);
  void swap_registries();

  // backward.cc
  void enter_backward();
  void recover_from_failed_backward();
  void install_gradient(Param& param);
  void reduce_in_turn();
  void finish_backward();
  void reduce_late_gradients();
  void learn_order();
  void poison(Param& param);

  // reduce.cc
  void reduce(Unit& unit);
  void acquire_gradients(Unit& unit);
  void release_gradients(Unit& unit);
  void zero_missing(Unit& unit);
  std::vector<bool> exchange_used(Unit& unit, std::vector<Header>& headers);
  void reduce_buffer(FlatBuffer& buffer, const std::vector<Header>& headers, const std::vector<bool>& used);
  void sum_into(FlatBuffer& buffer, torch::Tensor out, const std::vector<Header>& headers);

  torch::nn::Module& module_;
  const Mesh mesh_;
  const FsdpOptions options_;
  const std::shared_ptr<comm::Communicator> comm_;
  comm::SharedMemory* const memory_;  // null unless ranks share memory
  const bool mapped_;                 // every segment is always in reach (shm, world size 1)

  std::vector<std::unique_ptr<Param>> params_;
  std::vector<std::unique_ptr<FlatBuffer>> buffers_;
  std::vector<std::unique_ptr<Unit>> units_;  // the root unit is first
  std::vector<ShardedParameter> sharded_parameters_;
  torch::Tensor own_mapping_;  // world size 1: memory behind every FlatBuffer::mapping
  int shared_region_ = -1;

  std::vector<Unit*> current_;  // gathered, and used by the latest operator
  struct KeptMemory {
    size_t bytes;
    c10::DataPtr data;
  };
  std::vector<KeptMemory> kept_memory_;  // of resharded units, for the next gather
  std::shared_ptr<WriteGuard> leaf_guard_;
  bool in_scope_ = false;
  uint64_t sequence_ = 0;

  double gradient_weight_ = 1.0;
  std::vector<int> reduce_order_;
  std::vector<int> completion_order_;
  bool order_is_learned_ = false;
  size_t reduce_cursor_ = 0;
  bool backward_active_ = false;
  std::unique_ptr<GradientSlots> slots_;
};

void link_dispatch();

}  // namespace tessera::fsdp
