// Goal: race, all and with_timeout: who wins, what is cancelled when, where exceptions go.
// Method: small tasks on a ManualRuntime; a Cancelled mark says which branch was cut. Random trees:
// tree_prop_test.cc.
#include "flow/combinators.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "flow/loop.h"
#include "tests/flow/alloc_count.h"

namespace weightlane::flow::testing {
namespace {

class Cut {
 public:
  Cut(std::string* out, char mark) : out_(out), mark_(mark) {}
  Cut(const Cut&) = delete;
  Cut& operator=(const Cut&) = delete;
  ~Cut() {
    if (!ended_) out_->push_back(mark_);
  }
  void end() { ended_ = true; }

 private:
  std::string* out_;
  char mark_;
  bool ended_ = false;
};

Task<int> after(Runtime* runtime, Nanos span, std::string* cuts, char mark, int value) {
  Cut cut(cuts, mark);
  if (span > kZeroNanos) co_await runtime->sleep_for(span);
  cut.end();
  co_return value;
}

Task<void> void_after(Runtime* runtime, Nanos span) { co_await runtime->sleep_for(span); }

Task<std::string> fails_after(Runtime* runtime, Nanos span) {
  co_await runtime->sleep_for(span);
  throw std::runtime_error("failed");
}

TEST(Race, TheFirstWinsAndTheRestIsCutInOrder) {
  ManualRuntime runtime;
  std::string cuts;
  auto result = runtime.run(race(after(&runtime, millis(3), &cuts, 'a', 1),
                                 after(&runtime, millis(2), &cuts, 'b', 2),
                                 after(&runtime, millis(5), &cuts, 'c', 3)));
  EXPECT_EQ(result.index(), 1u);
  EXPECT_EQ(std::get<1>(result), 2);
  EXPECT_EQ(cuts, "ac");
  EXPECT_EQ(runtime.loop().timer_count(), 0u);
}

TEST(Race, ABranchThatEndsAtOnceLeavesTheLaterUnstarted) {
  ManualRuntime runtime;
  std::string cuts;
  auto result = runtime.run(race(after(&runtime, millis(3), &cuts, 'a', 1),
                                 after(&runtime, kZeroNanos, &cuts, 'b', 2),
                                 after(&runtime, kZeroNanos, &cuts, 'c', 3)));
  EXPECT_EQ(result.index(), 1u);
  EXPECT_EQ(cuts, "a");
}

TEST(Race, DifferentTypesAndVoid) {
  ManualRuntime runtime;
  std::string cuts;
  std::variant<int, Done> result =
      runtime.run(race(after(&runtime, millis(3), &cuts, 'a', 1), void_after(&runtime, millis(1))));
  EXPECT_EQ(result.index(), 1u);
}

TEST(Race, AnExceptionIsAnEndToo) {
  ManualRuntime runtime;
  std::string cuts;
  EXPECT_THROW(runtime.run(race(after(&runtime, millis(3), &cuts, 'a', 1),
                                fails_after(&runtime, millis(1)))),
               std::runtime_error);
  EXPECT_EQ(cuts, "a");
}

TEST(All, TupleGivesEachValue) {
  ManualRuntime runtime;
  std::string cuts;
  auto [a, b, c] =
      runtime.run(all(after(&runtime, millis(3), &cuts, 'a', 1), void_after(&runtime, millis(1)),
                      after(&runtime, kZeroNanos, &cuts, 'c', 3)));
  EXPECT_EQ(a, 1);
  EXPECT_EQ(c, 3);
  static_assert(std::is_same_v<decltype(b), Done>);
  EXPECT_EQ(runtime.now(), millis(3));
}

TEST(All, VectorKeepsTheOrder) {
  ManualRuntime runtime;
  std::string cuts;
  std::vector<Task<int>> tasks;
  for (int i = 0; i < 5; ++i) tasks.push_back(after(&runtime, millis(9 - i), &cuts, 'x', i));
  EXPECT_EQ(runtime.run(all(std::move(tasks))), (std::vector<int>{0, 1, 2, 3, 4}));
  EXPECT_EQ(runtime.run(all(std::vector<Task<void>>())).size(), 0u);
}

TEST(All, TheFirstFailureCutsTheRest) {
  ManualRuntime runtime;
  std::string cuts;
  EXPECT_THROW(
      runtime.run(all(after(&runtime, millis(5), &cuts, 'a', 1), fails_after(&runtime, millis(2)),
                      after(&runtime, millis(4), &cuts, 'c', 1))),
      std::runtime_error);
  EXPECT_EQ(cuts, "ac");
  EXPECT_EQ(runtime.now(), millis(2));
}

TEST(WithTimeout, GivesTheValueOrCutsTheTask) {
  ManualRuntime runtime;
  std::string cuts;
  EXPECT_EQ(
      runtime.run(with_timeout(runtime, millis(5), after(&runtime, millis(3), &cuts, 'a', 1))), 1);
  EXPECT_EQ(
      runtime.run(with_timeout(runtime, millis(5), after(&runtime, millis(3), &cuts, 'b', 1))),
      std::nullopt);
  EXPECT_EQ(runtime.now(), millis(5));
  EXPECT_EQ(cuts, "b");
  EXPECT_TRUE(runtime.run(with_timeout(runtime, kForever, void_after(&runtime, millis(1)))));
  EXPECT_FALSE(runtime.run(with_timeout(runtime, kZeroNanos, void_after(&runtime, millis(1)))));
  EXPECT_EQ(runtime.loop().timer_count(), 0u);
}

TEST(WithTimeout, ADeadlineLongGoneStillStartsTheTask) {
  ManualRuntime runtime;
  std::string cuts;
  runtime.run_until(millis(9));
  EXPECT_EQ(
      runtime.run(with_timeout(runtime, millis(1), after(&runtime, kZeroNanos, &cuts, 'a', 1))), 1);
}

TEST(WithTimeout, ExceptionsPass) {
  ManualRuntime runtime;
  EXPECT_THROW(runtime.run(with_timeout(runtime, millis(5), fails_after(&runtime, millis(2)))),
               std::runtime_error);
}

TEST(Combinators, DroppedTheyCutTheirBranchesInOrder) {
  ManualRuntime runtime;
  int64_t live = 0;
  for (int round = 0; round < 2; ++round) {  // the first warms the timer heap up
    std::string cuts;
    {
      auto group = with_timeout(runtime, millis(50),
                                race(after(&runtime, millis(30), &cuts, 'a', 1),
                                     after(&runtime, millis(20), &cuts, 'b', 2)));
      TaskOwner owner;
      group.start(owner);
      EXPECT_EQ(runtime.loop().timer_count(), 3u);
    }
    EXPECT_EQ(cuts, "ab");
    EXPECT_EQ(runtime.loop().timer_count(), 0u);
    if (round == 1) EXPECT_EQ(allocations_live(), live);
    live = allocations_live();
  }
}

}  // namespace
}  // namespace weightlane::flow::testing
