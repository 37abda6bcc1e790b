// Goal: what crosses the link into a datacenter and who carries it (P8): one seeder for a version,
// updates skip and replicates wait, local copies are read locally, a dead seeder's place goes to
// the next, the newest version of a datacenter is kept, no datacenter is put off for ever.
// Method: as directory_test.cc, with replicas in "east" (where versions are published) and "west".
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/ros/desk.h"
#include "tests/ros/invariants.h"

namespace weightlane::ros::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

Member publisher(Desk& desk, const std::string& replica, uint64_t version,
                 const std::string& datacenter) {
  Member member = desk.open_in(datacenter, replica);
  member.publish(version);
  EXPECT_TRUE(only<net::DecidedEvent>(member.news()).ok);
  return member;
}

Member holder(Desk& desk, const std::string& replica, uint64_t version,
              const std::string& datacenter, bool spot = false) {
  Member member = desk.open_in(datacenter, replica, spot);
  member.publish(version);
  EXPECT_TRUE(only<net::DecidedEvent>(member.news()).ok);
  return member;
}

std::optional<net::AssignedEvent> assigned(Member& member) {
  const std::vector<net::AssignedEvent> found = all_of<net::AssignedEvent>(member.news());
  EXPECT_LE(found.size(), 1u);
  return found.empty() ? std::nullopt : std::optional(found.front());
}

// The answer to an update: the replica to read from, or "nothing", or "waits".
std::string updates(Member& member) {
  member.update(latest());
  for (const net::EventBody& event : member.news()) {
    if (const auto* told = std::get_if<net::AssignedEvent>(&event)) return told->source.replica;
    if (const auto* done = std::get_if<net::DecidedEvent>(&event); done != nullptr && done->ok)
      return "nothing";
  }
  return "waits";
}

TEST(Seeding, OneReplicaCarriesAVersionInAndTheOthersReadFromIt) {
  Desk desk;
  Member first = publisher(desk, "t0", 1, "east");
  Member second = publisher(desk, "t1", 1, "east");
  Member seeder = desk.open_in("west", "w0");
  Member waits = desk.open_in("west", "w1");
  Member last = desk.open_in("west", "w2");
  seeder.replicate(latest());
  waits.replicate(latest());
  last.replicate(latest());
  const net::AssignedEvent seed = *assigned(seeder);
  EXPECT_EQ(seed.source.replica, "t0");
  const net::AssignedEvent local = *assigned(waits);
  EXPECT_EQ(local.source.replica, "w0") << "t1 is free and whole, but far";
  EXPECT_EQ(assigned(last)->source.replica, "w1");
  seeder.release(seed.assignment, net::ReleaseKind::kComplete);
  waits.release(local.assignment, net::ReleaseKind::kComplete);
  EXPECT_EQ(Invariants(desk.directory).broken(), "");
}

TEST(Seeding, WithoutPipeliningTheOthersWaitForTheSeeder) {
  ServerOptions options;
  options.pipelining = false;
  Desk desk(options);
  Member trainer = publisher(desk, "t0", 1, "east");
  Member seeder = desk.open_in("west", "w0");
  Member waits = desk.open_in("west", "w1");
  seeder.replicate(latest());
  waits.replicate(latest());
  const net::AssignedEvent seed = *assigned(seeder);
  EXPECT_THAT(waits.news(), IsEmpty());
  seeder.release(seed.assignment, net::ReleaseKind::kComplete);
  EXPECT_EQ(assigned(waits)->source.replica, "w0");
}

TEST(Seeding, UpdateSkipsWhileANewerVersionArrivesAndTakesItWhenItIsHere) {
  Desk desk;
  Member trainer = publisher(desk, "t0", 2, "east");
  std::vector<Member> west;
  for (const char* name : {"w0", "w1", "w2"}) west.push_back(holder(desk, name, 1, "west"));
  EXPECT_EQ(updates(west[0]), "t0");
  EXPECT_EQ(updates(west[1]), "nothing");
  EXPECT_EQ(updates(west[2]), "nothing");
  const Group* seeder = desk.group("w0");
  const AssignmentId seed = seeder->publications.rbegin()->second->shards[0].reading;
  west[0].release(seed, net::ReleaseKind::kComplete);
  EXPECT_EQ(updates(west[1]), "w0");
  EXPECT_EQ(updates(west[2]), "w1") << "a partial one nearby is a source like any";
  EXPECT_EQ(Invariants(desk.directory).broken(), "");
}

TEST(Seeding, UpdateTakesTheNewestThatIsWholeNearby) {
  Desk desk;
  Member old = holder(desk, "w0", 1, "west");
  Member near = holder(desk, "w1", 2, "west");
  Member far = publisher(desk, "t0", 3, "east");
  EXPECT_EQ(updates(old), "w1");
  EXPECT_EQ(desk.group("w0")->publications.rbegin()->second->content->content.version.value, 2u);
}

