// Runs the same round with fio, as an independent check: sequential, reads and writes mixed.
#pragma once

#include "experiments/bench/uring_loop.h"

namespace sluiceway::bench {

// Tells whether fio is installed.
bool has_fio();

// Seconds of the round as fio reports them, with its io_uring engine and registered buffers. fio
// has its own 128 MiB of memory: `huge` takes pages of the system's pool (sysctl vm.nr_hugepages),
// otherwise pages are ordinary. Its processor time is that of a child (RUSAGE_CHILDREN). Throws
// Unavailable with the command if fio fails, for example because that pool is too small.
double seconds_of_fio(const Round& round, bool huge);

}  // namespace sluiceway::bench
