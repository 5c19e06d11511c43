#include "comm/shared_memory.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <thread>

#include "tessera/error.h"

namespace tessera::comm {
namespace {

constexpr int kMaxRegions = 1024;
constexpr int kWindowRegion = 0;
constexpr auto kSlice = std::chrono::milliseconds(50);

[[noreturn]] void throw_errno(const std::string& what) {
  const int error = errno;
  throw IoError(what + ": " + std::strerror(error), error);
}

struct CounterWord {
  alignas(64) std::atomic<uint32_t> value{0};
  std::atomic<uint32_t> waiters{0};
};

long futex(std::atomic<uint32_t>* word, int operation, uint32_t argument, const timespec* timeout) {
  return ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, argument, timeout, nullptr, 0);
}

// Counters wrap after 2^32 steps; they are never further apart than a handful.
bool reached(uint32_t value, uint32_t target) { return static_cast<int32_t>(value - target) >= 0; }

int spin_count(int world_size) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return world_size <= cores ? 2000 : 20;  // more ranks than cores: let the others run
}

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

std::string proc_path(int pid, int fd) {
  return "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
}

// A process that has ended but was not collected yet still answers kill(pid, 0).
bool process_ended(int pid) {
  if (::kill(pid, 0) != 0 && errno == ESRCH) return true;
  std::FILE* file = std::fopen(("/proc/" + std::to_string(pid) + "/stat").c_str(), "re");
  if (file == nullptr) return errno == ENOENT;
  char text[512] = {};
  const size_t got = std::fread(text, 1, sizeof(text) - 1, file);
  std::fclose(file);
  const char* end_of_name = got > 0 ? std::strrchr(text, ')') : nullptr;
  return end_of_name != nullptr && (end_of_name[2] == 'Z' || end_of_name[2] == 'X');
}

}  // namespace

struct SharedMemory::Control {
  struct RegionEntry {
    int fd;
    uint64_t bytes;
  };
  struct alignas(64) Rank {
    CounterWord counters[kCounters];
    std::atomic<int> pid;
    std::atomic<int> left;
    char headers[2][kHeaderBytes];
    RegionEntry regions[kMaxRegions];
  };
  uint64_t token;
  Rank ranks[1];  // world_size of them follow
  static size_t bytes(int world_size) { return sizeof(Control) + sizeof(Rank) * static_cast<size_t>(world_size - 1); }
};

struct SharedMemory::Mapping {
  int fd = -1;
  std::byte* data = nullptr;
  size_t bytes = 0;

  ~Mapping() {
    if (data != nullptr) ::munmap(data, bytes);
    if (fd >= 0) ::close(fd);
  }

  void map() {
    void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED) throw_errno("cannot map " + std::to_string(bytes) + " bytes of shared memory");
    data = static_cast<std::byte*>(address);
  }

  static std::unique_ptr<Mapping> create(size_t bytes) {
    auto out = std::make_unique<Mapping>();
    out->bytes = bytes;
    out->fd = ::memfd_create("tessera", MFD_CLOEXEC);
    if (out->fd < 0) throw_errno("memfd_create");
    if (::ftruncate(out->fd, static_cast<off_t>(bytes)) != 0) throw_errno("cannot size shared memory");
    // Allocated now: running out of memory later would be SIGBUS in the middle of a step.
    const int error = ::posix_fallocate(out->fd, 0, static_cast<off_t>(bytes));
    if (error != 0) {
      throw IoError("cannot allocate " + std::to_string(bytes) + " bytes of shared memory: " + std::strerror(error), error);
    }
    out->map();
    return out;
  }

  static std::unique_ptr<Mapping> open_peer(int pid, int fd, size_t bytes) {
    auto out = std::make_unique<Mapping>();
    out->bytes = bytes;
    const std::string path = proc_path(pid, fd);
    out->fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (out->fd < 0) throw_errno("cannot open shared memory of process " + std::to_string(pid) + " (" + path + ")");
    struct stat info {};
    if (::fstat(out->fd, &info) != 0) throw_errno("fstat of " + path);
    if (static_cast<uint64_t>(info.st_size) != bytes) {
      throw IoError(path + " is not the shared memory that was announced: " + std::to_string(info.st_size) +
                    " bytes instead of " + std::to_string(bytes));
    }
    out->map();
    return out;
  }
};

