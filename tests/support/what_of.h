// Returns the text of a call's exception.
//
// For tests in .cu files: on the SIMT machine each of those has exception types of its own, and a
// handler in one recognises exceptions of another only as std::exception.
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
