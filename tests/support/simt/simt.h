// A machine that runs our CUDA sources on the host, and what a test may say to it and ask it.
//
// The .cu files and runtime/device/cuda/ are compiled by the host compiler against the headers of
// include/. It is slow, exact and says nothing about speed.
//
// Blocks run one after another, in an order that a seed shuffles; so do the threads of a block
// between two barriers. Kernels are compiled with -fsanitize=thread, and the calls that the
// compiler then makes for every load and store end here instead of in that sanitizer's library, so
// each byte of device and shared memory has a record of who wrote and who read it last. Streams are
// threads; copies come late on purpose.
//
// There are two devices; threads start with the one that CUDA does not start with
// (current_device.h).
//
// An error is a finding, a text that names kernel, block and thread, or the copy:
//
//   access     outside of what is allocated, to what was freed, to memory of the host, misaligned
//              for its type; read of bytes that nobody has written
//   race       two threads of a block touch a byte, one writing it, with no barrier in between;
//              two blocks of a launch, with no atomic and fence in between; two streams, with no
//              event in between
//   meeting    a barrier that not all threads reach; threads that meet at different lines; a
//              shuffle or vote with a lane that does not take part
//   host copy  memory of the host that changes, or is unregistered, before its copy has read it
//   host call  a call of CUDA in a host function of a stream
//   device     a launch, copy, fill, event or free while another device is current than that of its
//              stream or memory; a kernel of one device with memory of the other
//
// What a kernel or copy was about to do wrong is not done, the rest of it is dropped, and from then
// on the device has failed: every call says so with the text in cudaGetErrorString(), until
// take_findings(). A program that ends with findings that nobody has taken ends with status 1.
//
// The host has no access to device memory while no kernel runs: it is told which allocation it
// touched, and killed by SIGSEGV.
//
// Not seen: an access past a static shared array whose bytes are a multiple of 8192, into the next;
// a misaligned one of a static shared array, which starts at more than its type asks for; the store
// of a structure straight from a call, where the function is neither __device__ nor a make_*; a
// barrier that different rounds of one loop reach; a missing wait that the host made good by
// chance, since what one of its threads has waited for counts as known to all; access of the host
// while a kernel runs; a kernel that never ends.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluiceway::simt {

// The seed of every order and delay from here on; SLUICEWAY_SIMT_SEED in the environment, else 1,
// is the first.
void set_seed(std::uint64_t seed);

// Waits until all streams are idle; then the device works again.
std::vector<std::string> take_findings();

// While one is alive, no kernel and no copy starts: what the host does meanwhile is surely early.
// A call that waits for a stream never returns then.
class Hold {
 public:
  Hold();
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold();
};

int live_handles();  // Streams and events that were made and not destroyed.

// While one is alive, calls of the runtime by this name return `error` (a cudaError_t) and do
// nothing, after the first `spared` of them. As of every call that fails, cudaGetLastError() then
// says it once, on the same thread: whoever does not ask leaves it to the next who does.
class Fault {
 public:
  Fault(const char* call, int error, int spared = 0);
  Fault(const Fault&) = delete;
  Fault& operator=(const Fault&) = delete;
  ~Fault();
  int times() const;  // Calls that it has failed.

 private:
  friend struct Faults;
  const char* call_;
  int error_, spared_;
  int times_ = 0;
};

}  // namespace sluiceway::simt
