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
#include <vector>

#include "kernels/base/error.h"
#include "runtime/engine/zo/master_snapshot.h"
#include "runtime/engine/zo/range_team.h"
#include "runtime/engine/zo/written_steps.h"

namespace sluiceway {

class HostMasters {
 public:
  struct Options {
    std::uint64_t run_seed = 0;
    NoiseFamily family = NoiseFamily::kRademacher;
    std::uint64_t step = 0;  // Step of the weights.
    int threads = 1;         // For catch_up().
  };
  explicit HostMasters(const Options& options);

  void hold(std::vector<ZoWeight> weights);  // All weights, each once; writes to `host`.
  std::size_t size() const noexcept { return weights_.size(); }
  std::size_t index_of(const ZoWeight& use) const;
  const ZoWeight& weight(std::size_t index) const { return weights_.at(index); }

  // ---- Steps ----
  std::uint64_t next_step() const { return steps()->next(); }
  std::shared_ptr<const WrittenSteps> steps() const;
  void append(ZoUpdates step);
  void restart(std::uint64_t step);  // Declares that all weights are at this step.

  // ---- One weight ----
  std::byte* data(std::size_t index) const;
  std::uint64_t step_of(std::size_t index) const;
  // Announces a submitted copy that will bring host memory to this step; land() reports its
  // arrival.
  void expect(std::size_t index, std::uint64_t step);
  void land(std::size_t index, std::uint64_t step) noexcept;
  void drop(std::size_t index, std::uint64_t step) noexcept;  // No copy: its snapshot fails.
  // Host memory will be written from a copy of this step, so earlier steps are not missing any
  // more.
  void set_copy_step(std::size_t index, std::uint64_t step);
  // The threads pass ranges of elements to `act` once the missing steps are written; ranges begin
  // at tiles of an image (kernels/fp8_image.h).
  using Act = std::function<void(std::uint64_t begin, std::uint64_t end)>;
  void catch_up(std::size_t index, const Act& act = {});

  // ---- A snapshot ----
  std::shared_ptr<MasterSnapshot> begin_snapshot();           // At next_step().
  std::shared_ptr<MasterSnapshot> snapshot() const noexcept;  // The last one; null: none yet.
  // Returns an event that happens when no reader needs the memory that a weight of this step would
  // overwrite.
  Event may_be_written(std::size_t index, std::uint64_t step) const;

 private:
  Error not_back(std::size_t index, std::uint64_t step) const;
  void check_landed(std::size_t index, std::uint64_t step) const;

  std::uint64_t run_seed_;
  NoiseFamily family_;
  std::vector<ZoWeight> weights_;
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

}  // namespace sluiceway
