// adam_step() behind a C function, for adam_vs_torch.py.
#include <cstddef>
#include <cstdint>

#include "kernels/adam.h"

extern "C" void sluiceway_adam_step(const float* g, float* m, float* v, float* w, std::size_t n,
                                    double lr, double beta1, double beta2, double eps,
                                    double weight_decay, std::int64_t step) {
  using namespace sluiceway;
  const AdamHyper hyper{lr, beta1, beta2, eps, weight_decay, step};
  cpu::adam_step(std::span(g, n), 1.0F, AdamMoments::in_place({m, n}, {v, n}), hyper,
                 MasterWeight{{w, n}, {w, n}});
}
