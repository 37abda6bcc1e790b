// Goal: the server's rules on retention (P5): who retains what, whose copy counts, that nobody is
// answered before the last copy is safe, that all shards of an offload are one decision, what a
// failure does by choice, and when an offload goes. And of rewind and wait.
// Method: as directory_test.cc: tables of requests, the mailboxes and the list after them. The
// offload's own shards are members like any other, opened by the test with the token of the event.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/ros/desk.h"

namespace weightlane::ros::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

struct Wish {
  net::RetainSpec retain;
  bool spot = false;
  net::OffloadFailure on_failure = net::OffloadFailure::kRefuse;
};

Wish latest_of(uint32_t count) { return {{count, {}}}; }

std::vector<Member> open_with(Desk& desk, std::string replica, uint32_t shards, Wish wish) {
  std::vector<Member> members;
  for (uint32_t shard = 0; shard < shards; ++shard) {
    Member member;
    net::OpenRequest open{"m", replica, ShardIndex{shard}, shards, "node-" + replica, "e"};
    open.retain = wish.retain;
    open.spot = wish.spot;
    open.on_offload_failure = wish.on_failure;
    EXPECT_TRUE(std::holds_alternative<net::OpenedResponse>(desk.try_open(member, open)));
    members.push_back(member);
  }
  return members;
}

void publish(std::vector<Member>& replica, uint64_t version) {
  for (Member& member : replica) {
    member.publish(version);
    member.news();
  }
}

// A shard of an offload, as its process would do it.
Member open_offload(Desk& desk, const net::OffloadEvent& event, ShardIndex shard, uint32_t shards) {
  Member member;
  net::OpenRequest open{"m", event.replica, shard, shards, "node", "host-memory"};
  open.offload = event.token;
  EXPECT_TRUE(std::holds_alternative<net::OpenedResponse>(desk.try_open(member, open)));
  member.replicate(exact(event.content.version.value));
  return member;
}

// Every shard takes what its event asks for, up to the release of the last but `hold_back` ones.
std::vector<Member> take_offload(Desk& desk, std::vector<Member>& keeper, size_t hold_back = 0) {
  std::vector<Member> offload;
  const auto shards = static_cast<uint32_t>(keeper.size());
  for (Member& member : keeper)
    offload.push_back(
        open_offload(desk, only<net::OffloadEvent>(member.news()), member.shard, shards));
  for (size_t i = 0; i + hold_back < offload.size(); ++i)
    offload[i].release(only<net::AssignedEvent>(offload[i].news()).assignment,
                       net::ReleaseKind::kComplete);
  return offload;
}

std::vector<std::string> states(Desk& desk) {
  std::vector<std::string> lines;
  for (const net::ListedReplica& row : desk.list().replicas)
    lines.push_back(row.replica.substr(0, row.replica.find('~')) + (row.offload ? "~" : "") + ":" +
                    std::to_string(row.content.version.value) + ":" +
                    net::replica_state_name(row.state) + (row.retained ? ":retained" : ""));
  return lines;
}

TEST(Retention, UnpublishOfTheLastCopyWaitsForAnOffloadOfAllShards) {
  Desk desk;
  std::vector<Member> trainer = open_with(desk, "t", 2, latest_of(1));
  publish(trainer, 7);
  trainer[0].unpublish();
  // Both shards are asked, though only one has called; nobody is answered, the version shows.
  std::vector<Member> offload = take_offload(desk, trainer, 1);
  EXPECT_THAT(trainer[0].news(), IsEmpty());
  EXPECT_THAT(states(desk),
              UnorderedElementsAre("t:7:complete:retained", "t~:7:receiving:retained"));
  offload[1].release(only<net::AssignedEvent>(offload[1].news()).assignment,
                     net::ReleaseKind::kComplete);
  const Events answered = trainer[0].news();
  EXPECT_TRUE(only<net::DecidedEvent>(answered).ok);
  EXPECT_EQ(only<net::DrainedEvent>(answered).number, CallNumber{1});
  trainer[1].unpublish();
  EXPECT_TRUE(only<net::DecidedEvent>(trainer[1].news()).ok);
  EXPECT_THAT(states(desk), ElementsAre("t~:7:complete:retained"));
  // A reader gets it from there.
  std::vector<Member> reader = open_with(desk, "r", 2, {});
  for (Member& member : reader) member.replicate(latest());
  EXPECT_EQ(only<net::AssignedEvent>(reader[0].news()).source.endpoint, "host-memory");
}

