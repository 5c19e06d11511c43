#include "checkpoint/archive_values.h"

#include <c10/util/StringUtil.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/error.h"

namespace tessera::checkpoint {

namespace {

using Json = nlohmann::json;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

constexpr std::string_view kNested = "::";

// An explicit instantiation may name a private member; the friend functions that it defines hand
// the member out.
torch::jit::Module& module_of(OutputArchive& archive);
torch::jit::Module& module_of(InputArchive& archive);

template <typename Archive, torch::jit::Module Archive::*Member>
struct ModuleAccess {
  friend torch::jit::Module& module_of(Archive& archive) { return archive.*Member; }
};
template struct ModuleAccess<OutputArchive, &OutputArchive::module_>;
template struct ModuleAccess<InputArchive, &InputArchive::module_>;

void collect(const torch::jit::Module& module, const std::string& prefix, ArchiveValues& out) {
  for (const auto& attribute : module.named_attributes(/*recurse=*/false)) {
    if (attribute.name.find(kNested) != std::string::npos)
      throw UsageError(
          c10::str("a state value is called '", attribute.name, "': '::' is reserved"));
    if (attribute.value.isModule())
      collect(attribute.value.toModule(), prefix + attribute.name + std::string(kNested), out);
    else
      out.emplace_back(prefix + attribute.name, attribute.value);
  }
}

Json encode_double(double value) {
  if (std::isfinite(value)) return value;
  return {{"double", std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf"}};
}

double decode_double(const Json& json, const std::string& what) {
  if (json.is_number()) return json.get<double>();
  if (json == "nan") return std::nan("");
  if (json == "inf") return INFINITY;
  if (json == "-inf") return -INFINITY;
  throw CorruptionError(what + " is not a number: " + json.dump());
}

template <typename List, typename Encode>
Json encode_list(const char* type, const List& list, Encode encode) {
  Json items = Json::array();
  for (const auto& item : list) items.push_back(encode(item));
  return {{type, std::move(items)}};
}

c10::IValue decode_compound(const std::string& type, const Json& items, const std::string& what) {
  if (type == "double") return decode_double(items, what);
  if (!items.is_array()) throw CorruptionError(what + " has an unknown form: " + items.dump());
  if (type == "tuple") {
    std::vector<c10::IValue> values;
    for (const Json& item : items) values.push_back(decode_value(item, what));
    return c10::ivalue::Tuple::create(std::move(values));
  }
  if (type == "ints") return items.get<std::vector<int64_t>>();
  if (type == "bools") {
    c10::List<bool> values;
    for (const Json& item : items) values.push_back(item.get<bool>());
    return values;
  }
  if (type == "doubles") {
    std::vector<double> values;
    for (const Json& item : items)
      values.push_back(decode_double(item.is_object() ? item.at("double") : item, what));
    return values;
  }
  if (type == "strings") return items.get<std::vector<std::string>>();
  throw CorruptionError(what + " has an unknown type: " + type);
}

}  // namespace

ArchiveValues archive_values(OutputArchive& archive) {
  ArchiveValues values;
  collect(module_of(archive), "", values);
  return values;
}

OutputArchive output_archive(const ArchiveValues& values) {
  OutputArchive archive;
  std::vector<std::pair<std::string, ArchiveValues>> nested;
  for (const auto& [key, value] : values) {
    const size_t split = key.find(kNested);
    if (split == std::string::npos) {
      archive.write(key, value);
      continue;
    }
    const std::string name = key.substr(0, split);
    if (nested.empty() || nested.back().first != name) nested.emplace_back(name, ArchiveValues{});
    nested.back().second.emplace_back(key.substr(split + kNested.size()), value);
  }
  for (const auto& [name, inner] : nested) {
    OutputArchive inner_archive = output_archive(inner);
    archive.write(name, inner_archive);
  }
  return archive;
}

InputArchive input_archive(OutputArchive& archive) {
  InputArchive input;
  module_of(input) = module_of(archive);
  return input;
}

Json encode_value(const c10::IValue& value, const std::string& what) {
  if (value.isNone()) return nullptr;
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return encode_double(value.toDouble());
  if (value.isString()) return value.toStringRef();
  if (value.isTuple())
    return encode_list("tuple", value.toTupleRef().elements(),
                       [&](const c10::IValue& item) { return encode_value(item, what); });
  if (value.isIntList()) return {{"ints", value.toIntVector()}};
  if (value.isDoubleList()) return encode_list("doubles", value.toDoubleVector(), encode_double);
  if (value.isBoolList())
    return encode_list("bools", value.toBoolList(), [](bool item) { return Json(item); });
  if (value.isList() && value.toList().elementType()->kind() == c10::TypeKind::StringType)
    return encode_list("strings", value.toListRef(),
                       [](const c10::IValue& item) { return Json(item.toStringRef()); });
  throw UsageError(
      c10::str(what, " has the type ", value.tagKind(), ", which a checkpoint cannot hold"));
}

c10::IValue decode_value(const Json& json, const std::string& what) {
  switch (json.type()) {
    case Json::value_t::null:
      return {};
    case Json::value_t::boolean:
      return json.get<bool>();
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return json.get<int64_t>();
    case Json::value_t::number_float:
      return json.get<double>();
    case Json::value_t::string:
      return json.get<std::string>();
    case Json::value_t::object:
      if (json.size() == 1) {
        try {
          return decode_compound(json.begin().key(), json.begin().value(), what);
        } catch (const Json::exception& error) {
          throw CorruptionError(c10::str(what, " is malformed: ", error.what()));
        }
      }
      break;
    default:
      break;
  }
  throw CorruptionError(what + " is malformed: " + json.dump());
}

}  // namespace tessera::checkpoint
