// Constructors of the implementations of Communicator; see communicator.h for their contract.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/store.h"

namespace tessera::comm {

// World size 1: copies, no communication.
std::shared_ptr<Communicator> make_single(std::chrono::milliseconds timeout);

// c10d's ProcessGroupGloo. All-gather is made of in-place broadcasts and reduce-scatter of one
// all-to-all and a local sum: 2 to 4 times faster than the group's own (see src/comm/README.md).
std::shared_ptr<Communicator> make_gloo(const StorePtr& store, const RankEnvironment& environment,
                                        std::chrono::milliseconds timeout);

// Shared memory of one host. Returns null on every rank where one of them cannot map the memory of
// another (other hosts, other PID namespaces, no memfd); `reason` then says why.
std::shared_ptr<Communicator> make_shm(const StorePtr& store, const RankEnvironment& environment,
                                       std::chrono::milliseconds timeout, std::string& reason);

}  // namespace tessera::comm