TEST(Retention, WithoutAWishOrWithAnotherCopyNothingIsOffloaded) {
  struct Row {
    const char* what;
    Wish trainer;
    Wish other;
    bool other_holds;
    bool offloads;
  };
  const Row rows[] = {
      {"nobody retains", {}, {}, false, false},
      {"another holder", latest_of(1), {}, true, false},
      {"a spot holder does not count", latest_of(1), {{}, true}, true, true},
      {"the wish is somebody else's", {}, latest_of(1), false, true},
      {"by number", {{0, {{7}}}}, {}, false, true},
      {"by another number", {{0, {{8}}}}, {}, false, false},
      {"a spot replica is the last anywhere", {{1, {}}, true}, {}, false, true},
      {"a spot replica and another one", {{1, {}}, true}, {{}, true}, true, false},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.what);
    Desk desk;
    std::vector<Member> trainer = open_with(desk, "t", 1, row.trainer);
    std::vector<Member> other = open_with(desk, "o", 1, row.other);
    publish(trainer, 7);
    if (row.other_holds) publish(other, 7);
    trainer[0].unpublish();
    const Events news = trainer[0].news();
    EXPECT_EQ(all_of<net::OffloadEvent>(news).size(), row.offloads ? 1u : 0u);
    EXPECT_EQ(all_of<net::DecidedEvent>(news).size(), row.offloads ? 0u : 1u);
  }
}

TEST(Retention, TheNewestNOfTheGenerationAreRetained) {
  Desk desk;
  std::vector<Member> a = open_with(desk, "a", 1, latest_of(2));
  std::vector<Member> b = open_with(desk, "b", 1, {});
  std::vector<Member> c = open_with(desk, "c", 1, {});
  publish(a, 1);
  publish(b, 2);
  publish(c, 3);
  EXPECT_THAT(states(desk),
              ElementsAre("c:3:complete:retained", "b:2:complete:retained", "a:1:complete"));
  a[0].unpublish();  // the third newest
  EXPECT_TRUE(only<net::DecidedEvent>(a[0].news()).ok);
  b[0].unpublish();
  EXPECT_EQ(all_of<net::OffloadEvent>(b[0].news()).size(), 1u);
}

TEST(Retention, AnOffloadGoesWhenAnotherCopyIsThere) {
  Desk desk;
  std::vector<Member> trainer = open_with(desk, "t", 1, latest_of(1));
  publish(trainer, 7);
  trainer[0].unpublish();
  std::vector<Member> offload = take_offload(desk, trainer);
  EXPECT_THAT(all_of<net::DropEvent>(offload[0].news()), IsEmpty());
  // A spot copy changes nothing, a partial one neither.
  std::vector<Member> spot = open_with(desk, "s", 1, {{}, true});
  spot[0].replicate(latest());
  const auto to_spot = only<net::AssignedEvent>(spot[0].news());
  spot[0].release(to_spot.assignment, net::ReleaseKind::kComplete);
  std::vector<Member> rollout = open_with(desk, "r", 1, {});
  rollout[0].replicate(latest());
  const auto reading = only<net::AssignedEvent>(rollout[0].news());
  EXPECT_THAT(all_of<net::DropEvent>(offload[0].news()), IsEmpty());
  rollout[0].release(reading.assignment, net::ReleaseKind::kComplete);
  const Events told = offload[0].news();
  EXPECT_EQ(all_of<net::DropEvent>(told).size(), 1u);
  EXPECT_EQ(only<net::DrainedEvent>(told).number, CallNumber{1});
  offload[0].ask(net::CloseRequest{});
  EXPECT_TRUE(desk.directory.all_offloads().empty());
  EXPECT_THAT(states(desk), UnorderedElementsAre("s:7:complete:retained", "r:7:complete:retained"));
}

