// A tensor of torch as an argument or a result, without libtorch.
//
// Tensors cross by the C functions of DLPack, which every torch from 2.10 on has
// (torch.Tensor.__dlpack_c_exchange_api__), so this module works with each of them. A tensor that
// these cannot describe, on the meta device or sparse, has shape and dtype from its attributes, and
// no elements.
//
// Thread safety: with the GIL, but for what `Kept` says.
// Cost:          below a microsecond an argument.
// Errors:        Unavailable: this torch has no such functions.
//                InvalidArgument: the elements of a tensor that has none.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/device_id.h"
#include "kernels/base/dtype.h"
#include "kernels/base/view.h"
#include "python/bindings/gil.h"

namespace sluiceway {

// Types of elements that this module makes; others are only named.
enum class ElementType : std::uint8_t { kFloat32, kFloat16, kBFloat16, kUInt8, kInt32, kOther };
ElementType element_type(DType dtype) noexcept;

inline constexpr const char* kNoElements =
    "tensor: has no memory of its own, as sparse tensors and those inside torch.func; expected a "
    "dense one";

class Tensor {
 public:
  Tensor() = default;
  // False: the object is no tensor.
  static bool load(py::handle object, Tensor& into);

  py::handle object() const noexcept { return object_.get(); }
  // Keeps the elements, whatever becomes of the tensor.
  Kept storage() const;

  bool has_elements() const noexcept { return has_elements_; }
  void* data() const;  // Throws InvalidArgument if it has no elements.
  ElementType type() const noexcept { return type_; }
  std::string type_name() const;    // "float32"
  std::string device_name() const;  // "cuda:0"
  bool on_host() const noexcept { return on_host_; }
  int cuda_ordinal() const noexcept { return cuda_; }  // -1: not on a CUDA device.

  std::span<const std::int64_t> shape() const noexcept { return {dims_.data(), rank()}; }
  std::span<const std::int64_t> strides() const noexcept { return {dims_.data() + rank(), rank()}; }
  std::int64_t dim() const noexcept { return static_cast<std::int64_t>(rank()); }
  std::int64_t size(std::size_t i) const { return shape()[i]; }
  std::int64_t stride(std::size_t i) const { return strides()[i]; }
  std::int64_t numel() const noexcept;
  std::uint64_t nbytes() const noexcept;
  bool is_contiguous() const noexcept;

  // Methods of the Python object that return a tensor.
  Tensor call(const char* method) const;

 private:
  std::size_t rank() const noexcept { return dims_.size() / 2; }
  void read_attributes();

  Kept object_;
  void* data_ = nullptr;
  std::vector<std::int64_t> dims_;  // Shape, then strides.
  int cuda_ = -1;
  std::uint32_t bits_ = 0;  // Of an element.
  ElementType type_ = ElementType::kOther;
  bool on_host_ = false;
  bool has_elements_ = false;
};

std::string shape_text(std::span<const std::int64_t> shape);  // "[2, 3]"

// A tensor in host memory, not initialised.
Tensor empty_tensor(std::span<const std::int64_t> shape, ElementType type);

// A tensor over memory that `owner` keeps, or, if it is null, the caller.
Tensor tensor_over(void* data, std::span<const std::int64_t> shape, ElementType type,
                   DeviceId device, std::shared_ptr<void> owner = nullptr);
Tensor tensor_over(const AnyMatrix& view, DeviceId device);

}  // namespace sluiceway

namespace pybind11::detail {

template <>
struct type_caster<sluiceway::Tensor> {
  PYBIND11_TYPE_CASTER(sluiceway::Tensor, const_name("torch.Tensor"));

  bool load(handle source, bool /*convert*/) { return sluiceway::Tensor::load(source, value); }
  static handle cast(const sluiceway::Tensor& tensor, return_value_policy, handle) {
    return handle(tensor.object()).inc_ref();
  }
};

}  // namespace pybind11::detail
