#include "python/bindings/low_rank_weights.h"

#include <cstddef>

#include "python/bindings/gil.h"
#include "python/bindings/tensor_view.h"

namespace sluiceway {

ZoEngineOptions with_trained(ZoEngineOptions options, const std::vector<Trained>& trained,
                             std::vector<at::Tensor>& vectors) {
  for (const auto& [name, weight, group] : trained) {
    ZoWeight& made = options.trained.emplace_back();
    made.name = name;
    made.elements = weight.numel();
    made.form = dtype_of_tensor(weight, name.c_str());
    made.group = group;
    if (weight.dim() >= 2) made.rows = weight.size(0);
    if (made.rows > 0) continue;
    vectors.push_back(weight.detach().cpu().contiguous().clone());
    made.host = vectors.back().const_data_ptr();
  }
  return options;
}

void make_low_rank(ZoEngine& engine, const std::string& weight, const at::Tensor& base,
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
  const GilReleased unlocked;
  engine.low_rank(compute).make_alone(stable_hash(weight), elements, engine.updates(), noise,
                                      compute);
}

}  // namespace sluiceway
