// The codec of one weight without an engine: its kernels alone, for who measures them.
#include <memory>
#include <string>

#include "compress/gradient_codec.h"
#include "kernels/philox.h"
#include "python/bindings/bindings.h"
#include "python/bindings/gil.h"
#include "python/bindings/tensor_view.h"
#include "runtime/memory/buffer.h"

namespace sluiceway {
namespace {

MatrixView<float> core_view(const Tensor& core) {
  const AnyMatrix view = matrix_view(core, "core");
  SLUICEWAY_CHECK(view.dtype == DType::kF32, "core: is ", to_string(view.dtype), ", expected f32");
  return view.as<float>();
}

class LoneCodec {
 public:
  LoneCodec(const std::string& name, double ratio, std::int64_t m, std::int64_t n,
            const StreamRef& compute)
      : codec_(make_codec({.name = name, .ratio = ratio}, m, n, stable_hash(name), compute.device(),
                          budget_)),
        scratch_(budget_, Tier::kDevice, compute.device(), codec_->scratch_elems() * sizeof(float),
                 "scratch of a codec", Fill::kNone) {}

  CoreShape core() const { return codec_->core(); }

  void compress(const Tensor& gradient, const Tensor& core, const StreamRef& compute) {
    check_on(compute, gradient, "gradient");
    check_on(compute, core, "core");
    const AnyMatrix from = matrix_view(gradient, "gradient");
    const MatrixView<float> to = core_view(core);
    const GilReleased unlocked;
    codec_->compress(from, 0.0F, to, scratch_.as<float>(), compute);
  }

  void apply(const Tensor& weight, const Tensor& core, float alpha, const StreamRef& compute) {
    check_on(compute, weight, "weight");
    check_on(compute, core, "core");
    const AnyMatrix to = matrix_view(weight, "weight");
    const AnyMatrix from = matrix_view(core, "core");
    WeightUpdate update;
    update.alpha = alpha;
    update.rounding = to.dtype == DType::kF32 ? Rounding::kNearest : Rounding::kStochastic;
    const GilReleased unlocked;
    codec_->apply(to, {}, from, update, scratch_.as<float>(), compute);
  }

 private:
  Budget budget_ = Budget::unlimited();
  std::unique_ptr<GradientCodec> codec_;
  Buffer scratch_;
};

}  // namespace

void bind_codec(py::module_& m) {
  py::class_<LoneCodec>(m, "Codec", "The codec of one m x n weight without an engine.")
      .def(py::init<const std::string&, double, std::int64_t, std::int64_t, const StreamRef&>(),
           py::arg("name"), py::arg("ratio"), py::arg("m"), py::arg("n"), py::arg("compute"),
           "On the device of `compute`.")
      .def_property_readonly("core_rows", [](const LoneCodec& c) { return c.core().rows; })
      .def_property_readonly("core_cols", [](const LoneCodec& c) { return c.core().cols; })
      .def("compress", &LoneCodec::compress, py::arg("gradient"), py::arg("core"),
           py::arg("compute"), "core <- P^T gradient Q, float32.")
      .def("apply", &LoneCodec::apply, py::arg("weight"), py::arg("core"), py::arg("alpha"),
           py::arg("compute"),
           "weight += alpha P core Q^T; bfloat16 ones with stochastic rounding.");
}

}  // namespace sluiceway
