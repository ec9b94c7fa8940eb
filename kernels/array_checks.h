// Argument checks of the operations on arrays. The CPU and the CUDA code make them first.
//
// Errors: InvalidArgument, naming the function and both sizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/check.h"
#include "kernels/base/dtype.h"
#include "kernels/wire.h"

namespace sluiceway {

inline void check_copy_lengths(const char* function, std::size_t src, std::size_t dst) {
  SLUICEWAY_CHECK(src == dst, function, ": dst has ", dst, " elements, expected ", src,
                  ", the length of src");
}

// Checks gradient_copy(): a supported pair of types, and whole elements on both sides.
inline void check_copy_types(std::size_t src_bytes, DType src, std::size_t dst_bytes, DType dst) {
  SLUICEWAY_CHECK(src == dst || src == DType::kF32, "gradient_copy: src is ", to_string(src),
                  " and dst ", to_string(dst), ", expected equal types, or f32 and a 16-bit one");
  const auto check_whole = [](const char* name, std::size_t bytes, DType dtype) {
    SLUICEWAY_CHECK(bytes % size_bytes(dtype) == 0, "gradient_copy: ", name, " has ", bytes,
                    " bytes, expected a multiple of ", size_bytes(dtype), " for ",
                    to_string(dtype));
  };
  check_whole("src", src_bytes, src);
  check_whole("dst", dst_bytes, dst);
}

inline void check_wire(const char* function, WireFormat format, std::span<const std::byte> wire,
                       std::size_t elems) {
  const std::uint64_t expected = wire_bytes(format, static_cast<std::int64_t>(elems));
  SLUICEWAY_CHECK(wire.size() == expected, function, ": wire has ", wire.size(),
                  " bytes, expected ", expected, " for ", elems, " values");
  const std::size_t over = reinterpret_cast<std::uintptr_t>(wire.data()) % alignof(float);
  SLUICEWAY_CHECK(over == 0, function, ": wire starts ", over,
                  " bytes past a multiple of 4; align it to 4 bytes");
}

}  // namespace sluiceway
