// A thread that ends moves itself to the list of finished ones, which the next start() joins.
#include "prod/thread_group.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <utility>

namespace weightlane::prod {

void ThreadGroup::join_all() {
  {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return running_.empty(); });
  }
  join_finished();
}

void ThreadGroup::join_finished() {
  Members now;
  {
    std::lock_guard lock(mutex_);
    now.splice(now.end(), finished_);
  }
  for (Member& member : now) member.thread.join();
}

bool ThreadGroup::start(const char* name, std::function<void()> body) {
  join_finished();
  std::lock_guard lock(mutex_);
  const Members::iterator self = running_.emplace(running_.end());
  auto run = [this, self, name, body = std::move(body)]() mutable {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    pthread_setname_np(pthread_self(), name);
    body();
    body = nullptr;
    std::lock_guard finishing(mutex_);
    finished_.splice(finished_.end(), running_, self);
    ended_.notify_all();  // under the lock: the group may be destroyed right after
  };
  try {
    self->thread = std::thread(std::move(run));
  } catch (const std::system_error&) {
    running_.erase(self);
    return false;
  }
  return true;
}

}  // namespace weightlane::prod
