// The rendezvous store, as the launcher sees it: something that serves on a socket that is already
// bound. The launcher itself knows no LibTorch; its main function brings the implementation.
//
// Contract: `listen_fd` is bound and the host takes it over. The constructor of an implementation
// throws where it cannot serve; the destructor ends the service. It must not fork, and its threads
// must leave signals to the launcher (they inherit the blocked mask).
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace tessera::launch {

class StoreHost {
 public:
  virtual ~StoreHost() = default;
};

struct StoreEndpoint {
  std::string address;
  int port = 0;
  int listen_fd = -1;
};

using StoreHostFactory = std::function<std::unique_ptr<StoreHost>(const StoreEndpoint&)>;

}  // namespace tessera::launch
