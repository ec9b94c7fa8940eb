// What libFuzzer calls.
#include <cstddef>
#include <cstdint>
#include <span>

#include "tests/fuzz/store_format_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sluiceway::test::read_any_bytes(std::as_bytes(std::span(data, size)));
  return 0;
}
