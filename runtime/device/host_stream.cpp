#include "runtime/device/host_stream.h"

#include <utility>

#include "kernels/base/check.h"
#include "runtime/device/event_state.h"
#include "runtime/trace/trace.h"

namespace sluiceway {
namespace {

// What the task holds is let go before anybody hears that it is done.
void run(const WorkerTarget& target, Stream::Task& task, const Stream::Done& done,
         FirstError& error) noexcept {
  Completion completion;
  completion.begin_us = now_us();
  const auto keep_first = [&completion](const auto& act) {
    try {
      act();
    } catch (...) {
      if (completion.error == nullptr) completion.error = std::current_exception();
    }
  };
  keep_first([&] {
    const DeviceGuard guard(target.stream.device());
    keep_first([&] { task(target.stream); });
    target.finish();
  });
  completion.end_us = now_us();
  task = nullptr;
  if (done) {
    done(completion);
  } else if (completion.error != nullptr) {
    error.keep(completion.error);
  }
}

}  // namespace

WorkerStream::WorkerStream(Stream::Options options, WorkerTarget target)
    : target_(std::make_shared<const WorkerTarget>(std::move(target))),
      error_(std::make_shared<FirstError>()),
      worker_({std::move(options.name), options.cpu}) {
  worker_.post(target_->begin);
}

void WorkerStream::enqueue(Stream::Task task, Stream::Done done) {
  worker_.post([task = std::move(task), done = std::move(done), target = target_,
                error = error_]() mutable { run(*target, task, done, *error); });
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

void InlineStream::enqueue(Stream::Task task, Stream::Done done) {
  static const WorkerTarget host;
  run(host, task, done, error_);
}

}  // namespace sluiceway
