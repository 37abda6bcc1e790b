// Goal: who reads from whom: versions resolve as asked, choosing a source reserves it (P7), chains
// of partial replicas, order of waiting, re-routing after every way of losing a source (P6).
// Method: as directory_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "ros/waits.h"
#include "tests/ros/desk.h"
#include "tests/ros/invariants.h"

namespace weightlane::ros::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Member reader_of(Desk& desk, std::string replica, net::VersionSpec version,
                 std::string node = "node-a") {
  Member member = desk.open(std::move(replica), 0, 1, std::move(node));
  member.replicate(version);
  return member;
}

// ---------------------------------------------------------------- which version

TEST(Resolve, LatestLatestKAndExact) {
  Desk desk;
  std::vector<Member> trainers;
  for (const uint64_t version : {3, 5, 6, 9})
    for (int copy = 0; copy < 2; ++copy)
      trainers.push_back(
          desk.publisher("t" + std::to_string(version) + "-" + std::to_string(copy), version));
  Member partial = desk.open("partial", 0, 2);
  partial.publish(11);  // not whole: does not count
  const std::pair<net::VersionSpec, uint64_t> rows[] = {
      {latest(), 9}, {latest(1), 6}, {latest(2), 5}, {latest(3), 3}, {exact(5), 5}, {exact(9), 9}};
  int number = 0;
  for (const auto& [spec, version] : rows) {
    Member reader = reader_of(desk, "r" + std::to_string(number++), spec);
    EXPECT_EQ(only<net::AssignedEvent>(reader.news()).content.version, VersionId{version});
  }
  Member none = reader_of(desk, "none", latest(4));
  EXPECT_THAT(none.news(), IsEmpty());
  Member unknown = reader_of(desk, "unknown", exact(4));
  EXPECT_THAT(unknown.news(), IsEmpty());
  EXPECT_EQ(Invariants(desk.directory).broken(), "");
}

TEST(Resolve, AWaitingCallGetsWhatIsPublishedLater) {
  Desk desk;
  Member reader = reader_of(desk, "reader", exact(2));
  EXPECT_THAT(reader.news(), IsEmpty());
  Member first = desk.publisher("first", 1);
  EXPECT_THAT(reader.news(), IsEmpty());
  Member second = desk.publisher("second", 2);
  EXPECT_EQ(only<net::AssignedEvent>(reader.news()).source.incarnation, second.who);
}

// ---------------------------------------------------------------- reserving

TEST(Sources, APipelineOfPartials) {
  Desk desk;
  Member trainer = desk.publisher("trainer", 1);
  std::vector<Member> readers;
  for (int i = 0; i < 5; ++i) {
    readers.push_back(reader_of(desk, "r" + std::to_string(i), latest()));
    const auto assigned = only<net::AssignedEvent>(readers.back().news());
    const Incarnation before = i == 0 ? trainer.who : readers[readers.size() - 2].who;
    EXPECT_EQ(assigned.source.incarnation, before);
    EXPECT_EQ(assigned.source.complete, i == 0);
  }
  EXPECT_EQ(Invariants(desk.directory).broken(), "");
}

// FieldReport13_: choosing a source and reserving it are one step.
TEST(Sources, FieldReport13_SixtyFourAskAtOnceAndNoSourceHasTwoReaders) {
  Desk desk;
  std::vector<Member> readers;
  for (int i = 0; i < 64; ++i) {
    Member shard0 = desk.open("r" + std::to_string(i), 0, 2);
    Member shard1 = desk.open("r" + std::to_string(i), 1, 2);
    shard0.replicate(latest());
    shard1.replicate(latest());
    readers.push_back(shard0);
    readers.push_back(shard1);
  }
  Member t0 = desk.open("trainer", 0, 2);
  Member t1 = desk.open("trainer", 1, 2);
  t0.publish(1);
  t1.publish(1);
  std::set<uint64_t> sources;
  for (Member& reader : readers)
    EXPECT_TRUE(
        sources.insert(only<net::AssignedEvent>(reader.news()).source.incarnation.value).second);
  EXPECT_EQ(sources.size(), 128u);
  EXPECT_EQ(Invariants(desk.directory).broken(), "");
}

