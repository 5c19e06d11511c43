// tessera-run: the launcher, with LibTorch's TCPStore as the store that the ranks meet at.
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "launch/launcher.h"
#include "tessera/error.h"

namespace {

class TcpStoreHost : public tessera::launch::StoreHost {
 public:
  explicit TcpStoreHost(const tessera::launch::StoreEndpoint& endpoint) : store_(serve(endpoint)) {}

 private:
  static c10::intrusive_ptr<c10d::TCPStore> serve(const tessera::launch::StoreEndpoint& endpoint) {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(endpoint.port);
    options.isServer = true;
    options.waitWorkers = false;
    options.masterListenFd = endpoint.listen_fd;
    try {
      return c10::make_intrusive<c10d::TCPStore>(endpoint.address, options);
    } catch (const c10::Error& error) {
      throw tessera::IoError("the store cannot serve on " + endpoint.address + " port " +
                             std::to_string(endpoint.port) + ": " + error.what_without_backtrace());
    }
  }

  c10::intrusive_ptr<c10d::TCPStore> store_;
};

}  // namespace

int main(int argc, char** argv) {
  return tessera::launch::launcher_main(
      argc, argv, [](const auto& endpoint) { return std::make_unique<TcpStoreHost>(endpoint); });
}
