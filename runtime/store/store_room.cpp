#include "runtime/store/store_room.h"

#include "runtime/store/new_layout.h"

namespace sluiceway {

void StoreRoom::hold(const Layout& layout) {
  if (!on_disk_) return;
  std::uint64_t bytes = 0;
  for (const DriveShare& drive : layout.drives) bytes += drive.bytes;
  if (bytes <= held_) return;
  reservations_.push_back(budget_.reserve(Tier::kDisk, bytes - held_, "the store"));
  held_ = bytes;
}

void StoreRoom::add_slot(ChunkStore& store, std::uint32_t region) {
  hold(with_more_slots(store.layout(), region, 1));
  store.add_slots(region, 1);
}

}  // namespace sluiceway
