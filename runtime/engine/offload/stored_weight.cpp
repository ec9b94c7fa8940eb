#include "runtime/engine/offload/stored_weight.h"

#include <algorithm>

#include "kernels/perturb.h"
#include "runtime/device/device_memory.h"
#include "runtime/engine/offload/chunk_plan.h"
#include "runtime/store/blocks.h"

namespace sluiceway {

StoredWeight::StoredWeight(WeightForm form, DType dtype, std::int64_t elems,
                           std::int64_t chunk_elems)
    : form_(form),
      dtype_(dtype),
      elems_(elems),
      each_(ChunkPlan::elems_of_each(elems, chunk_elems)) {}

std::uint64_t StoredWeight::chunk_bytes(WeightForm form, std::int64_t elems) noexcept {
  const auto stored = static_cast<std::uint64_t>(round_up(elems, ChunkPlan::kStoredAlignment));
  return round_up(form.bytes(stored), kBlockBytes);
}

std::uint64_t StoredWeight::chunk_bytes() const noexcept {
  return chunk_bytes(form_, std::min(each_, elems_));
}

std::uint64_t StoredWeight::bytes() const noexcept {
  const std::int64_t whole = elems_ / each_, rest = elems_ % each_;
  return static_cast<std::uint64_t>(whole) * chunk_bytes() +
         (rest > 0 ? chunk_bytes(form_, rest) : 0);
}

std::uint64_t StoredWeight::part_bytes(std::uint64_t most) const noexcept {
  const std::uint64_t chunks = std::max<std::uint64_t>(1, most / chunk_bytes());
  return std::min(chunks * chunk_bytes(), bytes());
}

void StoredWeight::unpack(std::uint64_t first, std::span<const std::byte> part,
                          std::span<std::byte> weight, StreamRef stream) const {
  const std::size_t width = size_bytes(dtype_);
  auto at = static_cast<std::int64_t>(first / chunk_bytes()) * each_;
  for (; !part.empty() && at < elems_; at += each_) {
    const std::int64_t elems = std::min(each_, elems_ - at);
    const std::span<std::byte> to = weight.subspan(static_cast<std::size_t>(at) * width,
                                                   static_cast<std::size_t>(elems) * width);
    const auto image = part.first(form_.bytes(static_cast<std::uint64_t>(elems)));
    materialise(image, form_, to, dtype_, Theta{}, Rounding::kNearest, NoiseKey{}, stream);
    part = part.subspan(std::min<std::size_t>(part.size(), chunk_bytes()));
  }
}

}  // namespace sluiceway
