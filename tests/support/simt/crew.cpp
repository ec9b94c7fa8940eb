#include "tests/support/simt/crew.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "tests/support/simt/grid.h"

namespace sluiceway::simt {
namespace {

struct Crew {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void(Workshop&)>> jobs;
  std::size_t idle = 0;
};

Crew& crew() {
  static Crew* const all = new Crew;  // Its threads end with the program.
  return *all;
}

void work() {
  Workshop workshop(&Grid::run_thread);
  std::unique_lock lock(crew().mutex);
  for (;;) {
    ++crew().idle;
    crew().changed.wait(lock, [] { return !crew().jobs.empty(); });
    --crew().idle;
    auto job = std::move(crew().jobs.front());
    crew().jobs.pop_front();
    lock.unlock();
    job(workshop);
    job = nullptr;
    lock.lock();
  }
}

}  // namespace

void start(std::function<void(Workshop&)> job) {
  Crew& all = crew();
  const std::lock_guard lock(all.mutex);
  all.jobs.push_back(std::move(job));
  all.changed.notify_one();
  if (all.idle < all.jobs.size()) std::thread(&work).detach();
}

}  // namespace sluiceway::simt
