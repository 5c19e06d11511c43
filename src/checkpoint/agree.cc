#include "checkpoint/agree.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdlib>
#include <exception>

#include "tessera/async_save.h"
#include "tessera/error.h"

namespace tessera::checkpoint {

namespace {

// First byte of a message.
enum class Outcome : char {
  kSuccess = 's',
  kIo = 'i',
  kCorruption = 'c',
  kLayout = 'l',
  kUsage = 'u',
  kCancelled = 'x',
  kTimeout = 't',
  kOther = 'o',
};

// The text of a failure; an IoError's errno travels in front of it.
std::string text_of(const std::string& message, int* error_number) {
  if (message[0] != static_cast<char>(Outcome::kIo)) return message.substr(1);
  if (*error_number == 0) *error_number = std::atoi(message.c_str() + 1);
  return message.substr(std::min(message.size(), message.find(' ') + 1));
}

[[noreturn]] void throw_as(Outcome kind, const std::string& text, int error_number) {
  switch (kind) {
    case Outcome::kIo:
      throw IoError(text, error_number);
    case Outcome::kCorruption:
      throw CorruptionError(text);
    case Outcome::kLayout:
      throw LayoutError(text);
    case Outcome::kUsage:
      throw UsageError(text);
    case Outcome::kCancelled:
      throw SaveCancelled(text);
    case Outcome::kTimeout:
      throw TimeoutError(text);
    default:
      throw Error(text);
  }
}

}  // namespace

std::string outcome_of(const std::function<std::string()>& local) {
  const auto failure = [](Outcome kind, const char* text) {
    return std::string(1, static_cast<char>(kind)) + text;
  };
  try {
    return std::string(1, static_cast<char>(Outcome::kSuccess)) + local();
  } catch (const IoError& error) {
    return failure(Outcome::kIo, c10::str(error.error_number(), " ", error.what()).c_str());
  } catch (const CorruptionError& error) {
    return failure(Outcome::kCorruption, error.what());
  } catch (const LayoutError& error) {
    return failure(Outcome::kLayout, error.what());
  } catch (const UsageError& error) {
    return failure(Outcome::kUsage, error.what());
  } catch (const SaveCancelled& error) {
    return failure(Outcome::kCancelled, error.what());
  } catch (const TimeoutError& error) {
    return failure(Outcome::kTimeout, error.what());
  } catch (const c10::Error& error) {
    return failure(Outcome::kOther, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return failure(Outcome::kOther, error.what());
  } catch (...) {
    return failure(Outcome::kOther, "an exception that is not a std::exception");
  }
}

std::vector<std::string> agree(comm::Communicator& communicator, std::string_view what,
                               const std::function<std::string()>& local) {
  return require_success(communicator.all_gather_bytes(outcome_of(local)), what);
}

bool succeeded(const std::string& outcome) {
  return !outcome.empty() && outcome[0] == static_cast<char>(Outcome::kSuccess);
}

std::string result_of(const std::string& outcome) {
  if (outcome.empty()) throw Error("an empty message");
  if (succeeded(outcome)) return outcome.substr(1);
  int error_number = 0;
  const std::string text = text_of(outcome, &error_number);
  throw_as(static_cast<Outcome>(outcome[0]), text, error_number);
}

std::vector<std::string> require_success(std::vector<std::string> outcomes, std::string_view what) {
  bool same = true;
  Outcome kind = Outcome::kSuccess;
  std::string text;
  int error_number = 0;
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (outcomes[rank].empty()) outcomes[rank] = "osent an empty message";
    const auto outcome = static_cast<Outcome>(outcomes[rank][0]);
    same = same && outcomes[rank] == outcomes[0];
    if (outcome == Outcome::kSuccess) continue;
    if (kind == Outcome::kSuccess) kind = outcome;
    text += c10::str("\n  rank ", rank, ": ", text_of(outcomes[rank], &error_number));
  }
  if (kind != Outcome::kSuccess)
    throw_as(kind,
             c10::str(what, " failed", same ? ": " + text_of(outcomes[0], &error_number) : text),
             error_number);
  for (std::string& outcome : outcomes) outcome.erase(0, 1);
  return outcomes;
}

std::string_view MessageReader::take(size_t size) {
  if (size > bytes_.size())
    throw CommError("a checkpoint message of a peer is shorter than it says");
  const std::string_view out = bytes_.substr(0, size);
  bytes_.remove_prefix(size);
  return out;
}

}  // namespace tessera::checkpoint
