#include "runtime/memory/pinned_pool.h"

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "runtime/device/device_memory.h"
#include "runtime/device/event_state.h"
#include "runtime/memory/scribble.h"
#include "runtime/memory/slab_map.h"

namespace sluiceway {
namespace {

using Lock = std::unique_lock<std::mutex>;

constexpr std::size_t kMostNamed = 8;  // Leases named in a Timeout, the largest first.

// Every piece takes some room, so that every lease has an address of its own.
std::size_t room_for(std::size_t bytes) {
  return round_up(std::max<std::size_t>(bytes, 1), PinnedPool::kPieceBytes);
}

struct Piece {
  std::string name;
  std::size_t offset = 0;
  std::size_t bytes = 0;
  bool retiring = false;
};

using Pieces = std::map<std::uint64_t, Piece>;  // By generation.

std::string describe(const Pieces& pieces) {
  std::vector<Pieces::const_iterator> order;
  for (auto it = pieces.begin(); it != pieces.end(); ++it) order.push_back(it);
  std::stable_sort(order.begin(), order.end(),
                   [](auto a, auto b) { return a->second.bytes > b->second.bytes; });
  std::string text;
  for (std::size_t i = 0; i < order.size() && i < kMostNamed; ++i) {
    const auto& [generation, piece] = *order[i];
    text += concat(i == 0 ? "" : ", ", piece.name, " ", format_bytes(piece.bytes), " generation ",
                   generation, piece.retiring ? " (retiring)" : "");
  }
  if (order.size() > kMostNamed) text += concat(", and ", order.size() - kMostNamed, " more");
  return text.empty() ? "none" : text;
}

}  // namespace

// `mutex` guards every field; `freed` is signalled whenever a piece comes back.
struct PinnedPool::State {
  State(Buffer buffer, std::uint64_t first_generation)
      : slab(std::move(buffer)), map(slab.size()), next_generation(first_generation) {}

  std::optional<std::uint64_t> take(const Lock&, std::size_t bytes, std::string_view name,
                                    std::size_t alignment) {
    Piece piece{std::string(name), 0, bytes, false};
    const std::uint64_t generation = next_generation == 0 ? 1 : next_generation;
    const auto place = pieces.emplace(generation, std::move(piece)).first;
    const std::optional<std::size_t> offset = map.allocate(room_for(bytes), alignment);
    if (!offset) {
      pieces.erase(place);
      return std::nullopt;
    }
    place->second.offset = *offset;
    next_generation = generation + 1;
    held_bytes += bytes;
    return generation;
  }

  void give_back(std::uint64_t generation) noexcept {
    const std::lock_guard lock(mutex);
    const auto found = pieces.find(generation);
    const Piece& piece = found->second;
    scribble(slab.data() + piece.offset, piece.bytes);
    map.release(piece.offset, room_for(piece.bytes));
    held_bytes -= piece.bytes;
    pieces.erase(found);
    freed.notify_all();
  }

