// What travels through the lanes: a payload, which is a list of hops, each one task in one lane.
//
// A hop is finished when its lane's stream has finished `run`, or, for one with `start`, when the
// stream has finished start() and HopDone was called: a disk request that completes elsewhere. What
// a hop captured is destroyed before its payload moves on.
//
// A task in a lane of a device launches on the stream that it is given and must not read what the
// payload's earlier hops have left in host memory: where the device can wait by itself it is called
// while they still run there.
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

// Ends a hop. Copies are the same token: its first call counts, from any thread and also from
// inside start(); later ones do nothing. A token that nobody can call any more ends its hop with an
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
  Stream::Task run = {};    // Exactly one of the two.
  Start start = {};         // An error that it throws goes before that of HopDone.
  std::uint64_t bytes = 0;  // For the trace.
};

struct Payload {
  int key = 0;                 // What wait() and recall() ask for; many payloads may have it.
  std::uint64_t deadline = 0;  // Position in the next forward: a lower one is needed earlier.
  std::string name;            // For errors and the trace.
  std::vector<Hop> hops;       // In this order; their lanes ascend.
  // Behind which its first hop starts: what streams outside of the lanes still do for it.
  Event after = {};
  // Index of the hop before which it waits for release(); hops.size(): before it leaves the lanes.
  std::optional<std::size_t> hold_before;
};

}  // namespace sluiceway
