#include "comm/store.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tessera/error.h"
#include "util/first_line.h"

namespace tessera::comm {

StorePtr connect_store(const RankEnvironment& environment, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(environment.master_port);
  options.isServer = !environment.store_is_external && environment.rank == 0;
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(environment.master_addr, options);
    return c10::make_intrusive<c10d::PrefixStore>(environment.store_prefix, std::move(store));
  } catch (const std::exception& error) {
    throw CommError("rank " + std::to_string(environment.rank) + " cannot " +
                    (options.isServer ? "host" : "reach") + " the store at " +
                    environment.master_addr + ":" + std::to_string(environment.master_port) +
                    " (MASTER_ADDR, MASTER_PORT): " + first_line(error.what()));
  }
}

StorePtr make_private_store() { return c10::make_intrusive<c10d::HashStore>(); }

std::vector<std::string> store_all_gather(c10d::Store& store, const std::string& name, int rank,
                                          int world_size, const std::string& value,
                                          std::chrono::milliseconds timeout) {
  const auto key = [&](int r) { return name + "/" + std::to_string(r); };
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  store.set(key(rank), value);
  std::vector<std::string> out(static_cast<size_t>(world_size));
  std::string missing;
  for (int r = 0; r < world_size; ++r) {
    // Past the deadline every further rank is only looked at once, so that all missing are named.
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    try {
      store.wait({key(r)}, std::max(left, std::chrono::milliseconds(1)));
      out[static_cast<size_t>(r)] = store.get_to_str(key(r));
    } catch (const std::exception&) {
      missing += (missing.empty() ? "" : ", ") + std::to_string(r);
    }
  }
  if (!missing.empty()) {
    throw TimeoutError("rank " + std::to_string(rank) + " waited " +
                       std::to_string(timeout.count() / 1000) + " s at \"" + name +
                       "\" for rank " + missing + ", which did not arrive; is it running, and does "
                       "it use the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE?");
  }
  return out;
}

}  // namespace tessera::comm
