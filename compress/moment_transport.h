// Transports AdamW's moments from one subspace to the next when a projector is replaced.
//
//   M <- A M B               A = P_new^T P_old,  B = Q_old^T Q_new     docs/algorithm.md section 5
//   V <- (A o A) V (B o B)   o: element by element, so V stays nonnegative; a factored V stays so
//
//   name          shape    dtype   access
//   moments.m, v  dm x dn  f32     read, write; or moments.factored, dm + dn
//   p_old, p_new  m x dm   f32     read
//   q_old, q_new  n x dn   f32     read
//
// A and B are sparse, with at most m r^2 and n r^2 entries, or block-diagonal and dense within a
// group; nothing of size m x n is formed. The engine keeps AdamW's step counter unchanged.
//
// Numerics: A and B are summed in double and rounded to f32 once, products are in f32.
// Errors:   InvalidArgument, naming both shapes, before a moment changes.
// Cost:     sparse: 2 r^2 (m dn + n dm) flop for each moment; blocks of k columns: 2 k (m k + n k)
//           once and 4 k dm dn for each moment. Temporaries: one f32 core, and 16 bytes for each
//           entry of A and B.
#pragma once

#include "compress/gradient_codec.h"
#include "kernels/base/view.h"

namespace sluiceway {

void transport_moments(MomentTransport how, const Moments& moments, const SparseRows& p_old,
                       const SparseRows& p_new, const SparseRows& q_old, const SparseRows& q_new);
void transport_moments(MomentTransport how, const Moments& moments, const BlockRows& p_old,
                       const BlockRows& p_new, const BlockRows& q_old, const BlockRows& q_new);

}  // namespace sluiceway
