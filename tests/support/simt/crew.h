// Threads that run streams, each with its workshop; a thread whose stream has ended takes the next.
//
// Thread safety: start() from any thread.
#pragma once

#include <functional>

#include "tests/support/simt/workshop.h"

namespace sluiceway::simt {

// Runs `job` on a thread that has no other work until it returns.
void start(std::function<void(Workshop&)> job);

}  // namespace sluiceway::simt
