// A payload travels through the lanes. It is a list of hops, each one task in one lane.
//
// A hop is finished when its lane's stream has finished `run`. A hop with `start`, for example a
// disk request that completes elsewhere, is finished when the stream has finished start() and
// HopDone was called. Objects that a hop captured are destroyed before its payload moves on.
//
// A task in a lane of a device launches on the given stream and must not read host memory that the
// payload's earlier hops wrote: if the device can wait by itself, the task is called while they
// still run there.
//
// Thread safety: HopDone from any thread; a payload belongs to one thread until it is submitted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/schedule/lane.h"

namespace sluiceway {

// Ends a hop. Copies are the same token: its first call counts, from any thread and even inside
// start(); later calls do nothing. When the last copy goes without a call, the hop ends with an
// error.
class HopDone {
 public:
  using End = std::function<void(std::exception_ptr)>;

  explicit HopDone(End end);  // `end` is called exactly once.
  void operator()(std::exception_ptr error = nullptr) const;

 private:
  class Token;
  std::shared_ptr<Token> token_;
};

struct Hop {
  using Start = std::function<void(StreamRef, HopDone)>;

  LaneId lane = 0;
  Stream::Task run = {};    // Set exactly one of the two.
  Start start = {};         // Its exception takes precedence over HopDone's error.
  std::uint64_t bytes = 0;  // For the trace.
};

struct Payload {
  int key = 0;                 // Names it for wait() and recall(); payloads may share a key.
  std::uint64_t deadline = 0;  // Position in the next forward: a lower one is needed earlier.
  std::string name;            // For errors and the trace.
  std::vector<Hop> hops;       // In this order; their lanes ascend.
  // The first hop starts after this event: the end of work for it in streams outside the lanes.
  Event after = {};
  // Index of the hop before which it waits for release(); hops.size(): before it leaves the lanes.
  std::optional<std::size_t> hold_before;
};

}  // namespace sluiceway
