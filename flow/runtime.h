// The Runtime: the only door through which protocol code meets time, scheduling, randomness and
// observation.
//
// Everything in ros/ is written against this interface and cannot tell who implements it: sim/
// (virtual time, drawn order, seeded randomness) or prod/ (kj's event loop). One Runtime stands for
// one host process. There is no thread and no global: whoever makes the world hands a Runtime&
// down.
//
// What an implementation must keep:
//   - make_ready only enqueues; a coroutine is never resumed from inside make_ready, set, arm_timer
//   or their like;
//   - nodes are intrusive and owned by their awaiters: whoever is destroyed while linked is
//   unlinked first, so after
//     cancel_ready/disarm_timer returns the runtime never touches the node again;
//   - a timer fires at or after its time on this host's clock; equal times fire in the order of
//   arming, unless the
//     simulator draws otherwise;
//   - now() never goes back.
#pragma once

#include <coroutine>
#include <cstdint>
#include <string_view>

#include "flow/time.h"

namespace weightlane::flow {

// A place in the code that the simulator wants to see reached. Constants of this type live in one
// table per layer (net/probes.h, ros/probes.h, ...); `id` is unique over all layers.
struct ProbePoint {
  uint16_t id = 0;
  const char* name = nullptr;  // "ros.read.rerouted"
  bool rare = false;           // a campaign may miss it without a complaint
};

// One line of the story: a state transition, in fixed fields so that it can be hashed without
// formatting.
struct TraceEvent {
  const char* what = nullptr;  // a string literal: "handle.published"
  uint64_t a = 0, b = 0, c = 0;
  std::string_view detail;  // may be empty; valid during the call only
};

// A suspended coroutine that waits for its turn. `next`/`prev`/`slot` belong to the runtime while
// linked.
struct ReadyNode {
  std::coroutine_handle<> coroutine = nullptr;
  ReadyNode* next = nullptr;
  ReadyNode* prev = nullptr;
  uint32_t slot = 0;
  bool linked = false;
};

// A coroutine or callback that waits for a time. When it fires it is unlinked first, then
// `on_fire(*this)` runs (it must only enqueue or unlink other nodes); by default awaiters make
// their coroutine ready.
struct TimerNode {
  void (*on_fire)(TimerNode&) = nullptr;
  uint32_t slot = 0;  // heap index, the runtime's
  bool linked = false;
};

template <typename T = void>
class Task;  // flow/task.h
class SleepAwaiter;
class YieldAwaiter;

class Runtime {
 public:
  virtual ~Runtime() = default;

  virtual Nanos now() const = 0;
  // Values that carry no choice: stamps, ids, incarnations, jitter. Never a decision that the
  // simulator should explore.
  virtual uint64_t random() = 0;
  virtual void probe(const ProbePoint& point) = 0;
  virtual void trace(const TraceEvent& event) = 0;
  // Owned by the runtime; cancelled when the runtime goes. `name` must be a string literal.
  virtual void spawn(Task<void> task, const char* name) = 0;

  // For awaiters only.
  virtual void make_ready(ReadyNode& node) = 0;
  virtual void cancel_ready(ReadyNode& node) = 0;
  virtual void arm_timer(TimerNode& node, Nanos when) = 0;
  virtual void disarm_timer(TimerNode& node) = 0;

  // Both always suspend, so a loop around them lets others run; kForever sleeps until it is
  // cancelled.
  SleepAwaiter sleep_until(Nanos when);
  SleepAwaiter sleep_for(Nanos span);
  YieldAwaiter yield();
};

// What every awaiter with a deadline is made of: a timer, a place in the ready queue, and a
// destructor that takes both back. A derived awaiter sets `on_fire` to a function that leaves its
// own queue and then calls wake().
class TimedWaiter : protected TimerNode {
 public:
  TimedWaiter(const TimedWaiter&) = delete;
  TimedWaiter& operator=(const TimedWaiter&) = delete;

 protected:
  explicit TimedWaiter(Runtime& runtime) : runtime_(runtime) {}
  ~TimedWaiter() {
    if (TimerNode::linked) runtime_.disarm_timer(*this);
    if (ready_.linked) runtime_.cancel_ready(ready_);
  }
  void wait(std::coroutine_handle<> coroutine, Nanos deadline) {
    ready_.coroutine = coroutine;
    if (deadline != kForever) runtime_.arm_timer(*this, deadline);
  }
  void wake() {
    if (TimerNode::linked) runtime_.disarm_timer(*this);
    runtime_.make_ready(ready_);
  }

 private:
  Runtime& runtime_;
  ReadyNode ready_;
};

class [[nodiscard]] SleepAwaiter final : private TimedWaiter {
 public:
  SleepAwaiter(Runtime& runtime, Nanos when) : TimedWaiter(runtime), when_(when) {
    on_fire = [](TimerNode& node) { static_cast<SleepAwaiter&>(node).wake(); };
  }
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> coroutine) { wait(coroutine, when_); }
  void await_resume() const noexcept {}

 private:
  Nanos when_;
};

class [[nodiscard]] YieldAwaiter final {
 public:
  explicit YieldAwaiter(Runtime& runtime) : runtime_(runtime) {}
  YieldAwaiter(const YieldAwaiter&) = delete;
  YieldAwaiter& operator=(const YieldAwaiter&) = delete;
  ~YieldAwaiter() {
    if (ready_.linked) runtime_.cancel_ready(ready_);
  }
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> coroutine) {
    ready_.coroutine = coroutine;
    runtime_.make_ready(ready_);
  }
  void await_resume() const noexcept {}

 private:
  Runtime& runtime_;
  ReadyNode ready_;
};

inline SleepAwaiter Runtime::sleep_until(Nanos when) { return SleepAwaiter(*this, when); }
inline SleepAwaiter Runtime::sleep_for(Nanos span) {
  return SleepAwaiter(*this, deadline_after(now(), span));
}
inline YieldAwaiter Runtime::yield() { return YieldAwaiter(*this); }

}  // namespace weightlane::flow
