// The strict reader. JSON arrives as events, so that a header costs memory in proportion to its
// length whatever it nests, and so that a duplicate key is seen at all.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "io/safetensors.h"
#include "io/safetensors_limits.h"
#include "tessera/error.h"

namespace tessera::io {
namespace {

constexpr size_t kMostDimensions = 64;

// Receives the events of one header. Returning false stops the parser; `problem` says why.
class HeaderEvents final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderEvents(SafetensorsHeader& header) : header_(header) {}
  const std::string& problem() const { return problem_; }

  bool start_object(size_t) override {
    switch (place_) {
      case Place::kOutside:
        place_ = Place::kTop;
        return true;
      case Place::kTopValue:
        return start_entry_or_metadata();
      default:
        return unexpected("an object");
    }
  }

  bool key(std::string& name) override {
    switch (place_) {
      case Place::kTop:
        return top_key(name);
      case Place::kMetadata:
        if (header_.metadata.count(name) != 0) {
          return fail("the key " + printable_name(name) + " of __metadata__ is there twice");
        }
        metadata_key_ = name;
        place_ = Place::kMetadataValue;
        return true;
      default:  // Place::kEntry: keys come nowhere else
        return entry_key(name);
    }
  }

  bool end_object() override {
    if (place_ == Place::kEntry) {
      for (const Field& field : kFields) {
        if ((seen_fields_ & field.bit) == 0) {
          return fail(in_tensor() + "has no " + std::string(field.name));
        }
      }
    }
    place_ = place_ == Place::kTop ? Place::kDone : Place::kTop;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ == Place::kShape) {
      place_ = Place::kShapeNumbers;
    } else if (place_ == Place::kOffsets) {
      place_ = Place::kOffsetNumbers;
      offsets_seen_ = 0;
    } else {
      return unexpected("an array");
    }
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsetNumbers && offsets_seen_ != 2) {
      return fail(in_tensor() + "needs two data_offsets");
    }
    place_ = Place::kEntry;
    return true;
  }

  bool string(std::string& value) override {
    if (place_ == Place::kMetadataValue) {
      header_.metadata.emplace(metadata_key_, value);
      place_ = Place::kMetadata;
      return true;
    }
    if (place_ != Place::kDtype) return unexpected("a string");
    if (safetensors_element_size(value) == 0) {
      return fail(in_tensor() + "has the unsupported dtype " + printable_name(value));
    }
    entry().dtype = value;
    place_ = Place::kEntry;
    return true;
  }

  bool number_unsigned(uint64_t value) override {
    if (place_ == Place::kShapeNumbers) {
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return fail(in_tensor() + "has a size over 2^63");
      }
      if (entry().shape.size() == kMostDimensions) {
        return fail(in_tensor() + fmt::format("has over {} dimensions", kMostDimensions));
      }
      entry().shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ != Place::kOffsetNumbers) return unexpected("a number");
    if (offsets_seen_ == 2) return fail(in_tensor() + "has more than two data_offsets");
    (offsets_seen_++ == 0 ? entry().begin : entry().end) = value;
    return true;
  }

  bool number_integer(int64_t) override { return unexpected("a negative number"); }
  bool number_float(double, const std::string& text) override {
    return unexpected("the number " + printable_name(text));
  }
  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    return fail(fmt::format("the header is no valid JSON at byte {}", position));
  }

 private:
  enum class Place {
    kOutside,
    kTop,
    kTopValue,
    kMetadata,
    kMetadataValue,
    kEntry,
    kDtype,
    kShape,
    kShapeNumbers,
    kOffsets,
    kOffsetNumbers,
    kDone,
  };
  struct Field {
    std::string_view name;
    unsigned bit;
    Place place;
  };
  static constexpr Field kFields[] = {
      {"dtype", 1, Place::kDtype},
      {"shape", 2, Place::kShape},
      {"data_offsets", 4, Place::kOffsets},
  };

  SafetensorsEntry& entry() { return header_.entries.back(); }
  std::string in_tensor() { return "tensor " + printable_name(entry().name) + " "; }

  bool fail(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
    return false;
  }

  bool unexpected(const std::string& what) {
    switch (place_) {
      case Place::kOutside:
      case Place::kTop:
      case Place::kDone:
        return fail("the header is " + what + " instead of an object");
      case Place::kTopValue:
        return fail((in_metadata_ ? std::string(kMetadataKey) : printable_name(name_)) + " is " +
                    what + " instead of an object");
      case Place::kMetadata:
      case Place::kMetadataValue:
        return fail("the value of __metadata__ key " + printable_name(metadata_key_) + " is " +
                    what + " instead of a string");
      default:
        return fail(in_tensor() + "holds " + what + " where its dtype, shape or data_offsets " +
                    "cannot have it");
    }
  }

  bool top_key(const std::string& name) {
    in_metadata_ = name == kMetadataKey;
    if (in_metadata_ ? std::exchange(had_metadata_, true) : !names_.insert(name).second) {
      return fail("the key " + printable_name(name) + " is there twice");
    }
    name_ = name;
    place_ = Place::kTopValue;
    return true;
  }

  bool start_entry_or_metadata() {
    place_ = in_metadata_ ? Place::kMetadata : Place::kEntry;
    if (!in_metadata_) {
      header_.entries.emplace_back();
      entry().name = name_;
      seen_fields_ = 0;
    }
    return true;
  }

  bool entry_key(const std::string& name) {
    for (const Field& field : kFields) {
      if (field.name != name) continue;
      if ((seen_fields_ & field.bit) != 0) return fail(in_tensor() + "has two keys " + name);
      seen_fields_ |= field.bit;
      place_ = field.place;
      return true;
    }
    return fail(in_tensor() + "has the unknown key " + printable_name(name));
  }

  SafetensorsHeader& header_;
  Place place_ = Place::kOutside;
  std::string problem_;
  std::string name_;
  std::string metadata_key_;
  std::unordered_set<std::string> names_;
  bool in_metadata_ = false;
  bool had_metadata_ = false;
  unsigned seen_fields_ = 0;
  int offsets_seen_ = 0;
};

