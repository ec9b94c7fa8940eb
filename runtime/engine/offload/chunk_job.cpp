#include "runtime/engine/offload/chunk_job.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "runtime/engine/offload/extent_sum.h"

namespace sluiceway {
namespace {

std::size_t stream_bytes(const PlannedChunk& chunk, DType dtype) {
  return static_cast<std::size_t>(chunk.stored_elems) * size_bytes(dtype);
}

// Returns the bytes of a copied weight's element, the widest of the chunk; 0: none is copied.
std::size_t width_of_copies(const ChunkJob& job, const StateStream::Types& types) {
  if (job.streams.empty()) return 0;
  std::size_t width = 0;
  for (const ChunkPiece& piece : job.chunk.pieces) {
    const DType dtype = types.weights[static_cast<std::size_t>(piece.tensor)];
    const bool copied = dtype != DType::kF32 || types.copies_masters();
    if (copied) width = std::max(width, size_bytes(dtype));
  }
  return width;
}

// Returns how many gradients take memory of the lease; extents in place do not.
std::size_t leased_gradients(const ChunkJob& job, const StateStream::Types& types) {
  return types.in_place && !job.filled ? 0 : job.regions;
}

template <typename G, typename Weight>
void adam_tile(std::span<const G> g, const PieceUpdate& with, const StateStream::PieceState& state,
               std::span<Weight> copy) {
  const AdamMoments moments = AdamMoments::in_place(state[0], state[1]);
  const std::span<float> master = state[ChunkJob::kMaster];
  if constexpr (std::is_same_v<Weight, float>) {
    cpu::adam_step(g, with.grad_scale, moments, with.hyper, MasterWeight{master, master});
  } else {
    cpu::adam_step(g, with.grad_scale, moments, with.hyper,
                   MasterAndCopy<Weight>{master, master, copy});
  }
}

template <typename G, typename Weight>
void adam_piece(const std::vector<std::span<const G>>& gradients, const PieceUpdate& with,
                const StateStream::PieceState& state, std::span<Weight> copy) {
  if (gradients.size() == 1) return adam_tile(gradients.front(), with, state, copy);
  for_each_sum_tile(gradients, [&](std::size_t at, std::span<const float> sum) {
    const auto part = [&](auto whole) { return whole.subspan(at, sum.size()); };
    adam_tile(sum, with, {part(state[0]), part(state[1]), part(state[2])}, part(copy));
  });
}

}  // namespace

ChunkJob::ChunkJob(int number, const PlannedChunk& of, ChunkUpdate with,
                   std::vector<std::size_t> states)
    : index(number),
      chunk(of),
      update(std::move(with)),
      streams(std::move(states)),
      filled(update.fill != nullptr),
      regions(filled ? 1 : static_cast<std::size_t>(update.extents)) {}

std::size_t ChunkJob::extent_bytes(const StateStream::Types& types) const {
  return stream_bytes(chunk, types.gradient);
}

std::size_t ChunkJob::state_bytes() const { return stream_bytes(chunk, DType::kF32); }

std::size_t ChunkJob::bytes(const StateStream::Types& types) const {
  const std::size_t states = types.in_place ? 0 : streams.size() * state_bytes();
  return states + leased_gradients(*this, types) * extent_bytes(types) +
         static_cast<std::size_t>(chunk.stored_elems) * width_of_copies(*this, types);
}

void ChunkJob::cut(PinnedPool::Lease whole, const StateStream::Types& types) {
  lease.emplace(std::move(whole));
  std::span<std::byte> rest = lease->bytes();
  const auto next = [&rest](std::size_t count) {
    const auto taken = rest.first(count);
    rest = rest.subspan(count);
    return taken;
  };
  if (!types.in_place) {
    for (const std::size_t stream : streams) state[stream] = next(state_bytes());
  }
  const std::size_t leased = leased_gradients(*this, types);
  for (std::size_t i = 0; i < leased; ++i) gradients.push_back(next(extent_bytes(types)));
  if (!update.gathered.empty()) gradients.push_back(update.gathered);
  copy = rest;
  copy_width = width_of_copies(*this, types);
}

StateStream::PieceState ChunkJob::state_of(const ChunkPiece& piece) const {
  const auto part = [&](std::size_t stream) {
    return elements<float>(state[stream])
        .subspan(static_cast<std::size_t>(piece.at), static_cast<std::size_t>(piece.elems));
  };
  return {part(0), part(1), part(kMaster)};
}

std::span<std::byte> ChunkJob::weight_of(const ChunkPiece& piece, DType dtype) const {
  const auto first = static_cast<std::size_t>(piece.at);
  const std::size_t bytes = static_cast<std::size_t>(piece.elems) * size_bytes(dtype);
  const bool is_master = copy_width < size_bytes(dtype);
  return is_master ? state[kMaster].subspan(first * sizeof(float), bytes)
                   : copy.subspan(first * copy_width, bytes);
}

void ChunkJob::adam(const StateStream::Types& types) {
  for (std::size_t p = 0; p < chunk.pieces.size(); ++p) {
    const ChunkPiece& piece = chunk.pieces[p];
    const PieceUpdate& with = update.pieces[p];
    if (!with.has_gradient) continue;
    const DType weight = types.weights[static_cast<std::size_t>(piece.tensor)];
    with_type(types.gradient, [&](auto g) {
      with_type(weight, [&](auto w) {
        const auto copied = elements<decltype(w)>(weight_of(piece, weight));
        adam_piece(gradients_of<decltype(g)>(piece), with, state_of(piece), copied);
        if constexpr (std::is_same_v<decltype(w), float>) {
          const std::span<float> master = state_of(piece)[kMaster];
          if (copied.data() != master.data()) std::ranges::copy(master, copied.begin());
        }
      });
    });
  }
}

void ChunkJob::scan_sums(const StateStream::Types& types, std::span<ScanResult> results) const {
  for (std::size_t p = 0; p < results.size(); ++p) {
    results[p] = {};
    with_type(types.gradient, [&](auto g) {
      const auto parts = gradients_of<decltype(g)>(chunk.pieces[p]);
      for_each_sum_tile(parts, [&](std::size_t, std::span<const float> sum) {
        results[p] = merge(results[p], cpu::overflow_scan(sum));
      });
    });
  }
}

void ChunkJob::round_weights(const StateStream::Types& types) {
  for (std::size_t p = 0; p < chunk.pieces.size(); ++p) {
    const ChunkPiece& piece = chunk.pieces[p];
    const DType weight = types.weights[static_cast<std::size_t>(piece.tensor)];
    if (!update.pieces[p].has_gradient || weight == DType::kF32) continue;
    with_type(weight, [&](auto w) {
      std::ranges::transform(elements<float>(weight_of(piece, DType::kF32)),
                             elements<decltype(w)>(weight_of(piece, weight)).begin(),
                             [](float value) { return from_float<decltype(w)>(value); });
    });
  }
}

void ChunkJob::hand_on(const ChunkUpdate::Emit& take, const StateStream::Types& types,
                       StreamRef stream) const {
  for (std::size_t p = 0; p < chunk.pieces.size(); ++p) {
    const ChunkPiece& piece = chunk.pieces[p];
    if (!update.pieces[p].has_gradient) continue;
    const DType weight = types.weights[static_cast<std::size_t>(piece.tensor)];
    take(piece, weight_of(piece, weight), stream);
  }
}

}  // namespace sluiceway
