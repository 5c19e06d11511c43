#include "bench/raw_io.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <system_error>

#include "io/checksum.h"

namespace tessera::bench {

namespace {

class Descriptor {
 public:
  Descriptor(const std::string& path, int flags) : fd_(::open(path.c_str(), flags, 0644)) {
    if (fd_ < 0) throw std::system_error(errno, std::generic_category(), path);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { ::close(fd_); }
  int get() const { return fd_; }

 private:
  int fd_;
};

void check(bool good, const std::string& what) {
  if (!good) throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

void raw_write(const RawWrite& request, const std::vector<char>& data) {
  const Descriptor file(request.path, O_WRONLY | (request.create ? O_CREAT | O_EXCL : 0));
  if (request.create)
    check(::fallocate(file.get(), 0, 0, static_cast<off_t>(request.file_bytes)) == 0,
          "fallocate " + request.path);
  std::vector<uint64_t> hashes;
  size_t done = 0;
  while (done < data.size()) {
    const size_t piece = std::min(data.size() - done, request.piece_bytes);
    if (request.hashed) io::hash_blocks(data.data() + done, piece, hashes);
    const ssize_t wrote = ::pwrite(file.get(), data.data() + done, piece,
                                   static_cast<off_t>(request.offset + done));
    check(wrote > 0, "pwrite " + request.path);
    done += static_cast<size_t>(wrote);
  }
  if (request.sync) check(::fdatasync(file.get()) == 0, "fdatasync " + request.path);
}

size_t raw_read(const std::string& path, std::vector<char>& into) {
  const Descriptor file(path, O_RDONLY);
  struct stat status = {};
  check(::fstat(file.get(), &status) == 0, "fstat " + path);
  const auto size = static_cast<size_t>(status.st_size);
  if (into.size() < size) into.resize(size);
  size_t done = 0;
  while (done < size) {
    const ssize_t got =
        ::pread(file.get(), into.data() + done, size - done, static_cast<off_t>(done));
    check(got > 0, "pread " + path);
    done += static_cast<size_t>(got);
  }
  return size;
}

void write_small(const std::string& path, size_t bytes, bool sync) {
  const Descriptor file(path, O_WRONLY | O_CREAT | O_EXCL);
  const std::vector<char> data(bytes, 'x');
  check(::pwrite(file.get(), data.data(), bytes, 0) == static_cast<ssize_t>(bytes), path);
  if (sync) check(::fdatasync(file.get()) == 0, path);
}

void sync_directory(const std::string& path) {
  const Descriptor folder(path, O_RDONLY | O_DIRECTORY);
  check(::fsync(folder.get()) == 0, "fsync " + path);
}

void touch_memory(size_t bytes) {
  constexpr size_t kPage = 4096;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  check(memory != MAP_FAILED, "mmap");
  auto* data = static_cast<volatile char*>(memory);
  for (size_t at = 0; at < bytes; at += kPage) data[at] = 1;
  check(::munmap(memory, bytes) == 0, "munmap");
}

Memory memory_now() {
  Memory memory;
  const auto read = [](const char* path, const std::string& field) {
    std::ifstream in(path);
    std::string name;
    while (in >> name) {
      size_t kilobytes = 0;
      if (name == field && in >> kilobytes) return kilobytes * 1024;
      in.ignore(256, '\n');
    }
    return size_t{0};
  };
  memory.resident = read("/proc/self/status", "VmRSS:");
  memory.peak = read("/proc/self/status", "VmHWM:");
  memory.proportional = read("/proc/self/smaps_rollup", "Pss:");
  return memory;
}

void reset_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

}  // namespace tessera::bench
