// Goal: faults of more than one READ do what they say: READs carried out at once, adapters that
// fail with all their queue pairs, storms, late events, hosts cut off one by one.
// Method: one source, one reader (core_fixture.h), or a few idle hosts and the injector alone.
#include <gtest/gtest.h>

#include <set>

#include "sim/fault_injector.h"
#include "tests/sim/core_fixture.h"

namespace weightlane::sim {
namespace {

// Data first, then two words: what a reader's look is.
flow::Task<void> data_then_words(Pair* p) {
  const Result<Done> prepared = co_await p->reader.prepare(8);
  const Result<Done> connected = co_await p->reader.connect(p->source.endpoint);
  EXPECT_TRUE(prepared.ok() && connected.ok());
  EXPECT_EQ(p->reader.post(1, p->source.described_memory, 0, 8), net::PostResult::kPosted);
  EXPECT_EQ(p->reader.post_words(2, p->source.described_words, 2), net::PostResult::kPosted);
  const bool all = co_await p->reader.collect(2, seconds(10));
  EXPECT_TRUE(all);
}

bool look_overtakes(uint32_t lanes, uint64_t seed) {
  WorldConfig config;
  config.data.lanes = lanes;
  Pair p{config, seed};
  EXPECT_TRUE(p.run(data_then_words(&p)));
  EXPECT_EQ(p.reader.statuses(), "SUCCESS SUCCESS");
  EXPECT_EQ(p.reader.completions.front().work_id, 1u) << "completions stay in order";
  return !p.watcher.executed.back().is_word;
}

TEST(Lanes, ALookMayBeExecutedBeforeDataPostedEarlier) {  // S4, S6
  int overtakes = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    overtakes += look_overtakes(4, seed) ? 1 : 0;
    EXPECT_FALSE(look_overtakes(1, seed));
  }
  EXPECT_GT(overtakes, 10);
}

flow::Task<void> post_four(Pair* p, bool* all) {
  const Result<Done> prepared = co_await p->reader.prepare(8);
  const Result<Done> connected = co_await p->reader.connect(p->source.endpoint);
  EXPECT_TRUE(prepared.ok() && connected.ok());
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(p->reader.post(i, p->source.described_memory, i * 2, 2), net::PostResult::kPosted);
  }
  *all = co_await p->reader.collect(4, seconds(20));
}

TEST(Faults, OurOwnMistakesAreLocalAndExecuteNothing) {  // F26
  std::set<std::string> first;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    WorldConfig config;
    config.faults.set(Fault::kPostMistake, 999'999);
    Pair p{config, seed};
    bool all = false;
    ASSERT_TRUE(p.run(post_four(&p, &all)));
    EXPECT_TRUE(all);
    first.insert(net::completion_status_name(p.reader.completions.front().status));
    EXPECT_TRUE(p.watcher.executed.empty());
  }
  EXPECT_EQ(first.size(), 4u);
}

