// A chunk in the middle of training: a gradient, moments with a plausible past, and weights.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/adam.h"
#include "tests/support/adam_reference.h"
#include "tests/support/guarded_array.h"
#include "tests/support/rng.h"

namespace sluiceway::test {

inline constexpr float kGradScale = 1.0F / 1024;  // Removes a loss scale.

// Moments after `past` gradients of this size; g itself carries the loss scale.
template <typename G>
struct AdamChunk {
  AdamChunk(Rng& rng, std::int64_t elems, std::int64_t past = 3)
      : g(rng.vector<G>(elems, 1e-2 * 1024)), m(g.size()), v(g.size()), w(rng.vector(elems, 0.02)) {
    for (std::size_t i = 0; i < g.size(); ++i) {
      double mean = 0.0, square = 0.0;
      for (std::int64_t t = 0; t < past; ++t) {
        const double old = 1e-2 * rng.normal();
        mean += 0.1 * (old - mean);
        square = 0.999 * square + 0.001 * old * old;
      }
      m[i] = static_cast<float>(mean);
      v[i] = static_cast<float>(square);
    }
  }

  AdamReference reference() const { return {as_f64(m), as_f64(v), {}, as_f64(w)}; }

  std::vector<G> g;
  std::vector<float> m, v, w;
};

inline AdamHyper adam_hyper() {
  AdamHyper h;
  h.lr = 3e-3;
  h.weight_decay = 0.1;
  h.step = 4;
  return h;
}

// Inputs of a kernel call: a chunk copied to arrays of one misalignment, updated in place.
template <typename G>
struct PlacedChunk {
  PlacedChunk(const AdamChunk<G>& c, std::size_t offset)
      : g(c.g, offset), m(c.m, offset + 1), v(c.v, offset + 2), w(c.w, offset + 3) {}

  AdamMoments moments() { return AdamMoments::in_place(m.span(), v.span()); }
  MasterWeight master() { return {w.span(), w.span()}; }
  bool guards_intact() const {
    return g.guards_intact() && m.guards_intact() && v.guards_intact() && w.guards_intact();
  }

  GuardedArray<G> g;
  GuardedArray<float> m, v, w;
};

}  // namespace sluiceway::test
