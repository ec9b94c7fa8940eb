#include "runtime/engine/offload/state_places.h"

#include <algorithm>

namespace sluiceway {
namespace {

// Bytes of a chunk in place.
std::uint64_t whole_bytes(const PlannedChunk& chunk, const StateForm& form, DType gradient,
                          int extents) {
  if (form.is_frozen()) return form.bytes();
  const auto extent = static_cast<std::uint64_t>(chunk.stored_elems) * size_bytes(gradient);
  return form.bytes() + static_cast<std::uint64_t>(extents) * extent;
}

// Deals chunks to host memory while it has its share of those that were dealt.
class Dealer {
 public:
  Dealer(std::uint64_t room, std::uint64_t all) : room_(room), all_(all) {}

  bool takes(std::uint64_t bytes) {
    const auto product = [](std::uint64_t a, std::uint64_t b) {
      return static_cast<double>(a) * static_cast<double>(b);
    };
    const bool is_due = room_ > 0 && product(taken_, all_) <= product(room_, dealt_);
    const bool taken = is_due && bytes <= room_ - taken_;
    dealt_ += bytes;
    taken_ += taken ? bytes : 0;
    return taken;
  }

 private:
  std::uint64_t room_, all_;
  std::uint64_t dealt_ = 0, taken_ = 0;
};

}  // namespace

StatePlaces::StatePlaces(const ChunkPlan& plan, StateCodec codec, std::span<const DType> weights,
                         std::span<const Streamed> streamed, DType gradient,
                         const InPlace& in_place) {
  std::uint64_t all = 0;
  for (const PlannedChunk& chunk : plan.chunks()) {
    all +=
        whole_bytes(chunk, StateForm(codec, chunk, weights, streamed), gradient, in_place.extents);
  }
  Dealer dealer(std::min(in_place.bytes, all), all);
  for (const PlannedChunk& chunk : plan.chunks()) {
    const StateForm form(codec, chunk, weights, streamed);
    const bool is_here = dealer.takes(whole_bytes(chunk, form, gradient, in_place.extents));
    ChunkPlaces& sum = is_here ? all_in_place_ : all_on_drives_;
    in_place_.push_back(is_here);
    places_.push_back(sum);
    sum.state_bytes += form.bytes() - form.weight_bytes();
    sum.weight_bytes += form.weight_bytes();
    if (form.weight_bytes() > 0) ++sum.weight;
    if (!is_here) widest_weight_ = std::max<std::uint64_t>(widest_weight_, form.weight_bytes());
    if (form.is_frozen()) continue;
    ++sum.trained;
    sum.elems += static_cast<std::size_t>(chunk.stored_elems);
    if (!is_here) widest_part_ = std::max<std::uint64_t>(widest_part_, form.part_bytes());
  }
}

}  // namespace sluiceway