TEST(Sources, ThoseThatWaitAreServedInOrder) {
  Desk desk;
  Member trainer = desk.publisher("trainer", 1);
  Member first = reader_of(desk, "first", exact(1));
  const auto reading = only<net::AssignedEvent>(first.news());
  first.ask(net::AbortRequest{reading.number, ErrorCode::kTimeout, "gave up"});
  Member second = reader_of(desk, "second", exact(1));
  Member third = reader_of(desk, "third", exact(1));
  EXPECT_THAT(second.news(), IsEmpty());  // the claim stands until its reader has left
  EXPECT_THAT(third.news(), IsEmpty());
  first.release(reading.assignment, net::ReleaseKind::kAbandoned);
  EXPECT_EQ(only<net::AssignedEvent>(second.news()).source.incarnation, trainer.who);
  EXPECT_EQ(only<net::AssignedEvent>(third.news()).source.incarnation, second.who);
}

TEST(Sources, PipeliningOffServesAnyNumberFromWholeCopiesOnly) {
  ServerOptions options;
  options.pipelining = false;
  Desk desk(options);
  Member a = desk.publisher("a", 1);
  Member b = desk.publisher("b", 1);
  std::map<uint64_t, int> served;
  for (int i = 0; i < 8; ++i) {
    Member reader = reader_of(desk, "r" + std::to_string(i), latest());
    const auto assigned = only<net::AssignedEvent>(reader.news());
    EXPECT_TRUE(assigned.source.complete);
    ++served[assigned.source.incarnation.value];
  }
  EXPECT_EQ(served[a.who.value], 4);
  EXPECT_EQ(served[b.who.value], 4);
}

TEST(Sources, NearBeforeFarWholeBeforePartial) {
  Desk desk;
  Member far = desk.publisher("far", 1, "node-a");
  Member near = desk.publisher("near", 1, "node-b");
  Member reader = reader_of(desk, "reader", latest(), "node-b");
  EXPECT_EQ(only<net::AssignedEvent>(reader.news()).source.incarnation, near.who);
  // near is taken, reader is near and partial: near still wins over whole.
  Member next = reader_of(desk, "next", latest(), "node-b");
  EXPECT_EQ(only<net::AssignedEvent>(next.news()).source.incarnation, reader.who);
  Member elsewhere = reader_of(desk, "elsewhere", latest(), "node-c");
  EXPECT_EQ(only<net::AssignedEvent>(elsewhere.news()).source.incarnation, far.who);
}

// ---------------------------------------------------------------- re-routing

TEST(Reroute, AFailedSourceIsAvoidedAndThenTriedAgainIfThereIsNoOther) {
  Desk desk;
  Member trainer = desk.publisher("trainer", 1);
  Member reader = reader_of(desk, "reader", latest());
  const auto first = only<net::AssignedEvent>(reader.news());
  reader.release(first.assignment, net::ReleaseKind::kFailed);
  EXPECT_THAT(reader.news(), IsEmpty());
  EXPECT_EQ(desk.directory.next_deadline(), desk.now + millis(500));
  desk.now = desk.now + millis(500);
  desk.directory.tick(desk.now);
  const auto second = only<net::AssignedEvent>(reader.news());
  EXPECT_EQ(second.source.incarnation, trainer.who);
  EXPECT_NE(second.assignment, first.assignment);
  EXPECT_EQ(second.number, first.number);
  reader.release(second.assignment, net::ReleaseKind::kComplete);
  EXPECT_TRUE(only<net::DecidedEvent>(reader.news()).ok);
}

TEST(Reroute, AnotherSourceIsTakenAtOnce) {
  Desk desk;
  Member a = desk.publisher("a", 1);
  Member reader = reader_of(desk, "reader", latest());
  const auto first = only<net::AssignedEvent>(reader.news());
  EXPECT_EQ(first.source.incarnation, a.who);
  Member b = desk.publisher("b", 1);
  reader.release(first.assignment, net::ReleaseKind::kFailed);
  EXPECT_EQ(only<net::AssignedEvent>(reader.news()).source.incarnation, b.who);
}

