// The offload engine's use of its store: commits, pins, and the states of single tensors.
#include <algorithm>
#include <string>

#include "kernels/base/check.h"
#include "runtime/engine/offload/offload_engine.h"
#include "runtime/engine/offload/run_counts.h"

namespace sluiceway {

// States that are changed in place are those of the last step, whatever was committed.
void OffloadEngine::take_over() {
  if (in_place() && begun_) return;
  const RunCounts counts = decode_run_counts(store_->run_state(store_->live()), tensors_.size());
  steps_ = counts.tensor_steps;
  gate_.set_committed_steps(counts.committed_steps);
  run_state_ = counts.more;
  note_uncommitted(false);
}

// ---- Durability ---------------------------------------------------------------------------------

void OffloadEngine::set_run_state(std::span<const std::byte> state) {
  check_more(state.size(), tensors_.size(), store_->layout().run_states.bytes);
  run_state_.assign(state.begin(), state.end());
}

std::vector<std::byte> OffloadEngine::run_state() {
  return decode_run_counts(store_->run_state(store_->live()), tensors_.size()).more;
}

// Extents spilled since then belong to no commit, but the store allows no other request meanwhile.
void OffloadEngine::commit() {
  check_begun("commit");
  synchronize();
  if (!uncommitted_) return;
  spill_.wait_written();
  const double begin_us = now_us();
  const RunCounts counts{gate_.committed_steps(), steps_, run_state_};
  {
    const auto changing = room_.changing();
    store_->commit(static_cast<std::uint64_t>(gate_.committed_steps()), encode_run_counts(counts));
    uncommitted_ = false;
  }
  ++commits_;
  const double end_us = now_us();
  commit_seconds_ += (end_us - begin_us) * 1e-6;
  lanes_.trace().add_range(lanes_.device_row(), "commit", begin_us, end_us);
}

std::uint64_t OffloadEngine::pin() {
  SLUICEWAY_CHECK(!in_place(),
                  "OffloadEngine: pin() cannot keep states in host memory, because they change in "
                  "place; save them with state_dict(), or use tier=disk");
  commit();
  spill_.wait_written();
  const auto changing = room_.changing();
  for (std::uint32_t region = 0; region < store_->layout().regions.size(); ++region) {
    const Region& found = store_->layout().regions[region];
    if (found.is_committed() && found.slots() < 3) room_.add_slot(*store_, region);
  }
  store_->pin();
  return store_->pinned()->generation;
}

void OffloadEngine::roll_back(std::uint64_t generation) {
  end_pass();
  synchronize();
  drop();
  const Commit& live = store_->live();
  const bool is_pinned = store_->pinned() && store_->pinned()->generation == generation;
  if (!is_pinned && live.generation != generation) {
    const std::string pinned = store_->pinned()
                                   ? concat(" and ", store_->pinned()->generation, " (step ",
                                            store_->pinned()->step, ", pinned)")
                                   : std::string();
    throw InvalidArgument(concat("store: generation ", generation, " no longer exists, expected ",
                                 live.generation, " (step ", live.step, ")", pinned));
  }
  {
    const auto changing = room_.changing();
    live.generation == generation ? store_->drop() : store_->revert();
  }
  take_over();
  begun_ = true;
}

// ---- States -------------------------------------------------------------------------------------

// Returns the version that has the states after the last step. If the next step has staged states
// already, that is the last commit, because gathering starts with everything committed.
Version OffloadEngine::written_version() {
  if (!speculation_.has_staged()) return Version::kStaged;
  spill_.wait_written();
  return Version::kLive;
}

void OffloadEngine::read_state(int index, const TensorState& into) {
  check_begun("read_state");
  check_trained("read_state", index);
  synchronize();
  const Version version = written_version();
  for (const int chunk : plan_.of_tensor(index)) {
    stream_.read(chunk, version,
                 [&](const ChunkPiece& piece, const StateStream::PieceState& state) {
                   if (piece.tensor != index) return;
                   const auto first = static_cast<std::size_t>(piece.first);
                   std::ranges::copy(state[0], into.exp_avg.subspan(first).begin());
                   std::ranges::copy(state[1], into.exp_avg_sq.subspan(first).begin());
                   std::ranges::copy(state[2], into.master.subspan(first).begin());
                 });
  }
}

void OffloadEngine::write_state(int index, const TensorState& from, std::int64_t steps) {
  check_begun("write_state");
  check_trained("write_state", index);
  SLUICEWAY_CHECK(!has_gradient(), "OffloadEngine: write_state() of ", tensor(index).name,
                  " while gradients are gathered; call step() or drop() first");
  SLUICEWAY_CHECK(steps >= 0, "OffloadEngine: write_state() got ", steps, " steps of ",
                  tensor(index).name, ", expected 0 or more");
  end_pass();
  synchronize();
  for (const int chunk : plan_.of_tensor(index)) {
    stream_.rewrite(chunk, [&](const ChunkPiece& piece, const StateStream::PieceState& state) {
      if (piece.tensor != index) return;
      const auto first = static_cast<std::size_t>(piece.first);
      const auto count = static_cast<std::size_t>(piece.elems);
      std::ranges::copy(from.exp_avg.subspan(first, count), state[0].begin());
      std::ranges::copy(from.exp_avg_sq.subspan(first, count), state[1].begin());
      std::ranges::copy(from.master.subspan(first, count), state[2].begin());
    });
  }
  steps_[at(index)] = steps;
  note_uncommitted(true);
}

}  // namespace sluiceway
