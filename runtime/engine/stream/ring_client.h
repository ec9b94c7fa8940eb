// The interface between a ring (weight_ring.h) and the engine that streams weights through it: the
// weights, their source outside host memory, the work of a pass, and the steps written into them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "kernels/base/dtype.h"
#include "kernels/base/stream_ref.h"
#include "kernels/weight_form.h"
#include "runtime/device/event.h"

namespace sluiceway {

// One use of a weight in a pass. Uses with the same storage are one weight.
struct StreamedWeight {
  std::string name;
  std::int64_t elements = 0;
  WeightForm form = DType::kF32;  // As read from the source, and as it arrives.
  int group = 0;                  // Parameter group, the same for all uses of a storage.
  int module = 0;                 // Ascending. Its uses are read together, round by round.
  // Page-locked, for speed. While a ring streams it, no other code writes to it; the ring does so
  // only for WrittenWeights.
  const void* host = nullptr;
  bool keep = false;                   // Always on the device: norms, biases.
  int source = -1;                     // Its index in the ring's WeightSource, if `host` is null.
  std::int64_t rows = 0;               // Of a matrix; 0: a vector.
  std::optional<DType> computed = {};  // Type of the copies; none: the type of `form`.

  DType dtype() const noexcept { return form.dtype(); }
  std::uint64_t bytes() const noexcept { return form.bytes(static_cast<std::uint64_t>(elements)); }
  // Returns the bytes that cross in a direct ring, of those that are read. A weight that is
  // unpacked crosses with the ends of its chunks.
  std::uint64_t crossing_bytes(std::uint64_t read) const noexcept {
    return computed ? read : bytes();
  }
  DType copy_dtype() const noexcept { return computed.value_or(dtype()); }
  std::uint64_t copy_bytes() const noexcept {
    return static_cast<std::uint64_t>(elements) * size_bytes(copy_dtype());
  }
};

// A source of weights that take a while to read.
//
// Lifetime: the bytes of a request, and the source, live until `done` is called.
class WeightSource {
 public:
  using Done = std::function<void(std::exception_ptr)>;
  virtual ~WeightSource() = default;
  // Returns the bytes that read() fills for a weight: its size, rounded up to whole blocks.
  virtual std::uint64_t read_bytes(std::size_t weight) const = 0;
  virtual bool is_disk() const { return true; }  // Whether its reads count as disk reads.
  // Asynchronous; `done` may run on any thread, and must not throw or wait.
  virtual void read(std::size_t weight, std::span<std::byte> into, Done done) = 0;

  // A direct ring reads a weight in parts of this size, the last one perhaps smaller, in order.
  virtual std::uint64_t part_bytes(std::size_t weight) const { return read_bytes(weight); }
  virtual void read_part(std::size_t weight, std::uint64_t /*first*/, std::span<std::byte> into,
                         Done done) {
    read(weight, into, std::move(done));
  }
};

// A weight on the device, and the copies that one turn reads.
struct TurnCopies {
  std::span<const std::byte> weight;              // In a direct ring: a part of it,
  std::uint64_t first_byte = 0;                   // and the byte at which that begins.
  std::byte *first = nullptr, *second = nullptr;  // `second` only where a turn reads two.
  std::span<std::byte> scratch;                   // The lane's own, free when the work is done.
};

// The work of one pass on its weights, enqueued by the ring's lanes. A weight is known by the name
// of the first use of its storage.
//
// Thread safety: immutable; several lanes call at the same time.
class PassWork {
 public:
  virtual ~PassWork() = default;
  virtual int rounds() const { return 1; }  // Turns of each use, one in each round; 1 or more.
  virtual bool has_pairs() const { return false; }  // A turn reads two copies.
  virtual void make_copies(const StreamedWeight& weight, int round, const TurnCopies& copies,
                           StreamRef stream) const = 0;
  // Every written weight is of this step before its first turn; write_steps() brings one there.
  virtual std::uint64_t next_step() const { return 0; }
  virtual void write_steps(const StreamedWeight& /*weight*/, std::span<std::byte> /*elements*/,
                           std::uint64_t /*from*/, StreamRef /*stream*/) const {}
};

// Weights in host memory into which steps are written, with the step that each has reached.
//
// Thread safety: one thread at a time; land(), drop() and catch_up() may run on any thread.
class WrittenWeights {
 public:
  virtual ~WrittenWeights() = default;
  virtual std::size_t index_of(const StreamedWeight& use) const = 0;
  virtual std::uint64_t next_step() const = 0;  // All steps before it have been made.
  virtual std::byte* data(std::size_t index) const = 0;
  virtual std::uint64_t step_of(std::size_t index) const = 0;
  // Announces a submitted copy that will bring host memory to this step; land() reports its
  // arrival, drop() that it does not come.
  virtual void expect(std::size_t index, std::uint64_t step) = 0;
  virtual void land(std::size_t index, std::uint64_t step) noexcept = 0;
  virtual void drop(std::size_t index, std::uint64_t step) noexcept = 0;
  // Host memory will be written from a copy of this step, so earlier steps are not missing any
  // more.
  virtual void set_copy_step(std::size_t index, std::uint64_t step) = 0;
  // Returns an event that happens when no reader needs the memory that a weight of this step would
  // overwrite.
  virtual Event may_be_written(std::size_t index, std::uint64_t step) const = 0;
  virtual void catch_up(std::size_t index) = 0;  // Writes the missing steps on the host.
};

}  // namespace sluiceway
