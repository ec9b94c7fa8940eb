// One pass over all chunks of an arena, in their order, through a few buffers.
//
//   read    the last commit's, two pieces ahead
//   act     in the calling thread: what is read becomes what is written, or is made from nothing
//   write   staged, three pieces behind at most
//
// So a drive is busy while the processor is, and host memory is kPassBuffers chunks, whatever the
// size of the model.
//
// Errors: the first one, of a request (with its weight named), of `act` or of what is asked
//         between pieces; nothing of the pass is in flight then. What was staged stays so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>

#include "runtime/engine/zo/arena_plan.h"
#include "runtime/memory/budget.h"
#include "runtime/store/chunk_store.h"

namespace sluiceway {

inline constexpr std::size_t kPassBuffers = 6;

struct ArenaPass {
  // Whole blocks: the piece's bytes, and zeros. False: it is not to be written.
  using Act = std::function<bool(const ArenaPiece& piece, std::span<std::byte> blocks)>;

  bool reads = true;
  bool writes = false;
  Act act;
  // Before each piece, with the bytes that are done and all of them; what it throws ends the pass.
  std::function<void(std::uint64_t done, std::uint64_t all)> progress = {};
};

// Buffers for this plan, at most kPassBuffers, and the bytes that they take.
std::size_t pass_buffers(const ArenaPlan& plan) noexcept;
std::uint64_t pass_bytes(const ArenaPlan& plan) noexcept;

// The buffers are reserved in `budget`, tier kHost.
void run_pass(ChunkStore& store, const ArenaPlan& plan, Budget& budget, const ArenaPass& pass);

// `error`, with the weight's name where it is one of the drive or of what it holds.
std::exception_ptr of_weight(const std::exception_ptr& error, const ArenaWeight& weight);

}  // namespace sluiceway
