#include "checkpoint/directory.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <tuple>

#include "checkpoint/recycle.h"
#include "tessera/error.h"

namespace tessera::checkpoint {

namespace {

constexpr std::string_view kStep = "step-";
constexpr std::string_view kSaving = ".saving-";
constexpr std::string_view kDeleting = ".deleting-";
constexpr std::string_view kDamaged = "damaged-";
constexpr const char* kPinned = ".pinned";
constexpr int kMaxNumber = 100'000;

std::string host_name() {
  char buffer[256] = {};
  if (::gethostname(buffer, sizeof(buffer) - 1) != 0) return "unknown";
  std::string name = buffer;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.') c = '_';
  return name.empty() ? "unknown" : name;
}

template <typename Number>
bool parse_number(std::string_view text, Number& out) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), out);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

struct StepName {
  int64_t step = 0;
  int number = 0;
};

std::optional<StepName> parse_step_name(std::string_view name) {
  if (!name.starts_with(kStep)) return std::nullopt;
  name.remove_prefix(kStep.size());
  const size_t dot = name.find('.');
  StepName out;
  if (!parse_number(name.substr(0, dot), out.step) || out.step < 0) return std::nullopt;
  if (dot != std::string_view::npos && !parse_number(name.substr(dot + 1), out.number))
    return std::nullopt;
  return out;
}

// Whether the process that claimed ".saving-<name>-<host>-<pid>-<n>" can still be running.
bool owner_may_run(std::string_view name) {
  const size_t count = name.rfind('-');
  const size_t pid_at =
      count == std::string_view::npos || count == 0 ? count : name.rfind('-', count - 1);
  pid_t pid = 0;
  if (pid_at == std::string_view::npos ||
      !parse_number(name.substr(pid_at + 1, count - pid_at - 1), pid))
    return true;
  if (!name.substr(0, pid_at).ends_with("-" + host_name())) return true;
  return pid > 0 && (::kill(pid, 0) == 0 || errno == EPERM);
}

bool has_manifest(io::FileSystem& files, const std::string& directory) {
  return files.exists(io::join_path(directory, kManifestName));
}

// Renames, taking the next number while the target exists. Returns the name it got.
std::string rename_numbered(io::FileSystem& files, const std::string& from, const std::string& root,
                            const std::string& name, bool may_number) {
  for (int number = 0;; ++number) {
    std::string candidate = number == 0 ? name : fmt::format("{}.{}", name, number);
    const std::string target = io::join_path(root, candidate);
    const bool last = !may_number || number == kMaxNumber;
    try {
      if (last || !files.exists(target)) {
        files.rename(from, target);
        return candidate;
      }
    } catch (const IoError& error) {
      const bool taken = error.error_number() == EEXIST || error.error_number() == ENOTEMPTY;
      if (!taken || last) throw;
    }
  }
}

}  // namespace

std::string step_name(int64_t step) { return fmt::format("step-{:08}", step); }

bool is_step_name(const std::string& name) { return parse_step_name(name).has_value(); }

RunListing list_run(io::FileSystem& files, const std::string& root) {
  RunListing listing;
  if (!files.is_directory(root)) return listing;
  for (const io::DirectoryEntry& entry : files.list(root)) {
    if (!entry.is_directory || entry.name[0] == '.') continue;
    const bool is_step = is_step_name(entry.name);
    const std::string path = io::join_path(root, entry.name);
    if (!has_manifest(files, path)) {
      if (is_step) listing.skipped.push_back(entry.name + ": incomplete, it has no manifest.json");
      continue;
    }
    try {
      const ManifestHead head = read_manifest_head(files, path);
      listing.highest_sequence = std::max(listing.highest_sequence, head.save_sequence);
      if (is_step) listing.checkpoints.push_back({entry.name, head});
    } catch (const IoError& error) {
      // A disk that fails for a moment must not look like a checkpoint that is not there; one that
      // another process has just removed is not there.
      if (error.error_number() != ENOENT) throw;
    } catch (const Error& error) {
      if (is_step) listing.skipped.push_back(fmt::format("{}: {}", entry.name, error.what()));
    }
  }
  const auto order = [](const ListedCheckpoint& listed) {
    const StepName name = parse_step_name(listed.name).value_or(StepName{});
    return std::tuple(listed.head.save_sequence, name.step, name.number);
  };
  std::stable_sort(
      listing.checkpoints.begin(), listing.checkpoints.end(),
      [&](const ListedCheckpoint& a, const ListedCheckpoint& b) { return order(a) > order(b); });
  return listing;
}

std::pair<std::string, std::string> split_path(const std::string& path) {
  std::string trimmed = path;
  while (trimmed.size() > 1 && trimmed.back() == '/') trimmed.pop_back();
  const size_t slash = trimmed.rfind('/');
  if (slash == std::string::npos) return {".", trimmed};
  return {slash == 0 ? "/" : trimmed.substr(0, slash), trimmed.substr(slash + 1)};
}

