// The bytes of a scalar log: its header and its entries, each checked as a whole.
//
// docs/zo_log.md has the grammar. An entry counts only if its checksum holds. The checksum covers
// the log's id and the entry's number, so an entry of another log or place never counts.
//
// Thread safety: pure functions.
// Errors:        Corrupt: bytes that no writer here produces; the text names the fault.
//                Unavailable: a version that this build does not read. InvalidArgument: a shape
//                that no log has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "runtime/store/format.h"

namespace sluiceway {

inline constexpr std::uint32_t kLogVersion = 1;
inline constexpr std::size_t kLogHeaderBytes = 128;
inline constexpr std::uint32_t kMostDirections = 1024, kMostGroups = 1024;

using LogId = StoreId;
using BaseHash = std::array<std::byte, 16>;  // Hash of the weights, computed by the engine.

// Stored weights, and the theta that they are.
struct Base {
  BaseHash hash{};
  std::uint64_t generation = 0;  // Of the arena that holds them.
  std::uint64_t step = 0;        // Step of their theta.

  friend bool operator==(const Base&, const Base&) = default;
};

std::string to_text(const Base& base);  // For errors.

// Stored only for the reader of the log; kernels define the meaning of these numbers.
struct NoiseForm {
  std::uint32_t family = 0;
  std::uint32_t rank = 0;  // 0: elementwise.
  std::uint32_t period_steps = 0;

  friend bool operator==(const NoiseForm&, const NoiseForm&) = default;
};

// Properties common to all entries of a log; a log is never appended to with another shape.
struct LogShape {
  std::uint64_t run_seed = 0;
  NoiseForm noise{};
  std::uint32_t groups = 1;
  std::uint32_t directions = 1;
  bool records_seeds = false;  // Else run seed, step and number determine directions.

  friend bool operator==(const LogShape&, const LogShape&) = default;
};

struct LogHeader {
  LogId id{};
  LogShape shape{};
  Base first{};  // The base at the start of the log.

  friend bool operator==(const LogHeader&, const LogHeader&) = default;
};

// Rates of one parameter group in one step. The factor is recorded instead of Gamma, since Gamma is
// the product from a base on, and there may be several bases (docs/zo_log.md section 3).
struct GroupRate {
  double lr = 0;
  double decay = 1;  // 1 - lr wd, rounded as in replay.h.

  friend bool operator==(const GroupRate&, const GroupRate&) = default;
};

// Makes theta of step + 1 from theta of `step`.
struct UpdateEntry {
  std::uint64_t step = 0;
  bool non_finite = false;           // Some loss was not finite; its g is recorded as 0.
  std::vector<std::uint64_t> seeds;  // One per direction, or none.
  std::vector<float> g;              // One per direction.
  std::vector<GroupRate> rates;      // One per group.

  friend bool operator==(const UpdateEntry&, const UpdateEntry&) = default;
};

// Announces that an arena may hold this theta; only the arena knows whether it does.
struct BaseEntry {
  Base base;

  friend bool operator==(const BaseEntry&, const BaseEntry&) = default;
};

// Continues from `step` of the line that the log had after its first `entries` entries.
struct ReturnEntry {
  std::uint64_t step = 0;
  std::uint64_t entries = 0;

  friend bool operator==(const ReturnEntry&, const ReturnEntry&) = default;
};

using LogEntry = std::variant<UpdateEntry, BaseEntry, ReturnEntry>;

void check_shape(const LogShape& shape);
std::size_t entry_bytes(const LogShape& shape) noexcept;  // A multiple of 8.

std::vector<std::byte> encode(const LogHeader& header);
std::vector<std::byte> encode(const LogEntry& entry, const LogHeader& header, std::uint64_t number);

LogHeader decode_log_header(std::span<const std::byte> bytes);
LogEntry decode_log_entry(std::span<const std::byte> bytes, const LogHeader& header,
                          std::uint64_t number);

}  // namespace sluiceway
