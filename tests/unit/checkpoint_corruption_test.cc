// BL-57: no damage is missed. Ten thousand faults in directories of all three kinds: `verify` finds
// each one, a verified load refuses it on every rank and changes nothing, and the messages name the
// file, and for data the tensor and a byte range that holds the damage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "checkpoint/hash_sidecar.h"
#include "checkpoint/manifest.h"
#include "checkpoint/verify.h"
#include "io/checksum.h"
#include "tessera/error.h"
#include "unit/checkpoint_disk.h"
#include "unit/checkpoint_fleet.h"

namespace tessera::checkpoint {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kWorld = 3;
constexpr const char* kRoot = "run";
constexpr const char* kDirectory = "run/now";
constexpr const char* kOlder = "run/before";

const MakeOptimizer kAdam = make_optimizer<torch::optim::Adam>(torch::optim::AdamOptions(1e-2));

// One tensor has several hash blocks; rows make files of equal sizes.
std::vector<ParameterSpec> model() {
  return {{"w", {9, 6000}}, {"a.bias", {7}}, {"s", {}}, {"codes", {6, 3}, torch::kByte, false}};
}

// What was done to a directory and what must be said about it.
struct Fault {
  std::string what;
  std::map<std::string, std::string> files;  // new content; of those not here the old one
  std::string missing;                       // a file that is gone
  std::vector<std::string> named = {};       // one of these files must be named
  std::string tensor = {};                   // and this tensor, where there is one
  uint64_t at = 0;                           // a damaged byte of it
  bool in_values = true;  // false: no value of a load depends on it, so a load may also succeed
};

class Damager {
 public:
  Damager(io::FileSystem& files, uint64_t seed) : random_(seed) {
    for (const std::string& name : children_of(files, kDirectory)) {
      now_[name] = content_of(files, io::join_path(kDirectory, name));
      before_[name] = content_of(files, io::join_path(kOlder, name));
      names_.push_back(name);
    }
    manifest_ = parse_manifest(now_.at(kManifestName), "m");
    for (const StoredFile& file : manifest_.files) data_names_.push_back(file.name);
    for (const StoredTensor& tensor : manifest_.tensors)
      for (const StoredBox& box : tensor.boxes)
        if (box.bytes > 0) boxes_.push_back({&tensor, &box});
  }

  static constexpr int kKinds = 12;

  Fault make(int kind) {
    switch (kind) {
      case 0:
      case 1:
        return flip_data();
      case 2:
        return flip_header();
      case 3:
        return flip(kManifestName);
      case 4:
        return flip(kHashesName);
      case 5:
        return resize();
      case 6:
        return swap();
      case 7:
        return lose();
      case 8:
        return foreign();
      case 9:
        return older();
      case 10:
        return edit_manifest();
      default:
        return overwrite_data();
    }
  }

 private:
  struct Place {
    const StoredTensor* tensor;
    const StoredBox* box;
  };

  size_t below(size_t limit) { return random_() % limit; }
  const std::string& any(const std::vector<std::string>& names) {
    return names[below(names.size())];
  }
  const StoredFile& file_of(const Place& place) const {
    return manifest_.files[static_cast<size_t>(place.box->file)];
  }
  // Half of them in the large tensor, the others in any.
  Place any_box() {
    if (below(2) == 0) return boxes_[below(boxes_.size())];
    std::vector<Place> large;
    for (const Place& place : boxes_)
      if (place.box->bytes > io::kHashBlockBytes) large.push_back(place);
    return large[below(large.size())];
  }
  static void flip_bit(std::string& content, size_t byte, size_t bit) {
    content.at(byte) = static_cast<char>(content.at(byte) ^ (1 << bit));
  }