Claim claim_temporary(io::FileSystem& files, const std::string& root, const std::string& name,
                      bool recycle) {
  files.create_directories(root);
  for (int number = 0; number < kMaxNumber; ++number) {
    std::string path = io::join_path(
        root, fmt::format("{}{}-{}-{}-{}", kSaving, name, host_name(), ::getpid(), number));
    if (recycle && take_recycled(files, root, path)) return {path, true};
    if (files.create_directory(path)) return {path, false};
  }
  throw IoError(fmt::format("{}: no free name for a temporary directory", root));
}

std::vector<std::string> clean_leftovers(io::FileSystem& files, const std::string& root,
                                         const std::string& own) {
  std::vector<std::string> report;
  if (!files.is_directory(root)) return report;
  for (const io::DirectoryEntry& entry : files.list(root)) {
    const bool saving = entry.name.starts_with(kSaving);
    const bool expired = entry.name.starts_with(kDeleting) || entry.name.starts_with(kRecycled);
    if (!entry.is_directory || (!saving && !expired)) continue;
    const std::string path = io::join_path(root, entry.name);
    if (path == own) continue;
    const bool failed = saving && files.exists(io::join_path(path, kFailedName));
    if (saving && !failed && owner_may_run(entry.name)) {
      report.push_back(path + ": left alone, its process may still be saving");
      continue;
    }
    try {
      files.remove_tree(path);
      report.push_back(path + ": removed, left by an interrupted " +
                       (saving ? "save" : "deletion"));
    } catch (const IoError& error) {
      report.push_back(fmt::format("{}: cannot be removed: {}", path, error.what()));
    }
  }
  return report;
}

std::string publish(io::FileSystem& files, const std::string& temporary, const std::string& root,
                    const std::string& name, bool may_number, bool sync) {
  std::string published = rename_numbered(files, temporary, root, name, may_number);
  if (sync) files.sync_directory(root);
  return published;
}

void write_latest_hint(io::FileSystem& files, const std::string& root, const std::string& name) {
  const std::string temporary = io::join_path(root, ".LATEST.new");
  if (files.exists(temporary)) files.remove_file(temporary);
  io::write_file(files, temporary, name + "\n");
  files.replace(temporary, io::join_path(root, "LATEST"));
}

std::string set_aside(io::FileSystem& files, const std::string& root, const std::string& name) {
  std::string moved = rename_numbered(files, io::join_path(root, name), root,
                                      std::string(kDamaged) + name, /*may_number=*/true);
  files.sync_directory(root);
  return moved;
}

std::vector<std::string> expire(io::FileSystem& files, const std::string& root,
                                const Retention& retention, const std::string& just_saved) {
  std::vector<std::string> removed;
  if (retention.keep_last <= 0) return removed;
  const RunListing listing = list_run(files, root);
  bool recycle = retention.recycle;
  int64_t newer = 0;
  for (const ListedCheckpoint& listed : listing.checkpoints) {
    if (newer++ < retention.keep_last || listed.name == just_saved) continue;
    if (retention.keep_every > 0 && listed.head.step % retention.keep_every == 0) continue;
    if (files.exists(io::join_path(root, listed.name + kPinned))) continue;
    // The rename takes it out of the run in one step, so that an interrupted deletion leaves no
    // checkpoint with missing files.
    const std::string path = io::join_path(root, listed.name);
    const bool keep_files = recycle && may_recycle(files, path);
    const std::string prefix(keep_files ? kRecycled : kDeleting);
    const std::string doomed = io::join_path(
        root, rename_numbered(files, path, root, prefix + listed.name, /*may_number=*/true));
    // Durable before a file goes: else a power loss could bring the name back without its files.
    files.sync_directory(root);
    if (!keep_files) files.remove_tree(doomed);
    recycle = recycle && !keep_files;
    removed.push_back(listed.name);
  }
  return removed;
}

std::string resolve_checkpoint(io::FileSystem& files, const std::string& path) {
  if (!files.is_directory(path))
    throw UsageError(
        fmt::format("{}: {}", path, files.exists(path) ? "not a directory" : "does not exist"));
  if (has_manifest(files, path)) return path;
  const RunListing listing = list_run(files, path);
  if (listing.checkpoints.empty()) {
    std::string message =
        path + ": not a checkpoint (no manifest.json) and no run of checkpoints (step-*)";
    for (const std::string& skipped : listing.skipped) message += "\n  " + skipped;
    throw UsageError(message);
  }
  return io::join_path(path, listing.checkpoints.front().name);
}

}  // namespace tessera::checkpoint
