// The one summary of a run that did not end well.
#pragma once

#include <string>
#include <vector>

#include "launch/attempt.h"

namespace tessera::launch {

// Lines for standard error, without line ends: the first failure with the last lines of its
// standard error, then how the other ranks ended, equal endings together.
std::vector<std::string> failure_report(const AttemptResult& result,
                                        const std::vector<Worker>& workers,
                                        const std::vector<std::string>& stderr_tail,
                                        const std::string& program);

// "0, 2-5"
std::string rank_list(const std::vector<int>& ranks);

}  // namespace tessera::launch
