// The saved state of a codec: the learned values, and enough to notice when they are loaded into
// another weight's codec. Everything random is drawn again from the seed.
//
//   state  := magic header values
//   magic  := "swproj1\0"
//   header := family:char[16] seed:u64 weight_hash:u64 m:i64 n:i64 dm:i64 dn:i64 nnz:i64
//             generation:u64 value_count:u64
//   values := f32[value_count]            P row by row, then Q row by row; only of families that
//                                         learn or fit
//
// Numbers are little-endian.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace sluiceway {

struct CodecRequest;
struct ProjectorDims;

struct CodecStateHeader {
  std::array<char, 16> family{};
  std::uint64_t seed = 0;
  std::uint64_t weight_hash = 0;
  std::int64_t m = 0, n = 0, dm = 0, dn = 0;
  std::int64_t nnz = 0;  // Nonzeros in a row; rows in a block for block families; 0 for identity.
  std::uint64_t generation = 0;
  std::uint64_t value_count = 0;

  void set_family(std::string_view name) noexcept;
};

// Returns a header of generation 0, with neither nonzeros nor values.
CodecStateHeader header_of(const CodecRequest& request, const ProjectorDims& dims);

std::vector<std::byte> write_codec_state(CodecStateHeader header, std::span<const float> p,
                                         std::span<const float> q);

struct CodecState {
  CodecStateHeader header;
  std::vector<float> values;
};

// Throws Corrupt if `bytes` are no state, are cut short, or belong to another codec, weight or seed
// than `expected`. Does not compare the generation.
CodecState read_codec_state(std::span<const std::byte> bytes, CodecStateHeader expected);

}  // namespace sluiceway
