#include "python/bindings/tensor.h"

#include <ATen/dlpack.h>  // DLPack's own header, which torch's wheel brings.
#include <pybind11/gil_safe_call_once.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/base/check.h"

namespace sluiceway {
namespace {

struct Torch {
  PyObject* tensor = nullptr;  // The class.
  const DLPackExchangeAPI* dlpack = nullptr;
  std::array<PyObject*, 5> types{};  // As kTypes.
};

struct KnownType {
  const char* name;
  DLDataType type;
};
constexpr std::array<KnownType, 5> kTypes{{{"float32", {kDLFloat, 32, 1}},
                                           {"float16", {kDLFloat, 16, 1}},
                                           {"bfloat16", {kDLBfloat, 16, 1}},
                                           {"uint8", {kDLUInt, 8, 1}},
                                           {"int32", {kDLInt, 32, 1}}}};  // By ElementType.

// Its objects live as long as the process.
Torch find_torch() {
  const auto torch = py::module_::import("torch");
  Torch found;
  found.tensor = py::object(torch.attr("Tensor")).release().ptr();
  for (std::size_t i = 0; i < kTypes.size(); ++i) {
    found.types[i] = py::object(torch.attr(kTypes[i].name)).release().ptr();
  }
  const py::object capsule = py::getattr(found.tensor, "__dlpack_c_exchange_api__", py::none());
  if (!capsule.is_none()) {
    found.dlpack = static_cast<const DLPackExchangeAPI*>(
        PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  }
  if (found.dlpack == nullptr || found.dlpack->header.version.major != DLPACK_MAJOR_VERSION ||
      found.dlpack->dltensor_from_py_object_no_sync == nullptr) {
    PyErr_Clear();
    throw Unavailable(concat("torch: ", std::string(py::str(torch.attr("__version__"))),
                             " has no functions of DLPack 1 in C, expected torch 2.11 or newer"));
  }
  return found;
}

const Torch& torch() {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<Torch> found;
  return found.call_once_and_store_result(find_torch).get_stored();
}

ElementType type_of(const DLDataType& type) noexcept {
  const auto* const found = std::ranges::find_if(kTypes, [&](const KnownType& known) {
    return known.type.code == type.code && known.type.bits == type.bits && type.lanes == 1;
  });
  return static_cast<ElementType>(found - kTypes.begin());  // After the last one is kOther.
}

// What torch holds of a tensor that was made here.
struct Made {
  DLManagedTensorVersioned managed{};
  std::vector<std::int64_t> dims;
  std::shared_ptr<void> owner;
};

// `dims` are shape and strides.
Tensor made_over(void* data, std::vector<std::int64_t> dims, ElementType type, DeviceId device,
                 std::shared_ptr<void> owner) {
  auto made = std::make_unique<Made>();
  made->owner = std::move(owner);
  made->dims = std::move(dims);
  const std::size_t rank = made->dims.size() / 2;
  DLManagedTensorVersioned& managed = made->managed;
  managed.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  managed.manager_ctx = made.get();
  managed.deleter = [](DLManagedTensorVersioned* self) {
    delete static_cast<Made*>(self->manager_ctx);
  };
  managed.dl_tensor.data = data;
  managed.dl_tensor.device =
      device.is_host() ? DLDevice{kDLCPU, 0} : DLDevice{kDLCUDA, device.ordinal()};
  managed.dl_tensor.ndim = static_cast<int>(rank);
  managed.dl_tensor.dtype = kTypes.at(static_cast<std::size_t>(type)).type;
  managed.dl_tensor.shape = made->dims.data();
  managed.dl_tensor.strides = made->dims.data() + rank;
  void* object = nullptr;
  if (torch().dlpack->managed_tensor_to_py_object_no_sync(&managed, &object) != 0) {
    throw py::error_already_set();
  }
  static_cast<void>(made.release());  // torch has it now.
  return py::reinterpret_steal<py::object>(static_cast<PyObject*>(object)).cast<Tensor>();
}

}  // namespace

ElementType element_type(DType dtype) noexcept {
  switch (dtype) {
    case DType::kF32:
      return ElementType::kFloat32;
    case DType::kF16:
      return ElementType::kFloat16;
    case DType::kBF16:
      return ElementType::kBFloat16;
  }
  return ElementType::kOther;
}

bool Tensor::load(py::handle object, Tensor& into) {
  const Torch& known = torch();
  if (PyType_IsSubtype(Py_TYPE(object.ptr()), reinterpret_cast<PyTypeObject*>(known.tensor)) == 0) {
    return false;
  }
  into = Tensor();
  into.object_ = kept(object);
  DLTensor view{};
  if (known.dlpack->dltensor_from_py_object_no_sync(object.ptr(), &view) != 0) {
    PyErr_Clear();
    into.read_attributes();
    return true;
  }
  into.data_ =
      view.data == nullptr ? nullptr : static_cast<std::byte*>(view.data) + view.byte_offset;
  const auto rank = static_cast<std::size_t>(view.ndim);
  into.dims_.resize(2 * rank);
  std::copy_n(view.shape, rank, into.dims_.begin());
  std::copy_n(view.strides, rank, into.dims_.begin() + view.ndim);
  into.type_ = type_of(view.dtype);
  into.bits_ = std::uint32_t{view.dtype.bits} * view.dtype.lanes;
  const DLDeviceType device = view.device.device_type;
  into.on_host_ = device == kDLCPU || device == kDLCUDAHost;
  into.cuda_ = device == kDLCUDA || device == kDLCUDAManaged ? view.device.device_id : -1;
  // Tensors of a fake mode have none.
  into.has_elements_ = into.data_ != nullptr || into.numel() == 0;
  return true;
}

void Tensor::read_attributes() {
  std::vector<std::int64_t> shape;
  try {
    shape = object().attr("shape").cast<std::vector<std::int64_t>>();
  } catch (const std::exception&) {  // Nested tensors have none.
    throw InvalidArgument("tensor: its shape is no list of numbers, expected a dense tensor");
  }
  on_host_ = object().attr("device").attr("type").cast<std::string>() == "cpu";
  dims_ = shape;
  dims_.resize(2 * shape.size(), 0);
  const py::object dtype = object().attr("dtype");
  for (std::size_t i = 0; i < kTypes.size(); ++i) {
    if (dtype.ptr() != torch().types[i]) continue;
    type_ = static_cast<ElementType>(i);
    bits_ = kTypes[i].type.bits;
  }
}

void* Tensor::data() const {
  if (has_elements_) return data_;
  throw InvalidArgument(kNoElements);
}

Kept Tensor::storage() const { return kept(object().attr("untyped_storage")()); }

std::string Tensor::type_name() const {
  const std::string name = py::str(object().attr("dtype"));
  return name.substr(name.find('.') + 1);
}

std::string Tensor::device_name() const { return py::str(object().attr("device")); }

std::int64_t Tensor::numel() const noexcept {
  std::int64_t count = 1;
  for (const std::int64_t size : shape()) count *= size;
  return count;
}

std::uint64_t Tensor::nbytes() const noexcept {
  return static_cast<std::uint64_t>(numel()) * bits_ / 8;
}

bool Tensor::is_contiguous() const noexcept {
  if (!has_elements_) return false;
  if (numel() == 0) return true;
  std::int64_t expected = 1;
  for (std::size_t i = rank(); i-- > 0;) {
    if (size(i) != 1 && stride(i) != expected) return false;
    expected *= size(i);
  }
  return true;
}

Tensor Tensor::call(const char* method) const {
  Tensor result;
  const py::object made = object().attr(method)();
  SLUICEWAY_CHECK(load(made, result), "tensor: its ", method, "() returned no tensor");
  return result;
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const std::int64_t size : shape) text += concat(text.size() > 1 ? ", " : "", size);
  return text + "]";
}

Tensor empty_tensor(std::span<const std::int64_t> shape, ElementType type) {
  py::list sizes;
  for (const std::int64_t size : shape) sizes.append(size);
  const py::handle dtype = torch().types.at(static_cast<std::size_t>(type));
  const py::object empty = py::module_::import("torch").attr("empty");
  return empty(sizes, py::arg("dtype") = dtype, py::arg("device") = "cpu").cast<Tensor>();
}

Tensor tensor_over(void* data, std::span<const std::int64_t> shape, ElementType type,
                   DeviceId device, std::shared_ptr<void> owner) {
  std::vector<std::int64_t> dims(shape.begin(), shape.end());
  dims.resize(2 * shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    dims[shape.size() + i] = stride;
    stride *= shape[i];
  }
  return made_over(data, std::move(dims), type, device, std::move(owner));
}

Tensor tensor_over(const AnyMatrix& view, DeviceId device) {
  return made_over(view.data, {view.rows, view.cols, view.stride, 1}, element_type(view.dtype),
                   device, nullptr);
}

}  // namespace sluiceway
