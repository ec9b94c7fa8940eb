// The same round by fio, for those who trust no loop of ours: sequential, reads and writes mixed.
#pragma once

#include "experiments/bench/uring_loop.h"

namespace sluiceway::bench {

// Whether there is a program of this name to ask.
bool has_fio();

// Seconds that fio says its round took, with its io_uring engine and registered buffers. Its memory
// is its own: `huge` asks for pages of the system's pool (sysctl vm.nr_hugepages), else ordinary
// ones, 128 MiB of them. Its processor time is that of a child (RUSAGE_CHILDREN). Throws
// Unavailable with the command if fio fails, as it does where that pool is too small.
double seconds_of_fio(const Round& round, bool huge);

}  // namespace sluiceway::bench
