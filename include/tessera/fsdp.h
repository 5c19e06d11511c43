// Fully sharded training of an unmodified torch::nn::Module.
//
// READ FIRST: after `fully_shard`, `model->parameters()` are this rank's *rows* (sharded leaves). Build
// the optimizer after wrapping. Everything computed over leaves is local: use `sharded.clip_grad_norm`
// instead of torch::nn::utils::clip_grad_norm_, `sharded.full_numel()` instead of summing numel(),
// `sharded.gather(...)` to read or write whole parameters.
//
// How: each parameter that the module's code holds gathers itself when an operator touches it, in
// forward, backward and recompute, and is given back when the next unit is touched. Gradients are
// averaged over the ranks in fp32 (fp64 for double parameters) at the end of each unit's backward.
// A touch is a collective, except on shm: all ranks must run the same sequence of units.
//
// Threads: the wrapped module, its optimizer and Sharded belong to one thread.
// Cost a step, P parameters, W ranks: shm moves P(W-1)/W elements (gradients only); other backends
// 3P(W-1)/W (all-gather in forward and backward, reduce-scatter). Memory with Adam in fp32: 16P/W
// bytes + two gathered units + the gradients of the units in flight (shm: 4P a host for parameters).
// Errors: UsageError for what cannot be wrapped (names module and parameter), LayoutError where ranks
// hold different models, CommError where ranks run different programs.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tessera/runtime.h>

namespace tessera {

enum class InitialValues {
  kCompare,    // all ranks must hold the same values (same seed); a difference is a LayoutError
  kFromRank0,  // every rank takes rank 0's
};

class FsdpOptions {
 public:
  // Decides whether a submodule (fqn, module) becomes a unit: its parameters are gathered together.
  using UnitPredicate = std::function<bool(const std::string&, torch::nn::Module&)>;

  // Every submodule of this type is a unit.
  template <typename ModuleType>
  FsdpOptions& unit() {
    return unit_if([](const std::string&, torch::nn::Module& module) {
      return dynamic_cast<ModuleType*>(&module) != nullptr;
    });
  }
  // This submodule is a unit.
  FsdpOptions& unit(const torch::nn::Module& submodule) {
    const torch::nn::Module* wanted = &submodule;
    return unit_if([wanted](const std::string&, torch::nn::Module& module) { return &module == wanted; });
  }
  FsdpOptions& unit_if(UnitPredicate predicate) {
    unit_predicates_.push_back(std::move(predicate));
    return *this;
  }
  const std::vector<UnitPredicate>& unit_predicates() const { return unit_predicates_; }

  FsdpOptions& initial_values(InitialValues value) { initial_values_ = value; return *this; }
  InitialValues initial_values() const { return initial_values_; }

  // Give gathered parameters back as soon as another unit is touched in forward (the default), or
  // keep them until backward is over: fewer gathers, more memory.
  FsdpOptions& reshard_after_forward(bool value) { reshard_after_forward_ = value; return *this; }
  bool reshard_after_forward() const { return reshard_after_forward_; }

  // Overwrites freed parameter memory, so that a use after it shows (tests; slow).
  FsdpOptions& debug_overwrite_freed(bool value) { debug_overwrite_freed_ = value; return *this; }
  bool debug_overwrite_freed() const { return debug_overwrite_freed_; }

 private:
  std::vector<UnitPredicate> unit_predicates_;
  InitialValues initial_values_ = InitialValues::kCompare;
  bool reshard_after_forward_ = true;
  bool debug_overwrite_freed_ = false;
};

// One parameter as this rank holds it. `leaf` is a view of rows [row_begin, row_end) of the full
// tensor in the rank's flat shard: shape [row_end - row_begin, shape[1:]...]. A 0-dim parameter is one
// row: its leaf has shape [] on the owner and [0] elsewhere.
struct ShardedParameter {
  std::string fqn;                   // the first name that named_parameters() yields
  std::vector<std::string> aliases;  // further names of the same (tied) parameter
  torch::Tensor leaf;
  std::vector<int64_t> shape;  // of the full parameter
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int unit = 0;
};

struct NamedBuffer {
  std::string fqn;
  torch::Tensor tensor;  // the live buffer, replicated
};

namespace fsdp {
class Engine;
}

// Whole parameters while it lives: entered and left by all ranks together. Not movable out of scope.
class Gathered {
 public:
  Gathered(Gathered&& other) noexcept;
  Gathered(const Gathered&) = delete;
  Gathered& operator=(const Gathered&) = delete;
  ~Gathered();
  // The full parameter; valid while this object lives. Throws UsageError for an unknown name.
  torch::Tensor operator[](const std::string& fqn) const;
  // Takes what was written into the gathered parameters over into the shards of every rank; all
  // ranks must have written the same values. [collective]
  void write_back();

 private:
  friend class Sharded;
  Gathered(std::shared_ptr<fsdp::Engine> engine, std::vector<int> units);
  std::shared_ptr<fsdp::Engine> engine_;
  std::vector<int> units_;
};

class Sharded {
 public:
  explicit Sharded(std::shared_ptr<fsdp::Engine> engine);

  // Scales the gradients so that the p-norm over *all* ranks' gradients is at most max_norm; p may be
  // infinity. Returns the norm before clipping, equal on every rank to the unsharded value. [collective]
  double clip_grad_norm(double max_norm, double norm_type = 2.0);

  // The next backward's gradients weigh with this rank's number of samples: the average over ranks
  // is sum(n_r * g_r) / sum(n_r). Stays in force until changed; the default is 1 on every rank.
  void set_gradient_weight(double samples);

  // Gathers everything, or the units that hold parameters of one submodule. [collective]
  Gathered gather();
  Gathered gather(const torch::nn::Module& submodule);

  // For code that writes leaves past the dispatcher (own kernels, raw pointers): call it before.
  void before_write(const torch::Tensor& leaf);

  const std::vector<ShardedParameter>& parameters() const;
  std::vector<NamedBuffer> buffers() const;
  int64_t full_numel() const;  // elements of the unsharded model, tied parameters once
  // Units with their parameters, bytes, padding and this rank's share, for people.
  std::string summary() const;
  const Mesh& mesh() const;
  torch::nn::Module& module() const;
  const std::shared_ptr<fsdp::Engine>& engine() const { return engine_; }

 private:
  std::shared_ptr<fsdp::Engine> engine_;
};

// Shards `module` in place over the mesh. The module must outlive the result. [collective]
Sharded fully_shard(torch::nn::Module& module, const Mesh& mesh, const FsdpOptions& options = {});

}  // namespace tessera
