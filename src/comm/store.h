// The rendezvous store: c10d's TCPStore behind the deadlines and messages of Tessera.
//
// Threads: one thread. Cost: one TCP connection; hosted by the launcher, or by rank 0 where the
// launcher has none. Each run and each restart has a key prefix of its own.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>
#include <vector>

#include "comm/rank_environment.h"

namespace tessera::comm {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

// Connects (and hosts, on rank 0 where nobody else does). Throws CommError naming address and port.
StorePtr connect_store(const RankEnvironment& environment, std::chrono::milliseconds timeout);

// A store inside this process, for world size 1.
StorePtr make_private_store();

// Publishes `value` as this rank's and returns every rank's, in rank order. Throws TimeoutError that
// names the ranks that did not arrive. `name` must be new for each call.
std::vector<std::string> store_all_gather(c10d::Store& store, const std::string& name, int rank,
                                          int world_size, const std::string& value,
                                          std::chrono::milliseconds timeout);

}  // namespace tessera::comm
