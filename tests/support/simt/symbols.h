// Functions and __shared__ variables, looked up in this program's symbol table.
#pragma once

#include <string>

namespace sluiceway::simt {

// "scale_rows<float>(float*)"; also finds names of local functions, which dladdr() does not know.
std::string function_name(const void* address);

// "4 bytes past the end of fill(float*)::tile, of 128 bytes" if bytes of static shared memory,
// given by their offset in thread-local storage, are not all in one __shared__ variable; otherwise
// empty.
std::string outside_of_shared(std::size_t offset, std::size_t bytes);

// " (addr2line -ie PROGRAM 0x1234 names the line)" for a return address.
std::string line_hint(const void* return_address);

// Tells whether bytes lie in the program's read-only memory: literals and constants.
bool in_constants(const void* address, std::size_t bytes);

}  // namespace sluiceway::simt
