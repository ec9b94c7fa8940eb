#include "kernels/base/check.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <system_error>

namespace sluiceway {

std::string format_bytes(std::uint64_t bytes) {
  static constexpr std::array<const char*, 4> kUnits = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return std::to_string(bytes) + " bytes";
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f %s", value, kUnits[unit]);
  return std::to_string(bytes) + " bytes (" + text.data() + ")";
}

std::int64_t check_syscall(std::int64_t result, const char* call, const std::string& path,
                           std::int64_t offset) {
  if (result >= 0) return result;
  const int error_number = errno;
  throw IoError(concat(call, ": ", path, " at byte ", offset, ": ",
                       std::generic_category().message(error_number)),
                error_number, path, offset);
}

}  // namespace sluiceway
