// Keeps tensors of a forward in host memory, or on a drive, until its backward needs them.
//
//   out     device -> page-locked memory   behind the stream that computed the tensor
//   write   page-locked memory -> drive    with a drive; the memory then serves other tensors
//   read    drive -> page-locked memory
//   back    page-locked memory -> device
//
// A tensor: keep(), then bring() and await() any number of times, then forget(). Tensors may come
// back in any order. A forgotten tensor's place serves a later one that fits, so later steps of
// equal shapes need no more than the bound below.
//
// Thread safety: one thread at a time calls.
// Lifetime:      the memory that keep() reads lives until has_left(); the memory that bring()
//                writes lives until await() has returned, or forget() has returned true. Streams
//                passed in outlive the object. The destructor waits for copies and requests in
//                flight.
// Errors:        OutOfMemory, with both byte counts: a place does not fit into the budget of pinned
//                memory, or of the disk.
//                InvalidArgument: kMostTensors wait already, or an id that does not wait. IoError:
//                the drive cannot grow. The next call rethrows an exception of a lane.
// Cost:          without a drive, page-locked memory for all tensors that wait at once; with one,
//                for kInFlight of them and those that bring() was called for, and drive space
//                for all. A tensor crosses the link twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "runtime/engine/engine_lanes.h"
#include "runtime/engine/stream/ring_hops.h"
#include "runtime/memory/buffer.h"
#include "runtime/store/drive.h"

namespace sluiceway {

class Activations {
 public:
  static constexpr int kMostTensors = 1 << 12;
  static constexpr std::size_t kInFlight = 4;  // Tensors on their way to a drive.

  // `lanes` has the links, budget and trace to use. No drive: host memory.
  Activations(const EngineLanes::Options& lanes, std::unique_ptr<Drive> drive);
  Activations(const Activations&) = delete;
  Activations& operator=(const Activations&) = delete;
  ~Activations();

  // Copies `bytes` from the device, behind the work on `compute`; returns the tensor's id.
  int keep(const void* data, std::size_t bytes, StreamRef compute);
  // Returns whether the copy is done, so that the device's memory is free for other use.
  bool has_left(int id);
  void wait_left(int id);  // Until then.
  // Copies the tensor to the device, behind the work on `compute`.
  void bring(int id, void* into, StreamRef compute);
  // Work enqueued on `compute` from now on sees the tensor.
  void await(int id, StreamRef compute);
  // Frees the id and the tensor's place. Returns false, and does nothing, while a copy is running.
  bool forget(int id);

  int waiting() const noexcept { return static_cast<int>(tensors_.size()); }
  double take_stall_seconds() { return lanes_.take_use().stall_seconds; }
  Drive::Counters counters() const { return drive_ ? drive_->counters() : Drive::Counters(); }

 private:
  class Pool;
  class Place;
  using PlacePtr = std::shared_ptr<Place>;

  struct Tensor {
    std::size_t bytes = 0;
    std::uint64_t offset = 0;    // On the drive, in a place
    std::size_t room = 0;        // of this size.
    PlacePtr in_memory;          // Without a drive.
    std::weak_ptr<Place> still;  // With one: until the tensor is on it.
    Event left, stored;
    bool is_coming = false;
  };

  Tensor& tensor(const char* what, int id);
  PlacePtr place_in_memory(std::size_t bytes);
  void place_on_drive(Tensor& tensor);
  void wait_for_drive();  // Until few tensors are on their way to it.
  Hop copy_out(const void* data, const Tensor& tensor, const PlacePtr& place, AtEndPtr left);
  Hop write(int id, const Tensor& tensor, const PlacePtr& place, AtEndPtr stored);
  Hop read(int id, const Tensor& tensor, const PlacePtr& place);
  Hop copy_back(const Tensor& tensor, const PlacePtr& place, void* into);

  EngineLanes lanes_;
  std::unique_ptr<Drive> drive_;
  std::shared_ptr<Pool> pool_;
  std::vector<int> free_ids_;
  std::map<int, Tensor> tensors_;
  std::deque<int> on_their_way_;                             // To the drive; the oldest first.
  std::multimap<std::size_t, std::uint64_t> free_on_drive_;  // By size: places without a tensor.
  std::uint64_t drive_end_ = 0, drive_room_ = 0;             // Where the last place ends; reserved.
  std::vector<Budget::Reservation> on_drive_;
};

}  // namespace sluiceway
