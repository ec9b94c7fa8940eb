// What the symbol table of this program says of functions and of __shared__ variables.
#pragma once

#include <string>

namespace sluiceway::simt {

// "scale_rows<float>(float*)"; local functions have names too, which dladdr() does not know.
std::string function_name(const void* address);

// "4 bytes past the end of fill(float*)::tile, of 128 bytes" where bytes of static shared memory,
// by their offset in thread-local storage, are not all of one __shared__ variable; else empty.
std::string outside_of_shared(std::size_t offset, std::size_t bytes);

// " (addr2line -ie PROGRAM 0x1234 names the line)" for a return address.
std::string line_hint(const void* return_address);

// Whether bytes lie in what the program may only read: literals and constants.
bool in_constants(const void* address, std::size_t bytes);

}  // namespace sluiceway::simt
