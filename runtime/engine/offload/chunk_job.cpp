#include "runtime/engine/offload/chunk_job.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <type_traits>
#include <utility>

#include "runtime/engine/offload/extent_sum.h"

namespace sluiceway {
namespace {

std::size_t stream_bytes(const PlannedChunk& chunk, DType dtype) {
  return static_cast<std::size_t>(chunk.stored_elems) * size_bytes(dtype);
}

std::vector<std::size_t> parts_of(StateSet states, const StateForm& form) {
  if (states == StateSet::kNone) return {};
  if (states == StateSet::kWeights) {
    return {form.is_streamed() ? form.weight_part() : form.master_part()};
  }
  std::vector<std::size_t> all(form.parts());
  std::iota(all.begin(), all.end(), std::size_t{0});
  if (form.weight_bytes() > 0) all.push_back(StateForm::kWeight);
  return all;
}

// Returns the bytes of a copied weight's element, the widest of the chunk; 0: none is copied.
std::size_t width_of_copies(const ChunkJob& job, const StateStream::Types& types) {
  if (job.travelling.empty()) return 0;
  std::size_t width = 0;
  for (const ChunkPiece& piece : job.chunk.pieces) {
    const DType dtype = types.weights[static_cast<std::size_t>(piece.tensor)];
    // Only the ring is page-locked, so that a copy to a card runs beside other work.
    const bool copied = !job.form.stores(dtype) || (job.in_place && types.on_card);
    if (copied) width = std::max(width, size_bytes(dtype));
  }
  return width;
}

// Returns how many gradients take memory of the lease; extents in place do not.
std::size_t leased_gradients(const ChunkJob& job) {
  return job.in_place && !job.filled ? 0 : job.regions;
}

// Updates a tile of f32 states; `copy` has the new weight in the model's type, unless that is f32.
template <typename G, typename Weight>
void adam_tile(std::span<const G> g, const PieceUpdate& with, const StateForm::PieceState& state,
               std::span<Weight> copy) {
  const AdamMoments moments = AdamMoments::in_place(state[0], state[1]);
  const std::span<float> master = state[StateForm::kMaster];
  if constexpr (std::is_same_v<Weight, float>) {
    cpu::adam_step(g, with.grad_scale, moments, with.hyper, MasterWeight{master, master});
  } else {
    cpu::adam_step(g, with.grad_scale, moments, with.hyper,
                   MasterAndCopy<Weight>{master, master, copy});
  }
}

// Calls act(first, tile) for the gradient, or for each tile of the sum of several.
template <typename G, typename Act>
void for_each_tile(const std::vector<std::span<const G>>& gradients, const Act& act) {
  if (gradients.size() == 1) return act(std::size_t{0}, gradients.front());
  for_each_sum_tile(gradients, act);
}

// f32 states of a tile, on their way through the cache.
class Scratch {
 public:
  static constexpr std::size_t kElems = StateForm::kTileElems;

  StateForm::PieceState first(std::size_t elems) {
    return {std::span(m_).first(elems), std::span(v_).first(elems),
            std::span(master_).first(elems)};
  }

