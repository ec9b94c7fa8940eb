// One pass over all chunks of an arena, in order, through a few buffers.
//
//   read    reads the last commit, two pieces ahead
//   act     turns each piece read, or nothing, into the piece to write; in the calling thread
//   write   stages the piece, at most three pieces behind
//
// So drive and processor are busy at the same time, and host memory is kPassBuffers chunks,
// whatever the size of the model.
//
// Errors: the first error of a request (naming its weight), of `act` or of the check between
//         pieces; then nothing of the pass is in flight. What was staged stays staged.
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
  // Gets whole blocks: the piece's bytes, then zeros. Returns false if the piece must not be
  // written.
  using Act = std::function<bool(const ArenaPiece& piece, std::span<std::byte> blocks)>;

  bool reads = true;
  bool writes = false;
  Act act;
  // Called before each piece with bytes done and bytes in total; an exception ends the pass.
  std::function<void(std::uint64_t done, std::uint64_t all)> progress = {};
};

// Returns the number of buffers for this plan, at most kPassBuffers.
std::size_t pass_buffers(const ArenaPlan& plan) noexcept;
std::uint64_t pass_bytes(const ArenaPlan& plan) noexcept;

// Reserves the buffers in `budget`, tier kHost.
void run_pass(ChunkStore& store, const ArenaPlan& plan, Budget& budget, const ArenaPass& pass);

// Adds the weight's name to an error of the drive or of its content; returns other errors
// unchanged.
std::exception_ptr of_weight(const std::exception_ptr& error, const ArenaWeight& weight);

}  // namespace sluiceway
