// A machine that runs our CUDA sources on the host, with the functions that tests use to control
// it.
//
// The .cu files and runtime/device/cuda/ are compiled by the host compiler against the headers of
// include/. It is slow, exact and says nothing about speed.
//
// Blocks run one after another, in an order shuffled by a seed; so do the threads of a block
// between two barriers. Kernels are compiled with -fsanitize=thread, and the calls that the
// compiler then makes for every load and store end here instead of in that sanitizer's library, so
// each byte of device and shared memory has a record of its last writer and reader. Streams are
// threads; copies come late on purpose.
//
// The driver has one lock. Every call that enqueues work takes it briefly. These calls keep it
// until every stream is idle: cudaMalloc, cudaFree, page-locking, creating or destroying a stream,
// destroying an event, the first launch of a kernel that cudaFuncGetAttributes has not loaded, and
// the first product of each shape. A real driver waits there sometimes; this one always does
// (driver.h).
//
// There are two devices. A thread starts with the device with which CUDA would not start
// (current_device.h).
//
// An error is a finding: a text that names the kernel, block and thread, or the copy:
//
//   access     outside an allocation, to freed memory, to memory of the host, misaligned for its
//              type; a read of bytes that were never written
//   race       two threads of a block touch a byte, one writing it, with no barrier in between;
//              two blocks of a launch, with no atomic and fence in between; two streams, with no
//              event in between
//   meeting    a barrier that not all threads reach; threads that meet at different lines; a
//              shuffle or vote with a lane that does not take part
//   host copy  memory of the host that changes, or is unregistered, before its copy has read it
//   host call  a CUDA call in a host function of a stream
//   driver     a call that keeps the driver's lock and waits for a stream that waits for the host,
//              with the names of all who wait; a launch that loads its kernel on a device where
//              kernels were loaded beforehand
//   device     a launch, copy, fill, event or free while the current device is not that of its
//              stream or memory; a kernel of one device with memory of the other
//
// The wrong access is not carried out, the rest of the kernel or copy is dropped, and from then on
// the device has failed: every call fails, with the text in cudaGetErrorString(), until
// take_findings(). A program that ends with findings that nobody has taken exits with status 1.
//
// The host has no access to device memory while no kernel runs: an access reports the allocation,
// and is killed by SIGSEGV.
//
// Not modelled: the time that a driver call takes; a full queue, which blocks the launch; streams
// that share a hardware queue and so wait for each other; code that a library loads for another
// reason than a new shape, and memory that it allocates; graphs.
//
// Not detected: an access past a static shared array whose bytes are a multiple of 8192, into the
// next; a misaligned access to a static shared array, which starts at more than its type requires;
// the store of a structure straight from a call, if the function is neither __device__ nor a
// make_*; a barrier that different rounds of one loop reach; a missing wait that the host made good
// by chance, since a wait by one of its threads counts for all; access by the host while a kernel
// runs; a kernel that never ends.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace sluiceway::simt {

// Sets the seed of every later order and delay. The first seed is SLUICEWAY_SIMT_SEED in the
// environment, or 1.
void set_seed(std::uint64_t seed);

// Waits until all streams are idle; then the device works again.
std::vector<std::string> take_findings();

// While one exists, no kernel and no copy starts: host work meanwhile is certain to be early. The
// thread that made it must end it. Load and allocate before: if that thread waits for a stream with
// work, or for idle streams, the call would never return and is a finding.
class Hold {
 public:
  Hold();
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold();

 private:
  int thread_id_;
};

// Makes a stream (a cudaStream_t) wait until a host thread stores 1 in *word. Tests plant this bug
// with it; the runtime that the product sees has no such call.
void wait_for_word(void* stream, std::uint32_t* word);

// Makes a stream call `function` after the work enqueued before, and go on when it returns. The
// function must not call CUDA.
void call_on_host(void* stream, std::function<void()> function);

// While one exists, any launch may load its kernel: for tests with kernels of their own.
class UnlistedKernels {
 public:
  UnlistedKernels();
  UnlistedKernels(const UnlistedKernels&) = delete;
  UnlistedKernels& operator=(const UnlistedKernels&) = delete;
  ~UnlistedKernels();
};

// The number of runtime calls since reset_calls(), by the names of the calling thread and of the
// call. The program's first thread is "main". Besides the runtime's own names there are "gemm" and
// "sparse_product", "driver's lock" (times that the lock was taken) and "wait for idle streams"
// (times that a call kept the lock because a stream had work).
struct Calls {
  std::map<std::string, std::map<std::string, std::uint64_t>> by_thread;
  std::uint64_t total(const std::string& call) const;
};
Calls calls();
void reset_calls();

int live_streams();  // Made and not destroyed. Events are used again.

// While one exists, runtime calls of this name return `error` (a cudaError_t) and do nothing, after
// the first `spared` of them. As after every failing call, cudaGetLastError() then returns the
// error once, on the same thread: a caller that does not ask leaves it to the next one that does.
class Fault {
 public:
  Fault(const char* call, int error, int spared = 0);
  Fault(const Fault&) = delete;
  Fault& operator=(const Fault&) = delete;
  ~Fault();
  int times() const;  // Calls that it made fail.

 private:
  friend struct Faults;
  const char* call_;
  int error_, spared_;
  int times_ = 0;
};

}  // namespace sluiceway::simt
