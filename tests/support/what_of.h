// What a call throws, as text.
//
// For tests in .cu files: on the SIMT machine each of those has types of exceptions of its own, and
// a handler in one does not know what another has thrown but by std::exception.
#pragma once

#include <exception>
#include <string>

namespace sluiceway::test {

template <typename Call>
std::string what_of(Call call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace sluiceway::test
