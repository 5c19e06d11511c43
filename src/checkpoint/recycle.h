// Files of an expired checkpoint that the next save overwrites: their space is allocated already.
//
//   root/.recycled-<name>   an expired checkpoint, until a save claims it
//
// A crash leaves no mixture under a checkpoint's name: an expired one loses its name durably before
// a byte of it changes, and the save that takes it over removes its manifest first and gives it a
// name of its own when all is synced.
// Threads: reentrant. Errors: IoError.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "io/file_system.h"

namespace tessera::checkpoint {

inline constexpr std::string_view kRecycled = ".recycled-";

// Whether nobody else can hold the files of a checkpoint by another name, as copies made of hard
// links do.
bool may_recycle(io::FileSystem& files, const std::string& directory);

// Moves a recycled directory of `root` to `to`, without its manifest; false where there is none or
// `to` exists.
bool take_recycled(io::FileSystem& files, const std::string& root, const std::string& to);

// The file to be overwritten; null where there is none of this size.
std::unique_ptr<io::File> open_recycled(io::FileSystem& files, const std::string& path,
                                        uint64_t bytes);

// Removes what the new checkpoint does not list.
void remove_unlisted(io::FileSystem& files, const std::string& directory,
                     const std::set<std::string>& listed);

}  // namespace tessera::checkpoint