TEST(Retention, AnOffloadGoesWhenNobodyRetainsItAnyMore) {
  struct Row {
    const char* what;
    void (*end)(Desk& desk, Member& trainer);
  };
  const Row rows[] = {{"its handle closes", [](Desk&, Member& t) { t.ask(net::CloseRequest{}); }},
                      {"a newer version comes",
                       [](Desk&, Member& t) {
                         t.publish(8);
                         t.news();
                       }},
                      {"a rewind", [](Desk& desk, Member&) {
                         desk.directory.apply({{}, net::RewindRequest{"m", {1}, 5}}, desk.now);
                       }}};
  for (const Row& row : rows) {
    SCOPED_TRACE(row.what);
    Desk desk;
    std::vector<Member> trainer = open_with(desk, "t", 1, latest_of(1));
    publish(trainer, 7);
    trainer[0].unpublish();
    std::vector<Member> offload = take_offload(desk, trainer);
    trainer[0].news();
    row.end(desk, trainer[0]);
    EXPECT_EQ(all_of<net::DropEvent>(offload[0].news()).size(), 1u);
    offload[0].ask(net::CloseRequest{});
    EXPECT_TRUE(desk.directory.all_offloads().empty());
  }
}

TEST(Retention, ItsReadersAreLetFinishBeforeItGoes) {
  Desk desk;
  std::vector<Member> trainer = open_with(desk, "t", 1, latest_of(1));
  publish(trainer, 7);
  trainer[0].unpublish();
  std::vector<Member> offload = take_offload(desk, trainer);
  std::vector<Member> reader = open_with(desk, "r", 1, {});
  reader[0].replicate(latest());
  const auto reading = only<net::AssignedEvent>(reader[0].news());
  trainer[0].ask(net::CloseRequest{});
  const Events told = offload[0].news();
  EXPECT_EQ(all_of<net::DropEvent>(told).size(), 1u);
  EXPECT_THAT(all_of<net::DrainedEvent>(told), IsEmpty());
  reader[0].release(reading.assignment, net::ReleaseKind::kComplete);
  EXPECT_EQ(all_of<net::DrainedEvent>(offload[0].news()).size(), 1u);
}

TEST(Retention, UpdateWaitsTheSameWay) {
  Desk desk;
  std::vector<Member> keeper = open_with(desk, "k", 1, {{0, {{7}}}});
  std::vector<Member> old = open_with(desk, "r", 2, {});
  publish(old, 7);
  std::vector<Member> trainer = open_with(desk, "t", 2, {});
  publish(trainer, 8);
  for (Member& member : old) member.update(latest());
  std::vector<Member> offload = take_offload(desk, old);
  for (Member& member : old) {
    const auto assigned = only<net::AssignedEvent>(member.news());
    EXPECT_EQ(assigned.content.version, VersionId{8});
  }
}

TEST(Retention, AFailureRefusesOrDropsByChoice) {
  for (const bool drops : {false, true}) {
    SCOPED_TRACE(drops);
    Desk desk;
    Wish wish = latest_of(1);
    if (drops) wish.on_failure = net::OffloadFailure::kDrop;
    std::vector<Member> trainer = open_with(desk, "t", 2, wish);
    publish(trainer, 7);
    trainer[0].unpublish();
    const auto asked = only<net::OffloadEvent>(trainer[0].news());
    Member first = open_offload(desk, asked, {0}, 2);
    trainer[1].ask(net::OffloadFailedRequest{asked.token, "no memory"});
    // The shard that had begun is told to give up, and its process cannot come in later.
    EXPECT_EQ(all_of<net::DropEvent>(first.news()).size(), 1u);
    Member late;
    net::OpenRequest open{"m", asked.replica, ShardIndex{1}, 2, "node", "e"};
    open.offload = asked.token;
    EXPECT_TRUE(std::holds_alternative<net::Failure>(desk.try_open(late, open)));
    const auto decided = only<net::DecidedEvent>(trainer[0].news());
    trainer[1].unpublish();
    const auto other = all_of<net::DecidedEvent>(trainer[1].news()).back();
    EXPECT_EQ(decided.ok, drops);
    EXPECT_EQ(other.ok, drops);
    if (drops) {
      EXPECT_THAT(states(desk), IsEmpty());
      continue;
    }
    EXPECT_EQ(decided.code, ErrorCode::kRetained);
    EXPECT_TRUE(decided.kept);
    EXPECT_THAT(decided.message, HasSubstr("version 7"));
    EXPECT_THAT(decided.message, HasSubstr("8192 bytes"));
    EXPECT_THAT(decided.message, HasSubstr("no memory"));
    EXPECT_EQ(other.code, ErrorCode::kRetained);
    EXPECT_THAT(states(desk), ElementsAre("t:7:complete:retained"));
    // Another try asks anew.
    trainer[0].unpublish();
    EXPECT_NE(only<net::OffloadEvent>(trainer[0].news()).token, asked.token);
  }
}

