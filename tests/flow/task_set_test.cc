// Goal: TaskSet owns its tasks: nothing runs inside spawn, what ends leaves, what is left is
// cancelled in reverse order, drain waits for all, an exception stops the process and names the
// task. Method: small tasks on a ManualRuntime.
#include "flow/task_set.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "flow/loop.h"
#include "tests/flow/alloc_count.h"

namespace weightlane::flow::testing {
namespace {

class MarkAtEnd {
 public:
  MarkAtEnd(std::string* out, char mark) : out_(out), mark_(mark) {}
  MarkAtEnd(MarkAtEnd&& other) noexcept : out_(other.out_), mark_(other.mark_) {
    other.out_ = nullptr;
  }
  MarkAtEnd& operator=(MarkAtEnd&&) = delete;
  ~MarkAtEnd() {
    if (out_ != nullptr) out_->push_back(mark_);
  }

 private:
  std::string* out_;
  char mark_;
};

Task<void> sleep_holding(Runtime* runtime, Nanos span, MarkAtEnd) {
  co_await runtime->sleep_for(span);
}

TEST(TaskSet, CancelsTheLatestFirst) {
  ManualRuntime runtime;
  std::string out;
  {
    TaskSet set(runtime);
    set.spawn(sleep_holding(&runtime, kForever, {&out, 'a'}), "a");
    set.spawn(sleep_holding(&runtime, millis(1), {&out, 'b'}), "b");
    set.spawn(sleep_holding(&runtime, kForever, {&out, 'c'}), "c");
    runtime.run();
    EXPECT_EQ(out, "b");
    set.spawn(sleep_holding(&runtime, kForever, {&out, 'd'}), "d, never begun");
    std::vector<std::string> names;
    set.for_each_name([&names](const char* name) { names.emplace_back(name); });
    EXPECT_EQ(names, (std::vector<std::string>{"a", "c", "d, never begun"}));
  }
  EXPECT_EQ(out, "bdca");
  EXPECT_EQ(runtime.loop().ready_count(), 0u);
}

// The TaskSet outlives the task.
Task<void> drain_and_mark(TaskSet* set, std::string* out) {
  co_await set->drain();
  out->push_back('.');
}

TEST(TaskSet, DrainWaitsForAll) {
  ManualRuntime runtime;
  std::string out;
  TaskSet set(runtime);
  runtime.run(drain_and_mark(&set, &out));
  EXPECT_EQ(out, ".");
  set.spawn(sleep_holding(&runtime, millis(1), {&out, 'a'}), "a");
  set.spawn(sleep_holding(&runtime, millis(2), {&out, 'b'}), "b");
  runtime.run(drain_and_mark(&set, &out));
  EXPECT_EQ(out, ".ab.");
  EXPECT_TRUE(set.empty());
}

// Whose set is destroyed by the end of its own last task.
struct Owner {
  explicit Owner(Runtime& runtime) : set(runtime) {}
  TaskSet set;
};

Task<void> hold(Runtime* runtime, std::shared_ptr<Owner>) { co_await runtime->yield(); }

TEST(TaskSet, TheLastTaskMayTakeTheSetWithIt) {
  ManualRuntime runtime;
  const int64_t live = allocations_live();
  auto owner = std::make_shared<Owner>(runtime);
  Owner* raw = owner.get();
  raw->set.spawn(hold(&runtime, std::move(owner)), "hold");
  runtime.run();
  EXPECT_EQ(allocations_live(), live);
}

Task<void> spawn_again(TaskSet* set, Runtime* runtime, int left) {
  co_await runtime->yield();
  if (left > 0) set->spawn(spawn_again(set, runtime, left - 1), "again");
}

TEST(TaskSet, TasksMaySpawnIntoTheirSet) {
  ManualRuntime runtime;
  TaskSet set(runtime);
  set.spawn(spawn_again(&set, &runtime, 100), "first");
  runtime.run(set.drain());
  EXPECT_TRUE(set.empty());
}

Task<void> fails(Runtime* runtime) {
  co_await runtime->yield();
  throw std::runtime_error("broken shard");
}

std::string context() { return "host 3, seed 42"; }

TEST(TaskSetDeathTest, AnExceptionNamesTheTask) {
  ManualRuntime runtime;
  runtime.spawn(fails(&runtime), "heartbeat");
  EXPECT_DEATH(runtime.run(), "heartbeat: broken shard");
  set_assert_context(&context);
  EXPECT_DEATH(runtime.run(), "host 3, seed 42");
  set_assert_context(nullptr);
}

TEST(Runtime, OwnsWhatItSpawns) {
  std::string out;
  {
    ManualRuntime runtime;
    runtime.spawn(sleep_holding(&runtime, kForever, {&out, 'a'}), "a");
    runtime.run();
    EXPECT_EQ(runtime.tasks().size(), 1u);
  }
  EXPECT_EQ(out, "a");
}

}  // namespace
}  // namespace weightlane::flow::testing
