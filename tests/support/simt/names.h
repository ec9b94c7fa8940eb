// Indices of blocks and threads: flat, three-dimensional, and as text.
#pragma once

#include <simt_device.h>

#include <string>
#include <string_view>

#include "kernels/base/check.h"

namespace sluiceway::simt {

constexpr uint3 unflatten(std::uint32_t flat, dim3 shape) noexcept {
  return {flat % shape.x, flat / shape.x % shape.y, flat / shape.x / shape.y};
}

inline std::string to_text(uint3 index) {
  return concat("(", index.x, ", ", index.y, ", ", index.z, ")");
}

inline std::string to_text(Site site) {  // Leaves out the folders.
  const std::string_view file(site.file);
  return concat(file.substr(file.rfind('/') + 1), ":", site.line);
}

}  // namespace sluiceway::simt
