// ThreadGroup: threads that come and go with connections, all joined before their owner goes.
//
// For work that blocks as long as a peer likes (HelperThreads is for work that ends by itself).
// Whoever starts a thread must know how to make it return, and does so before the group is
// destroyed. Signals are blocked: they are for the thread that runs the program.
#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

namespace weightlane::prod {

class ThreadGroup {
 public:
  ThreadGroup() = default;
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;
  ~ThreadGroup() { join_all(); }
  // Waits for every thread. Not on one of them.
  void join_all();

  // Thread-safe. `body` must not throw; its captures are destroyed on its own thread. False, and
  // nothing runs, when the system gives no more threads.
  [[nodiscard]] bool start(const char* name, std::function<void()> body);

 private:
  struct Member {
    std::thread thread;
  };
  using Members = std::list<Member>;
  void join_finished();

  std::mutex mutex_;
  std::condition_variable ended_;
  Members running_;   // guarded by mutex_
  Members finished_;  // guarded by mutex_
};

}  // namespace weightlane::prod
