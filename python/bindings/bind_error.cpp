#include "kernels/base/error.h"
#include "python/bindings/bindings.h"

namespace sluiceway {
namespace {

void raise(const char* name, const char* what) {
  const py::object type = py::module_::import("sluiceway.errors").attr(name);
  PyErr_SetString(type.ptr(), what);
}

void raise_io_error(const IoError& error) {
  const py::object type = py::module_::import("sluiceway.errors").attr("IoError");
  const py::object raised = type(error.what(), error.error_number(), error.path());
  PyErr_SetObject(type.ptr(), raised.ptr());
}

}  // namespace

// One to one onto the classes of sluiceway/errors.py.
void bind_errors(py::module_&) {
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const InvalidArgument& error) {
      raise("InvalidArgument", error.what());
    } catch (const OutOfMemory& error) {
      raise("OutOfMemory", error.what());
    } catch (const Timeout& error) {
      raise("Timeout", error.what());
    } catch (const Corrupt& error) {
      raise("Corrupt", error.what());
    } catch (const Unavailable& error) {
      raise("Unavailable", error.what());
    } catch (const CudaError& error) {
      raise("CudaError", error.what());
    } catch (const IoError& error) {
      raise_io_error(error);
    } catch (const Error& error) {
      raise("Error", error.what());
    }
  });
}

}  // namespace sluiceway
