// Streams and events of the CUDA runtime: each stream is a Worker, an event is a place in one.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "kernels/base/check.h"
#include "tests/support/simt/arena.h"
#include "tests/support/simt/board.h"
#include "tests/support/simt/calls.h"
#include "tests/support/simt/current_device.h"
#include "tests/support/simt/findings.h"
#include "tests/support/simt/simt.h"
#include "tests/support/simt/streams.h"

namespace sluiceway::simt {
namespace {

std::atomic<int>& handles() {
  static std::atomic<int> count{0};
  return count;
}

struct Handle {
  Handle() { ++handles(); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { --handles(); }
};

}  // namespace

int live_handles() { return handles(); }

}  // namespace sluiceway::simt

struct CUstream_st {
  sluiceway::simt::Handle handle;
  sluiceway::simt::Worker worker{sluiceway::simt::current_device(),
                                 sluiceway::simt::Worker::Pace::kLate};
  int priority = 0;
};

namespace sluiceway::simt {
namespace {

// Outlives the event's handle where a stream still has to reach it.
struct EventState {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t recorded = 0;
  std::uint64_t happened = 0;
  std::string stream;  // Its last recording is there.
  Clock clock;
  std::chrono::steady_clock::time_point time;

  void happen(std::uint64_t which, const Clock& waited) {
    const std::lock_guard lock(mutex);
    happened = std::max(happened, which);
    clock = waited;
    time = std::chrono::steady_clock::now();
    changed.notify_all();
  }

  // By the host, in this call.
  Clock wait(std::uint64_t which, const char* call) {
    std::unique_lock lock(mutex);
    wait_on_host(call, "an event of " + stream, lock, changed, [&] { return happened >= which; });
    return clock;
  }

  // By the stream whose work the calling thread does.
  Clock wait_as_stream(std::uint64_t which) {
    std::unique_lock lock(mutex);
    if (happened >= which) return clock;
    std::string text = "waits for an event of " + stream;
    lock.unlock();
    {
      const Blocked blocked({Obstacle::By::kEvent, std::move(text), [this, which] {
                               const std::lock_guard held(mutex);
                               return happened >= which;
                             }});
      lock.lock();
      changed.wait(lock, [&] { return happened >= which; });
      lock.unlock();
    }
    lock.lock();
    return clock;
  }
};

// Of cudaStreamPerThread, where the thread waits for each call.
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

// What the function tells the host is not taken as a wait of the host. It is not called once the
// device has failed.
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
  sluiceway::simt::Handle handle;
  bool is_timed = true;
  int device = sluiceway::simt::current_device();
  std::shared_ptr<sluiceway::simt::EventState> state =
      std::make_shared<sluiceway::simt::EventState>();
};

namespace simt = sluiceway::simt;

namespace {

constexpr int kLeastPriority = 0, kGreatestPriority = -5;  // The lowest number goes first.

cudaError_t create_stream(cudaStream_t* stream, int priority) {
  if (simt::device_error() != cudaSuccess) return simt::device_error();
  *stream = new CUstream_st;
  (*stream)->priority = std::clamp(priority, kGreatestPriority, kLeastPriority);
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return simt::call_when_idle(__func__, [&] { return create_stream(stream, kLeastPriority); });
}

// The machine has no use for it: streams run when they can.
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
    delete stream;
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
    const auto state = event->state;
    std::unique_lock lock(state->mutex);
    const std::uint64_t which = state->recorded;
    lock.unlock();
    simt::worker_of(stream).enqueue_control(
        [state, which](simt::Clock& clock) { clock.merge(state->wait_as_stream(which)); });
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
    const auto state = event->state;
    std::string name = worker.name();
    std::unique_lock lock(state->mutex);
    const std::uint64_t which = ++state->recorded;
    state->stream = std::move(name);
    lock.unlock();
    worker.enqueue_control([state, which](simt::Clock& clock) { state->happen(which, clock); });
    return simt::device_error();
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return simt::call_locked(__func__, [&] {
    const auto state = event->state;
    std::unique_lock lock(state->mutex);
    if (state->happened < state->recorded) return cudaErrorNotReady;
    const simt::Clock clock = state->clock;
    lock.unlock();
    simt::host_has_waited(clock);
    return simt::device_error();
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return simt::call(__func__, [&] {
    const auto state = event->state;
    std::uint64_t which = 0;
    {
      const simt::DriverTurn turn("cudaEventSynchronize");
      const std::lock_guard lock(state->mutex);
      which = state->recorded;
    }
    simt::host_has_waited(state->wait(which, "cudaEventSynchronize"));
    return simt::device_error();
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  return simt::call_locked(__func__, [&] {
    const std::scoped_lock lock(begin->state->mutex, end->state->mutex);
    for (const cudaEvent_t event : {begin, end}) {
      const simt::EventState& state = *event->state;
      if (!event->is_timed || state.recorded == 0) return cudaErrorInvalidResourceHandle;
      if (state.happened < state.recorded) return cudaErrorNotReady;
    }
    const std::chrono::duration<float, std::milli> elapsed = end->state->time - begin->state->time;
    *milliseconds = elapsed.count();
    return simt::device_error();
  });
}

}  // extern "C"
