// Weights whose noise is of low rank, between Python and an engine that keeps their factors.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <tuple>
#include <vector>

#include "runtime/engine/zo/zo_engine.h"

namespace sluiceway {

// Name, weight and parameter group.
using Trained = std::tuple<std::string, at::Tensor, int>;

// The base of vectors is read from host memory, which `vectors` keeps.
ZoEngineOptions with_trained(ZoEngineOptions options, const std::vector<Trained>& trained,
                             std::vector<at::Tensor>& vectors);

// Theta of a weight, or its neighbours along a direction; `base` and what is made are on the device
// of `compute`, and stay until it is through.
void make_low_rank(ZoEngine& engine, const std::string& weight, const at::Tensor& base,
                   const at::Tensor& plus, const at::Tensor* minus, const StepNoise* noise,
                   const StreamRef& compute);

}  // namespace sluiceway