TEST(Seeding, AFailedSeedersPlaceGoesToTheNextInTheQueue) {
  for (const bool dies : {true, false}) {
    Desk desk;
    Member trainer = publisher(desk, "t0", 1, "east");
    Member spare = publisher(desk, "t1", 1, "east");
    Member seeder = desk.open_in("west", "w0");
    Member next = desk.open_in("west", "w1");
    seeder.replicate(latest());
    next.replicate(latest());
    ASSERT_TRUE(assigned(seeder).has_value());
    const net::AssignedEvent chained = *assigned(next);
    ASSERT_EQ(chained.source.replica, "w0");
    if (dies)
      desk.pass(seconds(12), {&trainer, &spare, &next});
    else
      seeder.ask(net::AbortRequest{CallNumber{1}, ErrorCode::kTimeout, "gave up"});
    EXPECT_EQ(all_of<net::AbandonEvent>(next.news()).size(), 1u);
    next.release(chained.assignment, net::ReleaseKind::kAbandoned);
    const std::optional<net::AssignedEvent> again = assigned(next);
    ASSERT_TRUE(again.has_value()) << "it goes on from its own prefix, as the seeder";
    EXPECT_THAT(again->source.replica, HasSubstr("t"));
    EXPECT_EQ(Invariants(desk.directory).broken(), "");
  }
}

TEST(Seeding, ALocalSourceThatWithdrawsIsReadToItsEndWhenTheOthersAreFar) {
  Desk desk;
  Member trainer = publisher(desk, "t0", 1, "east");
  Member near = holder(desk, "w0", 1, "west");
  Member reader = desk.open_in("west", "w1");
  reader.replicate(latest());
  ASSERT_EQ(assigned(reader)->source.replica, "w0");
  near.unpublish();
  EXPECT_THAT(all_of<net::YieldEvent>(reader.news()), IsEmpty());
  Member other = holder(desk, "w2", 1, "west");
  Member second = desk.open_in("west", "w3");
  second.replicate(latest());
  ASSERT_EQ(assigned(second)->source.replica, "w2");
  other.unpublish();
  EXPECT_THAT(all_of<net::YieldEvent>(second.news()), IsEmpty());
}

TEST(Seeding, AReaderWhoseNearSourceFailsTwiceReadsFromFar) {
  Desk desk;
  Member trainer = publisher(desk, "t0", 1, "east");
  Member near = holder(desk, "w0", 1, "west");
  Member reader = desk.open_in("west", "w1");
  reader.replicate(latest());
  net::AssignedEvent told = *assigned(reader);
  reader.release(told.assignment, net::ReleaseKind::kFailed);
  EXPECT_THAT(reader.news(), IsEmpty());
  desk.pass(seconds(1), {&trainer, &near, &reader});
  told = *assigned(reader);
  EXPECT_EQ(told.source.replica, "w0");
  reader.release(told.assignment, net::ReleaseKind::kFailed);
  EXPECT_EQ(assigned(reader)->source.replica, "t0");
}

TEST(Seeding, TheLastCopyOfADatacentersNewestVersionIsKeptForTheOthersThere) {
  Desk desk;
  Member newest = holder(desk, "w0", 2, "west");
  Member behind = holder(desk, "w1", 1, "west");
  Member trainer = publisher(desk, "t0", 3, "east");
  EXPECT_EQ(updates(newest), "nothing") << "w1 has not got version 2";
  EXPECT_EQ(updates(behind), "w0");
  const AssignmentId near = desk.group("w1")->publications.rbegin()->second->shards[0].reading;
  EXPECT_EQ(updates(newest), "nothing");
  behind.release(near, net::ReleaseKind::kComplete);
  EXPECT_EQ(updates(newest), "t0");
}

TEST(Seeding, ASeedIsNotPutOffForEver) {
  struct Row {
    const char* what;
    bool spot;
    uint64_t other_holds;
  };
  for (const Row& row :
       {Row{"the others lack its version", false, 1}, Row{"it is spot, another is not", true, 2}}) {
    SCOPED_TRACE(row.what);
    Desk desk;
    Member newest = holder(desk, "w0", 2, "west", row.spot);
    Member idle = holder(desk, "w1", row.other_holds, "west");
    Member trainer = publisher(desk, "t0", 3, "east");
    EXPECT_EQ(updates(newest), "nothing");
    desk.pass(seconds(9), {&newest, &idle, &trainer});
    EXPECT_EQ(updates(newest), "nothing");
    desk.pass(seconds(2), {&newest, &idle, &trainer});
    EXPECT_EQ(updates(newest), "t0");
  }
}

TEST(Seeding, AloneInItsDatacenterAReplicaSeedsWhateverItIs) {
  Desk desk;
  Member alone = holder(desk, "w0", 1, "west", true);
  Member trainer = publisher(desk, "t0", 2, "east");
  EXPECT_EQ(updates(alone), "t0");
}

TEST(Seeding, LocalReadersComeBeforeSeeds) {
  Desk desk;
  Member far = desk.open_in("west", "w0");
  Member near = desk.open_in("east", "e0");
  far.replicate(latest());
  near.replicate(latest());
  Member trainer = publisher(desk, "t0", 1, "east");
  EXPECT_EQ(assigned(near)->source.replica, "t0");
  EXPECT_EQ(assigned(far)->source.replica, "e0");
}

TEST(Seeding, AllShardsOfAReplicaStandInOneDatacenter) {
  Desk desk;
  Member first = desk.open_in("east", "r", false, 0, 2);
  Member second;
  net::OpenRequest request;
  request.model = "m";
  request.replica = "r";
  request.shard = {1};
  request.num_shards = 2;
  request.datacenter = "west";
  const net::ResponseBody answer = desk.try_open(second, request);
  const auto* refused = std::get_if<net::Failure>(&answer);
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(refused->code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused->message, HasSubstr("'east'"));
  EXPECT_THAT(refused->message, HasSubstr("'west'"));
}

}  // namespace
}  // namespace weightlane::ros::testing
