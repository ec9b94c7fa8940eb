// Threads that run streams, each with its workshop; one whose stream has ended takes the next.
//
// Thread safety: start() from any thread.
#pragma once

#include <functional>

#include "tests/support/simt/workshop.h"

namespace sluiceway::simt {

// Runs `job` on a thread that has nothing else to do until it returns.
void start(std::function<void(Workshop&)> job);

}  // namespace sluiceway::simt
