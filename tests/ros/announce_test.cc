// Goal: a directory that knows nothing becomes, by what handles announce, what the one before it
// was (P9): holdings show when the last shard has told, calls end as another shard was told they
// had ended, transfers go on under the same content; and what does not fit is refused as a whole,
// with the loss told to all (P3). Method: tables of announcements at a Desk, a fresh directory with
// another boot id.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/ros/desk.h"

namespace weightlane::ros::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kLineage = 4711;
const net::Content kContent{{1}, {7}, {0xabcdef}};
const net::Content kOther{{1}, {7}, {0x123456}};

net::Announcement resumed(uint64_t last_call) {
  net::Announcement told;
  told.resumed = true;
  told.lineage = kLineage;
  told.last_call = {last_call};
  return told;
}
net::Announcement holding(uint64_t number, uint64_t last_call, net::Content content = kContent) {
  net::Announcement told = resumed(last_call);
  told.held = {CallNumber{number}, content, layout_of(), false, true, 4096, {}, {}};
  return told;
}
net::DoneCall done(uint64_t number, net::CallKind kind, bool ok, net::Content content = {}) {
  const net::VersionSpec version = kind == net::CallKind::kPublish     ? exact(7)
                                   : kind == net::CallKind::kUnpublish ? net::VersionSpec{}
                                                                       : latest();
  return {CallNumber{number}, kind, version, ok, content, ErrorCode::kVersionUnavailable, "gone"};
}
net::GroupCallRequest pending(uint64_t number, net::CallKind kind) {
  return {CallNumber{number}, kind, latest(), seconds(100), layout_of()};
}
net::Announcement receiving(uint64_t number, bool whole, AssignmentId reading = {},
                            std::string upstream = {}) {
  net::Announcement told = resumed(number - 1);
  told.held = {CallNumber{number}, kContent, layout_of(), true, whole, 100, reading,
               std::move(upstream)};
  told.pending = pending(number, net::CallKind::kReplicate);
  told.begun = true;
  return told;
}

struct Announce : ::testing::Test {
  Desk desk;
  uint64_t handle = 1;

  // Opens with this announcement; returns whether it was taken.
  bool come(Member& member, const std::string& replica, uint32_t shard, uint32_t shards,
            const net::Announcement& told, uint64_t same_handle = 0, uint64_t opening = 1) {
    net::OpenRequest open{"m", replica, ShardIndex{shard}, shards, "node-a", "e" + replica};
    open.handle = same_handle != 0 ? same_handle : ++handle;
    open.opening = opening;
    open.announced = told;
    net::ResponseBody answer = desk.try_open(member, open);
    const auto* opened = std::get_if<net::OpenedResponse>(&answer);
    EXPECT_NE(opened, nullptr);
    if (opened == nullptr) return false;
    member.next_call = told.last_call.value + (told.pending.number.value != 0 ? 2 : 1);
    if (opened->refused) member.next_call = opened->next_call.value;
    return !opened->refused;
  }
};

TEST_F(Announce, AReplicaShowsWhenItsLastShardHasTold) {
  Member one;
  Member two;
  EXPECT_TRUE(come(one, "g", 0, 2, holding(3, 3)));
  EXPECT_THAT(desk.shown(), ElementsAre("g:7:publishing"));
  EXPECT_TRUE(come(two, "g", 1, 2, holding(3, 3)));
  EXPECT_THAT(desk.shown(), ElementsAre("g:7:complete"));
  EXPECT_EQ(desk.list().replicas.front().content, kContent);
  // And the numbers go on.
  for (Member* member : {&one, &two}) {
    EXPECT_EQ(member->unpublish().value, 4u);
    EXPECT_TRUE(only<net::DecidedEvent>(member->news()).ok);
  }
  EXPECT_THAT(desk.shown(), IsEmpty());
}

TEST_F(Announce, AReaderGetsTheSameContentFromWhoHasIt) {
  Member source;
  Member reader;
  EXPECT_TRUE(come(source, "g", 0, 1, holding(1, 1)));
  EXPECT_TRUE(come(reader, "r", 0, 1, receiving(5, false)));
  const auto assigned = only<net::AssignedEvent>(reader.news());
  EXPECT_EQ(assigned.content, kContent);
  EXPECT_EQ(assigned.source.replica, "g");
  reader.release(assigned.assignment, net::ReleaseKind::kComplete);
  EXPECT_TRUE(only<net::DecidedEvent>(reader.news()).ok);
}

