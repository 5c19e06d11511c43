// A save that runs while training goes on: what `Checkpointer::save_async` returns.
//
// The values saved are those of the moment of the call. Buffers, scalars, options, RNG and user
// items are copied before the call returns; parameters and optimizer tensors afterwards, by a thread
// of the checkpointer. The first operator that writes to any of them waits until they are copied,
// and so does the end of the next backward: only a write past LibTorch's operators (raw pointers, own
// kernels) before that must wait for `staged()` itself.
//
// The ranks meet in the checkpoint's directory, not on the training communicator: training and the
// save never wait for each other's messages. A process may end at any time: a save that is not
// published then leaves nothing but a directory that the next save removes.
//
// Threads: any thread, also several. Copies are the same save.
// Cost: one copy of this rank's shard in buffers that are kept for the next save.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <string>

#include <tessera/error.h>

namespace tessera {

namespace checkpoint {
struct BackgroundSave;
}

// The save was given up because some rank called `cancel`.
class SaveCancelled : public Error {
 public:
  using Error::Error;
};

// Of this rank's part, in bytes.
struct SaveProgress {
  uint64_t total = 0;
  uint64_t staged = 0;
  uint64_t written = 0;
};

class AsyncSave {
 public:
  explicit AsyncSave(std::shared_ptr<checkpoint::BackgroundSave> save);
  // Ready when everything is copied and the tensors may change in any way. Holds no error.
  std::shared_future<void> staged() const;
  // Ready when the checkpoint is published (and durable, where the options ask for it): its
  // directory. On failure every rank gets the same kind of error, which names the rank and cause;
  // SaveCancelled after `cancel`.
  std::shared_future<std::string> committed() const;
  SaveProgress progress() const;
  // Gives the save up on all ranks, unless it is too late; the earlier checkpoint stays the newest.
  // One rank is enough. Returns at once: `committed()` tells how it ended.
  void cancel();

 private:
  std::shared_ptr<checkpoint::BackgroundSave> save_;
};

}  // namespace tessera
