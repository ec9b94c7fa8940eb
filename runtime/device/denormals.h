// Lets arithmetic treat numbers below 2^-126 as 0, which a processor computes far faster.
//
// A setting of each thread. On Linux a thread starts with the setting of the thread that creates
// it, so the lanes of an engine use the setting from when the engine was made.
#pragma once

namespace sluiceway {

// Sets it for the calling thread and for the threads of its OpenMP pool, on which torch computes.
// Returns the previous setting of the calling thread. Changes nothing on processors other than
// x86-64.
bool flush_denormals(bool on) noexcept;

}  // namespace sluiceway
