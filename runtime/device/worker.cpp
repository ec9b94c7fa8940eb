#include "runtime/device/worker.h"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>
#include <system_error>
#include <utility>

#include "kernels/base/check.h"

namespace sluiceway {

struct Worker::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Job> jobs;
  bool stopping = false;

  bool next(Job& job) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return stopping || !jobs.empty(); });
    if (jobs.empty()) return false;
    job = std::move(jobs.front());
    jobs.pop_front();
    return true;
  }

  void run() noexcept {
    // The assignment destroys what a job holds before the next job starts.
    for (Job job; next(job); job = nullptr) job();
  }
};

namespace {

// Blocks signals for its lifetime; a thread started meanwhile keeps them blocked. Signals that
// report a fault of the running instruction stay open: blocked, they would kill without a message.
class SignalsBlocked {
 public:
  SignalsBlocked() noexcept {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS, SIGPROF}) {
      sigdelset(&blocked, fault);
    }
    pthread_sigmask(SIG_BLOCK, &blocked, &previous_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &previous_, nullptr); }

 private:
  sigset_t previous_;
};

void set_up_this_thread(const std::string& name) noexcept {
  pthread_setname_np(pthread_self(), name.c_str());
  prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);  // Nanoseconds; 0 would mean the default.
}

// Returns 0 or the error number.
int pin(pthread_t thread, int cpu) noexcept {
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(static_cast<std::size_t>(cpu), &only);
  return pthread_setaffinity_np(thread, sizeof only, &only);
}

}  // namespace

Worker::Worker(const Options& options) : state_(std::make_shared<State>()) {
  SLUICEWAY_CHECK(options.cpu >= -1 && options.cpu < CPU_SETSIZE, "worker: ", options.name,
                  ": processor ", options.cpu, ", expected -1 to ", CPU_SETSIZE - 1);
  SLUICEWAY_CHECK(options.threads >= 1, "worker: ", options.name, ": ", options.threads,
                  " threads, expected 1 or more");
  try {
    for (int i = 0; i < options.threads; ++i) add_thread(options);
  } catch (...) {
    finish();
    throw;
  }
}

void Worker::add_thread(const Options& options) {
  try {
    const SignalsBlocked signals_blocked;
    threads_.emplace_back([state = state_, name = options.name.substr(0, 15)] {
      set_up_this_thread(name);
      state->run();
    });
  } catch (const std::system_error& error) {
    throw Unavailable(concat("worker: cannot start thread ", options.name, ": ", error.what()));
  }
  if (options.cpu < 0) return;
  const int error_number = pin(threads_.back().native_handle(), options.cpu);
  if (error_number == 0) return;
  throw_invalid_argument(concat("worker: ", options.name, ": cannot run on processor ", options.cpu,
                                ": ", std::generic_category().message(error_number),
                                "; this machine has processors 0 to ",
                                static_cast<int>(std::thread::hardware_concurrency()) - 1));
}

Worker::~Worker() { finish(); }

void Worker::finish() noexcept {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
    state_->changed.notify_all();
  }
  for (std::thread& thread : threads_) {
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();
    } else {
      thread.join();
    }
  }
}

void Worker::post(Job job) {
  const std::lock_guard lock(state_->mutex);
  state_->jobs.push_back(std::move(job));
  state_->changed.notify_one();
}

bool Worker::is_current() const noexcept {
  return std::ranges::any_of(threads_, [](const std::thread& thread) {
    return thread.get_id() == std::this_thread::get_id();
  });
}

}  // namespace sluiceway
