// Barriers, shuffles and votes of a Grid: which threads wait for which, and which never arrive.
#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/base/check.h"
#include "tests/support/simt/grid.h"
#include "tests/support/simt/names.h"

namespace sluiceway::simt {
namespace {

const char* to_text(Grid::Meeting meeting) {
  switch (meeting) {
    case Grid::Meeting::kBarrier:
      return "__syncthreads";
    case Grid::Meeting::kWarpBarrier:
      return "__syncwarp";
    case Grid::Meeting::kShuffle:
      return "shuffle";
    case Grid::Meeting::kVote:
      return "vote";
  }
  return "?";
}

bool same(Site a, Site b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

template <typename Action>
void for_each_lane(unsigned mask, const Action& action) {
  for (; mask != 0; mask &= mask - 1) action(static_cast<unsigned>(std::countr_zero(mask)));
}

}  // namespace

std::string Grid::where(unsigned thread) const {
  const Thread& other = threads_[thread];
  if (other.state == State::kDone) return "has left the kernel";
  if (other.state == State::kReady) return "is elsewhere";
  return concat("is at the ", to_text(other.meeting), " at ", to_text(other.site));
}

void Grid::barrier(Site site) {
  Thread& me = threads_[thread_];
  me.state = State::kMeets;
  me.meeting = Meeting::kBarrier;
  me.site = site;
  wait();
}

// No thread can run: all are at one barrier, or some wait in vain.
void Grid::meet_barrier() {
  const Site site = threads_[0].site;
  const bool all = std::all_of(threads_.begin(), threads_.end(), [&](const Thread& thread) {
    return thread.state == State::kMeets && thread.meeting == Meeting::kBarrier &&
           same(thread.site, site);
  });
  if (!all) return explain_deadlock();
  witness_.barrier();
  for (unsigned thread = 0; thread < threads_per_block_; ++thread) {
    threads_[thread].state = State::kReady;
    ready_.push_back(thread);
  }
}

void Grid::explain_deadlock() {
  for (unsigned thread = 0; thread < threads_per_block_; ++thread) {
    const Thread& waits = threads_[thread];
    if (waits.state != State::kMeets) continue;
    const unsigned first = waits.meeting == Meeting::kBarrier ? 0 : thread / 32 * 32;
    for (unsigned other = first; other < threads_per_block_; ++other) {
      if (waits.meeting != Meeting::kBarrier) {
        if (other >= first + 32) break;
        if ((waits.mask >> (other - first) & 1U) == 0) continue;
      }
      const Thread& late = threads_[other];
      const bool comes = late.state == State::kMeets && late.meeting == waits.meeting &&
                         same(late.site, waits.site);
      if (comes) continue;
      return fail(thread, cudaErrorLaunchFailure,
                  concat("waits at the ", to_text(waits.meeting), " at ", to_text(waits.site),
                         ", which ", name(other), " does not reach: it ", where(other),
                         "; let all threads meet at the same line"));
    }
  }
}

// `other` arrived before with the same first lane in its mask, so both must call the same thing.
void Grid::check_meeting(unsigned other) {
  const Thread& me = threads_[thread_];
  const Thread& before = threads_[other];
  if (before.meeting == me.meeting && before.mask == me.mask && same(before.site, me.site)) return;
  fail(cudaErrorLaunchFailure,
       concat("calls the ", to_text(me.meeting), " at ", to_text(me.site), ", but ", name(other),
              " of its warp ", where(other), "; let all lanes of a mask call it together"));
}

void Grid::finish_warp(unsigned mask, unsigned first) {
  const Meeting meeting = threads_[thread_].meeting;
  unsigned votes = 0;
  std::uint32_t values[32] = {};
  for_each_lane(mask, [&](unsigned lane) {
    values[lane] = threads_[first + lane].value;
    if (values[lane] != 0) votes |= 1U << lane;
  });
  if (meeting == Meeting::kWarpBarrier) witness_.warp_barrier(first / 32);
  for_each_lane(mask, [&](unsigned lane) {
    Thread& thread = threads_[first + lane];
    thread.value = meeting == Meeting::kShuffle ? values[thread.source] : votes;
    thread.state = State::kReady;
    ready_.push_back(first + lane);
  });
}

std::uint32_t Grid::meet_warp(Meeting meeting, unsigned mask, std::uint32_t value, unsigned source,
                              Site site) {
  const unsigned first = thread_ / 32 * 32;
  const unsigned lanes = std::min(32U, threads_per_block_ - first);
  const auto refuse = [&](const auto&... what) {
    fail(cudaErrorLaunchFailure, concat("calls the ", to_text(meeting), " at ", to_text(site),
                                        " with mask 0x", std::hex, mask, std::dec, ", ", what...));
  };
  if ((mask >> lane() & 1U) == 0) refuse("which leaves out its own lane ", lane());
  if (lanes < 32 && mask >> lanes != 0) {
    refuse("but its warp has ", lanes, " lanes; launch whole warps");
  }
  if (meeting == Meeting::kShuffle && (mask >> source & 1U) == 0) {
    refuse("which leaves out lane ", source, ", from which it reads");
  }
  Thread& me = threads_[thread_];
  me = {State::kMeets, meeting, site, mask, source, value, me.arrived};
  unsigned& arrived = threads_[first + static_cast<unsigned>(std::countr_zero(mask))].arrived;
  if (arrived != 0) check_meeting(first + static_cast<unsigned>(std::countr_zero(arrived)));
  arrived |= 1U << lane();
  if (arrived == mask) {
    arrived = 0;
    finish_warp(mask, first);
  }
  wait();
  return me.value;
}

}  // namespace sluiceway::simt