TEST(Retention, AnOffloadThatIsNotWholeInTimeHasFailed) {
  ServerOptions options;
  options.offload = seconds(5);
  Desk desk(options);
  std::vector<Member> trainer = open_with(desk, "t", 1, latest_of(1));
  publish(trainer, 7);
  trainer[0].unpublish();
  desk.pass(seconds(6), {&trainer[0]});
  const auto decided = only<net::DecidedEvent>(trainer[0].news());
  EXPECT_EQ(decided.code, ErrorCode::kRetained);
  EXPECT_THAT(decided.message, HasSubstr("5000 ms"));
  EXPECT_TRUE(desk.directory.all_offloads().empty());
}

TEST(Retention, AnUpdateThatFailsBeforeItBeganKeepsTheLastCopy) {
  Desk desk;
  std::vector<Member> replica = open_with(desk, "r", 2, latest_of(1));
  publish(replica, 7);
  replica[0].update(latest());
  replica[1].unpublish();  // another call at the same number
  for (Member& member : replica) {
    const auto decided = only<net::DecidedEvent>(member.news());
    EXPECT_EQ(decided.code, ErrorCode::kRetained);
    EXPECT_TRUE(decided.kept);
    EXPECT_THAT(decided.message, HasSubstr("shard 0 made update"));
  }
  EXPECT_THAT(states(desk), ElementsAre("r:7:complete:retained"));
}

TEST(Retention, CloseAsksFirst) {
  Desk desk;
  std::vector<Member> keeper = open_with(desk, "k", 1, latest_of(1));
  std::vector<Member> trainer = open_with(desk, "t", 1, {});
  publish(trainer, 7);
  trainer[0].ask(net::WithdrawRequest{{1}});
  std::vector<Member> offload = take_offload(desk, trainer);
  const Events told = trainer[0].news();
  EXPECT_TRUE(only<net::WithdrawnEvent>(told).ok);
  EXPECT_EQ(all_of<net::DrainedEvent>(told).size(), 1u);
  trainer[0].ask(net::CloseRequest{});
  EXPECT_THAT(states(desk), ElementsAre("t~:7:complete:retained"));
}

TEST(Retention, TheWishOfTheOneWhoClosesEndsWithIt) {
  Desk desk;
  std::vector<Member> trainer = open_with(desk, "t", 1, latest_of(1));
  publish(trainer, 7);
  trainer[0].ask(net::WithdrawRequest{{1}});
  const Events told = trainer[0].news();
  EXPECT_THAT(all_of<net::OffloadEvent>(told), IsEmpty());
  EXPECT_TRUE(only<net::WithdrawnEvent>(told).ok);
  // Its reply lost, the same request again changes nothing.
  trainer[0].repeat();
  trainer[0].ask(net::PollRequest{});
  EXPECT_THAT(all_of<net::WithdrawnEvent>(trainer[0].news()), IsEmpty());
}

TEST(Retention, ASpotReplicaThatLeavesHandsOverToAnotherProcess) {
  Desk desk;
  std::vector<Member> keeper = open_with(desk, "k", 1, latest_of(1));
  publish(keeper, 6);  // so its layout is known
  std::vector<Member> spot = open_with(desk, "s", 1, {{}, true});
  publish(spot, 7);
  spot[0].ask(net::WithdrawRequest{{1}});
  EXPECT_THAT(all_of<net::OffloadEvent>(spot[0].news()), IsEmpty());
  std::vector<Member> offload = take_offload(desk, keeper);
  EXPECT_TRUE(only<net::WithdrawnEvent>(spot[0].news()).ok);
}