TEST_F(Announce, ReadsOfAnotherServerAreClaimsHere) {
  Member source;
  Member reader;
  const AssignmentId reading{99};
  // In either order of coming.
  EXPECT_TRUE(come(reader, "r", 0, 1, receiving(5, false, reading, "g")));
  EXPECT_EQ(desk.directory.assignments(), 0u);
  EXPECT_TRUE(come(source, "g", 0, 1, holding(1, 1)));
  ASSERT_EQ(desk.directory.assignments(), 1u);
  source.unpublish();
  EXPECT_THAT(all_of<net::DrainedEvent>(source.news()), IsEmpty());  // it is being read from
  EXPECT_THAT(all_of<net::AssignedEvent>(reader.news()), IsEmpty());
  reader.release(reading, net::ReleaseKind::kComplete);
  EXPECT_TRUE(only<net::DecidedEvent>(reader.news()).ok);
  EXPECT_EQ(all_of<net::DrainedEvent>(source.news()).size(), 1u);
}

TEST_F(Announce, DoneIsAcceptedThoughTheSourceIsUnknown) {
  Member reader;
  const AssignmentId reading{99};
  EXPECT_TRUE(come(reader, "r", 0, 1, receiving(5, false, reading, "never-comes")));
  reader.release(reading, net::ReleaseKind::kComplete);
  const auto decided = only<net::DecidedEvent>(reader.news());
  EXPECT_TRUE(decided.ok);
  EXPECT_EQ(decided.content, kContent);
}

TEST_F(Announce, APartialIsNoSourceBeforeItsChainEndsHere) {
  Member partial;
  Member waiting;
  EXPECT_TRUE(come(partial, "p", 0, 1, receiving(2, false, AssignmentId{99}, "unknown")));
  EXPECT_TRUE(come(waiting, "w", 0, 1, receiving(2, false)));
  EXPECT_THAT(all_of<net::AssignedEvent>(waiting.news()), IsEmpty());
  Member source;
  EXPECT_TRUE(come(source, "g", 0, 1, holding(1, 1)));
  EXPECT_EQ(only<net::AssignedEvent>(waiting.news()).source.replica, "g");
}

TEST_F(Announce, TheEndOfACallIsPassedOn) {
  // One shard was told before the server died, the other was not: sealed, it waits for the answer.
  Member told;
  Member waits;
  EXPECT_TRUE(come(waits, "r", 1, 2, receiving(5, true)));
  EXPECT_THAT(all_of<net::DecidedEvent>(waits.news()), IsEmpty());
  net::Announcement end = holding(5, 5);
  end.held.receiving = true;
  end.done = {done(5, net::CallKind::kReplicate, true, kContent)};
  EXPECT_TRUE(come(told, "r", 0, 2, end));
  const auto decided = only<net::DecidedEvent>(waits.news());
  EXPECT_TRUE(decided.ok);
  EXPECT_EQ(decided.content, kContent);
}

TEST_F(Announce, AFailureIsPassedOnAsItWas) {
  Member told;
  Member waits;
  EXPECT_TRUE(come(waits, "r", 1, 2, receiving(5, false)));
  net::Announcement end = resumed(5);
  end.done = {done(5, net::CallKind::kReplicate, false)};
  EXPECT_TRUE(come(told, "r", 0, 2, end));
  const auto decided = only<net::DecidedEvent>(waits.news());
  EXPECT_FALSE(decided.ok);
  EXPECT_EQ(decided.code, ErrorCode::kVersionUnavailable);
}

TEST_F(Announce, SuccessIsNotForWhoHasNotSealed) {
  Member told;
  Member waits;
  EXPECT_TRUE(come(waits, "r", 1, 2, receiving(5, false)));
  net::Announcement end = holding(5, 5);
  end.held.receiving = true;
  end.done = {done(5, net::CallKind::kReplicate, true, kContent)};
  EXPECT_FALSE(come(told, "r", 0, 2, end));
  EXPECT_FALSE(only<net::DecidedEvent>(waits.news()).ok);
  EXPECT_EQ(told.next_call, 6u);  // both make the sixth next
}

