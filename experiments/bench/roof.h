// What one thread of this machine can do at most, measured in the process that asks.
//
// Bytes count as a kernel's Cost line counts them: each byte read once and each byte written once;
// what the cache does besides (fetching a line before it is overwritten) is part of the roof.
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

  // Seconds below which no kernel of this many bytes and flop can go.
  double bound_s(double bytes, double bytes_gb_per_s, double flop) const {
    return std::max(bytes / (1e9 * bytes_gb_per_s), flop / (1e9 * gflop_per_s));
  }
};

// Processor time of the calling thread: unlike a clock on the wall, it does not count the time that
// other programs took on a shared machine.
double thread_seconds();

// Arrays of 64 MiB, the best of several rounds; measured at the first call. With `again`, a further
// round is added, so that a roof taken while something else ran is corrected later.
const Roof& roof(bool again = false);

// One more pass of some 10 ms for one roof, in units of 1e9 a second: for a ratio that is taken
// beside each call of a kernel, so that both see the same neighbours.
double roof_now(double Roof::*which);

}  // namespace sluiceway::bench
