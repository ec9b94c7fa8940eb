// Operations as separate passes, each as fast as memory. One fused pass replaces them.
#pragma once

#include <cstddef>

#include "kernels/base/dtype.h"

namespace sluiceway::bench {

void unscale_pass(const f16* g, float scale, float* out, std::size_t n);  // out = scale * g
void scale_pass(float* x, float scale, std::size_t n);                    // x = scale * x
void cast_pass(const float* w, f16* out, std::size_t n);                  // out = nearest(w)

}  // namespace sluiceway::bench
