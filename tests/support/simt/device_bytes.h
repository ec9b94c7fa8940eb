// What copies and library calls do to device memory: whole ranges, by one operation of a stream.
#pragma once

#include <cstddef>
#include <string>

#include "tests/support/simt/order.h"

namespace sluiceway::simt {

enum class Use {
  kCopied,  // Read, whether or not anybody has written it.
  kRead,
  kWritten,
};

// Whether the operation may do that now; reports what forbids it, else leaves its mark.
bool use_bytes(Running& running, const std::string& name, const void* first, std::size_t bytes,
               Use use);

}  // namespace sluiceway::simt
