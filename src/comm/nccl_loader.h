// Finds, loads and checks the library tessera_nccl, and makes communicators with it.
//
// Nothing of CUDA is loaded by programs that do not use it. Loading also registers CUDA with
// LibTorch, which must happen before the program first asks LibTorch for CUDA (torch::manual_seed
// does): create the Runtime first. Threads: one thread. Cost: loading LibTorch's CUDA libraries
// takes 0.3 to 2 s, once a process; they stay loaded. Errors: UsageError with the path, what is
// wrong and what to do.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/nccl_group.h"
#include "comm/rank_environment.h"
#include "comm/store.h"

namespace tessera::comm {

inline constexpr char kNcclLibraryName[] = "libtessera_nccl.so";

// Path of the library: TESSERA_NCCL_LIBRARY, or where programs are built and installed: next to the
// program, or ../lib from there.
std::string find_nccl_library(const GetEnv& get, const std::string& program_directory);
// The same for this process.
std::string find_nccl_library();

MakeNcclGroup* load_nccl_library(const std::string& path);

// After loading: LibTorch must see the devices that the driver shows.
void check_torch_sees_cuda();

std::shared_ptr<Communicator> make_nccl(MakeNcclGroup* make_group, const StorePtr& store,
                                        const RankEnvironment& environment, torch::Device device,
                                        std::chrono::milliseconds timeout);

}  // namespace tessera::comm
