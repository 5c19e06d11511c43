// What a load may leave out, rename or resize, and what it says it did.
//
// By default everything must fit: each name on one side only, each shape or dtype that differs, is a
// LayoutError that lists all of them, and nothing is changed.
// Threads: values. Cost: none; the functions given here are called on the thread that loads, on
// every rank, and must answer the same on all.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <tessera/ckpt_spec.h>

namespace tessera {

enum class StatePart {
  kModel,      // parameters and buffers
  kOptimizer,  // optimizer state; `missing` also allows a checkpoint without any
  kItems,      // schedulers and the user's items
};

// What a part may lack on either side. What is skipped stays as it is and is reported.
struct Strictness {
  bool missing = false;     // live, but not in the checkpoint
  bool unexpected = false;  // in the checkpoint, but not live
};

// A parameter or optimizer state whose number of rows differs, all other dimensions being equal.
struct RowChange {
  std::string name;  // of the parameter, as it is called here
  std::vector<int64_t> stored_shape;
  std::vector<int64_t> shape;  // here
};

class LoadOptions {
 public:
  // Checks every block's hash (the default).
  LoadOptions& verify(bool value) {
    verify_ = value;
    return *this;
  }
  bool verify() const { return verify_; }
  // Loads a checkpoint without this optimizer's state and leaves the optimizer as it is.
  LoadOptions& allow_fresh_optimizer(bool value) {
    fresh_optimizer_ = value;
    return *this;
  }
  bool allow_fresh_optimizer() const { return fresh_optimizer_; }

  LoadOptions& strictness(StatePart part, Strictness value) {
    strictness_[part] = value;
    return *this;
  }
  Strictness strictness(StatePart part) const {
    const auto found = strictness_.find(part);
    return found == strictness_.end() ? Strictness{} : found->second;
  }
  // Loads these parameters and buffers (by name here) and their optimizer state; the others stay as
  // they are, in both.
  LoadOptions& only(std::function<bool(const std::string&)> chosen) {
    only_ = std::move(chosen);
    return *this;
  }
  bool chooses(const std::string& name) const { return !only_ || only_(name); }
  bool is_partial() const { return static_cast<bool>(only_); }
  // The name in the checkpoint of what is called so here.
  LoadOptions& rename(std::function<std::string(const std::string&)> to_stored) {
    rename_ = std::move(to_stored);
    return *this;
  }
  std::string stored_name(const std::string& name) const { return rename_ ? rename_(name) : name; }
  // Asked where the number of rows differs, as with a larger vocabulary: true takes the rows that
  // both have. Rows beyond them keep their values here (optimizer state: those of this optimizer
  // where it has any, else 0).
  LoadOptions& resize_rows(std::function<bool(const RowChange&)> allowed) {
    resize_ = std::move(allowed);
    return *this;
  }
  bool may_resize(const RowChange& change) const { return resize_ && resize_(change); }

 private:
  bool verify_ = true;
  bool fresh_optimizer_ = false;
  std::map<StatePart, Strictness> strictness_;
  std::function<bool(const std::string&)> only_;
  std::function<std::string(const std::string&)> rename_;
  std::function<bool(const RowChange&)> resize_;
};

// What a load did beyond copying equal entries.
struct LoadReport {
  int64_t step = 0;
  std::string path;
  StateDictKind stored_kind = StateDictKind::kSharded;
  int stored_world_size = 1;
  // For people: conversions, states removed or created, rank 0's buffers taken, ...
  std::vector<std::string> notes;
  // Keys, by what became of them.
  std::vector<std::string> missing;     // left as they are
  std::vector<std::string> unexpected;  // not loaded
  std::vector<std::string> reshaped;    // other rows
  std::vector<std::string> converted;   // another dtype
  uint64_t bytes_read = 0;              // by this rank
};

}  // namespace tessera
