// EventLoop: the one thread on which production's protocol code runs, and its only doors to the
// rest of the process: file descriptors, helper threads, other threads.
//
// A turn of the loop is: run what other threads posted, fire flow's timers, resume flow's ready
// coroutines, run kj's queue (Cap'n Proto RPC is a guest of this loop), call the end-of-turn hooks
// (where buffered writes are flushed), then wait for descriptors until the next timer. Coroutines
// are never resumed from inside a kj event or a descriptor's callback: those only enqueue, so a
// task may destroy whatever it owns.
//
// Everything here belongs to the loop's thread, the one that made the EventLoop, except what is
// marked thread-safe. A thread has one EventLoop at a time. No kj in this header: a data plane can
// use the loop without it.
#pragma once

#include <coroutine>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "flow/future.h"
#include "flow/intrusive_list.h"
#include "flow/runtime.h"
#include "flow/task.h"

namespace weightlane::prod {

struct FdReady {
  bool readable = false;  // data, a connection to accept, the end of the stream, or an error
  bool writable = false;  // room to write, the end of connect(), or an error
  bool ended = false;     // the other side sends no more, or an error; if not, a read that fills
                          // less than its buffer has read everything
};

// Watches one descriptor while it lives. Destroy it before the descriptor is closed; the callback
// itself may destroy it.
class FdWatch {
 public:
  ~FdWatch();
  FdWatch(const FdWatch&) = delete;
  FdWatch& operator=(const FdWatch&) = delete;

 private:
  friend class EventLoop;
  struct Node;
  explicit FdWatch(std::unique_ptr<Node> node);
  std::unique_ptr<Node> node_;
};

// What wants to be called once, before the loop next looks for descriptors: to flush what a turn
// has gathered. Unhooks itself when destroyed.
class TurnHook : public flow::ListHook {
 public:
  virtual void end_of_turn() = 0;

 protected:
  TurnHook() = default;
  ~TurnHook() { leave_list(); }
};

class EventLoop {
 public:
  struct Options {
    unsigned helper_threads = 3;                            // made when first needed
    std::function<void(const flow::TraceEvent&)> on_trace;  // flow's story; may be empty
  };
  EventLoop() : EventLoop(Options{}) {}
  explicit EventLoop(Options options);
  // Cancels what is left of flow's spawned tasks, waits for helpers that are at work, and drops
  // what is still queued for them. Everything that uses the loop must be gone by then.
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  flow::Runtime& runtime();

  // Runs until stop().
  void run();
  // Makes a run() under way, or else the next one, return soon. Thread-safe.
  void stop();
  // Runs until `task` has ended, and gives its value: for tests, and the main of a program.
  template <typename T>
  T run(flow::Task<T> task) {
    struct Owner final : flow::TaskOwner {
      EventLoop* loop = nullptr;
    } owner;
    owner.loop = this;
    owner.on_done = [](flow::TaskOwner& self) -> std::coroutine_handle<> {
      static_cast<Owner&>(self).loop->skip_wait();
      return std::noop_coroutine();
    };
    task.start(owner);
    while (!task.done()) turn();
    return task.take();
  }

  // Calls `on_ready` whenever the non-blocking `fd` becomes readable or writable, beginning with
  // how it is now. Edge-triggered: there is no second call for what was there at the last one, so
  // read (accept, write) until EAGAIN, or remember that you did not. One watch per descriptor.
  [[nodiscard]] std::unique_ptr<FdWatch> watch(int fd, std::function<void(FdReady)> on_ready);

  // Runs `work` on a helper thread, then `done` on the loop's thread. `work` must own what it
  // touches (captured by value, or shared): nothing cancels it once it has begun, and its captures
  // are destroyed on the helper's thread. Calls may run beside each other and end in any order.
  void post_work(std::function<void()> work, std::function<void()> done);
  // The same, awaited. Dropping the task gives up the value; `work` still runs.
  template <typename T>
  flow::Task<T> run_on_helper(std::function<T()> work) {
    struct Shared {
      explicit Shared(flow::Runtime& runtime) : promise(runtime) {}
      std::optional<T> value;
      flow::Promise<T> promise;
    };
    auto shared = std::make_shared<Shared>(runtime());
    flow::Future<T> future = shared->promise.future();
    // The helper sees the slot only; the promise is touched on this thread alone, and `shared` is
    // last released here as well, because `done` comes back.
    post_work([slot = &shared->value, work = std::move(work)] { slot->emplace(work()); },
              [shared] { shared->promise.set(std::move(*shared->value)); });
    shared.reset();
    Result<flow::ValueOf<T>> result = co_await future;
    co_return std::move(result).value();
  }

  // Runs `callback` on the loop's thread, in the order of posting; dropped if the loop goes first.
  // Thread-safe, while the EventLoop lives.
  void post_to_loop(std::function<void()> callback);

  // Calls hook->end_of_turn() once, at the end of this turn. Does nothing if it is hooked already.
  void call_at_end_of_turn(TurnHook& hook);

 private:
  friend class FdWatch;
  void turn();
  void skip_wait();  // this turn doesn't sleep

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weightlane::prod
