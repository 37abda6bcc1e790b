// Signal: "something changed, look again". It carries no state and remembers no notification.
//
//     while (!condition) {
//       if (!co_await changed.wait_until(deadline)) return timed_out;   // then look at the
//       condition once more
//     }
//
// Between looking and waiting nothing else runs, so no notification is lost. notify_all() enqueues
// everyone who waits now, in the order of waiting; a waiter must check its condition again, because
// others ran before it.
//
// A Signal must outlive its waiters, and asserts it: a waiter woken by a dying Signal would look at
// a condition that dies with it. Declare the TaskSet whose tasks wait after the Signal, so that it
// is destroyed first.
#pragma once

#include <coroutine>

#include "flow/assert.h"
#include "flow/intrusive_list.h"
#include "flow/runtime.h"

namespace weightlane::flow {

class Signal;

class [[nodiscard]] SignalAwaiter final : private TimedWaiter, private ListHook {
 public:
  SignalAwaiter(Signal& signal, Nanos deadline);
  ~SignalAwaiter() { leave_list(); }
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> coroutine);
  // True when notified, false when the deadline came first.
  bool await_resume() const noexcept { return notified_; }

 private:
  friend class Signal;
  friend class IntrusiveList<SignalAwaiter>;
  Signal& signal_;
  Nanos deadline_;
  bool notified_ = false;
};

class Signal {
 public:
  explicit Signal(Runtime& runtime) : runtime_(runtime) {}
  ~Signal() { WL_ASSERT(waiters_.empty()); }
  Signal(const Signal&) = delete;
  Signal& operator=(const Signal&) = delete;

  SignalAwaiter wait() { return wait_until(kForever); }
  SignalAwaiter wait_until(Nanos deadline) { return SignalAwaiter(*this, deadline); }
  void notify_all() {
    while (!waiters_.empty()) {
      SignalAwaiter& waiter = waiters_.front();
      waiter.leave_list();
      waiter.notified_ = true;
      waiter.wake();
    }
  }
  bool has_waiters() const { return !waiters_.empty(); }

 private:
  friend class SignalAwaiter;
  Runtime& runtime_;
  IntrusiveList<SignalAwaiter> waiters_;
};

inline SignalAwaiter::SignalAwaiter(Signal& signal, Nanos deadline)
    : TimedWaiter(signal.runtime_), signal_(signal), deadline_(deadline) {
  on_fire = [](TimerNode& node) {
    auto& self = static_cast<SignalAwaiter&>(node);
    self.leave_list();
    self.wake();
  };
}

inline void SignalAwaiter::await_suspend(std::coroutine_handle<> coroutine) {
  signal_.waiters_.push_back(*this);
  wait(coroutine, deadline_);
}

}  // namespace weightlane::flow
