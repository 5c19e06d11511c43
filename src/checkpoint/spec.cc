#include <string>
#include <utility>
#include <vector>

#include "checkpoint/keys.h"
#include "checkpoint/manifest.h"
#include "io/checksum.h"
#include "tessera/checkpoint.h"

namespace tessera {

namespace {

const char* yes_no(bool value) { return value ? "yes" : "no"; }

// A copy of `spec` changed by `change`: how every setter leaves its object as it is.
template <typename Change>
CkptSpec changed(const CkptSpec& spec, Change change) {
  CkptSpec copy = spec;
  change(copy);
  return copy;
}

}  // namespace

CkptSpec::CkptSpec() = default;

CkptSpec CkptSpec::kind(StateDictKind value) const {
  return changed(*this, [&](CkptSpec& spec) { spec.kind_ = value; });
}
CkptSpec CkptSpec::with_model(bool value) const {
  return changed(*this, [&](CkptSpec& spec) { spec.model_ = value; });
}
CkptSpec CkptSpec::with_optimizer(bool value) const {
  return changed(*this, [&](CkptSpec& spec) { spec.optimizer_ = value; });
}
CkptSpec CkptSpec::with_rng(bool value) const {
  return changed(*this, [&](CkptSpec& spec) { spec.rng_ = value; });
}
CkptSpec CkptSpec::with_items(bool value) const {
  return changed(*this, [&](CkptSpec& spec) { spec.items_ = value; });
}
CkptSpec CkptSpec::dtype_policy(DtypePolicy value) const {
  return changed(*this, [&](CkptSpec& spec) { spec.dtype_policy_ = value; });
}
CkptSpec CkptSpec::key_prefix(std::string value) const {
  return changed(*this, [&](CkptSpec& spec) { spec.key_prefix_ = std::move(value); });
}

std::vector<std::pair<std::string, std::string>> CkptSpec::fields() const {
  return {{"kind", checkpoint::to_string(checkpoint::stored_kind(kind_))},
          {"key_scheme", checkpoint::kKeyScheme},
          {"key_prefix", key_prefix_},
          {"dtype_policy", dtype_policy_ == DtypePolicy::kExact ? "exact" : "convert"},
          {"model", yes_no(model_)},
          {"optimizer", yes_no(optimizer_)},
          {"rng", yes_no(rng_)},
          {"items", yes_no(items_)}};
}

std::string CkptSpec::fingerprint() const {
  std::string text;
  for (const auto& [name, value] : fields()) text += name + "=" + value + "\n";
  return checkpoint::hex64(io::hash_bytes(text.data(), text.size()));
}

namespace checkpoint {

StoredKind stored_kind(StateDictKind kind) {
  switch (kind) {
    case StateDictKind::kSharded:
      return StoredKind::kSharded;
    case StateDictKind::kFull:
      return StoredKind::kFull;
    case StateDictKind::kLocal:
      return StoredKind::kLocal;
  }
  return StoredKind::kSharded;
}

StateDictKind state_dict_kind(StoredKind kind) {
  switch (kind) {
    case StoredKind::kSharded:
      return StateDictKind::kSharded;
    case StoredKind::kFull:
      return StateDictKind::kFull;
    case StoredKind::kLocal:
      return StateDictKind::kLocal;
  }
  return StateDictKind::kSharded;
}

std::string model_key(const CkptSpec& spec, const std::string& name) {
  return spec.key_prefix() + "model." + name;
}
std::string optimizer_key(const CkptSpec& spec, const std::string& name,
                          const std::string& state_key) {
  return spec.key_prefix() + "optim.state." + name + "." + state_key;
}
std::string rng_key(const CkptSpec& spec, const std::string& device) {
  return spec.key_prefix() + "rng." + device;
}
std::string item_key(const CkptSpec& spec, const std::string& name) {
  return spec.key_prefix() + "item." + name;
}

}  // namespace checkpoint

}  // namespace tessera
