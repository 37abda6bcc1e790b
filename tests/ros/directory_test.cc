// Goal: the server's rules on calls, holdings and clients: what becomes visible when (P4), one
// decision per call (P3), memory back per shard (P2), nothing twice (P10), nothing left behind.
// Method: tables of requests on the plain Directory with a hand-moved clock; after each, the
// mailboxes and the list. Rules on who reads from whom: directory_sources_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/ros/desk.h"
#include "tests/ros/invariants.h"

namespace weightlane::ros::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

const net::Failure* failure_in(const net::ResponseBody& body) {
  return std::get_if<net::Failure>(&body);
}

// ---------------------------------------------------------------- publish

TEST(Publish, ShowsWhenTheLastShardHasCome) {
  Desk desk;
  std::vector<Member> trainer = desk.open_group("trainer", 2);
  trainer[0].publish(5);
  EXPECT_TRUE(only<net::DecidedEvent>(trainer[0].news()).ok);  // does not wait for the other
  EXPECT_THAT(desk.shown(), ElementsAre("trainer:5:publishing"));
  trainer[1].publish(5);
  const auto decided = only<net::DecidedEvent>(trainer[1].news());
  EXPECT_TRUE(decided.ok);
  EXPECT_EQ(decided.content.version, VersionId{5});
  EXPECT_NE(decided.content.id.value, 0u);
  EXPECT_THAT(desk.shown(), ElementsAre("trainer:5:complete"));
}

TEST(Publish, OfOneNumberByTwoReplicasIsOneContent) {
  Desk desk;
  Member a = desk.open("a");
  Member b = desk.open("b");
  a.publish(1);
  b.publish(1);
  EXPECT_EQ(only<net::DecidedEvent>(a.news()).content, only<net::DecidedEvent>(b.news()).content);
  EXPECT_EQ(desk.directory.contents(), 1u);
}

// Nobody shows it any more, so the same number may stand for other bytes.
TEST(Publish, AgainAfterAGapIsAnotherContent) {
  Desk desk;
  Member a = desk.open("a");
  a.publish(1);
  const auto first = only<net::DecidedEvent>(a.news());
  a.unpublish();
  a.publish(1);
  const auto second = all_of<net::DecidedEvent>(a.news()).back();
  EXPECT_TRUE(second.ok);
  EXPECT_NE(first.content.id, second.content.id);
}

TEST(Publish, ModelsDoNotMix) {
  Desk desk;
  Member a = desk.open("a", 0, 1, "n", "m1");
  a.publish(1);
  Member b = desk.open("b", 0, 1, "n", "m2");
  b.replicate(exact(1));
  EXPECT_THAT(b.news(), IsEmpty());
  EXPECT_THAT(desk.shown("m1"), ElementsAre("a:1:complete"));
  EXPECT_THAT(desk.shown("m2"), IsEmpty());
}

TEST(Publish, LayoutMismatchNamesBothSides) {
  Desk desk;
  Member a = desk.open("a");
  a.publish(1, 1);
  Member b = desk.open("b");
  b.publish(1, 2);
  const auto decided = only<net::DecidedEvent>(b.news());
  EXPECT_FALSE(decided.ok);
  EXPECT_EQ(decided.code, ErrorCode::kLayoutMismatch);
  EXPECT_THAT(decided.message, HasSubstr("m/a"));
  EXPECT_THAT(decided.message, HasSubstr("m/b"));
  EXPECT_THAT(decided.message, HasSubstr("3 tensors, 4096 bytes"));
  EXPECT_THAT(desk.shown(), ElementsAre("a:1:complete"));
}

TEST(Replicate, LayoutMismatchEndsItForAllShards) {
  Desk desk;
  std::vector<Member> trainer = desk.open_group("trainer", 2);
  for (Member& shard : trainer) shard.publish(1);
  std::vector<Member> rollout = desk.open_group("rollout", 2);
  rollout[0].replicate(exact(1));
  rollout[1].replicate(exact(1), seconds(100), 9);
  const auto first = only<net::DecidedEvent>(rollout[0].news());
  EXPECT_EQ(first, only<net::DecidedEvent>(rollout[1].news()));
  EXPECT_EQ(first.code, ErrorCode::kLayoutMismatch);
  EXPECT_THAT(first.message, HasSubstr("m/trainer"));
  EXPECT_THAT(first.message, HasSubstr("shard 1 of m/rollout"));
}

