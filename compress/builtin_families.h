// The codec families of this library; the .cpp file of each codec makes its row of the table.
#pragma once

#include "compress/codec_families.h"

namespace sluiceway {

CodecFamily svd_family();             // svd.cpp
CodecFamily galore_family();          // svd.cpp
CodecFamily topk_columns_family();    // topk_columns.cpp
CodecFamily block_random_family();    // block_random.cpp
CodecFamily block_pca_family();       // block_pca.cpp
CodecFamily sparse_learned_family();  // sparse_codec.cpp
CodecFamily sparse_random_family();   // sparse_codec.cpp
CodecFamily identity_family();        // plain_codec.cpp
CodecFamily none_family();            // plain_codec.cpp

}  // namespace sluiceway
