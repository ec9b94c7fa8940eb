// Whether arithmetic takes numbers below 2^-126 for 0, which a processor computes with far faster.
//
// A setting of each thread. A thread starts with that of the thread that makes it, on Linux, so the
// lanes of an engine compute with the setting that there was when the engine was made.
#pragma once

namespace sluiceway {

// Sets it for the calling thread and for the threads of its OpenMP pool, which torch computes with;
// returns what it was for the calling thread. On processors other than x86-64 nothing changes.
bool flush_denormals(bool on) noexcept;

}  // namespace sluiceway