TEST(Faults, LateEventsAreOnlyLate) {  // F25
  WorldConfig config;
  config.faults.set(Fault::kWakeLate, 999'999);
  Pair p{config};
  bool all = false;
  ASSERT_TRUE(p.run(post_four(&p, &all)));
  EXPECT_TRUE(all);
  EXPECT_EQ(p.reader.statuses(), "SUCCESS SUCCESS SUCCESS SUCCESS");
}

// Two queue pairs of one reader; the adapter goes while both have a READ under way.
flow::Task<void> two_pairs(Pair* p, Fault fault, std::string* statuses) {
  const Result<Done> prepared = co_await p->reader.prepare(8);
  const Result<Done> connected = co_await p->reader.connect(p->source.endpoint);
  std::unique_ptr<net::QueuePair> first = std::move(p->reader.pair);
  const net::RemoteRegion from = p->source.described_memory;
  const Result<Done> again = co_await p->reader.connect(p->source.endpoint);
  EXPECT_TRUE(prepared.ok() && connected.ok() && again.ok());
  net::ReadWork work;
  work.into = p->reader.memory;
  work.from = from;
  work.length = kGranule;
  EXPECT_EQ(first->post_read(work), net::PostResult::kPosted);
  EXPECT_EQ(p->reader.pair->post_read(work), net::PostResult::kPosted);
  p->world.data_net().adapter_fails(p->reader_host.id(), fault);
  // The READs under way may end as they would have; the next ones are the adapter's.
  co_await p->reader_host.sleep_for(seconds(5));
  first->post_read(work);
  p->reader.pair->post_read(work);
  co_await p->reader_host.sleep_for(seconds(5));
  for (net::QueuePair* pair : {first.get(), p->reader.pair.get()}) {
    while (auto completion = pair->poll())
      *statuses += std::string(net::completion_status_name(completion->status)) + " ";
  }
  const Result<Done> gone = co_await first->destroy(kForever);
  EXPECT_TRUE(gone.ok());
}

TEST(Faults, AnAdapterFailsWithAllItsQueuePairs) {  // F22, F28
  for (const Fault fault : {Fault::kCqOverrun, Fault::kFirmwareHang}) {
    Pair p{WorldConfig{}};
    std::string statuses;
    ASSERT_TRUE(p.run(two_pairs(&p, fault, &statuses)));
    EXPECT_EQ(statuses, "");
  }
  Pair p{WorldConfig{}};
  std::string statuses;
  ASSERT_TRUE(p.run(two_pairs(&p, Fault::kFirmwareFatal, &statuses)));
  EXPECT_EQ(statuses, "SUCCESS FATAL_ERR SUCCESS FATAL_ERR ");
}

flow::Task<void> through_a_storm(Pair* p, std::string* story) {
  const Result<Done> prepared = co_await p->reader.prepare(8);
  const Result<Done> connected = co_await p->reader.connect(p->source.endpoint);
  EXPECT_TRUE(prepared.ok() && connected.ok());
  EXPECT_EQ(p->reader.post(1, p->source.described_memory, 0, 8), net::PostResult::kPosted);
  p->world.data_net().storm(p->reader_host.id(), p->world.now() + seconds(1));
  const bool ended = co_await p->reader.collect(1, seconds(1));
  *story += ended ? p->reader.statuses() : "nothing";
  const Result<Done> refused = co_await p->reader.connect(p->source.endpoint, millis(500));
  *story += std::string(", ") + (refused.ok() ? "ok" : error_code_name(refused.error().code));
  co_await p->reader_host.sleep_for(seconds(2));
  const Result<Done> again = co_await p->reader.connect(p->source.endpoint);
  *story += again.ok() ? ", ok" : ", not again";
}

TEST(Faults, AStormBreaksEveryPairAndNewOnesAreShort) {  // F32
  Pair p{WorldConfig{}};
  std::string story;
  ASSERT_TRUE(p.run(through_a_storm(&p, &story)));
  EXPECT_EQ(story,
            std::string("GENERAL_ERR, ") + error_code_name(ErrorCode::kResourceExhausted) + ", ok");
}

class NoDirector final : public HostDirector {
 public:
  void restart(Host&, bool) override {}
};

flow::Task<void> idle(Host* host) { co_await host->sleep_until(kForever); }

TEST(Faults, HostsAreCutOffOneByOneAndComeBackInAnotherOrder) {
  std::set<size_t> cuts_seen;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    WorldConfig config;
    config.faults.set(Fault::kSwizzle, 999'999);
    ChoiceSource choices(seed);
    World world(config, choices);
    HostPlace place;
    for (int h = 0; h < 6; ++h) {
      place.name = "h" + std::to_string(h);
      Host& host = world.add_host(place);
      host.start(idle(&host), "idle");
    }
    InjectorConfig settings;
    settings.tick = {seconds(20), seconds(20)};  // one swizzle, and it is over before the next
    NoDirector director;
    FaultInjector injector(world, settings, director);
    injector.start();
    world.run_until(seconds(39), 1'000'000, [&] {
      cuts_seen.insert(world.network().cuts());
      return false;
    });
    EXPECT_EQ(world.network().cuts(), 0u) << "seed " << seed;
    injector.heal(false);
  }
  EXPECT_GT(cuts_seen.size(), 5u);
}

}  // namespace
}  // namespace weightlane::sim
