// The bytes that a commit of the offload engine stores beside the states: its counts, and its
// user's bytes.
//
//   run_state := steps:u64 tensors:u64 steps_of_tensor:u64* more
//
// Errors: Corrupt: not the bytes of a run with these tensors. InvalidArgument: the user's bytes do
//         not fit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sluiceway {

struct RunCounts {
  std::int64_t committed_steps = 0;
  std::vector<std::int64_t> tensor_steps;
  std::vector<std::byte> more;
};

// Throws if the user's bytes exceed a run state of `room` bytes without the counts.
void check_more(std::uint64_t more, std::size_t tensors, std::uint64_t room);
std::vector<std::byte> encode_run_counts(const RunCounts& counts);
RunCounts decode_run_counts(std::span<const std::byte> bytes, std::size_t tensors);

}  // namespace sluiceway
