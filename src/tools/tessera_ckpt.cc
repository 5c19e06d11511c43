// tessera-ckpt: looks at checkpoints and checks them, in one process, without LibTorch.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "checkpoint/directory.h"
#include "checkpoint/inspect.h"
#include "checkpoint/verify.h"
#include "tessera/error.h"

namespace {

namespace ckpt = tessera::checkpoint;

constexpr int kDamaged = 1;
constexpr int kUsage = 2;
constexpr const char* kExitCodes =
    "DIR is a checkpoint, or the directory of a run, whose newest checkpoint is then meant.\n"
    "Exit codes: 0 good, 1 damaged or unreadable, 2 wrong usage.";

int inspect(const std::string& path, bool json) {
  tessera::io::FileSystem& files = tessera::io::real_file_system();
  const std::string directory = ckpt::resolve_checkpoint(files, path);
  const ckpt::Manifest manifest = ckpt::read_manifest(files, directory);
  const std::string text =
      json ? ckpt::inspect_json(manifest, directory) : ckpt::inspect_text(manifest, directory);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

int verify(const std::string& path) {
  tessera::io::FileSystem& files = tessera::io::real_file_system();
  const std::string directory = ckpt::resolve_checkpoint(files, path);
  const ckpt::VerifyReport report = ckpt::verify_checkpoint(files, directory);
  for (const std::string& problem : report.problems) fmt::print("{}: {}\n", directory, problem);
  if (!report.problems.empty()) {
    fmt::print("{}: DAMAGED, {} problems\n", directory, report.problems.size());
    return kDamaged;
  }
  fmt::print("{}: good; {} tensors in {} files, {} bytes, {} blocks verified\n", directory,
             report.tensors, report.files, report.bytes, report.blocks);
  return 0;
}

int run(int argc, char** argv) {
  CLI::App app("Looks at checkpoints and checks them.", "tessera-ckpt");
  app.footer(kExitCodes);
  app.require_subcommand(1);
  std::string path;
  bool json = false;
  CLI::App* inspect_command = app.add_subcommand(
      "inspect",
      "Kind, step, world size, tensors and who holds them, optimizer groups; reads no data");
  inspect_command->add_option("DIR", path, "A checkpoint, or the directory of a run")->required();
  inspect_command->add_flag("--json", json, "Everything, for programs");
  CLI::App* verify_command = app.add_subcommand(
      "verify",
      "Every block's checksum, sizes, headers, missing and stray files; reads everything");
  verify_command->add_option("DIR", path, "A checkpoint, or the directory of a run")->required();
  for (CLI::App* command : {inspect_command, verify_command}) command->footer(kExitCodes);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  return inspect_command->parsed() ? inspect(path, json) : verify(path);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const tessera::UsageError& error) {
    std::fprintf(stderr, "tessera-ckpt: %s\n", error.what());
    return kUsage;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tessera-ckpt: %s\n", error.what());
    return kDamaged;
  }
}
