// Streams and events of the CUDA runtime: each stream is a Worker, an event is a place in one.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "kernels/base/check.h"
#include "tests/support/simt/arena.h"
#include "tests/support/simt/board.h"
#include "tests/support/simt/calls.h"
#include "tests/support/simt/copies.h"
#include "tests/support/simt/current_device.h"
#include "tests/support/simt/findings.h"
#include "tests/support/simt/simt.h"
#include "tests/support/simt/streams.h"

namespace sluiceway::simt {
namespace {

std::atomic<int>& stream_count() {
  static std::atomic<int> count{0};
  return count;
}

}  // namespace

int live_streams() { return stream_count(); }

}  // namespace sluiceway::simt

struct CUstream_st {
  CUstream_st() { ++sluiceway::simt::stream_count(); }
  CUstream_st(const CUstream_st&) = delete;
  CUstream_st& operator=(const CUstream_st&) = delete;
  ~CUstream_st() { --sluiceway::simt::stream_count(); }

  sluiceway::simt::Worker worker{sluiceway::simt::current_device(),
                                 sluiceway::simt::Worker::Pace::kLate};
  int priority = 0;
};

namespace sluiceway::simt {
namespace {

// One recording of an event. Whoever waits for it waits for this one, even if the event is recorded
// again later; it outlives the event's handle if a stream still has to reach it.
struct Recording {
  explicit Recording(std::string in) : stream(std::move(in)) {}

  const std::string stream;
  std::mutex mutex;
  std::condition_variable changed;
  bool has_happened = false;
  Clock clock;
  std::chrono::steady_clock::time_point time;

  void happen(const Clock& waited) {
    const std::lock_guard lock(mutex);
    has_happened = true;
    clock = waited;
    time = std::chrono::steady_clock::now();
    changed.notify_all();
  }

  // The host waits in this call.
  Clock wait(const char* call) {
    std::unique_lock lock(mutex);
    wait_on_host(call, "an event of " + stream, lock, changed, [&] { return has_happened; });
    return clock;
  }

  // The stream waits whose work the calling thread does.
  Clock wait_as_stream() {
    std::unique_lock lock(mutex);
    if (has_happened) return clock;
    lock.unlock();
    {
      const Blocked blocked({Obstacle::By::kEvent, "waits for an event of " + stream, [this] {
                               const std::lock_guard held(mutex);
                               return has_happened;
                             }});
      lock.lock();
      changed.wait(lock, [&] { return has_happened; });
      lock.unlock();
    }
    lock.lock();
    return clock;
  }
};

// The worker of cudaStreamPerThread, for which the thread waits in each call.
Worker& worker_of_this_thread() {
  static thread_local std::array<std::unique_ptr<Worker>, Arena::kDevices> workers;
  const int device = current_device();
  std::unique_ptr<Worker>& worker = workers[static_cast<std::size_t>(device)];
  if (worker == nullptr) worker = std::make_unique<Worker>(device, Worker::Pace::kPrompt);
  return *worker;
}

}  // namespace

Worker& worker_of(cudaStream_t stream) {
  if (stream == cudaStreamPerThread) return worker_of_this_thread();
  if (stream != nullptr) return stream->worker;
  static std::mutex mutex;
  static std::array<CUstream_st*, Arena::kDevices> default_streams{};
  const std::lock_guard lock(mutex);
  CUstream_st*& default_stream = default_streams[static_cast<std::size_t>(current_device())];
  if (default_stream == nullptr) default_stream = new CUstream_st;
  return default_stream->worker;
}

void wait_for_word(void* stream, std::uint32_t* word) {
  const auto is_over = [word] {
    return __atomic_load_n(word, __ATOMIC_ACQUIRE) == 1 || device_error() != cudaSuccess;
  };
  const DriverTurn turn("wait_for_word()");
  worker_of(static_cast<cudaStream_t>(stream)).enqueue_control([word, is_over](Clock& clock) {
    if (!is_over()) {
      const Blocked blocked({Obstacle::By::kHost,
                             concat("waits until the host sets the word at ",
                                    static_cast<const void*>(word), " to 1"),
                             is_over});
      while (!is_over()) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    clock.merge(*host_clock());
  });
}

// Whatever the function tells the host does not count as a wait of the host. It is not called once
// the device has failed.
void call_on_host(void* stream, std::function<void()> function) {
  const DriverTurn turn("call_on_host()");
  Worker& worker = worker_of(static_cast<cudaStream_t>(stream));
  worker.enqueue_control([function = std::move(function)](Clock&) {
    if (device_error() != cudaSuccess) return;
    const InHostFunction inside;
    const Blocked blocked(
        {Obstacle::By::kHost, "waits for a host function that has not returned", nullptr});
    function();
  });
}

}  // namespace sluiceway::simt

struct CUevent_st {
  using Recording = sluiceway::simt::Recording;