TEST_F(Announce, WhatDoesNotFitIsRefusedAndEverybodyHears) {
  const struct {
    const char* what;
    net::Announcement second;
  } rows[] = {
      {"another content under one number", holding(3, 3, kOther)},
      {"calls that nobody tells of", holding(9, 9)},
      {"another lineage",
       [] {
         net::Announcement told = holding(3, 3);
         told.lineage = 1;
         return told;
       }()},
      {"a call that was another call",
       [] {
         net::Announcement told = resumed(3);
         told.done = {done(3, net::CallKind::kUnpublish, true)};
         return told;
       }()},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.what);
    Desk fresh;
    Member one;
    Member two;
    net::Announcement first = holding(3, 3);
    first.done = {done(3, net::CallKind::kPublish, true, kContent)};
    std::swap(desk.now, fresh.now);
    net::OpenRequest open{"m", "g", ShardIndex{0}, 2, "n", "e"};
    open.handle = 1;
    open.announced = first;
    fresh.try_open(one, open);
    one.next_call = 4;
    open.shard = {1};
    open.handle = 2;
    open.announced = row.second;
    net::ResponseBody answer = fresh.try_open(two, open);
    const auto& opened = std::get<net::OpenedResponse>(answer);
    EXPECT_TRUE(opened.refused);
    EXPECT_THAT(fresh.shown(), ::testing::Not(::testing::Contains("g:7:complete")));
    // The first one's next call tells of the loss, and then both are in step.
    one.unpublish();
    const Events news = one.news();
    for (uint64_t number = 5; number < opened.next_call.value; ++number) one.unpublish();
    EXPECT_FALSE(all_of<net::DecidedEvent>(news).front().ok);
    EXPECT_EQ(all_of<net::DecidedEvent>(news).front().code, ErrorCode::kReplicaLost);
  }
}

TEST_F(Announce, AProcessThatIsNewInAReplicaThatIsNotTellsTheOthers) {
  Member one;
  Member fresh;
  EXPECT_TRUE(come(one, "g", 0, 2, holding(3, 3)));
  EXPECT_TRUE(come(fresh, "g", 1, 2, {}));
  one.next_call = 4;
  EXPECT_EQ(one.unpublish().value, 4u);
  EXPECT_EQ(only<net::DecidedEvent>(one.news()).code, ErrorCode::kReplicaLost);
  EXPECT_EQ(fresh.next_call, 1u);  // come() counts for itself; the directory says:
  EXPECT_EQ(desk.group("g")->members[1]->last_call.value, 4u);
}

TEST_F(Announce, TheSameHandleTakesItsPlaceAgain) {
  Member one;
  Member again;
  EXPECT_TRUE(come(one, "g", 0, 1, holding(3, 3), 77, 1));
  EXPECT_TRUE(come(again, "g", 0, 1, holding(3, 3), 77, 2));
  EXPECT_THAT(desk.shown(), ElementsAre("g:7:complete"));
  EXPECT_EQ(desk.directory.clients(), 1u);
  // What it gave up elsewhere is gone here too.
  net::Announcement gone = resumed(4);
  gone.done = {done(4, net::CallKind::kUnpublish, true)};
  EXPECT_TRUE(come(one, "g", 0, 1, gone, 77, 3));
  EXPECT_THAT(desk.shown(), IsEmpty());
  // An opening that comes late changes nothing.
  net::OpenRequest late{"m", "g", ShardIndex{0}, 1, "n", "e"};
  late.handle = 77;
  late.opening = 2;
  late.announced = holding(3, 3);
  Member nobody;
  net::ResponseBody answer = desk.try_open(nobody, late);
  EXPECT_TRUE(std::holds_alternative<net::Failure>(answer));
  EXPECT_THAT(desk.shown(), IsEmpty());
}

TEST_F(Announce, NoNegativeAnswerWithinALeaseOfTheStart) {
  Member reader = desk.open("r");
  reader.replicate(exact(7), seconds(4));
  desk.pass(seconds(5), {&reader});
  EXPECT_EQ(only<net::DecidedEvent>(reader.news()).code, ErrorCode::kTimeout);
  desk.pass(desk.directory.options().lease, {&reader});
  reader.replicate(exact(7), seconds(4));
  desk.pass(seconds(5), {&reader});
  EXPECT_EQ(only<net::DecidedEvent>(reader.news()).code, ErrorCode::kVersionUnavailable);
}

TEST_F(Announce, TheReplicaGoesBackAsAWhole) {
  std::vector<Member> group = desk.open_group("g", 2);
  group[0].ask(net::PollRequest{0, 0, kZeroNanos, true});
  EXPECT_THAT(all_of<net::MoveEvent>(group[0].news()), IsEmpty());
  group[0].ask(net::PollRequest{0, 0, kZeroNanos, true});
  group[1].ask(net::PollRequest{0, 0, kZeroNanos, true});
  for (Member& member : group) {
    net::ResponseBody answer = member.ask(net::PollRequest{0, 0, kZeroNanos, true});
    ASSERT_EQ(std::get<net::EventsResponse>(answer).events.size(), 1u);
  }
}

}  // namespace
}  // namespace weightlane::ros::testing