TEST(Reroute, OneShardAloneAndTheOtherGoesOn) {
  Desk desk;
  std::vector<Member> a = desk.open_group("a", 2);
  for (Member& member : a) member.publish(1);
  std::vector<Member> reader = desk.open_group("reader", 2);
  for (Member& member : reader) member.replicate(latest());
  const auto first0 = only<net::AssignedEvent>(reader[0].news());
  const auto first1 = only<net::AssignedEvent>(reader[1].news());
  std::vector<Member> b = desk.open_group("b", 2);
  for (Member& member : b) member.publish(1);
  reader[1].release(first1.assignment, net::ReleaseKind::kFailed);
  const auto second1 = only<net::AssignedEvent>(reader[1].news());
  EXPECT_EQ(second1.source.incarnation, b[1].who);
  EXPECT_THAT(reader[0].news(), IsEmpty());
  // Both sources are this reader's now.
  std::vector<Member> other = desk.open_group("other", 2);
  for (Member& member : other) member.replicate(latest());
  const auto third = only<net::AssignedEvent>(other[0].news());
  EXPECT_EQ(third.source.incarnation, reader[0].who);
  reader[0].release(first0.assignment, net::ReleaseKind::kComplete);
  reader[1].release(second1.assignment, net::ReleaseKind::kComplete);
  EXPECT_TRUE(only<net::DecidedEvent>(reader[0].news()).ok);
  EXPECT_EQ(Invariants(desk.directory).broken(), "");
}

// A chain r2 <- r1 <- trainer: when r1 loses the trainer it must not read from r2.
TEST(Reroute, NeverFromWhoeverItFeeds) {
  Desk desk;
  Member trainer = desk.publisher("trainer", 1);
  Member r1 = reader_of(desk, "r1", latest());
  Member r2 = reader_of(desk, "r2", latest());
  Member r3 = reader_of(desk, "r3", latest());
  const auto first = only<net::AssignedEvent>(r1.news());
  r1.release(first.assignment, net::ReleaseKind::kFailed);
  EXPECT_THAT(r1.news(), IsEmpty());
  EXPECT_EQ(Invariants(desk.directory).broken(), "");
  desk.pass(seconds(1), {&trainer, &r1, &r2, &r3});
  EXPECT_EQ(only<net::AssignedEvent>(r1.news()).source.incarnation, trainer.who);
}

// FieldReport8_: a worker restarted at the same address must not be sent to itself.
TEST(Sources, FieldReport8_NeverOneself) {
  Desk desk;
  Member trainer = desk.publisher("trainer", 1);
  trainer.replicate(exact(1));  // not even a live one that asks for what it has
  EXPECT_THAT(all_of<net::AssignedEvent>(trainer.news()), IsEmpty());
  desk.pass(seconds(11), {});  // killed
  Member again = desk.open("trainer");
  again.replicate(latest());
  EXPECT_THAT(again.news(), IsEmpty());
  Member other = desk.publisher("other", 1);
  EXPECT_EQ(only<net::AssignedEvent>(again.news()).source.incarnation, other.who);
}

// ---------------------------------------------------------------- losing a source or a reader

TEST(Loss, OfASourceMovesItsReaders) {
  Desk desk;
  Member trainer = desk.publisher("trainer", 1);
  Member reader = reader_of(desk, "reader", latest());
  const auto first = only<net::AssignedEvent>(reader.news());
  Member spare = desk.publisher("spare", 1);
  desk.pass(seconds(11), {&reader, &spare});
  const Events events = reader.news();
  EXPECT_EQ(only<net::AbandonEvent>(events).assignment, first.assignment);
  EXPECT_THAT(only<net::AbandonEvent>(events).reason, HasSubstr("m/trainer"));
  reader.release(first.assignment, net::ReleaseKind::kAbandoned);
  EXPECT_EQ(only<net::AssignedEvent>(reader.news()).source.incarnation, spare.who);
}

