// A block-aligned buffer of whole blocks, for the data that a store writes beside its chunks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/store/layout.h"

namespace sluiceway {

class Blocks {
 public:
  // Filled with zeros.
  explicit Blocks(std::uint64_t bytes)
      : blocks_(static_cast<std::size_t>((bytes + kBlockBytes - 1) / kBlockBytes)) {}
  explicit Blocks(std::span<const std::byte> bytes) : Blocks(bytes.size()) {
    std::ranges::copy(bytes, all().begin());
  }

  std::span<std::byte> all() noexcept { return std::as_writable_bytes(std::span(blocks_)); }

 private:
  struct alignas(kBlockBytes) One {
    std::byte bytes[kBlockBytes] = {};
  };
  std::vector<One> blocks_;
};

}  // namespace sluiceway
