#include "runtime/engine/zo/log_format.h"

#include <algorithm>
#include <bit>
#include <string_view>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/checksum.h"
#include "runtime/store/byte_stream.h"

namespace sluiceway {
namespace {

constexpr std::string_view kMagic = "SLUICEZO";
constexpr std::size_t kSumBytes = sizeof(std::uint64_t);
constexpr std::size_t kEntryHeadBytes = 16;       // Kind, flags, step.
constexpr std::size_t kLeastEntryBodyBytes = 24;  // Generation and hash of a base.
constexpr std::uint32_t kUpdate = 1, kBase = 2, kReturn = 3;
constexpr std::uint32_t kNonFinite = 1;

std::span<const std::byte> magic() { return std::as_bytes(std::span(kMagic)); }

// Pads with zeros up to the sum.
void pad(ByteWriter& out, std::size_t bytes) {
  const std::vector<std::byte> zeros(bytes - kSumBytes - out.bytes().size());
  out.put(zeros);
}

// Of an entry without its sum, as number `number` of log `id`.
std::uint64_t entry_sum(std::span<const std::byte> entry, const LogId& id, std::uint64_t number) {
  ByteWriter summed;
  summed.put(id);
  summed.put(number);
  summed.put(entry);
  return checksum64(summed.bytes());
}

void check_sum(const std::string& what, std::uint64_t found, std::uint64_t expected) {
  if (found == expected) return;
  throw Corrupt(concat(what, ": its checksum is ", to_hex(found), ", expected ", to_hex(expected)));
}

std::uint64_t sum_at_end(std::span<const std::byte> bytes) {
  return ByteReader(bytes.last(kSumBytes), "scalar log").take<std::uint64_t>();
}

void check_padding(ByteReader& fields) {
  const auto rest = fields.take(fields.left());
  if (std::ranges::any_of(rest, [](std::byte b) { return b != std::byte{0}; })) {
    throw Corrupt(concat(fields.what(), ": has bytes after its fields, expected zeros"));
  }
}

template <std::size_t N>
std::array<std::byte, N> take_bytes(ByteReader& fields) {
  std::array<std::byte, N> bytes;
  std::ranges::copy(fields.take(N), bytes.begin());
  return bytes;
}

void put_fields(ByteWriter& out, const UpdateEntry& update) {
  out.put(kUpdate);
  out.put(update.non_finite ? kNonFinite : 0U);
  out.put(update.step);
  for (const std::uint64_t seed : update.seeds) out.put(seed);
  for (const float g : update.g) out.put(std::bit_cast<std::uint32_t>(g));
  for (const GroupRate& rate : update.rates) {
    out.put(std::bit_cast<std::uint64_t>(rate.lr));
    out.put(std::bit_cast<std::uint64_t>(rate.decay));
  }
}

void put_fields(ByteWriter& out, const BaseEntry& entry) {
  out.put(kBase);
  out.put(0U);
  out.put(entry.base.step);
  out.put(entry.base.generation);
  out.put(entry.base.hash);
}

void put_fields(ByteWriter& out, const ReturnEntry& entry) {
  out.put(kReturn);
  out.put(0U);
  out.put(entry.step);
  out.put(entry.entries);
}

UpdateEntry take_update(ByteReader& fields, const LogShape& shape, bool non_finite,
                        std::uint64_t step) {
  UpdateEntry update{step, non_finite, {}, {}, {}};
  if (shape.records_seeds) {
    for (std::uint32_t d = 0; d < shape.directions; ++d) {
      update.seeds.push_back(fields.take<std::uint64_t>());
    }
  }
  for (std::uint32_t d = 0; d < shape.directions; ++d) {
    update.g.push_back(std::bit_cast<float>(fields.take<std::uint32_t>()));
  }
  for (std::uint32_t i = 0; i < shape.groups; ++i) {
    const double lr = std::bit_cast<double>(fields.take<std::uint64_t>());
    update.rates.push_back({lr, std::bit_cast<double>(fields.take<std::uint64_t>())});
  }
  return update;
}

LogEntry take_entry(ByteReader& fields, const LogShape& shape) {
  const auto kind = fields.take<std::uint32_t>();
  const auto flags = fields.take<std::uint32_t>();
  const auto step = fields.take<std::uint64_t>();
  if (flags > (kind == kUpdate ? kNonFinite : 0U)) {
    throw Corrupt(concat(fields.what(), ": has flags ", flags, ", expected 0, or ", kNonFinite,
                         " in an update"));
  }
  if (kind == kUpdate) return take_update(fields, shape, flags == kNonFinite, step);
  if (kind == kBase) {
    const auto generation = fields.take<std::uint64_t>();
    return BaseEntry{{take_bytes<sizeof(BaseHash)>(fields), generation, step}};
  }
  if (kind == kReturn) return ReturnEntry{step, fields.take<std::uint64_t>()};
  throw Corrupt(concat(fields.what(), ": is of kind ", kind, ", expected 1 to 3"));
}

}  // namespace

std::string to_text(const Base& base) {
  return concat(to_hex(base.hash), " (generation ", base.generation, ", step ", base.step, ")");
}

void check_shape(const LogShape& shape) {
  SLUICEWAY_CHECK(shape.groups >= 1 && shape.groups <= kMostGroups, "scalar log: has ",
                  shape.groups, " parameter groups, expected 1 to ", kMostGroups);
  SLUICEWAY_CHECK(shape.directions >= 1 && shape.directions <= kMostDirections, "scalar log: has ",
                  shape.directions, " directions, expected 1 to ", kMostDirections);
}

std::size_t entry_bytes(const LogShape& shape) noexcept {
  const std::size_t direction_bytes = sizeof(float) + (shape.records_seeds ? 8U : 0U);
  const std::size_t body = shape.directions * direction_bytes + shape.groups * sizeof(GroupRate);
  const std::size_t bytes = kEntryHeadBytes + std::max(body, kLeastEntryBodyBytes) + kSumBytes;
  return (bytes + 7) / 8 * 8;
}

std::vector<std::byte> encode(const LogHeader& header) {
  ByteWriter out;
  out.put(magic());
  out.put(kLogVersion);
  out.put(static_cast<std::uint32_t>(entry_bytes(header.shape)));
  out.put(header.id);
  out.put(header.first.hash);
  out.put(header.first.generation);
  out.put(header.first.step);
  out.put(header.shape.run_seed);
  out.put(header.shape.noise.family);
  out.put(header.shape.noise.rank);
  out.put(header.shape.noise.period_steps);
  out.put(header.shape.groups);
  out.put(header.shape.directions);
  out.put(header.shape.records_seeds ? 1U : 0U);
  pad(out, kLogHeaderBytes);
  out.put(checksum64(out.bytes()));
  return out.take();
}

std::vector<std::byte> encode(const LogEntry& entry, const LogHeader& header,
                              std::uint64_t number) {
  ByteWriter out;
  std::visit([&](const auto& one) { put_fields(out, one); }, entry);
  pad(out, entry_bytes(header.shape));
  out.put(entry_sum(out.bytes(), header.id, number));
  return out.take();
}

LogHeader decode_log_header(std::span<const std::byte> bytes) {
  ByteReader fields(bytes, "scalar log");
  if (!std::ranges::equal(fields.take(kMagic.size()), magic())) {
    throw Corrupt(concat("scalar log: does not begin with ", kMagic, ", so it is no scalar log"));
  }
  const auto version = fields.take<std::uint32_t>();
  const auto bytes_of_entry = fields.take<std::uint32_t>();
  if (bytes.size() < kLogHeaderBytes) fields.take(kLogHeaderBytes);  // Says how many there are.
  const std::span<const std::byte> summed = bytes.first(kLogHeaderBytes - kSumBytes);
  // A version from the future keeps the place of the checksum, or is not known to be a log.
  check_sum("scalar log: header", sum_at_end(bytes.first(kLogHeaderBytes)), checksum64(summed));
  if (version != kLogVersion) {
    throw Unavailable(concat("scalar log: version is ", version, ", expected ", kLogVersion,
                             "; open it with the version that made it"));
  }
  LogHeader header;
  header.id = take_bytes<sizeof(LogId)>(fields);
  header.first.hash = take_bytes<sizeof(BaseHash)>(fields);
  header.first.generation = fields.take<std::uint64_t>();
  header.first.step = fields.take<std::uint64_t>();
  header.shape.run_seed = fields.take<std::uint64_t>();
  header.shape.noise.family = fields.take<std::uint32_t>();
  header.shape.noise.rank = fields.take<std::uint32_t>();
  header.shape.noise.period_steps = fields.take<std::uint32_t>();
  header.shape.groups = fields.take<std::uint32_t>();
  header.shape.directions = fields.take<std::uint32_t>();
  const auto seeds = fields.take<std::uint32_t>();
  header.shape.records_seeds = seeds == 1;
  try {
    check_shape(header.shape);
  } catch (const InvalidArgument& error) {
    throw Corrupt(error.what());
  }
  if (seeds > 1 || bytes_of_entry != entry_bytes(header.shape)) {
    throw Corrupt(concat("scalar log: has entries of ", bytes_of_entry, " bytes and seeds ", seeds,
                         ", expected ", entry_bytes(header.shape), " bytes, and seeds 0 or 1"));
  }
  return header;
}

LogEntry decode_log_entry(std::span<const std::byte> bytes, const LogHeader& header,
                          std::uint64_t number) {
  const std::string what = concat("scalar log: entry ", number);
  const std::size_t expected = entry_bytes(header.shape);
  if (bytes.size() != expected) {
    throw Corrupt(concat(what, ": is ", bytes.size(), " bytes, expected ", expected));
  }
  const std::span<const std::byte> summed = bytes.first(expected - kSumBytes);
  check_sum(what, sum_at_end(bytes), entry_sum(summed, header.id, number));
  ByteReader fields(summed, what);
  LogEntry entry = take_entry(fields, header.shape);
  check_padding(fields);
  return entry;
}

}  // namespace sluiceway
