// The passes of gradient_copy() and decompress_range() without the scan: the difference is the cost
// of the scan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/view.h"

namespace sluiceway::bench {

template <typename Src, typename Dst>
void unscanned_copy(std::span<const Src> src, std::span<Dst> dst);

// Writes rows [first, last) of P D Q^T as bf16; `first` begins a group.
void unscanned_rows(const AnyMatrix& d, const SparseRows& p, const SparseRows& q,
                    std::int64_t first, std::int64_t last, bf16* dst, std::span<float> scratch);
void unscanned_rows(const AnyMatrix& d, const BlockRows& p, const BlockRows& q, std::int64_t first,
                    std::int64_t last, bf16* dst, std::span<float> scratch);

}  // namespace sluiceway::bench