SharedMemory::SharedMemory(int rank, int world_size, std::chrono::milliseconds timeout)
    : rank_(rank), world_size_(world_size), timeout_(timeout), spins_(spin_count(world_size)),
      regions_(static_cast<size_t>(world_size)) {}

SharedMemory::~SharedMemory() { leave(); }

std::unique_ptr<SharedMemory> SharedMemory::create(int rank, int world_size, std::chrono::milliseconds timeout,
                                                   const Exchange& exchange, std::string& reason) {
  std::unique_ptr<SharedMemory> out(new SharedMemory(rank, world_size, timeout));
  const size_t bytes = Control::bytes(world_size);
  std::string announce;
  std::string failure;
  if (rank == 0) {
    try {
      out->control_mapping_ = Mapping::create(bytes);
      auto* control = reinterpret_cast<Control*>(out->control_mapping_->data);
      if (::getrandom(&control->token, sizeof(control->token), 0) != sizeof(control->token)) throw_errno("getrandom");
      announce = std::to_string(::getpid()) + " " + std::to_string(out->control_mapping_->fd) + " " + std::to_string(control->token);
    } catch (const Error& error) {
      failure = error.what();
    }
  }
  announce = exchange("shm-control", announce)[0];
  int pid = 0;
  int fd = 0;
  unsigned long long token = 0;
  if (std::sscanf(announce.c_str(), "%d %d %llu", &pid, &fd, &token) == 3) {
    try {
      if (rank != 0) out->control_mapping_ = Mapping::open_peer(pid, fd, bytes);
      out->control_ = reinterpret_cast<Control*>(out->control_mapping_->data);
      if (out->control_->token != token) throw IoError("process " + std::to_string(pid) + " of this host is another process");
      out->control_->ranks[rank].pid.store(::getpid());
      if (out->export_region(2 * kWindowBytes) != kWindowRegion) throw IoError("the first region is not the window");
    } catch (const Error& error) {
      failure = error.what();
    }
  } else if (failure.empty()) {
    failure = "rank 0 has no shared memory";
  }
  const auto outcomes = exchange("shm-mapped", failure);
  for (int r = 0; r < world_size && reason.empty(); ++r) {
    const std::string& outcome = outcomes[static_cast<size_t>(r)];
    if (!outcome.empty()) reason = "rank " + std::to_string(r) + ": " + outcome;
  }
  if (!reason.empty()) return nullptr;
  // Every pair must work, not only everyone with rank 0.
  try {
    for (int r = 0; r < world_size; ++r) out->region(r, kWindowRegion);
  } catch (const Error& error) {
    failure = error.what();
  }
  for (const std::string& outcome : exchange("shm-windows", failure)) {
    if (!outcome.empty() && reason.empty()) reason = outcome;
  }
  return reason.empty() ? std::move(out) : nullptr;
}

int SharedMemory::export_region(size_t bytes) {
  auto& own = regions_[static_cast<size_t>(rank_)];
  const int number = static_cast<int>(own.size());
  if (number >= kMaxRegions) throw CommError("more than " + std::to_string(kMaxRegions) + " shared regions on rank " + std::to_string(rank_));
  own.push_back(Mapping::create(bytes));
  // Peers learn the number from a message sent after this; the message's counter orders the stores.
  control_->ranks[rank_].regions[number] = {own.back()->fd, bytes};
  return number;
}

std::byte* SharedMemory::region(int rank, int number) {
  auto& list = regions_[static_cast<size_t>(rank)];
  if (static_cast<size_t>(number) >= list.size()) list.resize(static_cast<size_t>(number) + 1);
  auto& mapping = list[static_cast<size_t>(number)];
  if (!mapping) {
    const auto& peer = control_->ranks[rank];
    mapping = Mapping::open_peer(peer.pid.load(), peer.regions[number].fd, peer.regions[number].bytes);
  }
  return mapping->data;
}

size_t SharedMemory::region_bytes(int rank, int number) const {
  return control_->ranks[rank].regions[number].bytes;
}

std::byte* SharedMemory::window(int rank, int half) {
  return region(rank, kWindowRegion) + static_cast<size_t>(half) * kWindowBytes;
}

