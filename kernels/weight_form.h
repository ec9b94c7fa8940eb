// How the elements of a weight are stored: each in a type of its own, or all in an fp8 image
// (fp8_image.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/base/dtype.h"
#include "kernels/fp8_image.h"

namespace sluiceway {

class WeightForm {
 public:
  // A dtype converts to the form of its elements. NOLINTNEXTLINE(google-explicit-constructor)
  constexpr WeightForm(DType dtype) noexcept : dtype_(dtype) {}
  static constexpr WeightForm fp8_image() noexcept {
    WeightForm form(DType::kF32);
    form.is_fp8_image_ = true;
    return form;
  }
  friend bool operator==(WeightForm, WeightForm) = default;

  constexpr bool is_fp8_image() const noexcept { return is_fp8_image_; }
  // Returns a type that holds the elements exactly.
  constexpr DType dtype() const noexcept { return dtype_; }
  constexpr std::uint64_t bytes(std::uint64_t elems) const noexcept {
    return is_fp8_image_ ? fp8_image_bytes(elems) : elems * size_bytes(dtype_);
  }
  // Returns nothing if no number of elements has this many bytes.
  constexpr std::optional<std::size_t> elems(std::size_t bytes) const noexcept {
    const std::size_t tiles = (bytes + kFp8TileBytes - 1) / kFp8TileBytes;
    const std::size_t over = is_fp8_image_ ? kFp8Scales * tiles : 0;
    if (bytes < over) return std::nullopt;
    const std::size_t found = (bytes - over) / (is_fp8_image_ ? 1 : size_bytes(dtype_));
    if (this->bytes(found) != bytes) return std::nullopt;
    return found;
  }

 private:
  DType dtype_;
  bool is_fp8_image_ = false;
};

constexpr std::string_view to_string(WeightForm form) noexcept {
  return form.is_fp8_image() ? "fp8" : to_string(form.dtype());
}

}  // namespace sluiceway