TEST(Replicate, OtherNumberOfShardsIsALayoutMismatch) {
  Desk desk;
  Member trainer = desk.publisher("trainer", 1);
  std::vector<Member> rollout = desk.open_group("rollout", 2);
  for (Member& shard : rollout) shard.replicate(exact(1));
  const auto decided = only<net::DecidedEvent>(rollout[0].news());
  EXPECT_EQ(decided.code, ErrorCode::kLayoutMismatch);
  EXPECT_THAT(decided.message, HasSubstr("m/rollout has 2 shards"));
  EXPECT_THAT(decided.message, HasSubstr("has 1"));
  std::vector<Member> other = desk.open_group("other", 3);
  other[2].publish(1);
  EXPECT_EQ(only<net::DecidedEvent>(other[2].news()).code, ErrorCode::kLayoutMismatch);
  EXPECT_EQ(Invariants(desk.directory).broken(), "");
}

// ---------------------------------------------------------------- one decision

TEST(Calls, ReplicateWaitsForAllShards) {
  Desk desk;
  std::vector<Member> trainer = desk.open_group("trainer", 2);
  for (Member& shard : trainer) shard.publish(3);
  std::vector<Member> rollout = desk.open_group("rollout", 2);
  rollout[1].replicate(latest());
  EXPECT_THAT(rollout[1].news(), IsEmpty());
  rollout[0].replicate(latest());
  const auto to0 = only<net::AssignedEvent>(rollout[0].news());
  const auto to1 = only<net::AssignedEvent>(rollout[1].news());
  EXPECT_EQ(to0.content, to1.content);
  EXPECT_EQ(to0.source.incarnation, trainer[0].who);
  EXPECT_EQ(to1.source.incarnation, trainer[1].who);

  rollout[0].release(to0.assignment, net::ReleaseKind::kComplete);
  EXPECT_THAT(rollout[0].news(), IsEmpty());  // success only when all are sealed
  EXPECT_THAT(desk.shown(), ElementsAre("trainer:3:complete", "rollout:3:receiving"));
  rollout[1].release(to1.assignment, net::ReleaseKind::kComplete);
  const auto decided = only<net::DecidedEvent>(rollout[0].news());
  EXPECT_TRUE(decided.ok);
  EXPECT_EQ(decided, only<net::DecidedEvent>(rollout[1].news()));
  EXPECT_THAT(desk.shown(), ElementsAre("trainer:3:complete", "rollout:3:complete"));
}

TEST(Calls, MismatchNamesBoth) {
  struct Row {
    net::CallKind first;
    net::VersionSpec first_version;
    net::CallKind second;
    net::VersionSpec second_version;
    const char* says_first;
    const char* says_second;
  };
  const Row rows[] = {
      {net::CallKind::kPublish, exact(1), net::CallKind::kPublish, exact(2),
       "shard 1 made publish(1)", "shard 0 made publish(2)"},
      {net::CallKind::kPublish,
       exact(1),
       net::CallKind::kUnpublish,
       {},
       "shard 1 made publish(1)",
       "shard 0 made unpublish"},
      {net::CallKind::kReplicate, latest(), net::CallKind::kUpdate, latest(),
       "shard 1 made replicate(latest)", "shard 0 made update(latest)"},
      {net::CallKind::kReplicate, latest(), net::CallKind::kReplicate, latest(1),
       "shard 1 made replicate(latest)", "shard 0 made replicate(latest-1)"},
      {net::CallKind::kUnpublish,
       {},
       net::CallKind::kReplicate,
       exact(4),
       "shard 1 made unpublish",
       "shard 0 made replicate(4)"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.says_second);
    Desk desk;
    std::vector<Member> group = desk.open_group("g", 2);
    group[1].call(row.first, row.first_version, seconds(5), 1);
    const Events before = group[1].news();
    const bool told_ok = !all_of<net::DecidedEvent>(before).empty();
    group[0].call(row.second, row.second_version, seconds(5), 1);
    const auto to0 = only<net::DecidedEvent>(group[0].news());
    EXPECT_EQ(to0.code, ErrorCode::kCallMismatch);
    EXPECT_THAT(to0.message, HasSubstr(row.says_first));
    EXPECT_THAT(to0.message, HasSubstr(row.says_second));
    // Whoever was answered already learns it from its next call.
    if (told_ok) group[1].publish(9);
    const auto to1 = all_of<net::DecidedEvent>(group[1].news());
    ASSERT_EQ(to1.size(), 1u);
    EXPECT_EQ(to1[0].code, ErrorCode::kCallMismatch);
    EXPECT_EQ(to1[0].message, to0.message);
    EXPECT_EQ(Invariants(desk.directory).broken(), "");
    // And then both are in step again.
    if (told_ok) group[0].publish(9);
    for (Member& member : group) {
      member.news();
      member.publish(10);
      EXPECT_TRUE(only<net::DecidedEvent>(member.news()).ok);
    }
    EXPECT_EQ(desk.shown().back(), "g:10:complete");
  }
}

