// The first line of a foreign error text: LibTorch appends stack traces that help no user.
#pragma once

#include <string>

namespace tessera {
inline std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }
}  // namespace tessera
