// Uses of device memory by copies and library calls: whole ranges, in one operation of a stream.
#pragma once

#include <cstddef>
#include <string>

#include "tests/support/simt/order.h"

namespace sluiceway::simt {

enum class Use {
  kCopied,  // Read, whether or not the bytes were ever written.
  kRead,
  kWritten,
};

// Tells whether the operation may use the bytes now. If not, reports why; otherwise leaves its
// mark.
bool use_bytes(Running& running, const std::string& name, const void* first, std::size_t bytes,
               Use use);

}  // namespace sluiceway::simt
