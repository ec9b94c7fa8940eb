// Any bytes at all, given to the readers of a store: they are refused by Corrupt or Unavailable, or
// what was read is what a writer writes again.
//
// The first byte chooses the reader; blocks get the checksum that they should have, as a fuzzer
// does not find one.
#include "tests/fuzz/store_format_fuzz.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "kernels/base/checksum.h"
#include "kernels/base/error.h"
#include "runtime/store/byte_stream.h"
#include "runtime/store/format.h"
#include "runtime/store/new_layout.h"

namespace sluiceway::test {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

Block sealed(std::span<const std::byte> bytes) {
  Block block{};
  std::copy_n(bytes.begin(), std::min(bytes.size(), block.size() - 8), block.begin());
  ByteWriter sum;
  sum.put(checksum64(std::span(block).first(block.size() - 8)));
  std::ranges::copy(sum.bytes(), block.end() - 8);
  return block;
}

void read_superblocks(std::span<const std::byte> bytes) {
  const std::size_t half = bytes.size() / 2;
  const Block first = sealed(bytes.first(half)), second = sealed(bytes.subspan(half));
  const Superblock found = choose_superblock(first, second).superblock;
  require(decode_superblock(encode(found)) == found);
  choose_superblock(first, bytes);  // A copy of any size.
}

void read_table(std::span<const std::byte> bytes) {
  Contents contents;
  contents.regions = {{RegionKind::kState, kBlockBytes, 3, 2},
                      {RegionKind::kGradient, kBlockBytes, 2, 2},
                      {RegionKind::kLog, 2 * kBlockBytes, 1, 1}};
  const Layout layout = new_layout(contents, {1, 2});
  const std::vector<std::byte> again = encode(decode_table(bytes, layout));
  require(std::ranges::equal(again, bytes));
}

}  // namespace

void read_any_bytes(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const std::span<const std::byte> rest = bytes.subspan(1);
  try {
    switch (std::to_integer<unsigned>(bytes.front()) % 4) {
      case 0: {
        const DriveHeader header = decode_header(sealed(rest));
        require(decode_header(encode(header)).id == header.id);
        break;
      }
      case 1:
        read_superblocks(rest);
        break;
      case 2:
        require(std::ranges::equal(encode(decode_layout(rest)), rest));
        break;
      default:
        read_table(rest);
    }
  } catch (const Corrupt&) {
  } catch (const Unavailable&) {
  }
}

}  // namespace sluiceway::test
