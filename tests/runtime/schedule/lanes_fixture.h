// Four streams, a log of what ran where, and tasks that wait until the test lets them go on.
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
  void wait_for_arrival() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return arrived_ > 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  int arrived_ = 0;
};

class Log {
 public:
  using Entry = std::pair<int, Lane>;  // Layer, lane.
  void add(int layer, Lane lane) {
    const std::lock_guard lock(mutex_);
    entries_.emplace_back(layer, lane);
  }
  std::vector<Entry> entries() const {
    const std::lock_guard lock(mutex_);
    return entries_;
  }
  std::vector<int> layers_in(Lane lane) const {
    std::vector<int> layers;
    for (const auto& [layer, at] : entries()) {
      if (at == lane) layers.push_back(layer);
    }
    return layers;
  }
  std::vector<Lane> lanes_of(int layer) const {
    std::vector<Lane> lanes;
    for (const auto& [logged, at] : entries()) {
      if (logged == layer) lanes.push_back(at);
    }
    return lanes;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
};

enum class StreamKind { kWorkers, kInline };

struct LanesFixture {
  explicit LanesFixture(int layers, Order order = Order::kEdf,
                        StreamKind kind = StreamKind::kWorkers)
      : layer_count(layers) {
    for (const Lane lane : kLanes) {
      streams.push_back(kind == StreamKind::kInline
                            ? Stream::borrowed(StreamRef::host())
                            : Stream::host({.name = std::string(to_string(lane))}));
    }
    Executor::Config config;
    for (std::size_t i = 0; i < kLaneCount; ++i) config.streams[i] = &streams[i];
    config.layer_count = layers;
    config.order = order;
    executor.emplace(config);
  }

  Payload payload(int layer, std::optional<Lane> hold_before = std::nullopt) {
    Payload p;
    p.layer = layer;
    p.name = "layer" + std::to_string(layer);
    p.hold_before = hold_before;
    for (const Lane lane : kLanes) {
      p.tasks[index(lane)] = [this, layer, lane](StreamRef) { log.add(layer, lane); };
    }
    return p;
  }

  // As payload(), but its task in `lane` waits at `latch` before it logs.
  Payload blocked_payload(int layer, Lane lane, Latch& latch) {
    Payload p = payload(layer);
    p.tasks[index(lane)] = [this, layer, lane, &latch](StreamRef) {
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
