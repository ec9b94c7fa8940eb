#include "runtime/engine/stream/activations.h"

#include <exception>
#include <iterator>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "kernels/base/check.h"
#include "runtime/store/blocks.h"

namespace sluiceway {
namespace {

// A tensor comes back with a key of its own, so that no backward waits for a write to the drive.
constexpr int key_back(int id) { return Activations::kMostTensors + id; }

constexpr LaneId kOut = 0, kWrite = 1, kWait = 2, kRead = 3, kBack = 4;

std::vector<LaneSpec> lane_specs() {
  std::vector<LaneSpec> lanes(5);
  lanes[kOut] = {.name = "act-out",
                 .runs = LaneSpec::Runs::kOnDevice,
                 .depth = 2,
                 .crosses = LinkDirection::kDeviceToHost};
  lanes[kWrite] = {.name = "act-write", .depth = 8};
  lanes[kWait] = {.name = "act-wait", .depth = Activations::kMostTensors};
  lanes[kRead] = {.name = "act-read", .depth = 8};
  lanes[kBack] = {.name = "act-back",
                  .runs = LaneSpec::Runs::kOnDevice,
                  .depth = 2,
                  .crosses = LinkDirection::kHostToDevice};
  return lanes;
}

EngineLanes::Options lane_options(EngineLanes::Options options) {
  options.order = Order::kFcfs;  // Tensors are needed in the order in which they are asked for.
  options.resident_bytes = 0;
  options.check_interrupt = {};  // Waits are as long as a copy; forget() must not be interrupted.
  return options;
}

// Direct requests are for whole blocks.
std::size_t whole_blocks(std::size_t bytes) {
  return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
}

std::string name_of(int id) { return concat("activation ", id); }

Drive::Done ending(const HopDone& done) {
  return [done](const IoError* error) {
    done(error == nullptr ? nullptr : std::make_exception_ptr(*error));
  };
}

}  // namespace

// Page-locked memory between two tensors. Hops give theirs back on their lanes' threads.
class Activations::Pool {
 public:
  Buffer take(Budget& budget, DeviceId device, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto found = free_.lower_bound(bytes);
    const bool fits = found != free_.end() && found->first <= 2 * bytes;
    if (fits) return std::move(free_.extract(found).mapped());
    // One of another size makes room, so that there are never more than were needed at once; and
    // others, where that is not enough.
    for (;;) {
      if (!free_.empty()) free_.erase(std::prev(free_.end()));
      try {
        return Buffer(budget, Tier::kPinned, device, bytes, "activations", Fill::kNone);
      } catch (const OutOfMemory&) {
        if (free_.empty()) throw;
      }
    }
  }
  void give(Buffer buffer) {
    const std::lock_guard lock(mutex_);
    const std::size_t size = buffer.size();
    free_.emplace(size, std::move(buffer));
  }

 private:
  std::mutex mutex_;
  std::multimap<std::size_t, Buffer> free_;
};

class Activations::Place {
 public:
  Place(std::shared_ptr<Pool> pool, Buffer buffer)
      : pool_(std::move(pool)), buffer_(std::move(buffer)) {}
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  ~Place() { pool_->give(std::move(buffer_)); }

  std::byte* data() const noexcept { return buffer_.data(); }
  std::span<std::byte> blocks_of(std::size_t bytes) const {
    return {buffer_.data(), whole_blocks(bytes)};
  }

