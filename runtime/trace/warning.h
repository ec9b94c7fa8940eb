// Sentences for the user that are no errors: the call that says one goes on.
//
// Thread safety: every call from any thread.
#pragma once

#include <functional>
#include <string>

namespace sluiceway {

// Called on the thread that warns, perhaps on several at once; must not throw.
using WarningHandler = std::function<void(const std::string&)>;

// Of the whole process; an empty one, as at the start, writes a line to stderr. Returns the one
// before.
WarningHandler set_warning_handler(WarningHandler handler);

void warn(const std::string& text);

}  // namespace sluiceway
