// Goal: the things a coroutine waits for: sleep, yield, Future, Signal, Queue. Who wakes whom, in
// which order, what a deadline gives, and that a cancelled waiter leaves no trace. Method: tasks in
// a TaskSet on a ManualRuntime write what happens to a string or a vector.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "flow/future.h"
#include "flow/loop.h"
#include "flow/queue.h"
#include "flow/signal.h"
#include "flow/task_set.h"

namespace weightlane::flow::testing {
namespace {

Task<void> sleep_and_mark(Runtime* runtime, Nanos span, std::string* out, char mark) {
  co_await runtime->sleep_for(span);
  out->push_back(mark);
}

TEST(Sleep, WakesByTimeThenByOrderOfArming) {
  ManualRuntime runtime;
  TaskSet set(runtime);
  std::string out;
  set.spawn(sleep_and_mark(&runtime, millis(2), &out, 'c'), "c");
  set.spawn(sleep_and_mark(&runtime, millis(1), &out, 'a'), "a");
  set.spawn(sleep_and_mark(&runtime, millis(1), &out, 'b'), "b");
  set.spawn(sleep_and_mark(&runtime, nanos(-5), &out, '0'), "past");
  set.spawn(sleep_and_mark(&runtime, kForever, &out, 'x'), "never");
  runtime.run();
  EXPECT_EQ(out, "0abc");
  EXPECT_EQ(runtime.now(), millis(2));
  EXPECT_EQ(set.size(), 1u);
  EXPECT_EQ(runtime.loop().timer_count(), 0u);
}

Task<void> yield_and_mark(Runtime* runtime, int times, std::string* out, char mark) {
  for (int i = 0; i < times; ++i) {
    out->push_back(mark);
    co_await runtime->yield();
  }
}

TEST(Yield, TakesTurns) {
  ManualRuntime runtime;
  TaskSet set(runtime);
  std::string out;
  set.spawn(yield_and_mark(&runtime, 3, &out, 'a'), "a");
  set.spawn(yield_and_mark(&runtime, 2, &out, 'b'), "b");
  runtime.run();
  EXPECT_EQ(out, "ababa");
}

Task<void> report(Future<int> future, std::string* out) {
  const Result<int> result = co_await future;
  *out += result.ok() ? std::to_string(result.value()) : error_code_name(result.error().code);
}

TEST(Future, GivesTheValueAndSetDoesNotResumeInline) {
  ManualRuntime runtime;
  TaskSet set(runtime);
  std::string out;
  Promise<int> promise(runtime);
  EXPECT_FALSE(promise.is_set());
  set.spawn(report(promise.future(), &out), "report");
  runtime.run();
  promise.set(7);
  EXPECT_TRUE(promise.is_set());
  EXPECT_EQ(out, "");
  runtime.run();
  EXPECT_EQ(out, "7");
  EXPECT_TRUE(promise.is_set());
}

TEST(Future, SetBeforeTheAwaitNeedsNoTurn) {
  ManualRuntime runtime;
  std::string out;
  Promise<int> promise(runtime);
  Future<int> future = promise.future();
  promise.set(8);
  EXPECT_TRUE(future.ready());
  promise = Promise<int>();
  runtime.run(report(std::move(future), &out));
  EXPECT_EQ(out, "8");
}

TEST(Future, ABrokenPromiseIsClosed) {
  ManualRuntime runtime;
  TaskSet set(runtime);
  std::string out;
  auto promise = std::make_unique<Promise<int>>(runtime);
  set.spawn(report(promise->future(), &out), "report");
  runtime.run();
  promise.reset();
  EXPECT_EQ(out, "");
  runtime.run();
  EXPECT_EQ(out, "Closed");
}

TEST(Future, AssigningOverAPromiseBreaksIt) {
  ManualRuntime runtime;
  Promise<int> promise(runtime);
  const Future<int> future = promise.future();
  promise = Promise<int>(runtime);
  EXPECT_TRUE(future.ready());
  EXPECT_FALSE(promise.future().ready());
}

Task<void> report_until(Runtime* runtime, Future<int> future, std::string* out) {
  for (int i = 0; i < 2; ++i) {
    const Result<int> result = co_await future.until(runtime->now() + millis(10));
    *out += result.ok() ? std::to_string(result.value()) : error_code_name(result.error().code);
    *out += ';';
  }
}

TEST(Future, UntilTimesOutAndCanBeAwaitedAgain) {
  ManualRuntime runtime;
  TaskSet set(runtime);
  std::string out;
  Promise<int> promise(runtime);
  set.spawn(report_until(&runtime, promise.future(), &out), "report");
  runtime.run_until(millis(15));
  promise.set(9);
  runtime.run();
  EXPECT_EQ(out, "Timeout;9;");
  EXPECT_EQ(runtime.now(), millis(15));
}

TEST(Future, ACancelledWaiterIsForgotten) {
  ManualRuntime runtime;
  std::string out;
  Promise<int> promise(runtime);
  {
    TaskSet set(runtime);
    set.spawn(report(promise.future(), &out), "report");
    runtime.run();
    promise.set(1);  // enqueues the waiter, which then goes
  }
  EXPECT_EQ(runtime.loop().ready_count(), 0u);
  runtime.run();
  EXPECT_EQ(out, "");
}

Task<void> take_twice(Future<void> future) {
  (void)co_await future;
  (void)co_await future;
}

TEST(FutureDeathTest, GivesItsValueOnce) {
  ManualRuntime runtime;
  Promise<void> promise(runtime);
  promise.set();
  EXPECT_DEATH(runtime.run(take_twice(promise.future())), "once");
  EXPECT_DEATH(promise.set(), "assertion failed");
}

// The Signal outlives the task.
Task<void> wait_and_mark(Signal* signal, Nanos deadline, std::string* out, char mark) {
  const bool notified = co_await signal->wait_until(deadline);
  out->push_back(mark);
  out->push_back(notified ? '+' : '-');
}

TEST(Signal, NotifiesThoseWhoWaitNowInOrder) {
  ManualRuntime runtime;
  Signal signal(runtime);
  TaskSet set(runtime);
  std::string out;
  set.spawn(wait_and_mark(&signal, kForever, &out, 'a'), "a");
  set.spawn(wait_and_mark(&signal, millis(1), &out, 'b'), "b");
  set.spawn(wait_and_mark(&signal, millis(9), &out, 'c'), "c");
  runtime.run_until(millis(2));
  EXPECT_EQ(out, "b-");
  EXPECT_TRUE(signal.has_waiters());
  signal.notify_all();
  EXPECT_FALSE(signal.has_waiters());
  EXPECT_EQ(out, "b-");
  runtime.run();
  EXPECT_EQ(out, "b-a+c+");
  EXPECT_EQ(runtime.now(), millis(2));
  signal.notify_all();  // remembers nothing
}

TEST(Signal, DeadlineAndNotificationInOneTurn) {
  ManualRuntime runtime;
  Signal signal(runtime);
  TaskSet set(runtime);
  std::string out;
  set.spawn(wait_and_mark(&signal, millis(1), &out, 'a'), "a");
  while (runtime.loop().ready_count() > 0) runtime.step(kZeroNanos);
  EXPECT_TRUE(runtime.step(millis(1)));  // the timer fires; the waiter is ready, not yet run
  signal.notify_all();                   // too late for it
  runtime.run();
  EXPECT_EQ(out, "a-");
}

TEST(SignalDeathTest, MustOutliveItsWaiters) {
  ManualRuntime runtime;
  std::string out;
  auto signal = std::make_unique<Signal>(runtime);
  TaskSet set(runtime);
  set.spawn(wait_and_mark(signal.get(), kForever, &out, 'a'), "a");
  runtime.run();
  EXPECT_DEATH(signal.reset(), "assertion failed");
}

// The Queue outlives the task.
Task<void> pop_and_mark(Queue<int>* queue, std::string* out, char mark) {
  const int item = co_await queue->pop();
  out->push_back(mark);
  *out += std::to_string(item);
}

TEST(Queue, FirstComeFirstServed) {
  ManualRuntime runtime;
  Queue<int> queue(runtime);
  TaskSet set(runtime);
  std::string out;
  set.spawn(pop_and_mark(&queue, &out, 'a'), "a");
  set.spawn(pop_and_mark(&queue, &out, 'b'), "b");
  runtime.run();
  queue.push(1);
  EXPECT_EQ(queue.try_pop(), std::nullopt);  // claimed by the woken popper
  queue.push(2);
  queue.push(3);
  EXPECT_EQ(queue.size(), 3u);
  runtime.run();
  EXPECT_EQ(out, "a1b2");
  EXPECT_EQ(queue.try_pop(), 3);
  EXPECT_TRUE(queue.empty());
}

TEST(Queue, ACancelledPopperLosesNoItem) {
  ManualRuntime runtime;
  Queue<int> queue(runtime);
  TaskSet later(runtime);
  std::string out;
  {
    TaskSet first(runtime);
    first.spawn(pop_and_mark(&queue, &out, 'a'), "a");
    runtime.run();
    later.spawn(pop_and_mark(&queue, &out, 'b'), "b");
    runtime.run();
    queue.push(5);
  }
  runtime.run();
  EXPECT_EQ(out, "b5");
}

TEST(Queue, RefusesBeyondItsLimit) {
  ManualRuntime runtime;
  Queue<int> queue(runtime, 2);
  EXPECT_TRUE(queue.try_push(1));
  EXPECT_TRUE(queue.try_push(2));
  EXPECT_FALSE(queue.try_push(3));
  EXPECT_EQ(queue.try_pop(), 1);
  EXPECT_TRUE(queue.try_push(4));
  EXPECT_DEATH(queue.push(5), "assertion failed");
}

Task<void> pop_until_and_mark(Queue<std::unique_ptr<int>>* queue, Nanos deadline,
                              std::string* out) {
  std::optional<std::unique_ptr<int>> item = co_await queue->pop_until(deadline);
  *out += item ? std::to_string(**item) : "none";
}

TEST(Queue, PopUntilGivesNothingAtTheDeadline) {
  ManualRuntime runtime;
  Queue<std::unique_ptr<int>> queue(runtime);
  TaskSet set(runtime);
  std::string out;
  set.spawn(pop_until_and_mark(&queue, millis(1), &out), "early");
  set.spawn(pop_until_and_mark(&queue, millis(9), &out), "late");
  runtime.run_until(millis(2));
  queue.push(std::make_unique<int>(3));
  runtime.run();
  EXPECT_EQ(out, "none3");
  EXPECT_EQ(runtime.now(), millis(2));
}

}  // namespace
}  // namespace weightlane::flow::testing
