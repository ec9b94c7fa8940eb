// The contiguous bytes of a Python buffer, for as long as this lives.
#pragma once

#include <cstddef>
#include <span>

#include "python/bindings/bindings.h"

namespace sluiceway {

// Made and destroyed with the GIL. Throws BufferError where the bytes are not contiguous.
class BufferBytes {
 public:
  explicit BufferBytes(const py::buffer& buffer) {
    if (PyObject_GetBuffer(buffer.ptr(), &view_, PyBUF_SIMPLE) != 0) throw py::error_already_set();
  }
  BufferBytes(const BufferBytes&) = delete;
  BufferBytes& operator=(const BufferBytes&) = delete;
  ~BufferBytes() { PyBuffer_Release(&view_); }

  std::span<const std::byte> get() const noexcept {
    return {static_cast<const std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
  }

 private:
  Py_buffer view_;
};

}  // namespace sluiceway
