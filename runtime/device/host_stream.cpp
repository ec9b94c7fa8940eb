#include "runtime/device/host_stream.h"

#include <cstdint>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "runtime/device/event_state.h"
#include "runtime/trace/trace.h"

namespace sluiceway {
namespace {

// Destroys what the task holds before anybody learns that it is done.
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
  SLUICEWAY_CHECK(
      !worker_.is_current(),
      "stream: synchronize() was called in a task of the same stream; call it on another "
      "thread");
  record().wait();
  error_->rethrow();
}

// The numbers of unfinished tasks, and who waits for which.
struct TeamStream::Unfinished {
  std::mutex mutex;
  std::uint64_t next = 0;
  std::set<std::uint64_t> numbers;
  // Each waits for the tasks below its number.
  std::vector<std::pair<std::uint64_t, std::shared_ptr<HostEvent>>> waiting;
  std::vector<Event> before;  // Every later task waits for these.

  std::uint64_t add() {
    const std::lock_guard lock(mutex);
    return *numbers.insert(numbers.end(), next++);
  }

  std::vector<Event> gates() {
    const std::lock_guard lock(mutex);
    std::erase_if(before, [](const Event& event) { return event.happened(); });
    return before;
  }

  void end(std::uint64_t number) noexcept {
    const std::lock_guard lock(mutex);
    numbers.erase(number);
    const std::uint64_t ended = numbers.empty() ? next : *numbers.begin();
    std::erase_if(waiting, [ended](const auto& waiter) {
      if (waiter.first > ended) return false;
      waiter.second->set();
      return true;
    });
  }
};

TeamStream::TeamStream(const Stream::Options& options)
    : unfinished_(std::make_shared<Unfinished>()),
      error_(std::make_shared<FirstError>()),
      worker_({options.name, options.cpu, options.threads}) {}

void TeamStream::enqueue(Stream::Task task, Stream::Done done) {
  static const WorkerTarget host;
  const std::uint64_t number = unfinished_->add();
  try {
    worker_.post([number, task = std::move(task), done = std::move(done), error = error_,
                  gates = unfinished_->gates(), unfinished = unfinished_]() mutable {
      for (const Event& gate : gates) gate.wait();
      run(host, task, done, *error);
      unfinished->end(number);
    });
  } catch (...) {
    unfinished_->end(number);
    throw;
  }
}

void TeamStream::wait(const Event& event) {
  if (event.happened()) return;
  const std::lock_guard lock(unfinished_->mutex);
  unfinished_->before.push_back(event);
}

Event TeamStream::record() {
  const std::lock_guard lock(unfinished_->mutex);
  if (unfinished_->numbers.empty()) return {};
  auto state = std::make_shared<HostEvent>();
  unfinished_->waiting.emplace_back(unfinished_->next, state);
  return Event(std::move(state));
}

void TeamStream::synchronize() {
  SLUICEWAY_CHECK(
      !worker_.is_current(),
      "stream: synchronize() was called in a task of the same stream; call it on another "
      "thread");
  record().wait();
  error_->rethrow();
}

void InlineStream::enqueue(Stream::Task task, Stream::Done done) {
  static const WorkerTarget host;
  run(host, task, done, error_);
}

}  // namespace sluiceway
