// The borrowed form of a stream: what a kernel needs in order to enqueue work.
//
// On CUDA `native` is a cudaStream_t. On the host device it is null: a host kernel runs on the
// thread that calls it, and that thread belongs to a Stream (runtime/device/stream.h).
#pragma once

namespace sluiceway {

struct StreamRef {
  void* native = nullptr;
  int device = -1;  // -1 is the host device, otherwise the CUDA ordinal.
};

}  // namespace sluiceway
