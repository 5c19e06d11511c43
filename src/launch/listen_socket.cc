#include "launch/listen_socket.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>

namespace tessera::launch {
namespace {

int port_of(int fd) {
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    throw_errno("cannot read the port of the store's socket");
  }
  const bool v6 = bound.ss_family == AF_INET6;
  return ntohs(v6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                  : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
}

// Returns an empty descriptor with errno set where this address cannot be used.
UniqueFd try_bind(const addrinfo& info, bool fixed_port) {
  UniqueFd fd(::socket(info.ai_family, info.ai_socktype | SOCK_CLOEXEC, info.ai_protocol));
  if (!fd) return fd;
  // A named port of a run that just ended is in TIME_WAIT; the next run must not wait for it.
  if (fixed_port) {
    const int on = 1;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  }
  if (::bind(fd.get(), info.ai_addr, info.ai_addrlen) == 0 && ::listen(fd.get(), SOMAXCONN) == 0) {
    return fd;
  }
  const int error = errno;
  fd.reset();
  errno = error;
  return fd;
}

}  // namespace

ListenSocket bind_listen_socket(const std::string& address, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int result = ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (result != 0) {
    throw UsageError(fmt::format("--master-addr {}: {}", address, ::gai_strerror(result)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  int error = EADDRNOTAVAIL;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    UniqueFd fd = try_bind(*info, port != 0);
    if (fd) {
      const int bound = port_of(fd.get());
      return {std::move(fd), bound};
    }
    error = errno;
  }
  const std::string problem =
      fmt::format("the store cannot listen on {} port {}: {}", address, port, std::strerror(error));
  if (error == EADDRNOTAVAIL) {
    throw UsageError(problem + " (--master-addr must be an address of this machine)");
  }
  throw IoError(
      problem + (error == EADDRINUSE ? " (leave --master-port out to get a free one)" : ""), error);
}

}  // namespace tessera::launch