 private:
  std::array<float, kElems> m_, v_, master_;
};

NoiseKey key_of(const ChunkPiece& piece, const StateStream::Types& types, std::int64_t step) {
  return {types.seed, static_cast<std::uint64_t>(step),
          types.names[static_cast<std::size_t>(piece.tensor)], 0};
}

}  // namespace

ChunkJob::ChunkJob(int number, const PlannedChunk& of, ChunkUpdate with, StateSet states,
                   const StateStream::Types& types, bool changes_in_place)
    : index(number),
      in_place(changes_in_place),
      chunk(of),
      update(std::move(with)),
      form(types.codec, of, types.weights, types.streamed),
      travelling(parts_of(states, form)),
      filled(update.fill != nullptr),
      regions(filled ? 1 : static_cast<std::size_t>(update.extents)) {}

std::size_t ChunkJob::state_bytes() const {
  std::size_t bytes = 0;
  for (const std::size_t part : travelling) bytes += form.bytes_of(part);
  return bytes;
}

std::size_t ChunkJob::fetched_bytes() const {
  return state_bytes() - (form.is_copy() ? form.weight_bytes() : 0);
}

std::size_t ChunkJob::extent_bytes(const StateStream::Types& types) const {
  return stream_bytes(chunk, types.gradient);
}

std::size_t ChunkJob::bytes(const StateStream::Types& types) const {
  return (in_place ? 0 : state_bytes()) + leased_gradients(*this) * extent_bytes(types) +
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
  if (!in_place) {
    for (const std::size_t part : travelling) parts[part] = next(form.bytes_of(part));
  }
  const std::size_t leased = leased_gradients(*this);
  for (std::size_t i = 0; i < leased; ++i) gradients.push_back(next(extent_bytes(types)));
  if (!update.gathered.empty()) gradients.push_back(update.gathered);
  copy = rest;
  copy_width = width_of_copies(*this, types);
}

std::span<std::byte> ChunkJob::weight_of(const ChunkPiece& piece, DType dtype) const {
  const auto first = static_cast<std::size_t>(piece.at);
  const std::size_t bytes = static_cast<std::size_t>(piece.elems) * size_bytes(dtype);
  const bool is_stored = copy_width < size_bytes(dtype);
  return is_stored ? form.weight(parts, piece) : copy.subspan(first * copy_width, bytes);
}

void ChunkJob::visit(const StateStream::Visit& act, bool writes) {
  for (const ChunkPiece& piece : chunk.pieces) {
    if (form.is_frozen()) {
      std::vector<float> weight(static_cast<std::size_t>(piece.elems));
      if (!writes) form.load_weight(parts, piece, weight);
      act(piece, {std::span<float>(), {}, weight});
      if (writes) form.copy_weight(parts, piece, weight);
      continue;
    }
    form.is_plain() ? act(piece, form.in_place(parts, piece)) : visit_rounded(piece, act, writes);
    if (writes && form.is_copy()) form.copy_weight(parts, piece, form.masters(parts, piece));
  }
}

void ChunkJob::visit_rounded(const ChunkPiece& piece, const StateStream::Visit& act, bool writes) {
  const auto elems = static_cast<std::size_t>(piece.elems);
  std::vector<float> m(elems), v(elems), master(elems);
  const StateForm::PieceState state{m, v, master};
  const auto each_tile = [&](const auto& pass) {
    for (std::size_t at = 0; at < elems; at += StateForm::kTileElems) {
      const std::size_t count = std::min(StateForm::kTileElems, elems - at);
      pass(at,
           {state[0].subspan(at, count), state[1].subspan(at, count), state[2].subspan(at, count)});
    }
  };
  each_tile([&](std::size_t at, const StateForm::PieceState& tile) {
    form.load(parts, piece, at, tile);
  });
  act(piece, state);
  if (!writes) return;
  each_tile([&](std::size_t at, const StateForm::PieceState& tile) {
    form.store(parts, piece, at, tile, {});
  });
}

// For a form that is not plain: in tiles that stay in the cache.
template <typename G, typename Weight>
void ChunkJob::adam_rounded(const ChunkPiece& piece, const PieceUpdate& with, std::size_t first,
                            std::span<const G> g, std::span<Weight> copied,
                            const StateStream::Types& types) {
  Scratch scratch;
  const bool copies = !form.holds(dtype_of<Weight>);
  for (std::size_t at = 0; at < g.size(); at += Scratch::kElems) {
    const std::size_t elems = std::min(Scratch::kElems, g.size() - at);
    const StateForm::PieceState tile = scratch.first(elems);
    form.load(parts, piece, first + at, tile);
    if (copies) {
      adam_tile(g.subspan(at, elems), with, tile, copied.subspan(first + at, elems));
    } else {
      adam_tile(g.subspan(at, elems), with, tile, std::span<float>());
    }
    form.store(parts, piece, first + at, tile, key_of(piece, types, with.hyper.step));
  }
}

void ChunkJob::adam(const StateStream::Types& types) {
  for (std::size_t p = 0; p < chunk.pieces.size(); ++p) {
    const ChunkPiece& piece = chunk.pieces[p];
    const PieceUpdate& with = update.pieces[p];
    if (!with.has_gradient) continue;
    const DType weight = types.weights[static_cast<std::size_t>(piece.tensor)];
    const std::span<std::byte> to = weight_of(piece, weight);
    const std::span<std::byte> made = form.is_copy() ? form.weight(parts, piece) : to;
    with_type(types.gradient, [&](auto g) {
      with_type(weight, [&](auto w) {
        const auto copied = elements<decltype(w)>(made);
        for_each_tile(gradients_of<decltype(g)>(piece), [&](std::size_t first, auto tile) {
          if (!form.is_plain()) return adam_rounded(piece, with, first, tile, copied, types);
          const auto part = [&](auto whole) { return whole.subspan(first, tile.size()); };
          const StateForm::PieceState state = form.in_place(parts, piece);
          adam_tile(tile, with, {part(state[0]), part(state[1]), part(state[2])}, part(copied));
        });
      });
    });
    if (form.is_copy()) form.clear_end(parts, piece);
    if (!form.stores(weight)) continue;
    const std::span<std::byte> stored = form.weight(parts, piece);
    if (to.data() != stored.data()) std::ranges::copy(stored, to.begin());
  }
}

void ChunkJob::scan_sums(const StateStream::Types& types, std::span<ScanResult> results) const {
  for (std::size_t p = 0; p < results.size(); ++p) {
    results[p] = {};
    with_type(types.gradient, [&](auto g) {
      const auto extents = gradients_of<decltype(g)>(chunk.pieces[p]);
      for_each_sum_tile(extents, [&](std::size_t, std::span<const float> sum) {
        results[p] = merge(results[p], cpu::overflow_scan(sum));
      });
    });
  }
}

bool ChunkJob::is_fetched(std::size_t part) const {
  return part != StateForm::kWeight || !form.is_copy() || travelling.size() == 1;
}

void ChunkJob::round_weights(const StateStream::Types& types) {
  for (std::size_t p = 0; p < chunk.pieces.size(); ++p) {
    const ChunkPiece& piece = chunk.pieces[p];
    const DType weight = types.weights[static_cast<std::size_t>(piece.tensor)];
    if (!update.pieces[p].has_gradient || form.stores(weight)) continue;
    with_type(weight, [&](auto w) {
      std::ranges::transform(form.masters(parts, piece),
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
