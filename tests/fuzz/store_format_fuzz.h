// One input of the fuzzer; aborts if a reader of a store took what no writer writes.
#pragma once

#include <cstddef>
#include <span>

namespace sluiceway::test {

void read_any_bytes(std::span<const std::byte> bytes);

}  // namespace sluiceway::test