// FieldReport5_, server's side: one member never comes, and the wait names it.
TEST(Calls, FieldReport5_AMissingMemberIsNamed) {
  Desk desk;
  std::vector<Member> group{desk.open("g", 0, 3), desk.open("g", 1, 3)};
  group[0].replicate(latest(), seconds(500));
  group[1].publish(4);  // nothing to do with it, but alive
  group[1].news();
  EXPECT_EQ(only<net::DecidedEvent>(group[0].news()).code, ErrorCode::kCallMismatch);

  group[0].replicate(latest(), seconds(500));
  desk.pass(seconds(59), {&group[0], &group[1]});
  EXPECT_THAT(group[0].news(), IsEmpty());
  desk.pass(seconds(2), {&group[0], &group[1]});
  const auto decided = only<net::DecidedEvent>(group[0].news());
  EXPECT_EQ(decided.code, ErrorCode::kTimeout);
  EXPECT_THAT(decided.message, HasSubstr("replicate(latest) of m/g"));
  EXPECT_THAT(decided.message, HasSubstr("shard 1, shard 2 (not open)"));
}

TEST(Calls, FieldReport5_APublishThatStaysPartialIsWithdrawn) {
  Desk desk;
  std::vector<Member> group = desk.open_group("g", 2);
  group[0].publish(1);
  EXPECT_TRUE(only<net::DecidedEvent>(group[0].news()).ok);
  desk.pass(seconds(61), {&group[0], &group[1]});
  EXPECT_EQ(only<net::DrainedEvent>(group[0].news()).number, CallNumber{1});
  EXPECT_THAT(desk.shown(), ElementsAre("g:1:hidden"));
  group[1].publish(1);  // too late
  const auto late = only<net::DecidedEvent>(group[1].news());
  EXPECT_EQ(late.code, ErrorCode::kTimeout);
  EXPECT_THAT(late.message, HasSubstr("waited for shard 1"));
  group[0].unpublish();
  EXPECT_EQ(only<net::DecidedEvent>(group[0].news()).code, ErrorCode::kTimeout);
}

// A shard that unpublished waits for nobody, and neither does the server's timer.
TEST(Calls, AnUnpublishOfOneShardNeverTimesOut) {
  Desk desk;
  std::vector<Member> group = desk.open_group("g", 2);
  for (Member& member : group) {
    member.publish(1);
    member.news();
  }
  group[0].unpublish();
  group[0].news();
  desk.pass(seconds(200), {&group[0], &group[1]});
  EXPECT_THAT(group[0].news(), IsEmpty());
  group[1].unpublish();
  EXPECT_TRUE(all_of<net::DecidedEvent>(group[1].news()).back().ok);
  EXPECT_EQ(desk.directory.contents(), 0u);
}

