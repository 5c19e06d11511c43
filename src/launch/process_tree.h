// Which processes descend from one, as the kernel lists them at this moment.
//
// Cost: reads one small file for every process of the machine; used only while a run is being
// ended.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace tessera::launch {

struct ProcessInfo {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t group = 0;
  char state = '?';
  std::string name;
};

// Without zombies and without `root` itself. Empty where /proc is not there.
std::vector<ProcessInfo> descendants_of(pid_t root);

// One line of /proc/<pid>/stat; a pid of 0 where it makes no sense.
ProcessInfo parse_stat(const std::string& text);

}  // namespace tessera::launch
