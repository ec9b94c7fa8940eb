// What a test's Hold closes: no kernel and no copy starts while a Hold is alive.
//
// Thread safety: every call from any thread.
#pragma once

namespace sluiceway::simt {

void pass_gate();  // The worker of a stream waits here; a device that has failed holds nobody.

bool holds_device(int thread_id) noexcept;  // Whether a Hold of that thread is alive.

}  // namespace sluiceway::simt