TEST(Calls, OutOfTurnIsRefused) {
  Desk desk;
  Member member = desk.open("g");
  net::ResponseBody answer = member.ask(
      net::GroupCallRequest{CallNumber{3}, net::CallKind::kPublish, exact(1), {}, layout_of()});
  ASSERT_NE(failure_in(answer), nullptr);
  EXPECT_EQ(failure_in(answer)->code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(failure_in(answer)->message, HasSubstr("call 3 after call 0"));
}

TEST(Calls, AShardFarAheadEndsThem) {
  Desk desk;
  std::vector<Member> group = desk.open_group("g", 2);
  bool told = false;
  for (int i = 0; i < 300 && !told; ++i) {
    (i % 2 == 0) ? group[0].publish(1) : group[0].unpublish();
    for (const auto& decided : all_of<net::DecidedEvent>(group[0].news()))
      told = told || decided.code == ErrorCode::kTimeout;
    EXPECT_LE(desk.group("g")->calls.size(), 258u);
  }
  EXPECT_TRUE(told);
  EXPECT_EQ(Invariants(desk.directory).broken(), "");
}

TEST(Calls, ADeadlineNamesWhatTheyWaitedFor) {
  Desk desk;
  Member trainer = desk.publisher("trainer", 7);
  Member other = desk.publisher("other", 9);
  Member a = desk.open("a");
  a.replicate(exact(8), seconds(20));
  Member b = desk.open("b");
  b.replicate(exact(7), seconds(20));
  const auto reading = only<net::AssignedEvent>(b.news());
  Member c = desk.open("c");
  c.replicate(exact(9), seconds(20));
  Member d = desk.open("d");
  c.release(only<net::AssignedEvent>(c.news()).assignment, net::ReleaseKind::kComplete);
  desk.pass(seconds(21), {&trainer, &other, &a, &b, &c, &d});
  const auto to_a = only<net::DecidedEvent>(a.news());
  EXPECT_EQ(to_a.code, ErrorCode::kVersionUnavailable);
  EXPECT_THAT(to_a.message, HasSubstr("replicate(8) of m/a"));
  EXPECT_THAT(to_a.message, HasSubstr("versions held: 7, 9"));
  const auto to_b = only<net::DecidedEvent>(b.news());
  EXPECT_EQ(to_b.code, ErrorCode::kTimeout);
  EXPECT_THAT(to_b.message, HasSubstr("shard 0 still reads from trainer"));
  EXPECT_TRUE(only<net::DecidedEvent>(c.news()).ok);
  b.release(reading.assignment, net::ReleaseKind::kAbandoned);
  EXPECT_EQ(desk.directory.assignments(), 0u);
}

// ---------------------------------------------------------------- unpublish

TEST(Unpublish, IsDrainedPerShard) {
  Desk desk;
  std::vector<Member> trainer = desk.open_group("trainer", 2);
  for (Member& shard : trainer) shard.publish(1);
  std::vector<Member> rollout = desk.open_group("rollout", 2);
  for (Member& shard : rollout) shard.replicate(latest());
  const auto to0 = only<net::AssignedEvent>(rollout[0].news());
  const auto to1 = only<net::AssignedEvent>(rollout[1].news());
  for (Member& shard : trainer) shard.news();

  trainer[0].unpublish();
  EXPECT_THAT(desk.shown(), UnorderedElementsAre("trainer:1:hidden", "rollout:1:receiving"));
  EXPECT_THAT(all_of<net::DrainedEvent>(trainer[0].news()), IsEmpty());
  EXPECT_THAT(rollout[0].news(), IsEmpty());  // no other copy: go on
  rollout[0].release(to0.assignment, net::ReleaseKind::kComplete);
  EXPECT_EQ(only<net::DrainedEvent>(trainer[0].news()).number, CallNumber{1});
  EXPECT_THAT(all_of<net::DrainedEvent>(trainer[1].news()), IsEmpty());
  rollout[1].release(to1.assignment, net::ReleaseKind::kComplete);
  // It comes before the shard asks for its memory.
  EXPECT_EQ(only<net::DrainedEvent>(trainer[1].news()).number, CallNumber{1});
  EXPECT_TRUE(only<net::DecidedEvent>(rollout[1].news()).ok);
  trainer[1].unpublish();
  EXPECT_TRUE(only<net::DecidedEvent>(trainer[1].news()).ok);
  EXPECT_THAT(desk.shown(), ElementsAre("rollout:1:complete"));
}

TEST(Unpublish, AsksReadersToYieldWhenThereIsAnotherCopy) {
  Desk desk;
  Member trainer = desk.publisher("trainer", 1);
  Member reader = desk.open("reader");
  reader.replicate(latest());
  const auto first = only<net::AssignedEvent>(reader.news());
  Member second = desk.publisher("second", 1);
  trainer.unpublish();
  EXPECT_EQ(only<net::YieldEvent>(reader.news()).assignment, first.assignment);
  reader.release(first.assignment, net::ReleaseKind::kNeverOpened);
  const auto again = only<net::AssignedEvent>(reader.news());
  EXPECT_EQ(again.source.incarnation, second.who);
  EXPECT_EQ(again.number, first.number);
  EXPECT_EQ(only<net::DrainedEvent>(trainer.news()).number, CallNumber{1});
}

TEST(Unpublish, BeforeTheOtherShardPublished) {
  Desk desk;
  std::vector<Member> trainer = desk.open_group("trainer", 2);
  trainer[0].publish(1);
  trainer[0].unpublish();
  EXPECT_EQ(only<net::DrainedEvent>(trainer[0].news()).number, CallNumber{1});
  trainer[1].publish(1);
  EXPECT_THAT(desk.shown(), IsEmpty());  // never visible
  const Events to1 = trainer[1].news();
  EXPECT_TRUE(only<net::DecidedEvent>(to1).ok);
  EXPECT_EQ(only<net::DrainedEvent>(to1).number, CallNumber{1});
  trainer[1].unpublish();
  EXPECT_TRUE(only<net::DecidedEvent>(trainer[1].news()).ok);
  EXPECT_TRUE(desk.group("trainer")->publications.empty());
  EXPECT_TRUE(desk.group("trainer")->calls.empty());
}

// ---------------------------------------------------------------- update

TEST(Update, WithoutANewerVersionIsNothing) {
  Desk desk;
  Member rollout = desk.open("rollout");
  rollout.update(latest());
  const auto nothing = only<net::DecidedEvent>(rollout.news());
  EXPECT_TRUE(nothing.ok);
  EXPECT_EQ(nothing.content.id.value, 0u);
  Member trainer = desk.publisher("trainer", 5);
  rollout.publish(5);
  rollout.news();
  rollout.update(latest());
  EXPECT_EQ(only<net::DecidedEvent>(rollout.news()).content.id.value, 0u);
  EXPECT_THAT(desk.shown(), UnorderedElementsAre("trainer:5:complete", "rollout:5:complete"));
}

TEST(Update, HidesItsOwnAndReceivesTheNewerInOneStep) {
  Desk desk;
  Member rollout = desk.publisher("rollout", 4);
  Member reader = desk.open("reader");
  reader.replicate(exact(4));
  const auto old_reading = only<net::AssignedEvent>(reader.news());
  Member trainer = desk.publisher("trainer", 5);
  const CallNumber number = rollout.update(latest());
  const Events events = rollout.news();
  EXPECT_EQ(only<net::AssignedEvent>(events).number, number);
  EXPECT_THAT(all_of<net::DrainedEvent>(events), IsEmpty());  // its reader is still there
  reader.release(old_reading.assignment, net::ReleaseKind::kComplete);
  EXPECT_EQ(only<net::DrainedEvent>(rollout.news()).number, CallNumber{1});
  EXPECT_EQ(Invariants(desk.directory).broken(), "");
}

// ---------------------------------------------------------------- losing members

TEST(Loss, TheOthersLearnItFromTheirNextCallAndTheNumbersGoOn) {
  Desk desk;
  std::vector<Member> group = desk.open_group("g", 2);
  for (Member& member : group) member.publish(1);
  for (Member& member : group) member.news();
  desk.pass(seconds(11), {&group[0]});  // shard 1 is silent
  EXPECT_THAT(desk.shown(), IsEmpty());
  EXPECT_EQ(only<net::DrainedEvent>(group[0].news()).number, CallNumber{1});

  Member again = desk.open("g", 1, 2);
  EXPECT_EQ(again.next_call, 3u);  // behind the call by which shard 0 learns of it
  group[0].unpublish();
  const auto lost = only<net::DecidedEvent>(group[0].news());
  EXPECT_EQ(lost.code, ErrorCode::kReplicaLost);
  EXPECT_THAT(lost.message, HasSubstr("shard 1 of m/g left: not heard for 10000 ms"));
  group[0].publish(2);
  again.publish(2);
  EXPECT_TRUE(only<net::DecidedEvent>(again.news()).ok);
  EXPECT_THAT(desk.shown(), ElementsAre("g:2:complete"));
}

TEST(Loss, EndsTheCallUnderWay) {
  Desk desk;
  Member trainer = desk.open("trainer", 0, 2);
  Member trainer1 = desk.open("trainer", 1, 2);
  trainer.publish(1);
  trainer1.publish(1);
  std::vector<Member> rollout = desk.open_group("rollout", 2);
  for (Member& member : rollout) member.replicate(latest());
  const auto reading = only<net::AssignedEvent>(rollout[0].news());
  rollout[1].ask(net::CloseRequest{});
  const Events events = rollout[0].news();
  EXPECT_EQ(only<net::DecidedEvent>(events).code, ErrorCode::kReplicaLost);
  EXPECT_THAT(only<net::DecidedEvent>(events).message, HasSubstr("closed"));
  EXPECT_EQ(desk.directory.assignments(), 1u);  // shard 0 may still read
  rollout[0].release(reading.assignment, net::ReleaseKind::kAbandoned);
  EXPECT_EQ(desk.directory.assignments(), 0u);
  // It was told; nothing more is owed, and who comes back is in step.
  Member again = desk.open("rollout", 1, 2);
  EXPECT_EQ(again.next_call, rollout[0].next_call);
}

TEST(Loss, BuriedIncarnationsDoNotComeBack) {
  Desk desk;
  Member member = desk.open("g");
  const net::Request open_again{{member.who, 9, 1}, net::OpenRequest{"m", "g", {0}, 1, "n", "e"}};
  desk.pass(seconds(11), {});
  EXPECT_EQ(desk.directory.clients(), 0u);
  net::ResponseBody poll = member.ask(net::PollRequest{});
  ASSERT_NE(failure_in(poll), nullptr);
  EXPECT_EQ(failure_in(poll)->kind, net::FailureKind::kUnknownIncarnation);
  net::ResponseBody opened = desk.directory.apply(open_again, desk.now).body;
  ASSERT_NE(failure_in(opened), nullptr);
  EXPECT_EQ(failure_in(opened)->kind, net::FailureKind::kUnknownIncarnation);
  desk.pass(seconds(21), {});
  EXPECT_EQ(desk.directory.next_deadline(), kForever);  // nothing left to wait for
  EXPECT_TRUE(desk.directory.groups().empty());
}

TEST(Loss, AbortOfACommittedCallPoisons) {
  Desk desk;
  std::vector<Member> group = desk.open_group("g", 2);
  for (Member& member : group) member.publish(1);
  for (Member& member : group) member.news();
  group[1].ask(net::AbortRequest{CallNumber{1}, ErrorCode::kReplicaLost, "closed"});
  EXPECT_THAT(desk.shown(), IsEmpty());
  group[0].unpublish();
  EXPECT_EQ(all_of<net::DecidedEvent>(group[0].news()).back().code, ErrorCode::kReplicaLost);
  net::ResponseBody never =
      group[0].ask(net::AbortRequest{CallNumber{50}, ErrorCode::kTimeout, "?"});
  EXPECT_NE(failure_in(never), nullptr);
}

// ---------------------------------------------------------------- open

TEST(Open, OfALiveShardNamesTheHolderUntilItsLeaseEnds) {
  Desk desk;
  Member holder = desk.open("g");
  desk.pass(seconds(4), {&holder});
  desk.pass(seconds(3), {});
  Member second;
  const net::OpenRequest request{"m", "g", {0}, 1, "n", "e"};
  net::ResponseBody answer = desk.try_open(second, request);
  ASSERT_NE(failure_in(answer), nullptr);
  EXPECT_EQ(failure_in(answer)->code, ErrorCode::kAlreadyOpen);
  EXPECT_EQ(failure_in(answer)->holder, holder.who);
  EXPECT_EQ(failure_in(answer)->heard_ago, seconds(3));
  desk.pass(seconds(8), {});
  answer = desk.try_open(second, request);
  EXPECT_TRUE(std::holds_alternative<net::OpenedResponse>(answer));
}

TEST(Open, ChecksItsArguments) {
  Desk desk;
  desk.open("g", 0, 2);
  const std::pair<net::OpenRequest, const char*> rows[] = {
      {{"m", "g", {2}, 2, "n", "e"}, "shard 2 is out of range: replica m/g has shards 0 to 1"},
      {{"m", "g", {0}, 3, "n", "e"}, "is open with 2 shards, not 3"},
      {{"", "g", {0}, 1, "n", "e"}, "model"},
      {{"m", "", {0}, 1, "n", "e"}, "replica"},
      {{"m", std::string(257, 'x'), {0}, 1, "n", "e"}, "256 bytes"},
      {{"m", "g2", {0}, 0, "n", "e"}, "num_shards is 0"},
      {{"m", "g2", {0}, 70000, "n", "e"}, "num_shards is 70000"},
      {{"m", "g2", {0}, 1, "n", std::string(5000, 'e')}, "4096"},
  };
  for (const auto& [request, says] : rows) {
    Member member;
    net::ResponseBody answer = desk.try_open(member, request);
    ASSERT_NE(failure_in(answer), nullptr);
    EXPECT_EQ(failure_in(answer)->code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(failure_in(answer)->message, HasSubstr(says));
  }
  EXPECT_EQ(desk.directory.clients(), 1u);
  EXPECT_EQ(desk.directory.groups().size(), 1u);
}

// ---------------------------------------------------------------- exactly once

// FieldReport14_: a mutation whose reply was lost comes again and changes nothing.
TEST(Repeats, FieldReport14_EveryRequestTwiceIsAsOnce) {
  auto play = [](bool twice) {
    Desk desk;
    auto again = [&](Member& member) {
      if (twice) member.repeat();
    };
    std::vector<Member> trainer = desk.open_group("trainer", 2);
    for (Member& member : trainer) {
      member.publish(1);
      again(member);
    }
    std::vector<Member> rollout = desk.open_group("rollout", 2);
    for (Member& member : rollout) {
      member.replicate(latest());
      again(member);
    }
    for (Member& member : rollout) {
      member.release(only<net::AssignedEvent>(member.news()).assignment,
                     net::ReleaseKind::kComplete);
      again(member);
    }
    for (Member& member : trainer) {
      member.unpublish();
      again(member);
    }
    std::string story;
    for (Member* member : {&trainer[0], &trainer[1], &rollout[0], &rollout[1]}) {
      const Events events = member->news();
      story += std::to_string(events.size()) + "/" +
               std::to_string(all_of<net::DecidedEvent>(events).size()) + " ";
    }
    for (const std::string& line : desk.shown()) story += line + " ";
    rollout[0].ask(net::CloseRequest{});
    again(rollout[0]);
    for (const std::string& line : desk.shown()) story += line + " ";
    return story + std::to_string(desk.directory.clients());
  };
  EXPECT_EQ(play(false), play(true));
}

TEST(Repeats, AStaleSessionIsNotServed) {
  Desk desk;
  Member member = desk.open("g");
  member.session = 5;
  member.publish(1);
  const net::Request old{
      {member.who, 4, 99},
      net::GroupCallRequest{CallNumber{2}, net::CallKind::kUnpublish, {}, {}, {}}};
  net::Response answer = desk.directory.apply(old, desk.now);
  const auto* failed = std::get_if<net::Failure>(&answer.body);
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->kind, net::FailureKind::kStaleSession);
  EXPECT_THAT(desk.shown(), ElementsAre("g:1:complete"));
}

TEST(Repeats, AnAssignmentIsReleasedByItsReaderOnly) {
  Desk desk;
  Member trainer = desk.publisher("trainer", 1);
  Member reader = desk.open("reader");
  reader.replicate(latest());
  const auto reading = only<net::AssignedEvent>(reader.news());
  net::ResponseBody stranger =
      trainer.ask(net::ReleaseRequest{reading.assignment, net::ReleaseKind::kComplete, 0, ""});
  EXPECT_NE(failure_in(stranger), nullptr);
  EXPECT_EQ(desk.directory.assignments(), 1u);
  reader.release(AssignmentId{4711}, net::ReleaseKind::kComplete);  // long gone: accepted
  EXPECT_EQ(desk.directory.assignments(), 1u);
}

TEST(Repeats, EventsStayUntilAcknowledged) {
  Desk desk;
  Member member = desk.open("g");
  member.publish(1);
  for (int i = 0; i < 3; ++i) {
    net::ResponseBody answer = member.ask(net::PollRequest{0, 0, kZeroNanos});
    EXPECT_EQ(std::get<net::EventsResponse>(answer).events.size(), 1u);
  }
  EXPECT_TRUE(desk.directory.has_events(member.who));
  member.news();
  EXPECT_THAT(member.news(), IsEmpty());
  EXPECT_FALSE(desk.directory.has_events(member.who));
}

// ---------------------------------------------------------------- time and space

// FieldReport7_: state of dead peers is released.
TEST(Space, FieldReport7_AThousandJoinsAndCrashesLeaveNothing) {
  Desk desk;
  Member trainer = desk.publisher("trainer", 1);
  for (int i = 0; i < 1000; ++i) {
    std::vector<Member> group = desk.open_group("g" + std::to_string(i % 7), 2);
    group[0].publish(2);
    group[1].publish(2);
    Member reader = desk.open("r" + std::to_string(i % 5));
    reader.replicate(latest(i % 2));
    trainer.news();
    if (i % 3 == 0) {
      for (Member& member : group) member.ask(net::CloseRequest{});
      reader.ask(net::CloseRequest{});
    }
    desk.pass(seconds(11), {&trainer});
    ASSERT_EQ(desk.directory.clients(), 1u);
  }
  trainer.unpublish();
  trainer.ask(net::CloseRequest{});
  desk.pass(seconds(30), {});
  EXPECT_EQ(desk.directory.clients(), 0u);
  EXPECT_EQ(desk.directory.contents(), 0u);
  EXPECT_EQ(desk.directory.assignments(), 0u);
  EXPECT_TRUE(desk.directory.groups().empty());
  EXPECT_EQ(desk.directory.next_deadline(), kForever);
}

TEST(Time, AGapInTheServersOwnTimeExtendsAllLeases) {
  Desk desk;
  Member a = desk.open("a");
  Member b = desk.open("b");
  desk.pass(seconds(5), {&a});
  desk.now = desk.now + seconds(60);  // this process was stopped
  desk.directory.tick(desk.now);
  EXPECT_EQ(desk.directory.clients(), 2u);
  desk.pass(seconds(9), {&a});
  EXPECT_EQ(desk.directory.clients(), 2u);
  desk.pass(seconds(3), {&a});
  EXPECT_EQ(desk.directory.clients(), 1u);
}

TEST(List, SaysWhoHoldsWhat) {
  Desk desk;
  Member old = desk.publisher("old", 1);
  Member trainer = desk.publisher("trainer", 2);
  Member reader = desk.open("reader");
  reader.replicate(latest());
  reader.ask(net::PollRequest{0, 1000, kZeroNanos});
  const net::ListResponse list = desk.list("m");
  EXPECT_EQ(list.open_shards, 3u);
  EXPECT_THAT(desk.shown("m"),
              ElementsAre("trainer:2:complete", "reader:2:receiving", "old:1:complete"));
  EXPECT_EQ(list.replicas[0].bytes, 4096u);
  EXPECT_EQ(list.replicas[1].sealed_bytes, 1000u);
  EXPECT_EQ(list.replicas[1].source, "trainer");
  EXPECT_THAT(desk.list("other").replicas, IsEmpty());
}

}  // namespace
}  // namespace weightlane::ros::testing
