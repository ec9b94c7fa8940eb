// Weights in host memory into which steps are written, with the step that each weight has reached.
//
// A step is appended when it is made. A ring that brings a weight to the device writes the missing
// steps there and brings it back (weight_ring.h); catch_up() does the same on the host for all
// other weights. Both wait before they overwrite a weight that a snapshot still needs
// (master_snapshot.h).
//
// Invariant, which the tests name:
//   M1  A weight receives each step once and in order, whoever writes it.
//
// Thread safety: one thread at a time; only catch_up() may run on any thread beside the others.
//                While a ring has copies of a weight in flight, it alone may use that weight.
// Lifetime:      host memory of the weights outlives this.
// Errors:        InvalidArgument: memory that belongs to none of these weights; weights of f16;
//                more directions than one call takes; a snapshot while another is read. Nothing was
//                changed. Error: data on its way to a weight did not arrive.
// Cost:          a step, some tens of bytes, is kept while some weight lacks it, and until the next
//                step: a copy that left for the device before the last step may be older than its
//                weight. catch_up() takes the time of write_steps(), shared by the threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/noise.h"
#include "runtime/device/worker.h"
#include "runtime/engine/zo/master_snapshot.h"
#include "runtime/engine/zo/range_team.h"
#include "runtime/engine/zo/zo_pass.h"

namespace sluiceway {

class HostMasters final : public WrittenWeights {
 public:
  struct Options {
    std::uint64_t run_seed = 0;
    NoiseFamily family = NoiseFamily::kRademacher;
    std::uint64_t step = 0;  // Step of the weights.
    int threads = 1;         // For catch_up().
  };
  explicit HostMasters(const Options& options);

  void hold(std::vector<StreamedWeight> weights);  // All weights, each once; writes to `host`.
  std::size_t size() const noexcept { return weights_.size(); }
  std::size_t index_of(const StreamedWeight& use) const override;
  const StreamedWeight& weight(std::size_t index) const { return weights_.at(index); }

  // ---- Steps ----
  std::uint64_t next_step() const override { return steps()->next(); }
  std::shared_ptr<const WrittenSteps> steps() const;
  void append(ZoUpdates step);
  void restart(std::uint64_t step);  // Declares that all weights are at this step.

  // ---- One weight ----
  std::byte* data(std::size_t index) const override;
  std::uint64_t step_of(std::size_t index) const override;
  void expect(std::size_t index, std::uint64_t step) override;
  void land(std::size_t index, std::uint64_t step) noexcept override;
  void drop(std::size_t index, std::uint64_t step) noexcept override;  // Its snapshot fails.
  void set_copy_step(std::size_t index, std::uint64_t step) override;
  // The threads pass ranges of elements to `act` once the missing steps are written; ranges begin
  // at tiles of an image (kernels/fp8_image.h).
  using Act = std::function<void(std::uint64_t begin, std::uint64_t end)>;
  void catch_up(std::size_t index, const Act& act);
  void catch_up(std::size_t index) override { catch_up(index, {}); }

  // ---- A snapshot ----
  std::shared_ptr<MasterSnapshot> begin_snapshot();           // At next_step().
  std::shared_ptr<MasterSnapshot> snapshot() const noexcept;  // The last one; null: none yet.
  Event may_be_written(std::size_t index, std::uint64_t step) const override;

 private:
  Error not_back(std::size_t index, std::uint64_t step) const;
  void check_landed(std::size_t index, std::uint64_t step) const;

  std::uint64_t run_seed_;
  NoiseFamily family_;
  std::vector<StreamedWeight> weights_;
  std::map<const void*, std::size_t> by_memory_;
  std::mutex catching_up_;  // Guards the team; locked before mutex_.
  RangeTeam team_;
  mutable std::mutex mutex_;                   // Guards the members below.
  std::shared_ptr<const WrittenSteps> steps_;  // Steps that some weight may lack.
  std::vector<std::uint64_t> step_of_;         // Step of host memory, or of a copy on its way.
  std::vector<std::uint64_t> landed_;          // Step of host memory, after arrivals.
  std::vector<std::uint64_t> lacks_from_;      // First step that it, or its copy, lacks.
  std::uint64_t lacked_from_;                  // The least of these at the last append().
  std::shared_ptr<MasterSnapshot> snapshot_;
};

// Sends f32 masters over a link in fewer bits, as images, which are made when their step is known.
//
// A read writes the missing steps into the master, in the master's own type, and returns its image,
// rounded to nearest. So no later value is computed from a rounded one.
//
// Thread safety: as WeightSource. A thread of this object makes the reads one after the other.
// Lifetime:      the masters outlive this object, whose destructor completes all requested reads.
// Errors:        as HostMasters::catch_up(), passed to `done`.
class MasterImages final : public WeightSource {
 public:
  MasterImages(HostMasters& masters, WeightForm wire);

  // Makes a use of an f32 master use its image instead, unless the use must stay on the device.
  void stand_for(StreamedWeight& use, std::size_t master) const;

  std::uint64_t read_bytes(std::size_t weight) const override;
  bool is_disk() const override { return false; }
  void read(std::size_t weight, std::span<std::byte> into, Done done) override;

 private:
  void make(std::size_t weight, std::span<std::byte> into);

  HostMasters& masters_;
  WeightForm wire_;
  Worker worker_;
};

}  // namespace sluiceway
