// The form of a checkpoint's state: one immutable value that save and load share.
//
// Threads: values; reentrant. Cost: none.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tessera {

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

}  // namespace tessera
