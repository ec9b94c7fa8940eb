// What stands in for the CUDA half of an operation that this build does not have.
//
// Why it has none is the build's: no_cuda/ says so for a build without CUDA, cuda/ for one with
// CUDA whose half of this operation is not written.
#pragma once

namespace sluiceway::cuda {

[[noreturn]] void throw_no_half(const char* function);  // Unavailable, with the reason.

}  // namespace sluiceway::cuda
