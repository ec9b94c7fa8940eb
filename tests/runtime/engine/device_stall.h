// Checks the stalls that an engine on a CUDA device reports for a run with a slow link to the
// device.
#pragma once

#include <gtest/gtest.h>

#include "runtime/trace/trace.h"
#include "tests/support/stream_work.h"

namespace sluiceway::test {

// `run` must not have taken a step yet. `forward` acquires every weight; the first one waits for
// the link for longer than `least_s`.
template <typename Run, typename Forward>
void expect_stalls_only_of_a_forward_that_waits(Run& run, double least_s, const Forward& forward) {
  const auto stall_s = [&run] {
    run.reached().wait();
    return run.engine().take_stats().use.stall_seconds;
  };
  const auto step = [&run](int number) {
    run.backward(number);
    run.end_step();
  };
  forward(0);
  step(0);
  stall_s();
  const double begin_us = now_us();
  forward(1);
  const double found_s = stall_s();
  EXPECT_GE(found_s, least_s);
  EXPECT_LE(found_s, (now_us() - begin_us) * 1e-6);
  step(1);
  while (!run.engine().idle()) sleep_ms(1);
  stall_s();
  forward(2);
  EXPECT_EQ(stall_s(), 0);
}

}  // namespace sluiceway::test
