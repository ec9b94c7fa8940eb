#include "runtime/device/host_stream.h"

#include <utility>

#include "kernels/base/check.h"
#include "runtime/device/event_state.h"
#include "runtime/trace/trace.h"

namespace sluiceway {
namespace {

// What the task holds is let go before anybody hears that it is done.
void run(Stream::Task& task, const Stream::Done& done, FirstError& error) noexcept {
  Completion completion;
  completion.begin_us = now_us();
  try {
    task(StreamRef::host());
  } catch (...) {
    completion.error = std::current_exception();
  }
  completion.end_us = now_us();
  task = nullptr;
  if (done) {
    done(completion);
  } else if (completion.error != nullptr) {
    error.keep(completion.error);
  }
}

}  // namespace

WorkerStream::WorkerStream(Stream::Options options)
    : error_(std::make_shared<FirstError>()), worker_({std::move(options.name), options.cpu}) {}

void WorkerStream::enqueue(Stream::Task task, Stream::Done done) {
  worker_.post([task = std::move(task), done = std::move(done), error = error_]() mutable {
    run(task, done, *error);
  });
}

void WorkerStream::wait(const Event& event) {
  if (event.happened()) return;
  worker_.post([event, error = error_]() noexcept {
    try {
      event.wait();
    } catch (...) {  // A CUDA stream that failed.
      error->keep(std::current_exception());
    }
  });
}

Event WorkerStream::record() {
  auto state = std::make_shared<HostEvent>();
  worker_.post([state] { state->set(); });
  return Event(std::move(state));
}

void WorkerStream::synchronize() {
  SLUICEWAY_CHECK(!worker_.is_current(),
                  "stream: synchronize() in a task of the same stream, expected another thread");
  record().wait();
  error_->rethrow();
}

void InlineStream::enqueue(Stream::Task task, Stream::Done done) { run(task, done, error_); }

}  // namespace sluiceway
