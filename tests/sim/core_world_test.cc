// Goal: time, order, lives and pauses of a simulated world are what Host and World promise.
// Method: small tasks on one to three hosts that write down what they see; no network.
#include "sim/world.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "flow/queue.h"
#include "flow/signal.h"

namespace weightlane::sim {
namespace {

using Log = std::vector<std::string>;

WorldConfig plain() {
  WorldConfig config;
  config.clock_offset_most = kZeroNanos;
  config.clock_drift_ppm_most = 0;
  return config;
}

flow::Task<void> tick(Host* host, Log* log, Nanos every, int times) {
  for (int i = 0; i < times; ++i) {
    co_await host->sleep_for(every);
    log->push_back(host->place().name + "@" +
                   std::to_string(host->world().now().count / 1'000'000));
  }
}

flow::Task<void> say(Log* log, std::string what) {
  log->push_back(what);
  co_return;
}

struct OnDestroy {
  Log* log;
  std::string what;
  ~OnDestroy() { log->push_back(what); }
};

flow::Task<void> hold(flow::Runtime* runtime, Log* log, std::string what) {
  const OnDestroy guard{log, "gone " + what};
  co_await runtime->sleep_until(kForever);
}

TEST(World, TimersFireInOrderOfTimeThenOfArming) {
  ChoiceSource choices(1);
  Log log;
  World world(plain(), choices);
  Host& a = world.add_host({.name = "a"});
  Host& b = world.add_host({.name = "b"});
  a.start(tick(&a, &log, millis(10), 2), "tick");
  b.start(tick(&b, &log, millis(10), 2), "tick");
  EXPECT_EQ(world.run_until(seconds(1), 1000), StopReason::kDeadlock);
  EXPECT_EQ(log, (Log{"a@10", "b@10", "a@20", "b@20"}));
}

TEST(World, RunUntilStopsAtTheTime) {
  ChoiceSource choices(1);
  Log log;
  World world(plain(), choices);
  Host& a = world.add_host({.name = "a"});
  a.start(tick(&a, &log, millis(10), 100), "tick");
  EXPECT_EQ(world.run_until(millis(35), 1000), StopReason::kTime);
  EXPECT_EQ(world.now(), millis(35));
  EXPECT_EQ(log.size(), 3u);
  EXPECT_EQ(world.run_until(seconds(10), 5), StopReason::kEvents);
}

TEST(World, DeadlockNamesWhoWaits) {
  ChoiceSource choices(1);
  Log log;
  World world(plain(), choices);
  Host& a = world.add_host({.name = "a"});
  a.start(hold(&a, &log, "x"), "holder");
  EXPECT_EQ(world.run_until(seconds(10), 1000), StopReason::kDeadlock);
  EXPECT_NE(world.waiting_report().find("a life 1 up: holder"), std::string::npos);
}

TEST(World, ClocksAreSkewedButTimersKeepTheirWord) {
  WorldConfig config;
  ChoiceSource choices(4);
  Log log;
  World world(config, choices);
  Host& a = world.add_host({.name = "a"});
  a.start(hold(&a, &log, "x"), "holder");
  for (int64_t at : {0ll, 1ll, 999'999ll, 123'456'789ll, 98'765'432'109'876ll}) {
    const Nanos world_time = nanos(at);
    const Nanos local = a.to_local(world_time);
    const Nanos back = a.to_world(local);
    EXPECT_GE(a.to_local(back), local);
    EXPECT_LE(std::abs(back.count - world_time.count), 4);
  }
}

TEST(World, ACrashCancelsTasksLatestFirst) {
  ChoiceSource choices(1);
  Log log;
  World world(plain(), choices);
  Host& a = world.add_host({.name = "a"});
  a.start(hold(&a, &log, "first"), "first");
  a.spawn(hold(&a, &log, "second"), "second");
  world.run_until(millis(1), 100);
  a.crash(CrashKind::kMemoryFirst);
  EXPECT_EQ(log, (Log{"gone second", "gone first"}));
  EXPECT_FALSE(a.alive());
  a.start(say(&log, "again"), "again");
  world.run_until(millis(2), 100);
  EXPECT_EQ(log.back(), "again");
  EXPECT_EQ(a.life(), 2u);
}

flow::Task<void> leave(Host* host, Log* log) {
  const OnDestroy guard{log, "left"};
  host->exit();
  co_await host->sleep_until(kForever);
}

TEST(World, AProcessCanEndItself) {
  ChoiceSource choices(1);
  Log log;
  World world(plain(), choices);
  Host& a = world.add_host({.name = "a"});
  a.start(leave(&a, &log), "leave");
  world.run_until(millis(1), 100);
  EXPECT_EQ(log, (Log{"left"}));
  EXPECT_FALSE(a.alive());
}

TEST(World, APausedHostCatchesUpInOrder) {
  ChoiceSource choices(1);
  Log log;
  World world(plain(), choices);
  Host& a = world.add_host({.name = "a"});
  Host& b = world.add_host({.name = "b"});
  a.start(tick(&a, &log, millis(10), 3), "tick");
  b.start(tick(&b, &log, millis(10), 3), "tick");
  world.run_until(millis(5), 100);
  a.pause(millis(20));
  world.run_until(seconds(1), 1000);
  EXPECT_EQ(log, (Log{"b@10", "b@20", "a@25", "b@30", "a@35", "a@45"}));
}

TEST(World, WhatWaitsInAPausedHostCanBeCancelled) {
  ChoiceSource choices(1);
  Log log;
  World world(plain(), choices);
  Host& a = world.add_host({.name = "a"});
  a.start(tick(&a, &log, millis(10), 3), "tick");
  world.run_until(millis(5), 100);
  a.pause(seconds(20));
  world.run_until(millis(500), 100);
  a.crash(CrashKind::kQueuePairFirst);
  EXPECT_EQ(world.run_until(seconds(60), 1000), StopReason::kDeadlock);
  EXPECT_TRUE(log.empty());
}

uint64_t hash_of_order(ReadyOrder order, uint64_t seed, Log& log) {
  WorldConfig config = plain();
  config.order = order;
  ChoiceSource choices(seed);
  World world(config, choices);
  for (int i = 0; i < 4; ++i) {
    Host& host = world.add_host({.name = std::string(1, static_cast<char>('a' + i))});
    host.start(tick(&host, &log, millis(10), 5), "tick");
    for (int j = 0; j < 3; ++j) host.spawn(tick(&host, &log, millis(10), 5), "tick");
  }
  world.run_until(seconds(1), 10'000);
  EXPECT_EQ(log.size(), 80u);
  return world.hash();
}

TEST(World, EveryReadyOrderIsReproducibleAndSeedsDiffer) {
  for (const ReadyOrder order :
       {ReadyOrder::kFifo, ReadyOrder::kRandom, ReadyOrder::kPct, ReadyOrder::kStarveOne}) {
    Log first;
    Log second;
    Log other_run;
    EXPECT_EQ(hash_of_order(order, 3, first), hash_of_order(order, 3, second));
    EXPECT_EQ(first, second);
    if (order == ReadyOrder::kFifo) continue;
    Log other;
    EXPECT_NE(hash_of_order(order, 4, other), hash_of_order(order, 3, other_run))
        << ready_order_name(order);
  }
}

TEST(World, NetworkCutsAddUp) {
  Network network;
  const CutId one = network.cut({.data = true, .from = host_bit({1}), .to = ~0ull});
  const CutId two =
      network.cut({.control = true, .data = true, .from = host_bit({1}), .to = host_bit({2})});
  EXPECT_TRUE(network.blocked(Plane::kData, {1}, {2}));
  EXPECT_TRUE(network.blocked(Plane::kControl, {1}, {2}));
  EXPECT_FALSE(network.blocked(Plane::kControl, {1}, {3}));
  EXPECT_FALSE(network.blocked(Plane::kData, {2}, {1}));
  EXPECT_TRUE(network.mend(one));
  EXPECT_FALSE(network.mend(one));
  EXPECT_TRUE(network.blocked(Plane::kData, {1}, {2}));
  EXPECT_FALSE(network.blocked(Plane::kData, {1}, {3}));
  EXPECT_TRUE(network.mend(two));
  EXPECT_FALSE(network.blocked(Plane::kData, {1}, {2}));
}

TEST(World, BandwidthIsSharedMaxMin) {
  BandwidthConfig config{.nic_tx = 10'000'000'000, .nic_rx = 10'000'000'000, .wide = 1'000'000'000};
  Bandwidth bandwidth(config);
  bandwidth.add_host({0}, {.name = "a"});
  bandwidth.add_host({1}, {.name = "b"});
  bandwidth.add_host({2}, {.name = "c"});
  bandwidth.add_host({3}, {.name = "far", .datacenter = "dc1"});
  const auto near = [](uint64_t a, uint64_t b) { return a > b / 100 * 99 && a < b / 100 * 101; };
  const FlowId ab = bandwidth.start({0}, {1}, 1);
  EXPECT_TRUE(near(bandwidth.rate_of(ab), 10'000'000'000));
  const FlowId ac = bandwidth.start({0}, {2}, 1);
  EXPECT_TRUE(near(bandwidth.rate_of(ab), 5'000'000'000));
  const FlowId bc = bandwidth.start({1}, {2}, 1);
  EXPECT_TRUE(near(bandwidth.rate_of(ac), 5'000'000'000));
  EXPECT_TRUE(near(bandwidth.rate_of(bc), 5'000'000'000));
  // The wide link bounds one flow; the others share what it leaves.
  const FlowId af = bandwidth.start({0}, {3}, 1);
  EXPECT_TRUE(near(bandwidth.rate_of(af), 1'000'000'000));
  EXPECT_TRUE(near(bandwidth.rate_of(ab), 4'500'000'000)) << bandwidth.rate_of(ab);
  bandwidth.end(ab);
  EXPECT_TRUE(near(bandwidth.rate_of(bc), 5'000'000'000));
  bandwidth.set_slowdown({1}, 10);
  EXPECT_TRUE(near(bandwidth.rate_of(bc), 1'000'000'000));
  EXPECT_TRUE(near(bandwidth.rate_of(ac), 9'000'000'000)) << bandwidth.rate_of(ac);
  EXPECT_EQ(bandwidth.span_of(bc, 1'000'000'000).count / 10'000'000, 100);
}

}  // namespace
}  // namespace weightlane::sim