  std::shared_ptr<Recording> last() const {  // Null: it was never recorded.
    const std::lock_guard lock(mutex);
    return recording;
  }
  void set(std::shared_ptr<Recording> next) {
    const std::lock_guard lock(mutex);
    recording = std::move(next);
  }

  bool is_timed = true;
  int device = sluiceway::simt::current_device();
  mutable std::mutex mutex;
  std::shared_ptr<Recording> recording;
};

namespace simt = sluiceway::simt;

namespace {

constexpr int kLeastPriority = 0, kGreatestPriority = -5;  // The lowest number goes first.

// A destroyed handle is never given out again. A real driver may behave like that, and was seen to,
// so a table that is keyed by handles and never cleaned grows with every stream.
void* new_handle() {
  struct alignas(CUstream_st) Handle {
    std::array<std::byte, sizeof(CUstream_st)> bytes;
  };
  static auto* const handles = new std::deque<Handle>;
  return handles->emplace_back().bytes.data();
}

cudaError_t create_stream(cudaStream_t* stream, int priority) {
  if (simt::device_error() != cudaSuccess) return simt::device_error();
  *stream = new (new_handle()) CUstream_st;
  (*stream)->priority = std::clamp(priority, kGreatestPriority, kLeastPriority);
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return simt::call_when_idle(__func__, [&] { return create_stream(stream, kLeastPriority); });
}

// The machine ignores the priority: streams run when they can.
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  return simt::call_when_idle(__func__, [&] { return create_stream(stream, priority); });
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return simt::call_locked(__func__, [&] {
    *priority = stream->priority;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return simt::call(__func__, [&] {
    *least = kLeastPriority;
    *greatest = kGreatestPriority;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return simt::call_when_idle(__func__, [&] {
    stream->~CUstream_st();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return simt::call(__func__, [&] {
    simt::worker_of(stream).wait_idle("cudaStreamSynchronize");
    return simt::device_error();
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return simt::call_locked(__func__, [&] {
    if (const auto recording = event->last()) {
      simt::worker_of(stream).enqueue_control(
          [recording](simt::Clock& clock) { clock.merge(recording->wait_as_stream()); });
    }
    return simt::device_error();
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return simt::call_locked(__func__, [&] {
    if (simt::device_error() != cudaSuccess) return simt::device_error();
    *event = new CUevent_st;
    (*event)->is_timed = (flags & cudaEventDisableTiming) == 0;
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return simt::call_when_idle(__func__, [&] {
    delete event;
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return simt::call_locked(__func__, [&] {
    simt::Worker& worker = simt::worker_of(stream);
    for (const auto& [what, device] :
         {std::pair("an event", event->device), std::pair("a stream", worker.device())}) {
      const cudaError_t wrong = simt::expect_current("cudaEventRecord", what, device);
      if (wrong != cudaSuccess) return wrong;
    }
    const auto recording = std::make_shared<simt::Recording>(worker.name());
    event->set(recording);
    worker.enqueue_control([recording](simt::Clock& clock) { recording->happen(clock); });
    return simt::device_error();
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return simt::call_locked(__func__, [&] {
    const auto recording = event->last();
    if (recording == nullptr) return simt::device_error();
    std::unique_lock lock(recording->mutex);
    if (!recording->has_happened) return cudaErrorNotReady;
    const simt::Clock clock = recording->clock;
    lock.unlock();
    simt::host_has_waited(clock);
    return simt::device_error();
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return simt::call(__func__, [&] {
    std::shared_ptr<simt::Recording> recording;
    {
      const simt::DriverTurn turn("cudaEventSynchronize");
      recording = event->last();
    }
    if (recording != nullptr) simt::host_has_waited(recording->wait("cudaEventSynchronize"));
    return simt::device_error();
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  return simt::call_locked(__func__, [&] {
    std::array<std::chrono::steady_clock::time_point, 2> times;
    for (const bool is_end : {false, true}) {
      const cudaEvent_t event = is_end ? end : begin;
      const auto recording = event->last();
      if (!event->is_timed || recording == nullptr) return cudaErrorInvalidResourceHandle;
      const std::lock_guard lock(recording->mutex);
      if (!recording->has_happened) return cudaErrorNotReady;
      times[is_end ? 1 : 0] = recording->time;
    }
    *milliseconds = std::chrono::duration<float, std::milli>(times[1] - times[0]).count();
    return simt::device_error();
  });
}

}  // extern "C"