TEST(Retention, AnOffloadWhoseProcessEndsFindsAnHeir) {
  Desk desk;
  std::vector<Member> trainer = open_with(desk, "t", 1, latest_of(1));
  publish(trainer, 7);
  trainer[0].unpublish();
  std::vector<Member> offload = take_offload(desk, trainer);
  std::vector<Member> other = open_with(desk, "o", 1, {{1, {}}, false});
  publish(other, 3);
  offload[0].ask(net::WithdrawRequest{{1}});
  // The trainer's own process or the other's: whichever comes first by name and has the layout.
  std::vector<Member> heir = take_offload(desk, other);
  const Events told = offload[0].news();
  EXPECT_TRUE(only<net::WithdrawnEvent>(told).ok);
  offload[0].ask(net::CloseRequest{});
  EXPECT_THAT(all_of<net::DropEvent>(heir[0].news()), IsEmpty());
}

TEST(Retention, ALostShardOfAnOffloadTellsTheOthersToGo) {
  Desk desk;
  std::vector<Member> trainer = open_with(desk, "t", 2, latest_of(1));
  publish(trainer, 7);
  trainer[0].unpublish();
  std::vector<Member> offload = take_offload(desk, trainer);
  offload[1].news();
  offload[0].ask(net::CloseRequest{});  // as if evicted
  EXPECT_EQ(all_of<net::DropEvent>(offload[1].news()).size(), 1u);
  offload[1].ask(net::CloseRequest{});
  EXPECT_TRUE(desk.directory.all_offloads().empty());
}

TEST(Retention, TheCopyWithinTheProcessWaitsForNoReader) {
  Desk desk;
  std::vector<Member> trainer = open_with(desk, "t", 1, latest_of(1));
  publish(trainer, 7);
  std::vector<Member> reader = open_with(desk, "r", 1, {});
  reader[0].replicate(latest());
  const auto reading = only<net::AssignedEvent>(reader[0].news());
  trainer[0].unpublish();
  Member offload = open_offload(desk, only<net::OffloadEvent>(trainer[0].news()), {0}, 1);
  EXPECT_EQ(only<net::AssignedEvent>(offload.news()).source.replica, "t");
  reader[0].release(reading.assignment, net::ReleaseKind::kComplete);
  // The reader is a copy now: the offload is not needed, and the call goes through.
  EXPECT_EQ(all_of<net::DropEvent>(offload.news()).size(), 1u);
  EXPECT_TRUE(only<net::DecidedEvent>(trainer[0].news()).ok);
}

TEST(Retention, AnOffloadsNameIsNobodyElses) {
  Desk desk;
  std::vector<Member> trainer = open_with(desk, "t", 1, latest_of(1));
  publish(trainer, 7);
  trainer[0].unpublish();
  const auto asked = only<net::OffloadEvent>(trainer[0].news());
  Member offload = open_offload(desk, asked, {0}, 1);
  Member stranger;
  const net::OpenRequest open{"m", asked.replica, ShardIndex{0}, 1, "n", "e"};
  EXPECT_TRUE(std::holds_alternative<net::Failure>(desk.try_open(stranger, open)));
}

// ---------------------------------------------------------------- rewind

net::ResponseBody rewind(Desk& desk, uint64_t expected, uint64_t ticket) {
  return desk.directory.apply({{}, net::RewindRequest{"m", {expected}, ticket}}, desk.now).body;
}

TEST(Rewind, ComparesAndSets) {
  Desk desk;
  EXPECT_TRUE(std::holds_alternative<net::Failure>(rewind(desk, 1, 1)));  // nobody has it open
  Member trainer = desk.publisher("t", 9);
  const net::ResponseBody first = rewind(desk, 1, 2);
  EXPECT_EQ(std::get<net::RewoundResponse>(first).generation, Generation{2});
  EXPECT_EQ(rewind(desk, 1, 2), first);  // its answer was lost
  const net::ResponseBody second = rewind(desk, 1, 3);
  ASSERT_TRUE(std::holds_alternative<net::Failure>(second));
  EXPECT_THAT(std::get<net::Failure>(second).message, HasSubstr("generation 2, not 1"));
  EXPECT_EQ(desk.list().models.front().generation, Generation{2});
}

