// Goal: the scheduler's parts: the runtimes' turns and clocks, random numbers that never change,
// and the bar "no allocation per wake-up after warm-up", for everything a coroutine can wait for.
// Method: known sequences; counting operator new (alloc_count.h). Heap and queue against models:
// parts_prop_test.cc.
#include "flow/loop.h"

#include <gtest/gtest.h>

#include <array>

#include "flow/future.h"
#include "flow/queue.h"
#include "flow/signal.h"
#include "tests/flow/alloc_count.h"

namespace weightlane::flow::testing {
namespace {

TEST(Rng, IsTheSameEverywhere) {
  SplitMix64 seeds(1234567);
  EXPECT_EQ(seeds.next(), 6457827717110365317u);  // the published test vector
  EXPECT_EQ(seeds.next(), 3203168211198807973u);
  Rng a(7);
  Rng b(7);
  Rng other(7, 1);
  EXPECT_EQ(a.next(), b.next());
  EXPECT_NE(a.next(), other.next());
  std::array<int, 3> counts{};
  for (int i = 0; i < 30'000; ++i) ++counts[a.below(3)];
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 400);
  EXPECT_EQ(a.below(1), 0u);
  Rng c(9);
  bool high = false;
  for (int i = 0; i < 100; ++i) high = high || c.below(~uint64_t{0}) > (uint64_t{1} << 63);
  EXPECT_TRUE(high);
}

Task<void> tick(Runtime* runtime, int times, int* count) {
  for (int i = 0; i < times; ++i) {
    co_await runtime->sleep_for(millis(1));
    ++*count;
  }
}

TEST(ManualRuntime, RunUntilLeavesTheClockThere) {
  ManualRuntime runtime;
  int count = 0;
  runtime.spawn(tick(&runtime, 10, &count), "tick");
  runtime.run_until(micros(3500));
  EXPECT_EQ(count, 3);
  EXPECT_EQ(runtime.now(), micros(3500));
  EXPECT_EQ(runtime.loop().next_timer_time(), millis(4));
  runtime.run();
  EXPECT_EQ(count, 10);
  EXPECT_EQ(runtime.now(), millis(10));
}

// A clock that somebody else moves, as in production.
class OutsideClock final : public LoopRuntime {
 public:
  explicit OutsideClock(const Nanos* clock) : LoopRuntime(1), clock_(clock) {}
  ~OutsideClock() override { cancel_tasks(); }
  Nanos now() const override { return *clock_; }

 private:
  const Nanos* clock_;
};

Task<void> spin(Runtime* runtime, int times, int* count) {
  for (int i = 0; i < times; ++i) {
    co_await runtime->yield();
    ++*count;
  }
}

TEST(LoopRuntime, ATurnIsBoundedAndFiresWhatIsDue) {
  Nanos clock;
  OutsideClock runtime(&clock);
  int spins = 0;
  int ticks = 0;
  runtime.spawn(spin(&runtime, 100, &spins), "spin");
  runtime.spawn(tick(&runtime, 1, &ticks), "tick");
  EXPECT_TRUE(runtime.turn(10));
  EXPECT_LT(spins, 10);
  clock = millis(1);
  EXPECT_TRUE(runtime.turn(2));  // a yielding task does not starve a timer
  EXPECT_EQ(ticks, 1);
  while (runtime.turn(10)) {
  }
  EXPECT_EQ(spins, 100);
}

// Everything below outlives the tasks.
struct World {
  explicit World(Runtime& runtime) : signal(runtime), there(runtime), back(runtime) {}
  Signal signal;
  Queue<int> there;
  Queue<int> back;
  bool stop = false;
};

Task<void> notify_forever(Runtime* runtime, World* world) {
  while (!world->stop) {
    co_await runtime->sleep_for(micros(3));
    world->signal.notify_all();
  }
}

Task<void> listen_forever(Runtime* runtime, World* world) {
  while (!world->stop) co_await world->signal.wait_until(runtime->now() + micros(2));
}

Task<void> serve_forever(World* world) {
  while (!world->stop) {
    const int item = co_await world->there.pop();
    world->back.push(item + 1);
  }
}

Task<void> call_forever(Runtime* runtime, World* world) {
  while (!world->stop) {
    world->there.push(1);
    const std::optional<int> reply = co_await world->back.pop_until(runtime->now() + micros(5));
    if (!reply) co_return;
    co_await runtime->yield();
  }
}

TEST(Allocation, NoneAWakeUpAfterWarmUp) {
  ManualRuntime runtime;
  World world(runtime);
  TaskSet set(runtime);
  for (int i = 0; i < 10; ++i) {
    set.spawn(notify_forever(&runtime, &world), "notify");
    set.spawn(listen_forever(&runtime, &world), "listen");
  }
  set.spawn(serve_forever(&world), "serve");
  set.spawn(call_forever(&runtime, &world), "call");
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(runtime.step());
  const int64_t before = allocations_made();
  for (int i = 0; i < 100'000; ++i) runtime.step();
  EXPECT_EQ(allocations_made() - before, 0);
}

Task<Done> settled(Future<void> future) {
  const Result<Done> result = co_await future;
  co_return result.value();
}

TEST(Allocation, APromiseIsOneBlockAndATaskIsOneFrame) {
  ManualRuntime runtime;
  const int64_t before = allocations_made();
  Promise<void> promise(runtime);
  EXPECT_EQ(allocations_made() - before, 1);
  Task<Done> task = settled(promise.future());
  EXPECT_EQ(allocations_made() - before, 2);
  promise.set();
  runtime.run(std::move(task));
  EXPECT_EQ(allocations_made() - before, 2);
}

}  // namespace
}  // namespace weightlane::flow::testing
