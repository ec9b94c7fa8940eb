// The gate that a test's Hold closes: no kernel and no copy starts while a Hold exists.
//
// Thread safety: every call from any thread.
#pragma once

namespace sluiceway::simt {

void pass_gate();  // The worker of a stream waits here; a failed device holds nobody.

bool holds_device(int thread_id) noexcept;  // Tells whether that thread has a live Hold.

}  // namespace sluiceway::simt
