// Leaves the subspace piece by piece: writes and scans any range of a decompressed gradient.
//
//   dst <- G^[first, first + size), G^ = P D Q^T row-major, rounded to nearest even
//
//   name    shape   dtype             layout                                      access
//   dst     size    f32 | bf16 | f16  elements of whole G^ from `first` on        write
//   d       dm x dn f32 | bf16 | f16  row-major, stride in elements               read
//   p       m x dm  f32               r nonzeros a row, or blocks                 read
//   q       n x dn  f32               r nonzeros a row, or blocks                 read
//   scratch         f32               decompress_range_scratch_elems() elements   written
//
// A range starts and ends anywhere, even in the middle of a row. Calls share no state, so ranges
// may come in any order and from several threads, each with its own scratch. Like gradient_copy(),
// it returns a scan of what it wrote. It exists on the host alone, which spills the result or
// updates with it.
//
// Numerics: an element differs from exact arithmetic by at most
//             (a + b) 2^-24 (|P| |D| |Q|^T) + half an ulp of dst,
//           where a and b are the terms of its two sums (nonzeros of a row, or kept columns of a
//           group), if no product underflows.
//           Equal bits for any division into ranges. In the scan, finite and abs_max are exact and
//           sum_squares is as accurate as overflow_scan()'s. NaN and infinity pass through
//           rounding.
// Aliasing: dst and scratch overlap nothing.
// Errors:   InvalidArgument, naming both shapes, before any element changes. Sparse indices are not
//           checked.
// Cost:     writes dst once. Each range recomputes the rows that it shares with others. Flop for m
//           rows: sparse 2 r m (n + dn); blocks of k of b 2 k m (n + dn), dn = n k / b; a dense
//           group of more than 256 rows 2 m dn (dm + n). Reads D once for blocks, r rows for each
//           row of G^ for sparse; for dense, reads D and Q once for each 64 rows of G^.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/view.h"
#include "kernels/overflow_scan.h"

namespace sluiceway {

// Returns the elements of scratch, which grow with the sides of D, but not with the rows of G^ or
// the range.
std::int64_t decompress_range_scratch_elems(const SparseRows& p, const SparseRows& q);
std::int64_t decompress_range_scratch_elems(const BlockRows& p, const BlockRows& q);

}  // namespace sluiceway

namespace sluiceway::cpu {

ScanResult decompress_range(const AnyMatrix& d, const SparseRows& p, const SparseRows& q,
                            std::int64_t first, std::span<std::byte> dst, DType dtype,
                            std::span<float> scratch);
ScanResult decompress_range(const AnyMatrix& d, const BlockRows& p, const BlockRows& q,
                            std::int64_t first, std::span<std::byte> dst, DType dtype,
                            std::span<float> scratch);
// Identity: P = Q = I. Types and bits are as in gradient_copy().
ScanResult decompress_range(const AnyMatrix& d, std::int64_t first, std::span<std::byte> dst,
                            DType dtype);

}  // namespace sluiceway::cpu
