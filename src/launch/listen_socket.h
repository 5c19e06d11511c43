// A TCP socket bound before anyone needs its port: no other program can take it in between.
//
// Errors: UsageError where the address is not one of this machine, IoError where the port is taken.
#pragma once

#include <string>

#include "launch/fd.h"

namespace tessera::launch {

struct ListenSocket {
  UniqueFd fd;
  int port = 0;
};

// Port 0 takes a free one. The socket listens already.
ListenSocket bind_listen_socket(const std::string& address, int port);

}  // namespace tessera::launch
