// The errors found so far, and whether they have made the device fail.
//
// Thread safety: every call from any thread.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

namespace sluiceway::simt {

void report(cudaError_t error, const std::string& text);

cudaError_t device_error() noexcept;  // Error of the first finding; cudaSuccess if none.
const char* device_error_text();      // Stays valid.

std::vector<std::string> clear_findings();

}  // namespace sluiceway::simt
