// Loop: the scheduler core, and the two Runtimes made of it and nothing else.
//
// Loop is a first-in-first-out ready list and a timer heap. It knows no clock: whoever owns it says
// what time it is. LoopRuntime is a Runtime over a Loop whose clock its subclass supplies
// (production: the kj loop's clock). Its owner drives it: fire the timers that are due, run what is
// ready, sleep until next_timer_time(). ManualRuntime's clock stands still until it is told to
// move: for tests and benchmarks.
//
// The simulator has its own Runtime (drawn order, a queue per host) over TimerHeap.
#pragma once

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "flow/assert.h"
#include "flow/random.h"
#include "flow/ready_list.h"
#include "flow/runtime.h"
#include "flow/task.h"
#include "flow/task_set.h"
#include "flow/timer_heap.h"

namespace weightlane::flow {

class Loop {
 public:
  void make_ready(ReadyNode& node) { ready_.push_back(node); }
  void cancel_ready(ReadyNode& node) { ready_.remove(node); }
  void arm_timer(TimerNode& node, Nanos when) { timers_.push(node, when, next_sequence_++); }
  void disarm_timer(TimerNode& node) { timers_.remove(node); }

  // Resumes the first in the ready list; false when there is none.
  bool run_ready_one() {
    if (ready_.empty()) return false;
    const std::coroutine_handle<> coroutine = ready_.pop_front().coroutine;
    coroutine.resume();
    return true;
  }
  size_t ready_count() const { return ready_.size(); }
  size_t timer_count() const { return timers_.size(); }
  // kForever when none is armed.
  Nanos next_timer_time() const { return timers_.top_time(); }
  // Fires what is due at `now`, in the order of (time, arming); returns how many. Firing only
  // enqueues.
  size_t fire_timers(Nanos now) {
    size_t fired = 0;
    while (!timers_.empty() && timers_.top_time() <= now) {
      TimerNode& node = timers_.pop();
      node.on_fire(node);
      ++fired;
    }
    return fired;
  }

 private:
  ReadyList ready_;
  TimerHeap timers_;
  uint64_t next_sequence_ = 0;
};

// A subclass supplies now(), may override probe() and trace(), and calls cancel_tasks() in its
// destructor, because a task's destructors may still ask what time it is.
class LoopRuntime : public Runtime {
 public:
  explicit LoopRuntime(uint64_t seed) : rng_(seed), tasks_(*this) {}

  uint64_t random() override { return rng_.next(); }
  void probe(const ProbePoint&) override {}
  void trace(const TraceEvent&) override {}
  void spawn(Task<void> task, const char* name) override { tasks_.spawn(std::move(task), name); }
  void make_ready(ReadyNode& node) final { loop_.make_ready(node); }
  void cancel_ready(ReadyNode& node) final { loop_.cancel_ready(node); }
  void arm_timer(TimerNode& node, Nanos when) final { loop_.arm_timer(node, when); }
  void disarm_timer(TimerNode& node) final { loop_.disarm_timer(node); }

  // One turn: fires what is due now, then resumes at most `limit` coroutines. False when there was
  // nothing to do.
  bool turn(size_t limit);
  const TaskSet& tasks() const { return tasks_; }
  const Loop& loop() const { return loop_; }

 protected:
  Loop& core() { return loop_; }
  void cancel_tasks() { tasks_.cancel_all(); }

 private:
  Loop loop_;
  Rng rng_;
  TaskSet tasks_;  // last: cancelled while the rest still stands
};

class ManualRuntime final : public LoopRuntime {
 public:
  explicit ManualRuntime(uint64_t seed = 1) : LoopRuntime(seed) {}
  ~ManualRuntime() override { cancel_tasks(); }

  Nanos now() const override { return now_; }

  // Resumes one coroutine, or else moves the clock to the next timer (not beyond `until`) and fires
  // it and its like. False when neither is there.
  bool step(Nanos until = kForever);
  // Steps until nothing is ready and no timer is left.
  void run();
  // Does all that is due until then, and leaves the clock there.
  void run_until(Nanos when);
  // Runs until `task` has ended and gives its value; asserts that it does end.
  template <typename T>
  T run(Task<T> task) {
    TaskOwner owner;
    owner.on_done = [](TaskOwner&) -> std::coroutine_handle<> { return std::noop_coroutine(); };
    task.start(owner);
    while (!task.done()) WL_ASSERT(step());
    return task.take();
  }

 private:
  Nanos now_ = kZeroNanos;
};

}  // namespace weightlane::flow
