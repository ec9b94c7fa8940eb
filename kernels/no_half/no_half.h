// What stands in for the CUDA half of an operation in a build without CUDA.
#pragma once

namespace sluiceway::cuda {

[[noreturn]] void throw_no_half(const char* function);  // Unavailable, with the reason.

}  // namespace sluiceway::cuda