uint32_t SharedMemory::advance(Counter counter) {
  CounterWord& word = control_->ranks[rank_].counters[counter];
  const uint32_t value = word.value.fetch_add(1) + 1;
  if (word.waiters.load() != 0) futex(&word.value, FUTEX_WAKE, INT32_MAX, nullptr);
  return value;
}

uint32_t SharedMemory::value(int rank, Counter counter) const {
  return control_->ranks[rank].counters[counter].value.load(std::memory_order_acquire);
}

bool SharedMemory::all_reached(Counter counter, uint32_t target) const {
  for (int r = 0; r < world_size_; ++r) {
    if (!reached(value(r, counter), target)) return false;
  }
  return true;
}

void SharedMemory::check_peer_alive(int peer, const char* what) const {
  const auto& slot = control_->ranks[peer];
  const int pid = slot.pid.load();
  const std::string who = "rank " + std::to_string(peer) + " (process " + std::to_string(pid) + ")";
  const std::string wait = ", while rank " + std::to_string(rank_) + " waited for " + what;
  if (slot.left.load() != 0) throw CommError(who + " has ended its communication" + wait);
  if (process_ended(pid)) throw CommError(who + " has died" + wait);
}

void SharedMemory::wait_peer(int peer, Counter counter, uint32_t target, const char* what) {
  CounterWord& word = control_->ranks[peer].counters[counter];
  for (int spin = 0; spin < spins_; ++spin) {
    if (reached(word.value.load(std::memory_order_acquire), target)) return;
    pause_cpu();
  }
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  word.waiters.fetch_add(1);
  struct Leave {
    std::atomic<uint32_t>& waiters;
    ~Leave() { waiters.fetch_sub(1); }
  } leave{word.waiters};
  for (;;) {
    const uint32_t seen = word.value.load();
    if (reached(seen, target)) return;
    const timespec slice{0, std::chrono::nanoseconds(kSlice).count()};
    const long result = futex(&word.value, FUTEX_WAIT, seen, &slice);
    if (result == 0 || errno == EAGAIN || errno == EINTR) continue;
    if (errno != ETIMEDOUT) throw_errno("futex");
    if (reached(word.value.load(), target)) return;
    check_peer_alive(peer, what);
    if (std::chrono::steady_clock::now() >= deadline) {
      throw TimeoutError("rank " + std::to_string(rank_) + " waited " + std::to_string(timeout_.count() / 1000) +
                         " s for rank " + std::to_string(peer) + " at " + what +
                         "; it is alive but did not get there: do all ranks run the same steps?");
    }
  }
}

void SharedMemory::wait_all(Counter counter, uint32_t target, const char* what) {
  for (int r = 0; r < world_size_; ++r) {
    if (r != rank_) wait_peer(r, counter, target, what);
  }
}

std::vector<std::string> SharedMemory::exchange_header(std::string_view header) {
  end_write();
  // Two buffers suffice: nobody publishes round n + 2 before everybody has read round n.
  const size_t half = header_round_++ % 2;
  char* mine = control_->ranks[rank_].headers[half];
  const uint64_t size = header.size();
  std::memcpy(mine, &size, sizeof(size));
  if (size > 0) std::memcpy(mine + sizeof(size), header.data(), size);
  wait_all(kHeader, advance(kHeader), "a control message");
  std::vector<std::string> out;
  out.reserve(static_cast<size_t>(world_size_));
  for (int r = 0; r < world_size_; ++r) {
    const char* slot = control_->ranks[r].headers[half];
    uint64_t length = 0;
    std::memcpy(&length, slot, sizeof(length));
    out.emplace_back(slot + sizeof(length), length);
  }
  return out;
}

void SharedMemory::begin_write() {
  if (writing_) return;
  writing_ = true;
  wait_all(kPhase, advance(kPhase), "the end of its reads, before writing parameters");
}

void SharedMemory::begin_read() {
  end_write();
  if (!write_unsynced_) return;
  write_unsynced_ = false;
  wait_all(kPhase, value(rank_, kPhase), "the end of its parameter update, before reading parameters");
}

void SharedMemory::end_write() {
  if (!writing_) return;
  writing_ = false;
  write_unsynced_ = true;
  advance(kPhase);
}

void SharedMemory::leave() {
  if (control_ != nullptr) control_->ranks[rank_].left.store(1);
}

}  // namespace tessera::comm