  Fault in_data(const Place& place, uint64_t at, std::string content, const std::string& what) {
    const std::string& name = file_of(place).name;
    Fault fault{what, {{name, std::move(content)}}, "", {name}, place.tensor->key, at};
    // The manifest's integer wins over its F32 copy, so no load reads the copy.
    fault.in_values = !place.tensor->integer.has_value();
    return fault;
  }
  Fault flip_data() {
    const Place place = any_box();
    const uint64_t at = place.box->offset + below(place.box->bytes);
    std::string content = now_.at(file_of(place).name);
    flip_bit(content, at, below(8));
    return in_data(place, at, std::move(content), "a flipped bit of data");
  }
  // Zeros or a piece of other data in a place, as a lost or misdirected write leaves it.
  Fault overwrite_data() {
    const Place place = any_box();
    std::string content = now_.at(file_of(place).name);
    const uint64_t at = place.box->offset + below(place.box->bytes);
    const uint64_t end = std::min(place.box->offset + place.box->bytes, at + 1 + below(8192));
    const size_t from = below(2) == 0 ? content.size() : below(content.size());
    for (uint64_t i = at; i < end; ++i)
      content[i] = from + i - at < content.size() ? content[from + i - at] : '\0';
    const std::string& old = now_.at(file_of(place).name);
    const auto damage = std::mismatch(content.begin(), content.end(), old.begin());
    if (damage.first == content.end()) return flip_data();
    const auto first = static_cast<uint64_t>(damage.first - content.begin());
    return in_data(place, first, std::move(content), "a piece of other data");
  }
  Fault flip_header() {
    const StoredFile& file = manifest_.files[below(manifest_.files.size())];
    std::string content = now_.at(file.name);
    flip_bit(content, below(file.data_offset), below(8));
    return {"a flipped bit of a header", {{file.name, content}}, "", {file.name}};
  }
  Fault flip(const std::string& name) {
    std::string content = now_.at(name);
    flip_bit(content, below(content.size()), below(8));
    return {"a flipped bit", {{name, content}}, "", {name}};
  }
  Fault resize() {
    const std::string& name = any(names_);
    std::string content = now_.at(name);
    const bool cut = below(2) == 0;
    const size_t by = below(2) == 0 ? 1 : 1 + below(content.size());
    content.resize(cut ? content.size() - by : content.size() + by, 'x');
    return {cut ? "cut" : "grown", {{name, content}}, "", {name}};
  }
  Fault swap() {
    const std::string& a = any(data_names_);
    const std::string& b = any(data_names_);
    if (now_.at(a) == now_.at(b)) return flip_data();
    return {"two files swapped", {{a, now_.at(b)}, {b, now_.at(a)}}, "", {a, b}};
  }
  Fault lose() {
    const std::string& name = any(names_);
    return {"a missing file", {}, name, {name}};
  }
  Fault foreign() {
    const std::string& name = any(names_);
    std::string content(now_.at(name).size(), '\0');
    for (char& c : content) c = static_cast<char>(random_());
    return {"a foreign file in its place", {{name, content}}, "", {name}};
  }
  Fault older() {
    const std::string& name = any(names_);
    if (now_.at(name) == before_.at(name)) return flip_data();
    // The older manifest is right by itself, but not about the files beside it.
    std::vector<std::string> named = {name};
    if (name == kManifestName) named = names_;
    return {"a file of an older save", {{name, before_.at(name)}}, "", named};
  }
  // Another value in one place of the manifest, as a person with an editor leaves it.
  Fault edit_manifest() {
    const std::string& text = now_.at(kManifestName);
    const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
    const auto from = text.begin() + static_cast<ptrdiff_t>(below(text.size()));
    const auto digits = std::find_if(from, text.end(), is_digit);
    const auto end = std::find_if_not(digits, text.end(), is_digit);
    if (digits == text.end()) return flip(kManifestName);
    const std::string old(digits, end);
    std::string number = std::to_string(random_() % 100000);
    if (number == old) number += "1";
    std::string changed(text.begin(), digits);
    changed.append(number).append(end, text.end());
    return {"an edited manifest", {{kManifestName, changed}}, "", {kManifestName}};
  }

  std::mt19937_64 random_;
  std::map<std::string, std::string> now_;
  std::map<std::string, std::string> before_;
  std::vector<std::string> names_;
  std::vector<std::string> data_names_;
  std::vector<Place> boxes_;
  Manifest manifest_;
};

// Whether one of the texts names what the fault demands.
bool names_damage(const std::string& text, const Fault& fault) {
  const bool file =
      std::any_of(fault.named.begin(), fault.named.end(),
                  [&](const std::string& name) { return text.find(name) != std::string::npos; });
  if (!file || fault.tensor.empty()) return file;
  const size_t bytes = text.find(": bytes ");
  if (bytes == std::string::npos || text.find("'" + fault.tensor + "'") == std::string::npos)
    return false;
  uint64_t begin = 0, end = 0;
  return std::sscanf(text.c_str() + bytes, ": bytes %lu to %lu", &begin, &end) == 2 &&
         begin <= fault.at && fault.at < end && end - begin <= io::kHashBlockBytes;
}

class CheckpointCorruption : public testing::TestWithParam<StateDictKind> {
 protected:
  CheckpointCorruption() {
    for (const int64_t step : {1, 2}) {
      expect_no_errors(test::run_ranks(kWorld, [&](comm::Communicator& communicator) {
        FleetRank rank(model(), communicator.rank(), kWorld, kAdam);
        rank.train(0, step);
        save_state(disk_, rank.live(communicator), spec(), {step == 1 ? kOlder : kDirectory, false},
                   step, SaveOptions().sync(false));
      }));
    }
    for (const std::string& name : children_of(disk_, kDirectory))
      pristine_[name] = content_of(disk_, io::join_path(kDirectory, name));
  }
  CkptSpec spec() const { return CkptSpec().kind(GetParam()); }

