// Runs a fuzz target over files and folders of files, for compilers without libFuzzer. Each file is
// also cut short and has single bits flipped, so that a small corpus goes a long way.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;

Bytes read_bytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

// An allocation of exactly the input's size: a sanitizer then sees a read past its end.
void run(const Bytes& input) {
  const Bytes exact(input);
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

int64_t replay(const std::filesystem::path& path) {
  constexpr size_t kMutations = 2000;
  Bytes input = read_bytes(path);
  run(input);
  const size_t bits = input.size() * 8;
  const size_t stride = bits / kMutations + 1;
  for (size_t bit = 0; bit < bits; bit += stride) {
    input[bit / 8] ^= static_cast<uint8_t>(1U << (bit % 8));
    run(input);
    input[bit / 8] ^= static_cast<uint8_t>(1U << (bit % 8));
  }
  const size_t cut = input.size() / 100 + 1;
  while (!input.empty()) {
    input.resize(input.size() - std::min(cut, input.size()));
    run(input);
  }
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  int64_t files = 0;
  for (int i = 1; i < argc; ++i) {
    if (!std::filesystem::is_directory(argv[i])) {
      files += replay(argv[i]);
      continue;
    }
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
      if (entry.is_regular_file()) files += replay(entry.path());
    }
  }
  std::printf("replayed %lld files\n", static_cast<long long>(files));
  return files > 0 ? 0 : 1;
}
