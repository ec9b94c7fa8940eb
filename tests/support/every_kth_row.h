// A codec that the library does not have: one class and one row, both in every_kth_row.cpp.
#pragma once

#include "compress/codec_families.h"

namespace sluiceway::test {

// Keeps every k-th row of an f32 gradient, k = round(1 / ratio). For register_codec().
CodecFamily every_kth_row();

}  // namespace sluiceway::test
