#include "runtime/engine/offload/run_counts.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "runtime/store/byte_stream.h"

namespace sluiceway {

void check_more(std::uint64_t more, std::size_t tensors, std::uint64_t room) {
  const std::uint64_t counts = sizeof(std::uint64_t) * (2 + tensors);
  SLUICEWAY_CHECK(more <= room - std::min(room, counts), "run state: it has ", more,
                  " bytes, expected at most ", room - std::min(room, counts),
                  " in a commit, after the counts of ", tensors, " tensors");
}

std::vector<std::byte> encode_run_counts(const RunCounts& counts) {
  ByteWriter out;
  out.put(static_cast<std::uint64_t>(counts.committed_steps));
  out.put(static_cast<std::uint64_t>(counts.tensor_steps.size()));
  for (const std::int64_t steps : counts.tensor_steps) {
    out.put(static_cast<std::uint64_t>(steps));
  }
  out.put(std::span<const std::byte>(counts.more));
  return out.take();
}

RunCounts decode_run_counts(std::span<const std::byte> bytes, std::size_t tensors) {
  ByteReader fields(bytes, "the run state");
  RunCounts counts;
  counts.committed_steps = static_cast<std::int64_t>(fields.take<std::uint64_t>());
  if (const auto found = fields.take<std::uint64_t>(); found != tensors) {
    throw Corrupt(
        concat("run state: it has the counts of ", found, " tensors, expected ", tensors));
  }
  for (std::size_t i = 0; i < tensors; ++i) {
    counts.tensor_steps.push_back(static_cast<std::int64_t>(fields.take<std::uint64_t>()));
  }
  const auto more = fields.take(fields.left());
  counts.more.assign(more.begin(), more.end());
  return counts;
}

}  // namespace sluiceway
