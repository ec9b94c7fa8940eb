// Adds the lane and the payload to an error, and keeps the error's type.
#pragma once

#include <exception>
#include <string_view>

namespace sluiceway {

// "executor: lane host, payload blocks.3.mlp: <message>". Types of error.h stay the same,
// std::bad_alloc becomes OutOfMemory, everything else becomes Error.
std::exception_ptr name_error(std::exception_ptr error, std::string_view lane,
                              std::string_view payload);

}  // namespace sluiceway
