// Lets posix_memalign() fail under a sanitizer as it does without one: by default an impossible
// size ends the program there. Included once by a test that asks for such a size.
#pragma once

// NOLINTBEGIN(bugprone-reserved-identifier): the names that the sanitizers look for.
extern "C" const char* __asan_default_options();
extern "C" const char* __tsan_default_options();
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }
// NOLINTEND(bugprone-reserved-identifier)
