// Goal: what Task promises: lazy, one owner, values and exceptions reach the awaiter, a drop
// cancels innermost first, and chains of any length use no stack. Method: small coroutines on a
// ManualRuntime; Trail records in which order frames are destroyed.
#include "flow/task.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "flow/loop.h"
#include "tests/flow/alloc_count.h"

namespace weightlane::flow::testing {
namespace {

class Trail {
 public:
  Trail(std::string* out, char mark) : out_(out), mark_(mark) {}
  Trail(const Trail&) = delete;
  Trail& operator=(const Trail&) = delete;
  ~Trail() { out_->push_back(mark_); }

 private:
  std::string* out_;
  char mark_;
};

Task<int> add_later(Runtime* runtime, int a, int b) {
  co_await runtime->yield();
  co_return a + b;
}

Task<void> set_true(bool* flag) {
  *flag = true;
  co_return;
}

Task<int> throws(Runtime* runtime) {
  co_await runtime->yield();
  throw std::runtime_error("no");
}

Task<std::string> catches(Runtime* runtime) {
  std::string what;
  try {
    co_await throws(runtime);
  } catch (const std::runtime_error& error) {
    what = error.what();
  }
  co_return what;
}

Task<void> inner(Runtime* runtime, std::string* out) {
  const Trail c(out, 'c');
  co_await runtime->sleep_for(kForever);
}

Task<void> middle(Runtime* runtime, std::string* out) {
  const Trail b(out, 'b');
  co_await inner(runtime, out);
}

Task<void> outer(Runtime* runtime, std::string* out) {
  const Trail z(out, 'z');
  const Trail a(out, 'a');
  co_await middle(runtime, out);
}

TEST(Task, IsLazy) {
  bool ran = false;
  {
    const Task<void> task = set_true(&ran);
  }
  EXPECT_FALSE(ran);
  ManualRuntime runtime;
  runtime.run(set_true(&ran));
  EXPECT_TRUE(ran);
}

TEST(Task, GivesItsValue) {
  ManualRuntime runtime;
  EXPECT_EQ(runtime.run(add_later(&runtime, 2, 3)), 5);
}

Task<std::unique_ptr<int>> move_only() { co_return std::make_unique<int>(4); }

TEST(Task, GivesWhatOnlyMoves) {
  ManualRuntime runtime;
  EXPECT_EQ(*runtime.run(move_only()), 4);
}

TEST(Task, ExceptionsReachTheAwaiter) {
  ManualRuntime runtime;
  EXPECT_EQ(runtime.run(catches(&runtime)), "no");
  EXPECT_THROW(runtime.run(throws(&runtime)), std::runtime_error);
}

TEST(Task, DropCancelsInnermostFirst) {
  ManualRuntime runtime;
  std::string trail;
  {
    TaskSet set(runtime);
    set.spawn(outer(&runtime, &trail), "outer");
    runtime.run();
    EXPECT_EQ(trail, "");
  }
  EXPECT_EQ(trail, "cbaz");
}

TEST(Task, AssignmentCancelsTheOldWork) {
  ManualRuntime runtime;
  const int64_t live = allocations_live();
  Task<int> task = add_later(&runtime, 1, 2);
  task = add_later(&runtime, 3, 4);
  EXPECT_EQ(allocations_live(), live + 1);
  EXPECT_EQ(runtime.run(std::move(task)), 7);
  EXPECT_EQ(allocations_live(), live);
}

Task<int> count_down(int depth) {
  if (depth == 0) co_return 0;
  const int below = co_await count_down(depth - 1);
  co_return below + 1;
}

Task<int> one() { co_return 1; }

Task<int64_t> sum_many(int count) {
  int64_t sum = 0;
  for (int i = 0; i < count; ++i) {
    const int value = co_await one();
    sum += value;
  }
  co_return sum;
}

TEST(Task, DeepChainsAndLongLoopsUseNoStack) {
  ManualRuntime runtime;
  EXPECT_EQ(runtime.run(count_down(100'000)), 100'000);
  EXPECT_EQ(runtime.run(sum_many(1'000'000)), 1'000'000);
}

Task<void> dive(Runtime* runtime, int depth) {
  if (depth > 0) {
    co_await dive(runtime, depth - 1);
  } else {
    co_await runtime->sleep_for(kForever);
  }
}

TEST(Task, ADropAtDepthTenThousandIsFine) {
  ManualRuntime runtime;
  const int64_t live = allocations_live();
  {
    TaskSet set(runtime);
    set.spawn(dive(&runtime, 10'000), "dive");
    runtime.run();
    EXPECT_GT(allocations_live(), live + 10'000);
  }
  EXPECT_EQ(allocations_live(), live);
}

Task<void> await_empty() {
  Task<int> empty;
  co_await std::move(empty);
}

TEST(TaskDeathTest, AwaitingNothingAsserts) {
  ManualRuntime runtime;
  EXPECT_DEATH(runtime.run(await_empty()), "assertion failed");
}

}  // namespace
}  // namespace weightlane::flow::testing
