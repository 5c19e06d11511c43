// Runs a fuzz target over files and folders of files, for compilers without libFuzzer. Each file is
// also cut short and has single bits flipped, so that a small corpus goes a long way. A first
// argument --mutations=N then adds N inputs that random edits make from the corpus, the same ones
// in each run.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
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

void replay(Bytes input) {
  const size_t mutations = input.size() < 8192 ? 2000 : 400;
  run(input);
  const size_t bits = input.size() * 8;
  const size_t stride = bits / mutations + 1;
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
}

class Mutator {
 public:
  explicit Mutator(const std::vector<Bytes>& corpus) : corpus_(corpus) {}

  Bytes next() {
    Bytes input = corpus_[below(corpus_.size())];
    for (size_t edits = below(4) + 1; edits > 0; --edits) edit(input);
    return input;
  }

 private:
  size_t below(size_t limit) { return limit == 0 ? 0 : random_() % limit; }

  void put(Bytes& input, size_t begin, size_t end, const std::string& text) {
    input.erase(input.begin() + static_cast<ptrdiff_t>(begin),
                input.begin() + static_cast<ptrdiff_t>(end));
    input.insert(input.begin() + static_cast<ptrdiff_t>(begin), text.begin(), text.end());
  }

  void edit(Bytes& input) {
    static const std::vector<std::string> kTokens = {"[",  "]",     "{",        "}",      "\"",
                                                     ",",  ":",     "[[[[[[[[", "null",   "true",
                                                     "-1", "1e400", "../",      "\\u0000"};
    static const std::vector<std::string> kNumbers = {"0",
                                                      "1",
                                                      "2",
                                                      "7",
                                                      "64",
                                                      "65536",
                                                      "100000008",
                                                      "2147483648",
                                                      "4294967295",
                                                      "72057594037927936",
                                                      "9223372036854775807",
                                                      "18446744073709551615",
                                                      "1.5"};
    const size_t at = below(input.size() + 1);
    const size_t rest = input.size() - at;
    switch (below(6)) {
      case 0:
        return put(input, at, at + std::min<size_t>(rest, 1),
                   std::string(1, static_cast<char>(random_())));
      case 1:
        return put(input, at, at, kTokens[below(kTokens.size())]);
      case 2:
        return put(input, at, at + std::min(rest, below(40)), "");
      case 3: {
        const Bytes& other = corpus_[below(corpus_.size())];
        const size_t from = below(other.size());
        const size_t size = std::min(other.size() - from, below(60));
        const auto begin = other.begin() + static_cast<ptrdiff_t>(from);
        return put(input, at, at + std::min(rest, below(60)),
                   std::string(begin, begin + static_cast<ptrdiff_t>(size)));
      }
      default:
        return replace_number(input, at, kNumbers[below(kNumbers.size())]);
    }
  }

  // The next run of digits, which is where most of the meaning is.
  void replace_number(Bytes& input, size_t at, const std::string& number) {
    const auto is_digit = [](uint8_t byte) { return byte >= '0' && byte <= '9'; };
    const auto from = input.begin() + static_cast<ptrdiff_t>(at);
    const auto begin = std::find_if(from, input.end(), is_digit);
    const auto end = std::find_if_not(begin, input.end(), is_digit);
    put(input, static_cast<size_t>(begin - input.begin()), static_cast<size_t>(end - input.begin()),
        number);
  }

  const std::vector<Bytes>& corpus_;
  std::mt19937_64 random_{7};
};

}  // namespace

int main(int argc, char** argv) {
  const std::string option = "--mutations=";
  int64_t mutations = 0;
  std::vector<std::filesystem::path> paths;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.starts_with(option)) {
      mutations = std::stoll(argument.substr(option.size()));
    } else if (!std::filesystem::is_directory(argument)) {
      paths.emplace_back(argument);
    } else {
      for (const auto& entry : std::filesystem::recursive_directory_iterator(argument))
        if (entry.is_regular_file()) paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> corpus;
  for (const auto& path : paths) corpus.push_back(read_bytes(path));
  for (const Bytes& input : corpus) replay(input);
  Mutator mutator(corpus);
  for (int64_t i = 0; i < mutations && !corpus.empty(); ++i) run(mutator.next());
  std::printf("replayed %zu files and %lld mutations\n", corpus.size(),
              static_cast<long long>(mutations));
  return corpus.empty() ? 1 : 0;
}
