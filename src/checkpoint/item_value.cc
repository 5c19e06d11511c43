#include "checkpoint/item_value.h"

#include <nlohmann/json.hpp>
#include <type_traits>

#include "checkpoint/archive_values.h"
#include "tessera/error.h"

namespace tessera::checkpoint {

namespace {

using Json = nlohmann::json;

constexpr int kDeepest = 64;

Json encode(const ItemValue& value, const std::string& what, int depth) {
  if (depth > kDeepest) throw UsageError(what + " is nested too deeply");
  return std::visit(
      [&](const auto& held) -> Json {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, ItemValue::List>) {
          Json items = Json::array();
          for (const ItemValue& item : held) items.push_back(encode(item, what, depth + 1));
          return {{"list", std::move(items)}};
        } else if constexpr (std::is_same_v<Held, ItemValue::Dict>) {
          Json items = Json::object();
          for (const auto& [key, item] : held) items[key] = encode(item, what, depth + 1);
          return {{"dict", std::move(items)}};
        } else {
          return encode_value(c10::IValue(held), what);
        }
      },
      value);
}

ItemValue decode(const Json& json, const std::string& what, int depth) {
  if (depth > kDeepest) throw CorruptionError(what + " is nested too deeply");
  if (json.is_object() && json.size() == 1) {
    const auto& [type, items] = *json.items().begin();
    if (type == "list" && items.is_array()) {
      ItemValue::List list;
      for (const Json& item : items) list.push_back(decode(item, what, depth + 1));
      return list;
    }
    if (type == "dict" && items.is_object()) {
      ItemValue::Dict dict;
      for (const auto& [key, item] : items.items()) dict.emplace(key, decode(item, what, depth + 1));
      return dict;
    }
  }
  const c10::IValue value = decode_value(json, what);
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return value.toDouble();
  if (value.isString()) return value.toStringRef();
  throw CorruptionError(what + " is no value of a user: " + json.dump());
}

}  // namespace

Json encode_item(const ItemValue& value, const std::string& what) { return encode(value, what, 0); }

ItemValue decode_item(const Json& json, const std::string& what) { return decode(json, what, 0); }

const char* type_name(const ItemValue& value) {
  constexpr const char* kNames[] = {"bool", "integer", "double", "text", "list", "dict"};
  return kNames[value.index()];
}

}  // namespace tessera::checkpoint