  Buffer slab;
  mutable std::mutex mutex;
  std::condition_variable freed;
  SlabMap map;
  Pieces pieces;
  std::size_t held_bytes = 0;
  std::uint64_t next_generation;
};

PinnedPool::PinnedPool(Budget& budget, DeviceId device, Config config) {
  SLUICEWAY_CHECK(config.slab_bytes > 0, "pinned_pool: slab of 0 bytes, expected 1 or more");
  Buffer slab(budget, Tier::kPinned, device, round_up(config.slab_bytes, PinnedPool::kPieceBytes),
              "slab of the pinned pool", Fill::kNone, config.pages);
  state_ = std::make_shared<State>(std::move(slab), config.first_generation);
}

PinnedPool::~PinnedPool() {
  Lock lock(state_->mutex);
  Pieces& pieces = state_->pieces;
  const bool all_retiring = std::all_of(pieces.begin(), pieces.end(),
                                        [](const auto& entry) { return entry.second.retiring; });
  if (!all_retiring) {
    std::fprintf(stderr, "pinned_pool: destroyed while leases are held: %s\n",
                 describe(pieces).c_str());
    std::terminate();
  }
  state_->freed.wait(lock, [&] { return pieces.empty(); });
}

PinnedPool::Lease PinnedPool::acquire(std::size_t bytes, std::string_view name,
                                      std::chrono::milliseconds timeout, std::size_t alignment) {
  State& state = *state_;
  SLUICEWAY_CHECK(std::has_single_bit(alignment) && alignment <= kPageBytes, "pinned_pool: ", name,
                  " asks for an alignment to ", alignment, " bytes, expected a power of two up to ",
                  kPageBytes);
  SLUICEWAY_CHECK(bytes <= state.slab.size(), "pinned_pool: ", name, " needs ", format_bytes(bytes),
                  ", expected at most the slab's ", format_bytes(state.slab.size()),
                  "; raise budget.pinned");
  Lock lock(state.mutex);
  std::optional<std::uint64_t> generation;
  const bool in_time = state.freed.wait_for(lock, timeout, [&] {
    return (generation = state.take(lock, bytes, name, alignment)).has_value();
  });
  if (!in_time) {
    throw Timeout(concat(
        "pinned_pool: ", name, " could not get ", format_bytes(bytes),
        alignment > PinnedPool::kPieceBytes ? concat(" aligned to ", alignment) : "", " within ",
        timeout.count(), " ms, the largest free piece is ",
        format_bytes(state.map.largest_free_bytes()), " and ", format_bytes(state.held_bytes),
        " of ", format_bytes(state.slab.size()), " are in ", state.pieces.size(),
        " leases in flight: ", describe(state.pieces), "; raise budget.pinned"));
  }
  std::byte* const data = state.slab.data() + state.pieces.at(*generation).offset;
  return Lease(state_, {data, bytes}, *generation);
}

bool PinnedPool::is_current(std::uint64_t generation) const {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->pieces.find(generation);
  return found != state_->pieces.end() && !found->second.retiring;
}

std::size_t PinnedPool::in_flight() const {
  const std::lock_guard lock(state_->mutex);
  return state_->pieces.size();
}

std::size_t PinnedPool::in_flight_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->held_bytes;
}

std::size_t PinnedPool::slab_bytes() const noexcept { return state_->slab.size(); }

std::size_t PinnedPool::huge_bytes() const {
  return sluiceway::huge_bytes(state_->slab.data(), state_->slab.size());
}

std::span<std::byte> PinnedPool::slab() const noexcept { return state_->slab.as<std::byte>(); }

PinnedPool::Lease::Lease(std::shared_ptr<State> state, std::span<std::byte> bytes,
                         std::uint64_t generation) noexcept
    : state_(std::move(state)), bytes_(bytes), generation_(generation) {}

PinnedPool::Lease::Lease(Lease&& other) noexcept
    : state_(std::move(other.state_)),
      bytes_(std::exchange(other.bytes_, {})),
      generation_(std::exchange(other.generation_, 0)) {}

PinnedPool::Lease& PinnedPool::Lease::operator=(Lease&& other) noexcept {
  Lease taken(std::move(other));
  std::swap(state_, taken.state_);
  std::swap(bytes_, taken.bytes_);
  std::swap(generation_, taken.generation_);
  return *this;
}

PinnedPool::Lease::~Lease() {
  if (state_ != nullptr) state_->give_back(generation_);
}

void PinnedPool::Lease::retire(const Event& done) noexcept {
  if (state_ == nullptr) return;
  const std::shared_ptr<State> state = std::exchange(state_, nullptr);
  const std::uint64_t generation = std::exchange(generation_, 0);
  bytes_ = {};
  if (done.happened()) return state->give_back(generation);
  {
    const std::lock_guard lock(state->mutex);
    state->pieces.at(generation).retiring = true;
  }
  done.state()->then([state, generation] { state->give_back(generation); });
}

}  // namespace sluiceway
