// Memory that the ranks of one host share, and monotone counters by which they order their accesses.
//
// No torch. Each rank owns exported regions (memfd mappings, allocated before use) that its peers
// map on first use, and a few counters that only it advances; everybody may wait for anybody's.
// Nothing has a name in a file system, so nothing is left behind after SIGKILL.
// Threads: one thread a process. Errors: IoError where memory cannot be had; TimeoutError naming the
// rank that was waited for; CommError when that rank is dead or has left.
// Cost: a counter step is a store, plus one futex call where somebody sleeps on it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::comm {

class SharedMemory {
 public:
  enum Counter : int {
    kHeader,    // control messages sent
    kWindow,    // window chunks published
    kPhase,     // leaf epochs: even = reading, odd = writing
    kReduced,   // reductions whose reads of peers' gradients are over
    kCounters,
  };
  static constexpr size_t kHeaderBytes = 256;
  static constexpr size_t kWindowBytes = size_t{1} << 20;

  // Publishes a value under a name and returns every rank's (the rendezvous store).
  using Exchange = std::function<std::vector<std::string>(const std::string& name, const std::string& value)>;

  // Null on every rank where one rank cannot map another's memory; `reason` says which and why.
  static std::unique_ptr<SharedMemory> create(int rank, int world_size, std::chrono::milliseconds timeout,
                                              const Exchange& exchange, std::string& reason);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

  // Adds `bytes` (zeroed) to this rank's exported regions and returns the region's number.
  int export_region(size_t bytes);
  // Memory of a region of any rank; maps it on first use.
  std::byte* region(int rank, int number);
  size_t region_bytes(int rank, int number) const;

  // Advances this rank's own counter by one and wakes who waits; returns the new value.
  uint32_t advance(Counter counter);
  uint32_t value(int rank, Counter counter) const;
  bool all_reached(Counter counter, uint32_t value) const;
  // Waits until every rank's counter is at least `value`. `what` completes "rank 1 waited for ...".
  void wait_all(Counter counter, uint32_t value, const char* what);

  // Every rank's message of this round, in rank order; at most kHeaderBytes - 8 bytes each.
  std::vector<std::string> exchange_header(std::string_view header);

  // Leaf epochs. A rank writes its rows of shared parameters only between begin_write (which waits
  // until every peer has stopped reading) and begin_read (which waits until every peer has stopped
  // writing). Both are idempotent, so that any operator may announce itself.
  void begin_write();
  void begin_read();
  // Closes this rank's write epoch without waiting. Every collective does so first: a peer may
  // already wait for it, and would otherwise never join.
  void end_write();
  bool writing() const { return writing_; }

  // This rank's window for chunks that peers read; `window(rank)` is that of a peer.
  std::byte* window(int rank, int half);
  // Marks this rank as gone, so that a peer that still waits for it learns so at once.
  void leave();

 private:
  struct Control;
  struct Mapping;
  SharedMemory(int rank, int world_size, std::chrono::milliseconds timeout);
  void check_peer_alive(int peer, const char* what) const;
  void wait_peer(int peer, Counter counter, uint32_t value, const char* what);

  const int rank_;
  const int world_size_;
  const std::chrono::milliseconds timeout_;
  const int spins_;
  bool writing_ = false;
  bool write_unsynced_ = false;  // closed here, peers not waited for yet
  uint32_t header_round_ = 0;
  std::unique_ptr<Mapping> control_mapping_;
  Control* control_ = nullptr;
  std::vector<std::vector<std::unique_ptr<Mapping>>> regions_;  // [rank][number]
};

}  // namespace tessera::comm
