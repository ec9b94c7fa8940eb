// Warnings for the user: the call that gives one continues.
//
// Thread safety: every call from any thread.
#pragma once

#include <functional>
#include <string>

namespace sluiceway {

// Called on the warning thread, perhaps on several at once; must not throw.
using WarningHandler = std::function<void(const std::string&)>;

// Sets the handler of the whole process and returns the previous one. An empty handler, the initial
// one, writes a line to stderr.
WarningHandler set_warning_handler(WarningHandler handler);

void warn(const std::string& text);

}  // namespace sluiceway
