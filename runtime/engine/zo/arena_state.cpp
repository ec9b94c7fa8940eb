#include "runtime/engine/zo/arena_state.h"

#include <algorithm>
#include <string_view>

#include "kernels/base/check.h"
#include "kernels/base/checksum.h"
#include "runtime/store/byte_stream.h"

namespace sluiceway {
namespace {

constexpr std::string_view kMagic = "SLUICEZA";
constexpr std::size_t kSumBytes = sizeof(std::uint64_t);

}  // namespace

std::vector<std::byte> encode(const ArenaState& state) {
  const Base& base = state.arena.base;
  ByteWriter out;
  out.put(std::as_bytes(std::span(kMagic)));
  out.put(kArenaStateVersion);
  out.put(std::uint32_t{0});
  out.put(std::span<const std::byte>(base.hash));
  out.put(base.generation);
  out.put(base.step);
  out.put(std::span<const std::byte>(state.arena.made_with));
  out.put(static_cast<std::uint64_t>(state.run.size()));
  out.put(std::span<const std::byte>(state.run));
  out.put(checksum64(out.bytes()));
  return out.take();
}

ArenaState decode_arena_state(std::span<const std::byte> bytes) {
  ByteReader fields(bytes, "the arena's state");
  if (!std::ranges::equal(fields.take(kMagic.size()), std::as_bytes(std::span(kMagic)))) {
    throw Corrupt(concat("the arena's state: does not begin with ", kMagic));
  }
  if (const auto version = fields.take<std::uint32_t>(); version != kArenaStateVersion) {
    throw Unavailable(concat("the arena's state: version is ", version, ", expected ",
                             kArenaStateVersion, "; this build does not read it"));
  }
  if (bytes.size() < kArenaStateBytes) {
    throw Corrupt(concat("the arena's state: is ", bytes.size(), " bytes, expected at least ",
                         kArenaStateBytes));
  }
  const auto summed = bytes.first(bytes.size() - kSumBytes);
  ByteReader sum(bytes.last(kSumBytes), "the arena's state");
  if (const auto said = sum.take<std::uint64_t>(), found = checksum64(summed); found != said) {
    throw Corrupt(
        concat("the arena's state: has checksum ", to_hex(found), ", expected ", to_hex(said)));
  }
  ArenaState state;
  (void)fields.take<std::uint32_t>();
  std::ranges::copy(fields.take(state.arena.base.hash.size()), state.arena.base.hash.begin());
  state.arena.base.generation = fields.take<std::uint64_t>();
  state.arena.base.step = fields.take<std::uint64_t>();
  std::ranges::copy(fields.take(state.arena.made_with.size()), state.arena.made_with.begin());
  const auto count = fields.take<std::uint64_t>();
  if (count != fields.left() - kSumBytes) {
    throw Corrupt(concat("the arena's state: has ", fields.left() - kSumBytes,
                         " bytes of the run, expected ", count));
  }
  const auto run = fields.take(count);
  state.run.assign(run.begin(), run.end());
  return state;
}

std::vector<std::byte> hashed_header(const ArenaWeight& weight) {
  ByteWriter out;
  out.put(static_cast<std::uint64_t>(weight.name.size()));
  out.put(std::as_bytes(std::span(weight.name)));
  out.put(static_cast<std::uint32_t>(weight.dtype));
  out.put(static_cast<std::uint64_t>(weight.elements));
  return out.take();
}

}  // namespace sluiceway
