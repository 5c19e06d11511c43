#include "launch/process_tree.h"

#include <dirent.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <fstream>
#include <memory>
#include <unordered_set>

namespace tessera::launch {
namespace {

std::vector<ProcessInfo> all_processes() {
  std::vector<ProcessInfo> result;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc"), ::closedir);
  if (folder == nullptr) return result;
  while (const dirent* entry = ::readdir(folder.get())) {
    if (std::isdigit(static_cast<unsigned char>(entry->d_name[0])) == 0) continue;
    std::ifstream file(std::string("/proc/") + entry->d_name + "/stat");
    std::string text;
    if (!std::getline(file, text)) continue;
    ProcessInfo info = parse_stat(text);
    if (info.pid != 0) result.push_back(std::move(info));
  }
  return result;
}

}  // namespace

ProcessInfo parse_stat(const std::string& text) {
  ProcessInfo info;
  // The name may hold spaces and parentheses: it ends at the last one.
  const size_t open = text.find('(');
  const size_t close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) return {};
  int pid = 0;
  int parent = 0;
  int group = 0;
  if (std::sscanf(text.c_str(), "%d", &pid) != 1) return {};
  if (std::sscanf(text.c_str() + close + 1, " %c %d %d", &info.state, &parent, &group) != 3) {
    return {};
  }
  info.pid = pid;
  info.parent = parent;
  info.group = group;
  info.name = text.substr(open + 1, close - open - 1);
  return info;
}

std::vector<ProcessInfo> descendants_of(pid_t root) {
  const std::vector<ProcessInfo> all = all_processes();
  std::unordered_set<pid_t> family{root};
  // A child may be listed before its parent when pids have wrapped around.
  for (bool grown = true; grown;) {
    grown = false;
    for (const ProcessInfo& info : all) {
      if (family.count(info.parent) != 0) grown |= family.insert(info.pid).second;
    }
  }
  std::vector<ProcessInfo> result;
  std::copy_if(all.begin(), all.end(), std::back_inserter(result), [&](const ProcessInfo& info) {
    return info.pid != root && info.state != 'Z' && family.count(info.pid) != 0;
  });
  return result;
}

}  // namespace tessera::launch
