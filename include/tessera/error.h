// Every failure that Tessera reports to its caller.
//
// Threads: exception objects are immutable after construction.
// Cost: none on the success path.
//
// The text of an error says what failed, where (rank, path, key, offset) and what to do about it.
// Catch `tessera::Error` for everything, or one kind to react to it.
#pragma once

#include <stdexcept>
#include <string>

namespace tessera {

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

// The operating system refused an operation on a file, directory, socket or process.
class IoError : public Error {
 public:
  explicit IoError(const std::string& message, int error_number = 0)
      : Error(message), error_number_(error_number) {}
  // The errno of the failed call, 0 where there was none.
  int error_number() const { return error_number_; }

 private:
  int error_number_;
};

// Stored bytes are not what was written: checksum, truncation, contradiction inside a file.
class CorruptionError : public Error {
 public:
  using Error::Error;
};

// Names, shapes, dtypes or layouts of two sides do not fit together.
class LayoutError : public Error {
 public:
  using Error::Error;
};

// A peer died, closed its connection, or does something else than this rank.
class CommError : public Error {
 public:
  using Error::Error;
};

// A deadline passed; the text names the rank that was waited for.
class TimeoutError : public CommError {
 public:
  using CommError::CommError;
};

// The caller's request cannot be carried out as it stands.
class UsageError : public Error {
 public:
  using Error::Error;
};

}  // namespace tessera
