#include "runtime/engine/zo/resident_set.h"

#include <cstddef>
#include <numeric>

namespace sluiceway {

std::vector<bool> choose_resident(std::span<const std::uint64_t> bytes, std::uint64_t room) {
  std::vector<bool> chosen(bytes.size());
  const double total =
      static_cast<double>(std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0}));
  if (total == 0) return chosen;
  // A weight is taken when half of it is due: the share of all bytes so far that has its room.
  const double share = static_cast<double>(room) / total;
  double due = 0;
  std::uint64_t left = room;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    due += share * static_cast<double>(bytes[i]);
    if (due < 0.5 * static_cast<double>(bytes[i]) || bytes[i] > left) continue;
    chosen[i] = true;
    left -= bytes[i];
    due -= static_cast<double>(bytes[i]);
  }
  for (std::size_t i = 0; i < bytes.size(); ++i) {  // What is left over.
    if (chosen[i] || bytes[i] > left) continue;
    chosen[i] = true;
    left -= bytes[i];
  }
  return chosen;
}

}  // namespace sluiceway
