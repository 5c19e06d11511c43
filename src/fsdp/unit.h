// The parts of a wrapped module: parameters, the flat buffers that hold them, and the units that are
// gathered and reduced together. Plain data; Engine (engine.h) gives it behaviour.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/sum_dtype.h"
#include "layout/flat_layout.h"

namespace tessera::fsdp {

class Engine;
struct FlatBuffer;
struct Unit;

struct Param {
  std::string fqn;
  std::vector<std::string> aliases;
  std::vector<int64_t> shape;
  torch::Tensor full;  // held by the module's own members; carries the dispatch key
  torch::Tensor leaf;  // held by the module's registry and the optimizer; carries the key too
  FlatBuffer* buffer = nullptr;
  int64_t offset = 0;  // element offset in the whole flat buffer
  layout::RowRange rows;
  int index = 0;  // within the unit

  bool requires_grad = false;   // as last agreed between leaf and full
  bool hooked = false;          // gradient hooks are registered on `full`
  bool grad_installed = false;  // full.grad() is a view into the flat gradient buffer
  bool grad_arrived = false;    // something was accumulated since the last reduction

  int64_t numel() const { return full.numel(); }
  // Element offset of the first owned row inside `rank`'s segment; for owners of rows only.
  int64_t shard_offset(int rank) const;
};

// One dtype, one layout: parameter storage, wire buffer and checkpoint chunk at once.
struct FlatBuffer {
  Unit* unit = nullptr;
  torch::Dtype dtype = torch::kFloat;
  int64_t segment_numel = 0;
  int64_t numel = 0;  // segment_numel * world_size
  std::vector<Param*> params;  // by offset

  c10::Storage storage;          // of the gathered parameters; empty while sharded
  std::byte* mapping = nullptr;  // the whole buffer where all ranks' segments are always in reach
  torch::Tensor shard;           // [segment_numel], this rank's segment

  torch::Tensor grad_full;   // [numel] in the reduce dtype, while gradients arrive
  torch::Tensor grad_shard;  // [segment_numel], what leaf.grad() views

  size_t bytes() const { return static_cast<size_t>(numel) * c10::elementSize(dtype); }
  bool has_grads() const { return c10::isFloatingType(dtype) || c10::isComplexType(dtype); }
  torch::Dtype reduce_dtype() const { return comm::sum_dtype(dtype); }
  // The parameter whose range holds this offset of the whole buffer; null in padding.
  Param* find(int64_t element) const;
};

struct Unit {
  Engine* engine = nullptr;
  int index = 0;
  std::string name;  // FQN of the module, "(root)" for the rest
  bool is_root = false;
  std::vector<Param*> params;
  std::vector<FlatBuffer*> buffers;

  bool live = false;         // the gathered parameters have memory
  bool stale = false;        // a leaf was written since the last gather
  bool private_copy = false; // gathered into memory of its own, for Gathered
  int pins = 0;              // operators and Gathered scopes that use the parameters now

  int arrived = 0;       // gradients since the last reduction
  int expected = -1;     // parameters that will get one; -1: not counted yet
  bool reduced = false;  // in the running backward
  int grad_slot = -1;    // exported region that holds grad_full on shm
  bool complete() const { return expected >= 0 && arrived >= expected; }
};

}  // namespace tessera::fsdp