TEST(Rewind, OldVersionsAreNotTheLatestButStayReachableByNumber) {
  Desk desk;
  Member old = desk.publisher("t", 9);
  Member rollout = desk.open("r");
  rewind(desk, 1, 1);
  rollout.replicate(latest());
  EXPECT_THAT(rollout.news(), IsEmpty());  // until the next publish
  Member by_number = desk.open("n");
  by_number.replicate(exact(9));
  EXPECT_EQ(only<net::AssignedEvent>(by_number.news()).content.generation, Generation{1});
  // The same number in the new generation is another content, also while the old one shows.
  Member trainer = desk.publisher("t2", 9);
  EXPECT_EQ(only<net::AssignedEvent>(rollout.news()).content.generation, Generation{2});
  EXPECT_EQ(desk.directory.contents(), 2u);
}

TEST(Rewind, AnUpdateGoesBackAndSaysSo) {
  Desk desk;
  Member rollout = desk.publisher("r", 9);
  rewind(desk, 1, 1);
  rollout.update(latest());
  EXPECT_EQ(only<net::DecidedEvent>(rollout.news()).content.id.value, 0u);  // nothing yet
  Member trainer = desk.publisher("t", 4);
  rollout.update(latest());
  const auto assigned = only<net::AssignedEvent>(rollout.news());
  EXPECT_EQ(assigned.content.version, VersionId{4});
  rollout.release(assigned.assignment, net::ReleaseKind::kComplete);
  const auto decided = only<net::DecidedEvent>(rollout.news());
  EXPECT_TRUE(decided.ok);
  EXPECT_TRUE(decided.rewound);
}

// ---------------------------------------------------------------- wait

TEST(Wait, SaysWhetherTheVersionIsThere) {
  Desk desk;
  const auto ask = [&desk](net::VersionSpec version) {
    return std::get<net::WaitedResponse>(
        desk.directory.apply({{}, net::WaitRequest{"m", version, seconds(1)}}, desk.now).body);
  };
  EXPECT_EQ(ask(latest()).generation, Generation{0});
  Member trainer = desk.publisher("t", 4);
  const uint64_t before = desk.directory.copies_changed();
  EXPECT_EQ(ask(latest()).content.version, VersionId{4});
  EXPECT_TRUE(ask(exact(4)).there);
  EXPECT_FALSE(ask(exact(5)).there);
  EXPECT_FALSE(ask(latest(1)).there);
  Member other = desk.publisher("o", 5);
  EXPECT_NE(desk.directory.copies_changed(), before);
  EXPECT_TRUE(ask(latest(1)).there);
}

// ---------------------------------------------------------------- nothing left behind

// Field report 7 (vllm #41853): state of dead peers is never released. Here with offloads, crashes
// and leaves at any time.
TEST(Retention, FieldReport7_AThousandJoinAndCrashCyclesWithOffloadsLeaveTheTablesEmpty) {
  Desk desk;
  for (int cycle = 0; cycle < 1000; ++cycle) {
    std::vector<Member> trainer = open_with(desk, "t", 2, latest_of(1 + cycle % 2));
    publish(trainer, 1 + static_cast<uint64_t>(cycle));
    std::vector<Member> rollout = open_with(desk, "r" + std::to_string(cycle % 7), 2, {});
    if (cycle % 5 == 3) rollout[0].replicate(latest());
    if (cycle % 5 == 4)
      for (Member& member : rollout) member.replicate(latest());
    if (cycle % 3 == 0) trainer[0].unpublish();
    if (cycle % 6 == 0) open_offload(desk, only<net::OffloadEvent>(trainer[0].news()), {0}, 2);
    if (cycle % 4 == 1) trainer[1].ask(net::CloseRequest{});
    if (cycle % 10 == 9) rewind(desk, desk.list().models.front().generation.value, 1 + cycle);
    desk.pass(desk.directory.options().lease + seconds(2), {});  // all the rest dies
    ASSERT_EQ(desk.directory.clients(), 0u) << cycle;
    ASSERT_EQ(desk.directory.contents(), 0u) << cycle;
    ASSERT_EQ(desk.directory.assignments(), 0u) << cycle;
    ASSERT_TRUE(desk.directory.groups().empty()) << cycle;
  }
  desk.pass(seconds(120), {});
  EXPECT_TRUE(desk.directory.all_offloads().empty());
  EXPECT_EQ(desk.directory.rewound_models(), 0u);
}

}  // namespace
}  // namespace weightlane::ros::testing