TEST(Loss, OfTheOnlySourceIsUnavailableAfterALease) {
  Desk desk;
  Member trainer = desk.publisher("trainer", 8);
  Member reader = desk.open("reader");
  reader.replicate(latest(), seconds(1000));
  const auto first = only<net::AssignedEvent>(reader.news());
  desk.pass(seconds(11), {&reader});
  reader.release(first.assignment, net::ReleaseKind::kAbandoned);
  EXPECT_EQ(all_of<net::DecidedEvent>(reader.news()).size(), 0u);  // it may be on its way back
  desk.pass(seconds(11), {&reader});
  const auto decided = only<net::DecidedEvent>(reader.news());
  EXPECT_EQ(decided.code, ErrorCode::kVersionUnavailable);
  EXPECT_THAT(decided.message, HasSubstr("version 8 of model m"));
  EXPECT_THAT(decided.message, HasSubstr("m/reader"));
  EXPECT_EQ(desk.directory.contents(), 0u);
}

TEST(Loss, AHolderThatComesBackWithinTheLeaseIsANewContent) {
  Desk desk;
  Member trainer = desk.publisher("trainer", 8);
  Member reader = desk.open("reader");
  reader.replicate(latest(), seconds(1000));
  const auto first = only<net::AssignedEvent>(reader.news());
  trainer.ask(net::CloseRequest{});
  reader.release(first.assignment, net::ReleaseKind::kAbandoned);
  Member again = desk.publisher("trainer", 8);
  EXPECT_THAT(all_of<net::AssignedEvent>(reader.news()), IsEmpty());  // never two contents mixed
  EXPECT_EQ(desk.directory.contents(), 2u);
  desk.pass(seconds(11), {&reader, &again});
  EXPECT_EQ(only<net::DecidedEvent>(reader.news()).code, ErrorCode::kVersionUnavailable);
}

TEST(Loss, OfAReaderFreesItsSource) {
  Desk desk;
  Member trainer = desk.publisher("trainer", 1);
  Member reader = reader_of(desk, "reader", latest());
  trainer.unpublish();
  EXPECT_THAT(all_of<net::DrainedEvent>(trainer.news()), IsEmpty());
  desk.pass(seconds(11), {&trainer});
  EXPECT_EQ(only<net::DrainedEvent>(trainer.news()).number, CallNumber{1});
  EXPECT_EQ(desk.directory.assignments(), 0u);
}

// r1 dies; r2, which read from it, keeps its prefix and moves to the trainer.
TEST(Loss, InTheMiddleOfAChain) {
  Desk desk;
  Member trainer = desk.publisher("trainer", 1);
  Member r1 = reader_of(desk, "r1", latest());
  Member r2 = reader_of(desk, "r2", latest());
  const auto reading = only<net::AssignedEvent>(r2.news());
  EXPECT_EQ(reading.source.incarnation, r1.who);
  r1.ask(net::CloseRequest{});
  EXPECT_EQ(only<net::AbandonEvent>(r2.news()).assignment, reading.assignment);
  r2.release(reading.assignment, net::ReleaseKind::kAbandoned);
  const auto again = only<net::AssignedEvent>(r2.news());
  EXPECT_EQ(again.source.incarnation, trainer.who);
  EXPECT_EQ(again.content, reading.content);
}

// A dead machine says nothing. r2 cannot read r1, the server does not hear it: its place at the
// trainer is free long before its lease is over.
TEST(Loss, OfAPartialIsBelievedEarlierWhenItsReaderSaysSo) {
  Desk desk;
  Member trainer = desk.publisher("trainer", 1);
  Member r1 = reader_of(desk, "r1", latest());
  Member r2 = reader_of(desk, "r2", latest());
  const auto reading = only<net::AssignedEvent>(r2.news());
  EXPECT_EQ(reading.source.incarnation, r1.who);
  r2.release(reading.assignment, net::ReleaseKind::kFailed);
  desk.pass(seconds(2), {&trainer, &r2});
  EXPECT_THAT(all_of<net::AssignedEvent>(r2.news()), IsEmpty());  // nor is it sent to r1 again
  desk.pass(seconds(1), {&trainer, &r2});
  EXPECT_EQ(only<net::AssignedEvent>(r2.news()).source.incarnation, trainer.who);
}