  void inflict(const Fault& fault) {
    for (const auto& [name, content] : fault.files) put(name, content);
    if (!fault.missing.empty()) disk_.remove_file(io::join_path(kDirectory, fault.missing));
  }
  void repair(const Fault& fault) {
    for (const auto& [name, content] : fault.files) put(name, pristine_.at(name));
    if (!fault.missing.empty()) put(fault.missing, pristine_.at(fault.missing));
  }
  void put(const std::string& name, const std::string& content) {
    put_content(disk_, io::join_path(kDirectory, name), content);
  }

  // Returns whether it loaded; then every value is the right one.
  bool load(const Fault& fault) {
    std::vector<std::exception_ptr> errors =
        test::run_ranks(kWorld, [&](comm::Communicator& communicator) {
          FleetRank rank(model(), communicator.rank(), kWorld, kAdam, even_split, 3);
          const FleetRank before(model(), communicator.rank(), kWorld, kAdam, even_split, 3);
          try {
            load_state(disk_, kDirectory, rank.live(communicator), spec(), {});
          } catch (const CorruptionError&) {
            expect_same_state(rank, before);
            throw;
          }
          FleetRank expected(model(), communicator.rank(), kWorld, kAdam);
          expected.train(0, 2);
          expect_same_state(rank, expected);
        });
    const std::string message = test::message_of(errors[0]);
    for (const std::exception_ptr& error : errors) EXPECT_EQ(test::message_of(error), message);
    if (message.empty()) return true;
    EXPECT_TRUE(names_damage(message, fault)) << fault.what << "\n" << message;
    EXPECT_THROW(std::rethrow_exception(errors[0]), CorruptionError);
    return false;
  }

  io::CrashFileSystem disk_;
  std::map<std::string, std::string> pristine_;
};

TEST_P(CheckpointCorruption, BL57_EveryFaultIsFoundAndNamed) {
  const int faults = is_long_run() ? 12'000 : 3'500;
  const int load_each = is_long_run() ? 7 : 35;
  Damager damager(disk_, 57);
  std::map<std::string, int> found, harmless;
  for (int i = 0; i < faults && !HasFailure(); ++i) {
    // The stride of the loads is coprime to the number of kinds, so that all kinds are loaded.
    const Fault fault = damager.make(i % Damager::kKinds);
    SCOPED_TRACE(fault.what + (fault.named.empty() ? "" : " in " + fault.named[0]));
    inflict(fault);
    const std::vector<std::string> problems = verify_checkpoint(disk_, kDirectory).problems;
    EXPECT_THAT(problems, testing::Contains(testing::Truly([&](const std::string& problem) {
                  return names_damage(problem, fault);
                })));
    found[fault.what] += 1;
    if (i % load_each == 0 && load(fault)) {
      EXPECT_FALSE(fault.in_values) << "a load accepted damaged values";
      harmless[fault.what] += 1;
    }
    repair(fault);
  }
  EXPECT_THAT(verify_checkpoint(disk_, kDirectory).problems, IsEmpty());
  EXPECT_TRUE(load({}));
  for (const auto& [what, count] : found)
    std::printf("%6d x %s, %d of the loads unharmed\n", count, what.c_str(), harmless[what]);
}

// A file that the manifest does not list is told, and never read.
TEST_P(CheckpointCorruption, BL52_AStrayFileIsToldAndNeverRead) {
  for (const std::string& name :
       {std::string("shard-00009-model-00001-of-00001.safetensors"),
        std::string("rank-00007.local"), std::string("model.safetensors.index.json"),
        std::string("optimizer.pt")}) {
    put(name, pristine_.begin()->second);
    EXPECT_THAT(verify_checkpoint(disk_, kDirectory).problems,
                testing::ElementsAre(HasSubstr(name + ": stray")));
    EXPECT_TRUE(load({}));
    disk_.remove_file(io::join_path(kDirectory, name));
  }
}

std::string kind_name(const testing::TestParamInfo<StateDictKind>& test) {
  constexpr const char* kNames[] = {"Sharded", "Full", "Local"};
  return kNames[static_cast<size_t>(test.param)];
}

INSTANTIATE_TEST_SUITE_P(Kinds, CheckpointCorruption,
                         testing::Values(StateDictKind::kSharded, StateDictKind::kFull,
                                         StateDictKind::kLocal),
                         kind_name);

}  // namespace
}  // namespace tessera::checkpoint
