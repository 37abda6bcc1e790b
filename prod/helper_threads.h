// HelperThreads: a few threads for what would block the loop: registering memory, copies,
// checksums, name look-ups. First in, first out; the threads are made when the first work comes.
//
// The destructor waits for work that has begun and drops the rest.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace weightlane::prod {

class HelperThreads {
 public:
  explicit HelperThreads(unsigned count) : count_(count == 0 ? 1 : count) {}
  ~HelperThreads();
  HelperThreads(const HelperThreads&) = delete;
  HelperThreads& operator=(const HelperThreads&) = delete;

  // Thread-safe. `work` must not throw.
  void post(std::function<void()> work);

 private:
  void serve();

  const unsigned count_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;  // guarded by mutex_
  unsigned idle_ = 0;                        // guarded by mutex_
  bool stopping_ = false;                    // guarded by mutex_
  std::vector<std::thread> threads_;         // guarded by mutex_
};

}  // namespace weightlane::prod