 private:
  std::shared_ptr<Pool> pool_;
  Buffer buffer_;
};

Activations::Activations(const EngineLanes::Options& lanes, std::unique_ptr<Drive> drive)
    : lanes_(lane_options(lanes), lane_specs(), LanePlan{}, 2 * kMostTensors),
      drive_(std::move(drive)),
      pool_(std::make_shared<Pool>()) {
  for (int id = kMostTensors - 1; id >= 0; --id) free_ids_.push_back(id);
}

Activations::~Activations() { lanes_.stop(); }

Activations::Tensor& Activations::tensor(const char* what, int id) {
  const auto found = tensors_.find(id);
  SLUICEWAY_CHECK(found != tensors_.end(), what, ": activation ", id,
                  " does not wait, expected one that keep() returned");
  return found->second;
}

Activations::PlacePtr Activations::place_in_memory(std::size_t bytes) {
  return std::make_shared<Place>(
      pool_, pool_->take(lanes_.budget(), lanes_.device(), whole_blocks(bytes)));
}

void Activations::place_on_drive(Tensor& tensor) {
  const auto found = free_on_drive_.lower_bound(whole_blocks(tensor.bytes));
  if (found != free_on_drive_.end()) {
    std::tie(tensor.room, tensor.offset) = *found;
    free_on_drive_.erase(found);
    return;
  }
  tensor.room = whole_blocks(tensor.bytes);
  const std::uint64_t end = drive_end_ + tensor.room;
  if (end > drive_room_) {
    on_drive_.push_back(lanes_.budget().reserve(Tier::kDisk, end - drive_room_, "activations"));
    drive_room_ = end;
  }
  if (end > drive_->size_bytes()) drive_->grow(end);
  tensor.offset = std::exchange(drive_end_, end);
}

void Activations::wait_for_drive() {
  while (on_their_way_.size() >= kInFlight) {
    lanes_.wait(on_their_way_.front());
    on_their_way_.pop_front();
  }
}

// ---- Hops ----

Hop Activations::copy_out(const void* data, const Tensor& tensor, const PlacePtr& place,
                          AtEndPtr left) {
  Hop hop;
  hop.lane = kOut;
  hop.bytes = tensor.bytes;
  hop.run = [this, data, bytes = tensor.bytes, place, left = std::move(left)](StreamRef stream) {
    lanes_.d2h().copy(place->data(), data, bytes, stream);
  };
  return hop;
}

Hop Activations::write(int id, const Tensor& tensor, const PlacePtr& place, AtEndPtr stored) {
  Hop hop;
  hop.lane = kWrite;
  hop.bytes = tensor.bytes;
  hop.start = [this, name = name_of(id), bytes = tensor.bytes, offset = tensor.offset, place,
               stored = std::move(stored)](StreamRef, const HopDone& done) {
    drive_->write(offset, place->blocks_of(bytes), name, ending(done));
  };
  return hop;
}

Hop Activations::read(int id, const Tensor& tensor, const PlacePtr& place) {
  Hop hop;
  hop.lane = kRead;
  hop.bytes = tensor.bytes;
  hop.start = [this, name = name_of(id), bytes = tensor.bytes, offset = tensor.offset, place](
                  StreamRef, const HopDone& done) {
    drive_->read(offset, place->blocks_of(bytes), name, ending(done));
  };
  return hop;
}

Hop Activations::copy_back(const Tensor& tensor, const PlacePtr& place, void* into) {
  Hop hop;
  hop.lane = kBack;
  hop.bytes = tensor.bytes;
  hop.run = [this, into, bytes = tensor.bytes, place](StreamRef stream) {
    lanes_.h2d().copy(into, place->data(), bytes, stream);
  };
  return hop;
}

// ---- Calls ----

int Activations::keep(const void* data, std::size_t bytes, StreamRef compute) {
  SLUICEWAY_CHECK(bytes > 0, "keep: an activation of 0 bytes, expected at least 1");
  SLUICEWAY_CHECK(!free_ids_.empty(), "keep: ", kMostTensors,
                  " activations wait for their backward, and no more can; call backward, or keep "
                  "activations on the device");
  if (drive_ != nullptr) wait_for_drive();
  const PlacePtr place = place_in_memory(bytes);
  Tensor kept;
  kept.bytes = bytes;
  const int id = free_ids_.back();
  auto left = std::make_shared<const AtEnd>();
  kept.left = left->event();
  Payload payload;
  payload.key = id;
  payload.name = name_of(id);
  payload.after = lanes_.compute(compute).record();
  payload.hops.push_back(copy_out(data, kept, place, std::move(left)));
  if (drive_ == nullptr) {
    kept.in_memory = place;
  } else {
    kept.still = place;
    place_on_drive(kept);
    auto stored = std::make_shared<const AtEnd>();
    kept.stored = stored->event();
    payload.hops.push_back(write(id, kept, place, std::move(stored)));
  }
  lanes_.executor().submit(std::move(payload));
  if (drive_ != nullptr) on_their_way_.push_back(id);
  free_ids_.pop_back();
  tensors_.emplace(id, std::move(kept));
  return id;
}

bool Activations::has_left(int id) { return tensor("has_left", id).left.happened(); }

void Activations::wait_left(int id) { tensor("wait_left", id).left.wait(); }

void Activations::bring(int id, void* into, StreamRef compute) {
  Tensor& kept = tensor("bring", id);
  SLUICEWAY_CHECK(!kept.is_coming, "bring: activation ", id, " is on its way back already");
  PlacePtr place = drive_ == nullptr ? kept.in_memory : kept.still.lock();
  const bool is_there = place != nullptr;
  if (!is_there) place = place_in_memory(kept.bytes);
  Payload payload;
  payload.key = key_back(id);
  payload.name = name_of(id);
  payload.after = lanes_.compute(compute).record();
  payload.hops.push_back(RingHops::await(kWait, {is_there ? kept.left : kept.stored}));
  if (!is_there) payload.hops.push_back(read(id, kept, place));
  payload.hops.push_back(copy_back(kept, place, into));
  lanes_.executor().submit(std::move(payload));
  kept.is_coming = true;
}

void Activations::await(int id, StreamRef compute) {
  Tensor& kept = tensor("await", id);
  SLUICEWAY_CHECK(kept.is_coming, "await: activation ", id,
                  " is not on its way back; call bring() first");
  lanes_.acquire(key_back(id), compute);
  kept.is_coming = false;
}

bool Activations::forget(int id) {
  const Tensor& kept = tensor("forget", id);
  const Executor& executor = lanes_.executor();
  if (executor.busy(id) || executor.busy(key_back(id))) return false;
  if (drive_ != nullptr) {
    free_on_drive_.emplace(kept.room, kept.offset);
    std::erase(on_their_way_, id);
  }
  tensors_.erase(id);
  free_ids_.push_back(id);
  if (tensors_.empty()) {  // Tensors of other sizes begin anew, so that no gaps add up.
    free_on_drive_.clear();
    drive_end_ = 0;
  }
  return true;
}

}  // namespace sluiceway
