// Checks of a codec's configuration that several families share.
#pragma once

#include "compress/gradient_codec.h"
#include "kernels/base/check.h"

namespace sluiceway {

inline void check_ratio(const CodecConfig& config) {
  SLUICEWAY_CHECK(config.ratio > 0 && config.ratio <= 1, "codec: ratio is ", config.ratio,
                  ", expected more than 0 and at most 1");
}

}  // namespace sluiceway
