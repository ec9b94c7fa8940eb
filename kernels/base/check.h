// SLUICEWAY_CHECK: argument checks whose message is built only when they fail.
//
//   SLUICEWAY_CHECK(s.rows == d, "compress: s has ", s.rows, " rows, expected ", d);
#pragma once

#include <sstream>
#include <string>

#include "kernels/base/error.h"

namespace sluiceway {

template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

[[noreturn]] inline void throw_invalid_argument(const std::string& what) {
  throw InvalidArgument(what);
}

// "1610612736 bytes (1.50 GiB)": sizes in errors are exact and readable.
std::string format_bytes(std::uint64_t bytes);

// Throws IoError with errno, its text and `path` when `result` is negative; otherwise returns it.
std::int64_t check_syscall(std::int64_t result, const char* call, const std::string& path,
                           std::int64_t offset = 0);

}  // namespace sluiceway

#define SLUICEWAY_CHECK(cond, ...)                                           \
  do {                                                                       \
    if (!(cond)) [[unlikely]] {                                              \
      ::sluiceway::throw_invalid_argument(::sluiceway::concat(__VA_ARGS__)); \
    }                                                                        \
  } while (false)
