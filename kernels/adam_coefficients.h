// The coefficients of adam.h's formula, computed in double once a call. Every backend uses them.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/adam.h"

namespace sluiceway {

struct AdamCoefficients {
  float grad_scale, one_minus_beta1, beta2, one_minus_beta2;
  float inverse_correction1, inverse_sqrt_correction2;
  float eps, keep, minus_lr;

  static AdamCoefficients of(float grad_scale, const AdamHyper& h) {
    const auto correction = [&h](double beta) {
      return 1.0 - std::pow(beta, static_cast<double>(h.step));
    };
    return {grad_scale,
            static_cast<float>(1.0 - h.beta1),
            static_cast<float>(h.beta2),
            static_cast<float>(1.0 - h.beta2),
            static_cast<float>(1.0 / correction(h.beta1)),
            static_cast<float>(1.0 / std::sqrt(correction(h.beta2))),
            static_cast<float>(h.eps),
            static_cast<float>(1.0 - h.lr * h.weight_decay),
            static_cast<float>(-h.lr)};
  }
};

}  // namespace sluiceway
