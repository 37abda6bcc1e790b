// Goal: field reports 4, 8, 12, 13, 14, 22: what went wrong in systems like this one must go right
// here. Method: the situation of each report, built by hand in the simulator with every checker on;
// the faults happen at a chosen progress, not at a chosen time.
#include <gtest/gtest.h>

#include "ros/probes.h"
#include "sim/schedule.h"
#include "tests/scenarios/cluster.h"

namespace weightlane::sim {
namespace {

flow::Task<void> publish_one(Member* member) { co_await Cluster::publish(member, {1}); }

flow::Task<void> replicate_latest(Member* member) {
  co_await Cluster::replicate(member, {}, seconds(120));
}

uint64_t sealed_granules(const Member& member) {
  if (member.handle == nullptr) return 0;
  return (*member.handle)->progress().sealed_bytes / member.host->memory().granule_bytes();
}

bool all_got(const std::vector<Member*>& members, VersionId version) {
  for (const Member* member : members) {
    if (member->got != version) return false;
  }
  return true;
}

// Mooncake PR #2427: a queue pair went straight to RESET, its completions were lost and every batch
// waited 60 s. Here a source falls silent half-way: the stalled queue pair is driven to its end
// before anything else is posted, and the read goes on elsewhere, long before that.
TEST(FieldReport4, StalledQueuePairIsDestroyedAndTheReadGoesOnElsewhere) {
  Cluster cluster(Cluster::quiet_plan(1, 64));
  const auto t0 = cluster.add_replica("t0", publish_one);
  const auto t1 = cluster.add_replica("t1", publish_one);
  ASSERT_TRUE(cluster.run_until_finished({t0[0], t1[0]}, seconds(5)));
  const auto reader = cluster.add_replica("r0", replicate_latest);
  ASSERT_TRUE(cluster.run(seconds(5), [&] { return sealed_granules(*reader[0]) >= 20; }));
  Host* source =
      (*reader[0]->handle)->progress().source.starts_with("t0") ? t0[0]->host : t1[0]->host;
  Cut cut;
  cut.data = true;
  cut.from = host_bit(source->id());
  cut.to = host_bit(reader[0]->host->id());
  cluster.world().cut(cut);
  const Nanos begin = cluster.world().now();
  ASSERT_TRUE(cluster.run_until_finished(reader, seconds(60))) << cluster.violation();
  EXPECT_EQ(cluster.violation(), "");
  EXPECT_TRUE(all_got(reader, {1}));
  EXPECT_EQ((*reader[0]->handle)->progress().reroutes, 1u);
  EXPECT_GE(cluster.hits(ros::probes::kResumed), 1u);
  // Stall (or the NIC's own retry time, up to 4.3 s), destroy, and the rest of the transfer.
  EXPECT_LT(to_seconds(cluster.world().now() - begin), 10.0);
}

// modelexpress #484: READY outlived a crash, and the restarted worker, at the same address, chose
// itself as its source.
TEST(FieldReport8, RestartedHolderNeverReadsFromItself) {
  Cluster cluster(Cluster::quiet_plan(2, 8));
  const auto t0 = cluster.add_replica("t0", publish_one);
  const auto r0 = cluster.add_replica("r0", replicate_latest);
  ASSERT_TRUE(cluster.run_until_finished({t0[0], t0[1], r0[0], r0[1]}, seconds(20)))
      << cluster.violation();
  // Both shards come back at once, with the same names and addresses, while the server still
  // believes in what they held. The trainer is gone meanwhile: nobody else has the version.
  for (Member* member : r0) {
    member->host->crash(CrashKind::kMemoryFirst);
    member->handle = nullptr;
    member->got.reset();
    member->finished = 0;
    cluster.start(member, replicate_latest, true);
  }
  ASSERT_TRUE(cluster.run_until_finished(r0, seconds(120))) << cluster.violation();
  EXPECT_EQ(cluster.violation(), "");  // P7 fires when a replica is told to read from itself
  EXPECT_TRUE(all_got(r0, {1}));
}

// nixl PR #1745: the metadata named another agent than the one that answered. Here the source's
// process has been replaced at the same address, with the same keys (F11): it refuses the reader.
TEST(FieldReport12, SourceReplacedAtTheSameAddressRefusesTheReader) {
  Cluster cluster(Cluster::quiet_plan(1, 16));
  const auto t0 = cluster.add_replica("t0", publish_one);
  ASSERT_TRUE(cluster.run_until_finished(t0, seconds(5)));
  // An impostor: another process at t0's address, whose memory says something else.
  t0[0]->host->crash(CrashKind::kMemoryFirst);
  t0[0]->handle = nullptr;
  t0[0]->finished = 0;
  cluster.start(t0[0], publish_one, true);
  const auto reader = cluster.add_replica("r0", replicate_latest);
  ASSERT_TRUE(cluster.run_until_finished(reader, seconds(200))) << cluster.violation();
  EXPECT_EQ(cluster.violation(), "");
  EXPECT_GE(cluster.hits(ros::probes::kConnectRefused), 1u);
}

// modelexpress PR #477: the choice of a source was blind to load. 64 replicas ask at one instant;
// P7 is checked after every step of the server.
TEST(FieldReport13, SixtyFourAskAtOnceAndNoSourceHasTwoReaders) {
  Cluster cluster(Cluster::quiet_plan(1, 8));
  const auto t0 = cluster.add_replica("t0", publish_one);
  ASSERT_TRUE(cluster.run_until_finished(t0, seconds(5)));
  std::vector<Member*> readers;
  Host* shared = nullptr;
  for (int i = 0; i < 64; ++i) {
    const auto reader = cluster.add_replica("r" + std::to_string(i), replicate_latest,
                                            i % 4 == 0 ? nullptr : shared);
    shared = reader[0]->host;
    readers.push_back(reader[0]);
  }
  ASSERT_TRUE(cluster.run_until_finished(readers, seconds(100))) << cluster.violation();
  EXPECT_EQ(cluster.violation(), "");
  EXPECT_TRUE(all_got(readers, {1}));
  EXPECT_GE(cluster.hits(ros::probes::kFromPartial), 32u);
}

flow::Task<void> replicate_then_again(Member* member) {
  co_await Cluster::replicate(member, {}, seconds(300));
  ++member->finished;  // once for the failure, which the test looks at
  const bool shown = (*member->handle)->holds().has_value();
  co_await Cluster::unpublish(member);
  if (shown || member->error != ErrorCode::kWrongState) co_return;
  co_await Cluster::replicate(member, {net::VersionKind::kExact, {2}, 0}, seconds(300));
}
flow::Task<void> publish_two(Member* member) { co_await Cluster::publish(member, {2}); }

// modelexpress #767: a failure after direct reads into live weights began left old and new mixed,
// and the worker went on. Here the handle says that it holds nothing, and the next replicate
// repairs it.
TEST(FieldReport22, FailureHalfWayLeavesNothingAndTheNextReplicateRepairsIt) {
  Cluster cluster(Cluster::quiet_plan(2, 64));
  const auto t0 = cluster.add_replica("t0", publish_one);
  ASSERT_TRUE(cluster.run_until_finished(t0, seconds(5)));
  const auto r0 = cluster.add_replica("r0", replicate_then_again);
  ASSERT_TRUE(cluster.run(
      seconds(5), [&] { return sealed_granules(*r0[0]) >= 20 && sealed_granules(*r0[1]) >= 20; }));
  for (Member* member : t0) {
    member->host->crash(CrashKind::kMemoryFirst);
    member->handle = nullptr;
  }
  ASSERT_TRUE(cluster.run(seconds(100), [&] { return r0[0]->finished > 0 && r0[1]->finished > 0; }))
      << cluster.violation();
  EXPECT_FALSE(r0[0]->got.has_value());
  EXPECT_FALSE(r0[1]->got.has_value());
  const auto t1 = cluster.add_replica("t1", publish_two);
  ASSERT_TRUE(cluster.run(seconds(100), [&] { return r0[0]->finished > 1 && r0[1]->finished > 1; }))
      << cluster.violation();
  EXPECT_EQ(cluster.violation(), "");
  EXPECT_TRUE(all_got(r0, {2}));
}

// A user who stops a shard half-way: the whole replica's call ends, at once and with his words, the
// memory is back, and the next call is served. Giving up nothing is nothing.
TEST(GiveUp, EndsTheCallOfTheWholeReplicaAndTheNextOneIsServed) {
  Cluster cluster(Cluster::quiet_plan(2, 64));
  const auto t0 = cluster.add_replica("t0", publish_one);
  ASSERT_TRUE(cluster.run_until_finished(t0, seconds(5)));
  (*t0[0]->handle)->give_up("no call is under way");
  const auto r0 = cluster.add_replica("r0", replicate_then_again);
  ASSERT_TRUE(cluster.run(
      seconds(5), [&] { return sealed_granules(*r0[0]) >= 20 && sealed_granules(*r0[1]) >= 20; }));
  (*r0[0]->handle)->give_up("enough");
  ASSERT_TRUE(cluster.run(seconds(1), [&] { return r0[0]->finished > 0 && r0[1]->finished > 0; }))
      << cluster.violation();
  for (const Member* member : r0) {
    EXPECT_FALSE(member->got.has_value());
    EXPECT_TRUE(member->error.has_value());
    EXPECT_EQ(sealed_granules(*member), 0u);
  }
  const auto t1 = cluster.add_replica("t1", publish_two);
  ASSERT_TRUE(cluster.run(seconds(100), [&] { return r0[0]->finished > 1 && r0[1]->finished > 1; }))
      << cluster.violation();
  EXPECT_EQ(cluster.violation(), "");
  EXPECT_TRUE(all_got(r0, {2}));
}

// Mooncake RFC #3477: a mutation that timed out was applied twice. Every first reply of the server
// is lost here, in whole schedules of the swarm.
TEST(FieldReport14, EveryReplyLostOnceChangesNothingTwice) {
  uint64_t transfers = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Plan plan = draw_plan(Scenario::kQuiet, seed);
    plan.world.control.drop_first_replies = true;
    plan.servers = 1;  // of two, a handle would leave for the other before it asks again
    Schedule schedule(plan);
    const Outcome outcome = schedule.run();
    ASSERT_FALSE(outcome.violation)
        << "seed " << seed << ": " << outcome.violation->promise << ": " << outcome.violation->text;
    transfers += outcome.transfers;
    EXPECT_GE(schedule.world().probe_hits()[ros::probes::kRepeated.id], 5u);
  }
  EXPECT_GE(transfers, 100u);
}

}  // namespace
}  // namespace weightlane::sim
