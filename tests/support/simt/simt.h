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
// The driver has one lock. Every call that enqueues work takes it briefly. These calls keep it
// until every stream is idle: cudaMalloc, cudaFree, page-locking, creating or destroying a stream,
// destroying an event, the first launch of a kernel that cudaFuncGetAttributes has not loaded, and
// the first product of each shape. A real driver waits there sometimes; this one always does
// (driver.h).
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
//   driver     a call that keeps the driver's lock and waits for a stream that waits for the host,
//              with the names of all who wait; a launch that loads its kernel on a device where
//              kernels were loaded beforehand
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
// Not modelled: the time that a call of the driver takes; a full queue, which blocks the launch;
// streams that share a queue of the hardware and so wait for each other; code that a library loads
// for another reason than a new shape, and memory that it allocates; graphs.
//
// Not seen: an access past a static shared array whose bytes are a multiple of 8192, into the next;
// a misaligned one of a static shared array, which starts at more than its type asks for; the store
// of a structure straight from a call, where the function is neither __device__ nor a make_*; a
// barrier that different rounds of one loop reach; a missing wait that the host made good by
// chance, since what one of its threads has waited for counts as known to all; access of the host
// while a kernel runs; a kernel that never ends.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace sluiceway::simt {

// The seed of every order and delay from here on; SLUICEWAY_SIMT_SEED in the environment, else 1,
// is the first.
void set_seed(std::uint64_t seed);

// Waits until all streams are idle; then the device works again.
std::vector<std::string> take_findings();

// While one is alive, no kernel and no copy starts: what the host does meanwhile is surely early.
// The thread that made it must end it. Load and allocate before: a call of that thread that waits
// for a stream with work, or for idle streams, would never return and is a finding.
class Hold {
 public:
  Hold();
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold();

 private:
  int thread_id_;
};

// Makes a stream (a cudaStream_t) wait until a thread of the host stores 1 in *word. Tests plant
// this bug with it; the runtime that the product sees has no such call.
void wait_for_word(void* stream, std::uint32_t* word);

// Makes a stream call `function` after the work that was enqueued before, and go on when it
// returns. The function must not call CUDA.
void call_on_host(void* stream, std::function<void()> function);

// While one is alive, any launch may load its kernel: for tests with kernels of their own.
class UnlistedKernels {
 public:
  UnlistedKernels();
  UnlistedKernels(const UnlistedKernels&) = delete;
  UnlistedKernels& operator=(const UnlistedKernels&) = delete;
  ~UnlistedKernels();
};

// The number of calls of the runtime since reset_calls(), by the name of the calling thread and of
// the call. The program's first thread is "main". Beside the runtime's own names there are "gemm"
// and "sparse_product", "driver's lock" (times that the lock was taken) and "wait for idle streams"
// (times that a call kept the lock because a stream had work).
struct Calls {
  std::map<std::string, std::map<std::string, std::uint64_t>> by_thread;
  std::uint64_t total(const std::string& call) const;
};
Calls calls();
void reset_calls();

int live_streams();  // Those that were made and not destroyed. Events are used again.

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
