// Lanes and their streams, a log of which task ran where, and tasks that wait until the test
// releases them.
#pragma once

#include <algorithm>
#include <array>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device/stream.h"
#include "runtime/schedule/executor.h"

namespace sluiceway::test {

class Latch {  // Closed until open(); tasks wait at it.
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  void wait_for_arrival(int count = 1) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrived_ >= count; });
  }
  int arrived() const {
    const std::lock_guard lock(mutex_);
    return arrived_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  int arrived_ = 0;
};

class Log {
 public:
  using Entry = std::pair<int, LaneId>;  // Layer, lane.
  void add(int layer, LaneId lane) {
    const std::lock_guard lock(mutex_);
    entries_.emplace_back(layer, lane);
  }
  std::vector<Entry> entries() const {
    const std::lock_guard lock(mutex_);
    return entries_;
  }
  std::vector<int> layers_in(LaneId lane) const {
    std::vector<int> layers;
    for (const auto& [layer, at] : entries()) {
      if (at == lane) layers.push_back(layer);
    }
    return layers;
  }
  std::vector<LaneId> lanes_of(int layer) const {
    std::vector<LaneId> lanes;
    for (const auto& [logged, at] : entries()) {
      if (logged == layer) lanes.push_back(at);
    }
    return lanes;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
};

// The lanes of most tests: the four of a weight's step.
inline constexpr LaneId kD2h = 0, kHost = 1, kH2d = 2, kApply = 3;
inline constexpr LanePlan kFourLanes{.gather_before = kHost, .device_lane = kApply};
inline std::vector<LaneConfig> four_lanes() {
  return {{.name = "d2h"}, {.name = "host"}, {.name = "h2d"}, {.name = "apply"}};
}

// Replaces the payload's task in `lane`, or adds a hop there if it has none; its hold stays before
// the same lane.
inline void set_hop(Payload& payload, LaneId lane, Stream::Task task) {
  const auto at = std::find_if(payload.hops.begin(), payload.hops.end(),
                               [&](const Hop& hop) { return hop.lane >= lane; });
  if (at != payload.hops.end() && at->lane == lane) {
    at->run = std::move(task);
    return;
  }
  const auto index = static_cast<std::size_t>(at - payload.hops.begin());
  payload.hops.insert(at, {lane, std::move(task)});
  if (payload.hold_before && *payload.hold_before > index) ++*payload.hold_before;
}

// Makes the payload skip `lane`.
inline void drop_hop(Payload& payload, LaneId lane) {
  const auto at = std::find_if(payload.hops.begin(), payload.hops.end(),
                               [&](const Hop& hop) { return hop.lane == lane; });
  const auto index = static_cast<std::size_t>(at - payload.hops.begin());
  payload.hops.erase(at);
  if (payload.hold_before && *payload.hold_before > index) --*payload.hold_before;
}

enum class StreamKind { kWorkers, kInline };

inline Stream make_stream(StreamKind kind, const std::string& name) {
  return kind == StreamKind::kInline ? Stream::borrowed(StreamRef::host())
                                     : Stream::host({.name = name});
}

// Returns the Executor::Config of these lanes, each with one of `streams`.
inline Executor::Config config_of(std::vector<LaneConfig> lanes, const LanePlan& plan,
                                  std::vector<Stream>& streams, int keys) {
  for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i].stream = &streams[i];
  Executor::Config config;
  config.lanes = std::move(lanes);
  config.plan = plan;
  config.key_count = keys;
  return config;
}

struct LanesFixture {
  explicit LanesFixture(int layers, Order order = Order::kEdf,
                        StreamKind kind = StreamKind::kWorkers,
                        std::vector<LaneConfig> lanes = four_lanes(),
                        const LanePlan& plan = kFourLanes)
      : layer_count(layers) {
    for (const LaneConfig& lane : lanes) streams.push_back(make_stream(kind, lane.name));
    Executor::Config config = config_of(std::move(lanes), plan, streams, layers);
    config.order = order;
    executor.emplace(std::move(config));
  }

  // Makes a payload with a hop in each lane, so that hop and lane have the same number.
  Payload payload(int layer, std::optional<LaneId> hold_before = std::nullopt) {
    Payload p;
    p.key = layer;
    p.deadline = static_cast<std::uint64_t>(layer);
    p.name = "layer" + std::to_string(layer);
    if (hold_before) p.hold_before = static_cast<std::size_t>(*hold_before);
    for (std::size_t i = 0; i < streams.size(); ++i) {
      const auto lane = static_cast<LaneId>(i);
      p.hops.push_back({lane, [this, layer, lane](StreamRef) { log.add(layer, lane); }});
    }
    return p;
  }

  // Like payload(), but its task in `lane` waits at `latch` before it logs.
  Payload blocked_payload(int layer, LaneId lane, Latch& latch) {
    Payload p = payload(layer);
    p.hops[static_cast<std::size_t>(lane)].run = [this, layer, lane, &latch](StreamRef) {
      latch.pass();
      log.add(layer, lane);
    };
    return p;
  }

  int layer_count;
  std::vector<Stream> streams;  // Before the executor: they outlive it.
  Log log;
  std::optional<Executor> executor;
};

}  // namespace sluiceway::test
