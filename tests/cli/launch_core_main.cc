// The launcher for builds without LibTorch: its socket listens, nothing answers on it.
#include "launch/fd.h"
#include "launch/launcher.h"

namespace {

class SilentStoreHost : public tessera::launch::StoreHost {
 public:
  explicit SilentStoreHost(int listen_fd) : listen_fd_(listen_fd) {}

 private:
  tessera::launch::UniqueFd listen_fd_;
};

}  // namespace

int main(int argc, char** argv) {
  return tessera::launch::launcher_main(
      argc, argv, [](const tessera::launch::StoreEndpoint& endpoint) {
        return std::make_unique<SilentStoreHost>(endpoint.listen_fd);
      });
}
