// Messages to people, one whole line each on standard error, prefixed with the rank.
//
// Threads: any thread may log; a line is written with one write call, so lines never interleave
// inside a process.
#pragma once

#include <string_view>

namespace tessera::log {

enum class Level { kDebug, kInfo, kWarning, kError };

// Sets the rank that prefixes every line; -1 (the default) prints none.
void set_rank(int rank, int world_size);

// Lines below `level` are dropped. The default is kInfo, or TESSERA_LOG=debug|info|warning|error.
void set_level(Level level);

void debug(std::string_view message);
void info(std::string_view message);
void warning(std::string_view message);
void error(std::string_view message);

// Like info, on rank 0 (or in a process without a rank) only.
void info_rank0(std::string_view message);
void warning_rank0(std::string_view message);

}  // namespace tessera::log
