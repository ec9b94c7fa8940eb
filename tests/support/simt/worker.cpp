#include "tests/support/simt/worker.h"

#include <chrono>
#include <set>
#include <thread>
#include <utility>

#include "tests/support/simt/crew.h"
#include "tests/support/simt/driver.h"
#include "tests/support/simt/findings.h"
#include "tests/support/simt/gate.h"
#include "tests/support/simt/random.h"

namespace sluiceway::simt {
namespace {

struct Workers {
  std::mutex mutex;
  std::set<Worker*> all;
};

Workers& workers() {
  static Workers* const all = new Workers;
  return *all;
}

}  // namespace

Worker::Worker(int device, Pace pace)
    : device_(device), pace_(pace), number_(take_stream_number()), standing_(number_) {
  start([this](Workshop& workshop) { work(workshop); });
  const std::lock_guard lock(workers().mutex);
  workers().all.insert(this);
}

Worker::~Worker() {
  {
    const std::lock_guard lock(workers().mutex);
    workers().all.erase(this);
  }
  {
    std::unique_lock lock(mutex_);
    closing_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return closed_; });
  }
  host_has_waited(clock_);
  give_back_stream_number(number_);
}

void Worker::push(Task task) {
  const std::lock_guard lock(mutex_);
  task.host = host_clock();
  tasks_.push_back(std::move(task));
  ++pushed_;
  standing_.enqueued();
  changed_.notify_all();
}

void Worker::enqueue(std::string name, std::function<void(Running&, Workshop&)> work,
                     std::function<void()> before) {
  push({new_operation(number_, std::move(name)), nullptr, std::move(work), std::move(before),
        nullptr});
}

void Worker::enqueue_control(std::function<void(Clock&)> work) {
  push({0, nullptr, nullptr, nullptr, std::move(work)});
}

void Worker::wait_idle(const char* call) {
  Clock clock;
  {
    std::unique_lock lock(mutex_);
    const std::uint64_t goal = pushed_;
    wait_on_host(call, standing_.name(), lock, changed_, [&] { return finished_ >= goal; });
    clock = clock_;
  }
  host_has_waited(clock);
}

void Worker::wait_until_all_are_idle() {
  const std::lock_guard lock(workers().mutex);
  for (Worker* const worker : workers().all) worker->wait_idle("take_findings()");
}

void Worker::work(Workshop& workshop) {
  standing_.work_here();
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !tasks_.empty() || closing_; });
    if (tasks_.empty()) break;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    clock_.merge(*task.host);
    lock.unlock();
    perform(task, workshop);
    task = {};  // Destroys what it held before anybody learns that it is done.
    lock.lock();
    ++finished_;
    standing_.finished();
    changed_.notify_all();
  }
  closed_ = true;
  changed_.notify_all();
}

void Worker::come_late(std::uint32_t operation) const {
  Random random(operation);
  if (pace_ == Pace::kPrompt || random.below(4) != 0) return;
  std::this_thread::sleep_for(std::chrono::microseconds(50 + random.below(500)));
}

void Worker::perform(Task& task, Workshop& workshop) {
  if (task.control) {
    Clock clock = clock_;  // Only this thread changes it, so it may read it without the lock.
    task.control(clock);
    const std::lock_guard lock(mutex_);
    clock_ = std::move(clock);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    clock_.advance(number_, operation(task.operation).number);
  }
  pass_gate();
  if (device_error() != cudaSuccess) return;
  if (task.before) task.before();
  come_late(task.operation);
  Running running(task.operation, clock_);
  task.work(running, workshop);
}

}  // namespace sluiceway::simt
