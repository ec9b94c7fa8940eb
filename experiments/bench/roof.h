// Measures the limits of one thread of this machine in the calling process.
//
// Bytes count as a kernel's Cost line counts them: each byte read once and each byte written once.
// Extra traffic of the cache (fetching a line before it is overwritten) is part of the roof.
#pragma once

#include <algorithm>

namespace sluiceway::bench {

struct Roof {
  double read_gb_per_s = 0;    // Sum over an array.
  double copy_gb_per_s = 0;    // b[i] = a[i]; reads and writes counted.
  double triad_gb_per_s = 0;   // c[i] = a[i] + s b[i]
  double adam_gb_per_s = 0;    // Four arrays read, three of them written in place: 28 B an element.
  double update_gb_per_s = 0;  // a[i] = s a[i], in place; reads and writes counted.
  double gflop_per_s = 0;      // f32 fused multiply-add, two flop each, operands in registers.

  // Least seconds of a kernel with this many bytes and flop.
  double bound_s(double bytes, double bytes_gb_per_s, double flop) const {
    return std::max(bytes / (1e9 * bytes_gb_per_s), flop / (1e9 * gflop_per_s));
  }
};

// Processor time of the calling thread. Unlike a wall clock, it leaves out the time that other
// programs took on a shared machine.
double thread_seconds();

// Best of several rounds over arrays of 64 MiB, measured at the first call. `again` adds a round,
// which corrects a roof that was measured while something else ran.
const Roof& roof(bool again = false);

// Runs one more pass of some 10 ms for one roof; units of 1e9 a second. Use it for a ratio beside
// each call of a kernel, so that both see the same neighbours.
double roof_now(double Roof::*which);

}  // namespace sluiceway::bench
