// Steps that succeed on all ranks or on none.
//
// Cost: one exchange of the payloads a step.
// Errors: the kind of the lowest failing rank's error, with the text of every rank that failed.
#pragma once

#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "comm/communicator.h"

namespace tessera::checkpoint {

// Runs `local` on this rank and returns what every rank's `local` returned, in rank order. Where it
// throws on any rank, an Error is thrown on all. [collective]
std::vector<std::string> agree(comm::Communicator& communicator, std::string_view what,
                               const std::function<std::string()>& local);

// The two halves of `agree`, for ranks that meet by other means: how `local` went on this rank as a
// message, and what the messages of all ranks come to.
std::string outcome_of(const std::function<std::string()>& local);
bool succeeded(const std::string& outcome);
// What `local` returned; throws what it threw.
std::string result_of(const std::string& outcome);
// Returns what every rank's `local` returned; throws where one failed.
std::vector<std::string> require_success(std::vector<std::string> outcomes, std::string_view what);

// Appends plain values and length-prefixed text to a message.
class MessageWriter {
 public:
  template <typename Value>
  MessageWriter& add(const Value& value) {
    static_assert(std::is_trivially_copyable_v<Value>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  MessageWriter& add_text(std::string_view text) {
    add(static_cast<uint64_t>(text.size()));
    bytes_.append(text);
    return *this;
  }
  template <typename Value>
  MessageWriter& add_list(const std::vector<Value>& values) {
    static_assert(std::is_trivially_copyable_v<Value>);
    return add_text({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value)});
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads them back; throws CommError where a message is too short.
class MessageReader {
 public:
  explicit MessageReader(std::string_view bytes) : bytes_(bytes) {}
  template <typename Value>
  Value get() {
    Value value;
    std::memcpy(&value, take(sizeof(value)).data(), sizeof(value));
    return value;
  }
  std::string get_text() { return std::string(take(get<uint64_t>())); }
  template <typename Value>
  std::vector<Value> get_list() {
    const std::string text = get_text();
    std::vector<Value> values(text.size() / sizeof(Value));
    if (!values.empty()) std::memcpy(values.data(), text.data(), values.size() * sizeof(Value));
    return values;
  }

 private:
  std::string_view take(size_t size);
  std::string_view bytes_;
};

}  // namespace tessera::checkpoint
