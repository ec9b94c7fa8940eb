// Sends f32 masters over a link in fewer bits, as images, which are made when their step is known.
//
// A read writes the missing steps into the master, in the master's own type, and returns its image,
// rounded to nearest. So no later value is computed from a rounded one.
//
// Thread safety: as WeightSource. A thread of this object makes the reads one after the other.
// Lifetime:      the masters outlive this object, whose destructor completes all requested reads.
// Errors:        as HostMasters::catch_up(), passed to `done`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/device/worker.h"
#include "runtime/engine/zo/host_masters.h"
#include "runtime/engine/zo/weight_source.h"

namespace sluiceway {

class MasterImages final : public WeightSource {
 public:
  MasterImages(HostMasters& masters, WeightForm wire);

  // Makes a use of an f32 master use its image instead, unless the use must stay on the device.
  void stand_for(ZoWeight& use, std::size_t master) const;

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
