#include "launch/rank_group.h"

#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>

namespace tessera::launch {

RankGroup::RankGroup(Guard* guard) : epoll_(::epoll_create1(EPOLL_CLOEXEC)), guard_(guard) {
  if (!epoll_) throw_errno("cannot create an event queue");
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) throw_errno("cannot adopt orphaned processes");
}

RankGroup::~RankGroup() { signal_groups(SIGKILL, true); }

void RankGroup::add(int rank, SpawnedProcess process) {
  if (guard_ != nullptr) guard_->watch_group(process.pid);
  Worker worker;
  worker.rank = rank;
  worker.pid = process.pid;
  worker.exec_status = std::move(process.exec_status);
  workers_.push_back(std::move(worker));
  watch(workers_.back());
}

// wait() reports children in the order in which they were started. An epoll queue holds its events
// in the order in which they happened, which is what tells the first failure from its consequences.
void RankGroup::watch(Worker& worker) {
#ifdef SYS_pidfd_open
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, worker.pid, 0)));
  if (!pidfd) return;  // an old kernel: the order of wait() has to do
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  event.data.u64 = static_cast<uint64_t>(worker.pid);
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, pidfd.get(), &event) == 0) {
    pidfds_.push_back(std::move(pidfd));
  }
#endif
}

std::vector<pid_t> RankGroup::ended_in_order() {
  std::vector<pid_t> pids;
  std::array<epoll_event, 64> events;
  while (true) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    if (count < 0 && errno == EINTR) continue;
    for (int i = 0; i < count; ++i) {
      pids.push_back(static_cast<pid_t>(events[static_cast<size_t>(i)].data.u64));
    }
    if (count < static_cast<int>(events.size())) return pids;
  }
}

bool RankGroup::record(pid_t pid, int wait_status, std::vector<int>& ended) {
  const auto found = std::find_if(workers_.begin(), workers_.end(),
                                  [pid](const Worker& w) { return w.pid == pid && !w.status; });
  if (found == workers_.end()) return false;
  if (found->exec_status) {
    int error = 0;
    if (::read(found->exec_status.get(), &error, sizeof(error)) == sizeof(error)) {
      found->exec_error = error;
    }
    found->exec_status.reset();
  }
  found->status = ExitStatus::from_wait(wait_status);
  found->ended_at = Clock::now();
  ended.push_back(found->rank);
  return true;
}

std::vector<int> RankGroup::reap() {
  std::vector<int> ended;
  int wait_status = 0;
  for (const pid_t pid : ended_in_order()) {
    if (::waitpid(pid, &wait_status, WNOHANG) == pid) record(pid, wait_status, ended);
  }
  while (true) {
    const pid_t pid = ::waitpid(-1, &wait_status, WNOHANG);
    if (pid < 0 && errno == EINTR) continue;
    if (pid <= 0) break;
    record(pid, wait_status, ended);
  }
  if (!ended.empty()) groups_gone();
  return ended;
}

void RankGroup::signal_groups(int signal, bool stops) {
  for (Worker& worker : workers_) {
    if (worker.group_gone) continue;
    if (stops && !worker.status) worker.stop_signal = signal;
    if (::kill(-worker.pid, signal) != 0) continue;
    // A stopped process would not see a signal before it runs again.
    if (stops && signal != SIGKILL) static_cast<void>(::kill(-worker.pid, SIGCONT));
  }
}

void RankGroup::signal_leaders(int signal) const {
  for (const Worker& worker : workers_) {
    if (!worker.status) static_cast<void>(::kill(worker.pid, signal));
  }
}

std::vector<ProcessInfo> RankGroup::descendants() const {
  std::vector<ProcessInfo> result = descendants_of(::getpid());
  std::erase_if(result, [this](const ProcessInfo& info) {
    return guard_ != nullptr && info.pid == guard_->pid();
  });
  return result;
}

std::vector<ProcessInfo> RankGroup::strays() const {
  std::vector<ProcessInfo> result = descendants();
  std::erase_if(result, [this](const ProcessInfo& info) {
    return std::any_of(workers_.begin(), workers_.end(), [&](const Worker& worker) {
      return !worker.group_gone && worker.pid == info.group;
    });
  });
  return result;
}

bool RankGroup::all_ended() const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [](const Worker& worker) { return worker.status.has_value(); });
}

// A group that is once found empty is never signalled again: its number may belong to others later.
bool RankGroup::groups_gone() {
  bool gone = true;
  for (Worker& worker : workers_) {
    if (!worker.group_gone && worker.status && ::kill(-worker.pid, 0) != 0 && errno == ESRCH) {
      worker.group_gone = true;
      if (guard_ != nullptr) guard_->forget_group(worker.pid);
    }
    gone &= worker.group_gone;
  }
  return gone;
}

}  // namespace tessera::launch