// One that is only out of its reader's reach is heard, and stays.
TEST(Loss, OfAPartialThatIsHeardIsNotBelieved) {
  Desk desk;
  Member trainer = desk.publisher("trainer", 1);
  Member r1 = reader_of(desk, "r1", latest());
  Member r2 = reader_of(desk, "r2", latest());
  r2.release(only<net::AssignedEvent>(r2.news()).assignment, net::ReleaseKind::kFailed);
  desk.pass(seconds(2), {&trainer, &r1, &r2});
  EXPECT_EQ(only<net::AssignedEvent>(r2.news()).source.incarnation, r1.who);
  desk.pass(seconds(5), {&trainer, &r2});  // silent from now on, and nobody complains
  EXPECT_THAT(all_of<net::AssignedEvent>(r2.news()), IsEmpty());
}

// A whole copy is believed dead only after its lease: a version may go with it.
TEST(Loss, OfAWholeCopyIsNeverBelievedEarlier) {
  Desk desk;
  Member trainer = desk.publisher("trainer", 1);
  Member reader = reader_of(desk, "reader", latest());
  reader.release(only<net::AssignedEvent>(reader.news()).assignment, net::ReleaseKind::kFailed);
  desk.pass(seconds(9), {&reader});
  EXPECT_EQ(only<net::AssignedEvent>(reader.news()).source.incarnation, trainer.who);
}

TEST(Loss, AFailedTransferTakesItsReadersWithIt) {
  Desk desk;
  Member trainer = desk.publisher("trainer", 1);
  Member r1 = desk.open("r1");
  r1.replicate(latest(), seconds(5));
  const auto first = only<net::AssignedEvent>(r1.news());
  Member r2 = reader_of(desk, "r2", latest());
  const auto second = only<net::AssignedEvent>(r2.news());
  desk.pass(seconds(6), {&trainer, &r1, &r2});
  EXPECT_EQ(all_of<net::DecidedEvent>(r1.news()).back().code, ErrorCode::kTimeout);
  EXPECT_EQ(only<net::AbandonEvent>(r2.news()).assignment, second.assignment);
  r2.release(second.assignment, net::ReleaseKind::kAbandoned);
  EXPECT_THAT(r2.news(), IsEmpty());  // the trainer is still read by r1
  r1.release(first.assignment, net::ReleaseKind::kAbandoned);
  EXPECT_EQ(only<net::AssignedEvent>(r2.news()).source.incarnation, trainer.who);
}

TEST(Loss, APoisonedDestinationEndsTheCall) {
  Desk desk;
  Member trainer = desk.publisher("trainer", 1);
  Member reader = reader_of(desk, "reader", latest());
  const auto reading = only<net::AssignedEvent>(reader.news());
  reader.release(reading.assignment, net::ReleaseKind::kPoisoned);
  const auto decided = only<net::DecidedEvent>(reader.news());
  EXPECT_FALSE(decided.ok);
  EXPECT_EQ(decided.code, ErrorCode::kReplicaLost);
  EXPECT_EQ(Invariants(desk.directory).broken(), "");
}

// ---------------------------------------------------------------- who waits for whom

TEST(WhoWaits, EveryCallThatIsNotDecidedNamesItsReason) {
  Desk desk;
  EXPECT_THAT(who_waits(desk.directory), IsEmpty());
  Member none = reader_of(desk, "none", exact(7));
  EXPECT_THAT(who_waits(desk.directory),
              ElementsAre("replicate 1 of m/none: no free source has version 7"));
  Member half = desk.open("half", 0, 2);
  half.publish(1);
  EXPECT_THAT(who_waits(desk.directory),
              ElementsAre("publish 1 of m/half: shard 1 is not open",
                          "replicate 1 of m/none: no free source has version 7"));
  Member other = desk.open("half", 1, 2);
  EXPECT_THAT(who_waits(desk.directory),
              ElementsAre("publish 1 of m/half: shard 1 has not made this call",
                          "replicate 1 of m/none: no free source has version 7"));
  other.publish(1);
  Member source = desk.publisher("source", 7);
  EXPECT_THAT(who_waits(desk.directory),
              ElementsAre("replicate 1 of m/none: shard 0 reads from m/source"));
  source.unpublish();
  EXPECT_THAT(who_waits(desk.directory),
              ElementsAre("replicate 1 of m/none: shard 0 reads from m/source",
                          "drain of m/source: shard 0 is still read by m/none"));
}

}  // namespace
}  // namespace weightlane::ros::testing
