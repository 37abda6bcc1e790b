// Goal: retention through handles, server and data planes together (P5, P11): a retained version
// is read from host memory after its trainer has taken its memory back, the gauge returns to 0, and
// what has no room stays published. Method: small clusters with every checker on, no faults but the
// one each test makes.
#include <gtest/gtest.h>

#include "ros/probes.h"
#include "sim/schedule.h"
#include "tests/scenarios/cluster.h"

namespace weightlane::sim {
namespace {

// The version exists when every shard has published it, and only then is it retained.
flow::Task<void> publish_and_show(Member* member) {
  co_await Cluster::publish(member, {1});
  co_await member->host->sleep_for(millis(500));
}

flow::Task<void> publish_and_take_back(Member* member) {
  co_await publish_and_show(member);
  co_await Cluster::unpublish(member);
}

flow::Task<void> publish_and_close(Member* member) {
  co_await publish_and_show(member);
  co_await Cluster::close(member);
}

flow::Task<void> publish_and_go_at_once(Member* member) {
  co_await publish_and_show(member);
  const Nanos notice = deadline_after(member->host->now(), millis(1));
  co_await Cluster::close(member, notice);
}

flow::Task<void> wait_and_see(Member*) { co_return; }

flow::Task<void> replicate_latest(Member* member) {
  co_await Cluster::replicate(member, {}, seconds(60));
}

Plan retaining_plan() {
  Plan plan = Cluster::quiet_plan(2, 16);
  plan.retain_latest = 1;
  return plan;
}

uint64_t kept(Cluster& cluster, const std::vector<Member*>& members) {
  uint64_t bytes = 0;
  for (const Member* member : members)
    bytes += cluster.checkers().retention().bytes(member->host->id());
  return bytes;
}

TEST(Retention, AVersionIsReadFromHostMemoryAfterItsTrainerHasItsOwnBack) {
  Cluster cluster(retaining_plan());
  const auto trainer = cluster.add_replica("t0", publish_and_take_back);
  ASSERT_TRUE(cluster.run_until_finished(trainer, seconds(20))) << cluster.violation();
  EXPECT_EQ(trainer[0]->error, std::nullopt);
  const uint64_t shard =
      cluster.plan().shard_granules(0) * cluster.world().config().data.granule_bytes;
  EXPECT_EQ(kept(cluster, trainer), 2 * shard);
  const auto reader = cluster.add_replica("r0", replicate_latest);
  ASSERT_TRUE(cluster.run_until_finished(reader, seconds(20))) << cluster.violation();
  EXPECT_EQ(reader[1]->got, VersionId{1});
  // The reader is a copy now: nothing is kept any more (field report 18: the gauge returns to 0).
  EXPECT_TRUE(cluster.run(seconds(20), [&] { return kept(cluster, trainer) == 0; }));
  EXPECT_EQ(cluster.violation(), "");
}

TEST(Retention, WithoutRoomItStaysPublishedAndTheErrorSaysWhat) {
  Plan plan = retaining_plan();
  plan.offload_limit = 1000;
  Cluster cluster(plan);
  const auto trainer = cluster.add_replica("t0", publish_and_take_back);
  ASSERT_TRUE(cluster.run_until_finished(trainer, seconds(20))) << cluster.violation();
  for (const Member* member : trainer) {
    EXPECT_EQ(member->error, ErrorCode::kRetained);
    EXPECT_NE(member->message.find("version 1"), std::string::npos) << member->message;
    EXPECT_NE(member->message.find("offload_limit is 1000 bytes"), std::string::npos);
    EXPECT_EQ((*member->handle)->holds(), VersionId{1});
  }
  const auto reader = cluster.add_replica("r0", replicate_latest);
  ASSERT_TRUE(cluster.run_until_finished(reader, seconds(20))) << cluster.violation();
  EXPECT_EQ(cluster.violation(), "");
}

TEST(Retention, WhatHasNoRoomIsLetGoByChoice) {
  for (const bool drops : {false, true}) {
    Plan plan = retaining_plan();
    plan.offload_drop = drops ? 1 : 0;
    plan.offload_limit = 0;
    Cluster cluster(plan);
    const auto keeper = cluster.add_replica("t1", wait_and_see);
    const auto trainer = cluster.add_replica("t0", publish_and_take_back);
    ASSERT_TRUE(cluster.run_until_finished(trainer, seconds(20))) << cluster.violation();
    EXPECT_EQ(trainer[0]->error.has_value(), !drops);
    EXPECT_EQ((*trainer[0]->handle)->holds().has_value(), !drops);
    EXPECT_EQ(kept(cluster, trainer), 0u);
    EXPECT_EQ(cluster.violation(), "");
  }
}

TEST(Retention, CloseLeavesItToTheProcess) {
  Cluster cluster(retaining_plan());
  const auto keeper = cluster.add_replica("t1", wait_and_see);
  const auto trainer = cluster.add_replica("t0", publish_and_close);
  ASSERT_TRUE(cluster.run_until_finished(trainer, seconds(20))) << cluster.violation();
  EXPECT_GT(kept(cluster, trainer), 0u);
  const auto reader = cluster.add_replica("r0", replicate_latest);
  ASSERT_TRUE(cluster.run_until_finished(reader, seconds(20))) << cluster.violation();
  EXPECT_TRUE(cluster.run(seconds(20), [&] { return kept(cluster, trainer) == 0; }));
  EXPECT_EQ(cluster.violation(), "");
}

TEST(Retention, ANoticeThatIsTooShortClosesAnyway) {
  Cluster cluster(retaining_plan());
  const auto keeper = cluster.add_replica("t1", wait_and_see);
  const auto trainer = cluster.add_replica("t0", [](Member* member) -> flow::Task<void> {
    member->cluster->checkers().notice_given(member->worker);
    co_await publish_and_go_at_once(member);
  });
  ASSERT_TRUE(cluster.run_until_finished(trainer, seconds(20))) << cluster.violation();
  EXPECT_EQ(trainer[0]->error, std::nullopt);
  EXPECT_GE(cluster.hits(ros::probes::kClosedAnyway), 1u);
  EXPECT_TRUE(cluster.run(seconds(70), [&] { return kept(cluster, trainer) == 0; }));
  EXPECT_EQ(cluster.violation(), "");
}

}  // namespace
}  // namespace weightlane::sim
