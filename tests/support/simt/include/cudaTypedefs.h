// Types of the driver's entry points that are asked for by name.
#pragma once

#include <cuda.h>

using PFN_cuStreamWaitValue32_v11070 = CUresult (*)(CUstream, CUdeviceptr, std::uint32_t, unsigned);
