// Leaves the subspace piece by piece: a range of a gradient, as it is written and scanned.
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
// A range begins and ends anywhere, in the middle of a row too. Nothing is kept from one call to
// the next, so ranges may be asked for in any order and by several threads, each with its scratch.
// The result describes what was written, as that of gradient_copy() does. On the host alone: what
// comes out is what the host spills or updates with.
//
// Numerics: an element differs from that of exact arithmetic by at most
//             (a + b) 2^-24 (|P| |D| |Q|^T) + half an ulp of dst,
//           a and b being the terms of its two sums (nonzeros of a row, or kept columns of a
//           group), where no product underflows.
//           Equal bits for any cut into ranges; of the scan, finite and abs_max are exact and
//           sum_squares is as overflow_scan() says. Not finite passes through rounding.
// Aliasing: dst and scratch overlap nothing.
// Errors:   InvalidArgument, naming both shapes, before any element changes. Sparse indices are
//           trusted.
// Cost:     writes dst once. Rows of the range that others share are made for each. Flop of m rows:
//           sparse 2 r m (n + dn); blocks of k of b 2 k m (n + dn), dn = n k / b; a group of more
//           than 256 rows, dense: 2 m dn (dm + n). D is read once for blocks, r rows a row of G^
//           for sparse, once for each 64 rows of G^ for dense, and so is Q there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/view.h"
#include "kernels/overflow_scan.h"

namespace sluiceway {

// Elements of scratch; they grow with the sides of D, but not with the rows of G^ or the range.
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
// Identity: P = Q = I. Types and bits are those of gradient_copy().
ScanResult decompress_range(const AnyMatrix& d, std::int64_t first, std::span<std::byte> dst,
                            DType dtype);

}  // namespace sluiceway::cpu
