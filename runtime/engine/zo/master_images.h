// Masters of f32 as they cross a link in fewer bits: read when their step is known.
//
// A read writes into the master what it lacks of the steps so far, in the master's own type, and
// leaves its image, rounded to nearest. So a rounded number is never the beginning of another one.
//
// Thread safety: as WeightSource. Reads are made one after the other, on a thread of this.
// Lifetime:      the masters outlive this, which runs what was asked for when it goes.
// Errors:        those of HostMasters::catch_up(), given to `done`.
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

  // Lets a use of a master of f32 be of its image, if it need not stay on the device.
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
