// Weights whose noise is of low rank, between Python and an engine that keeps their factors.
#pragma once

#include <ATen/ops/empty.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "python/bindings/gil.h"
#include "python/bindings/tensor_view.h"
#include "runtime/engine/zo/zo_engine.h"

namespace sluiceway {

// Name, weight and parameter group.
using Trained = std::tuple<std::string, at::Tensor, int>;

// The base of vectors is read from host memory, which `vectors` keeps.
inline ZoEngineOptions with_trained(ZoEngineOptions options, const std::vector<Trained>& trained,
                                    std::vector<at::Tensor>& vectors) {
  for (const auto& [name, weight, group] : trained) {
    ZoWeight& made = options.trained.emplace_back();
    made.name = name;
    made.elements = weight.numel();
    made.dtype = dtype_of_tensor(weight, name.c_str());
    made.group = group;
    if (weight.dim() >= 2) made.rows = weight.size(0);
    if (made.rows > 0) continue;
    vectors.push_back(weight.detach().cpu().contiguous().clone());
    made.host = vectors.back().const_data_ptr();
  }
  return options;
}

// Theta of a weight, or its neighbours along a direction.
inline void make_low_rank(ZoEngine& engine, const std::string& weight, const at::Tensor& base,
                          const at::Tensor& plus, const at::Tensor* minus, const StepNoise* noise,
                          const StreamRef& compute) {
  const auto bytes_of = [&](const at::Tensor& tensor) {
    check_on(compute, tensor, weight.c_str());
    SLUICEWAY_CHECK(tensor.is_contiguous() && tensor.scalar_type() == base.scalar_type() &&
                        tensor.nbytes() == base.nbytes(),
                    weight, ": is ", tensor.scalar_type(), " of ", tensor.nbytes(),
                    " bytes, expected contiguous ", base.scalar_type(), " of ", base.nbytes());
    return static_cast<std::byte*>(tensor.data_ptr());
  };
  const LowRankUpdates::Elements elements{{bytes_of(base), base.nbytes()},
                                          bytes_of(plus),
                                          minus == nullptr ? nullptr : bytes_of(*minus)};
  const std::uint64_t tensor = stable_hash(weight);
  const GilReleased unlocked;
  const LowRankUpdates& low_rank = engine.low_rank(compute);
  const auto count = static_cast<std::int64_t>(low_rank.drawn_elems(tensor));
  const at::Tensor drawn = at::empty({count}, base.options().dtype(at::kFloat));
  low_rank.make(tensor, elements, engine.updates(), noise, f32_span(drawn, "U"), compute);
}

}  // namespace sluiceway
