// A queue under a lock: work arrives at most a few thousand times a second and runs for long.
#include "prod/helper_threads.h"

#include <signal.h>

#include <utility>

namespace weightlane::prod {

HelperThreads::~HelperThreads() {
  std::deque<std::function<void()>> dropped;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    dropped.swap(queue_);
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void HelperThreads::post(std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    if (idle_ < queue_.size() && threads_.size() < count_) {
      threads_.emplace_back([this] { serve(); });
    }
  }
  changed_.notify_one();
}

void HelperThreads::serve() {
  // Signals are for the thread that runs the program.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);

  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    --idle_;
    if (stopping_) return;
    std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    work();
    work = nullptr;  // its captures go here, not under the lock
    lock.lock();
  }
}

}  // namespace weightlane::prod