class Checker {
 public:
  explicit Checker(const std::string& path) : path_(path) {}

  void parse(const std::string& json, SafetensorsHeader& header) const {
    if (json.empty() || json.front() != '{') fail("the header does not begin with '{'");
    const size_t last = json.find_last_not_of(' ');
    if (json[last] != '}') fail("the header does not end with '}' and spaces");
    HeaderEvents events(header);
    if (!nlohmann::json::sax_parse(json, &events)) fail(events.problem());
  }

  // The tensors tile the data section: sorted by offset, each begins where the former ends.
  void check_data(SafetensorsHeader& header) const {
    std::sort(header.entries.begin(), header.entries.end(),
              [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
                return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
              });
    uint64_t end = 0;
    for (const SafetensorsEntry& entry : header.entries) {
      const std::string tensor = "tensor " + printable_name(entry.name);
      if (entry.end < entry.begin || entry.end > header.data_bytes) {
        fail(fmt::format("{} has bytes {} to {} of a data section of {} bytes", tensor, entry.begin,
                         entry.end, header.data_bytes));
      }
      if (entry.begin != end) {
        fail(fmt::format("{} begins at data byte {}, but the data before it ends at {}: {}", tensor,
                         entry.begin, end, entry.begin > end ? "a hole" : "an overlap"));
      }
      const auto bytes = safetensors_bytes(entry);
      if (!bytes || *bytes != entry.end - entry.begin) {
        fail(fmt::format("{} has {} bytes, which its dtype {} and shape [{}] contradict", tensor,
                         entry.end - entry.begin, entry.dtype, fmt::join(entry.shape, ", ")));
      }
      end = entry.end;
    }
    if (end != header.data_bytes) {
      fail(fmt::format("{} bytes follow the data of the last tensor", header.data_bytes - end));
    }
  }

  [[noreturn]] void fail(const std::string& problem) const {
    throw CorruptionError(fmt::format("{}: not a valid safetensors file: {}", path_, problem));
  }

 private:
  const std::string& path_;
};

}  // namespace

SafetensorsHeader parse_safetensors_header(const std::string& json, uint64_t file_size,
                                           const std::string& path) {
  const Checker checker(path);
  if (json.size() > kLongestHeader || file_size < kLengthBytes ||
      json.size() > file_size - kLengthBytes) {
    checker.fail(fmt::format("a header of {} bytes in a file of {}", json.size(), file_size));
  }
  SafetensorsHeader header;
  header.data_offset = kLengthBytes + json.size();
  header.data_bytes = file_size - header.data_offset;
  checker.parse(json, header);
  checker.check_data(header);
  return header;
}

}  // namespace tessera::io
