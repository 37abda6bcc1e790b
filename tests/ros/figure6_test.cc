// Goal: FieldReport23_, Figure 6 of the paper: two shards of one replica asked for the latest
// version while another was being published, one got 12 and the other 13. Here every interleaving
// gives all shards one version (P3), and a version that was whole when it was chosen (P4).
// Method: exhaustively, all interleavings of the shards' requests (publishes of a new version by
// every trainer shard beside replicates or updates by every rollout shard), each played on a fresh
// Directory; then the transfer is finished and all shards must have been told the same.
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "tests/ros/desk.h"
#include "tests/ros/invariants.h"

namespace weightlane::ros::testing {
namespace {

// One actor's requests, in its own order.
using Script = std::vector<std::function<void()>>;

struct Cluster {
  explicit Cluster(uint32_t shards) {
    trainer = desk.open_group("trainer", shards);
    second = desk.open_group("second", shards);
    rollout = desk.open_group("rollout", shards);
    for (Member& member : trainer) member.publish(12);
  }
  void drain_news() {
    for (std::vector<Member>* group : {&trainer, &second, &rollout})
      for (Member& member : *group) {
        const Events events = member.news();
        for (const auto& assigned : all_of<net::AssignedEvent>(events))
          reading.push_back({&member, assigned});
        for (const auto& decided : all_of<net::DecidedEvent>(events))
          if (group == &rollout) decisions.push_back(decided);
      }
  }
  Desk desk;
  std::vector<Member> trainer;
  std::vector<Member> second;
  std::vector<Member> rollout;
  std::vector<std::pair<Member*, net::AssignedEvent>> reading;
  std::vector<net::DecidedEvent> decisions;
};

// What each shard of each group does.
enum class Story { kSecondTrainerPublishes, kTrainerMovesOn, kUpdate };

std::vector<Script> scripts(Cluster& cluster, Story story) {
  std::vector<Script> all;
  if (story == Story::kTrainerMovesOn) {
    for (Member& member : cluster.trainer)
      all.push_back({[&member] { member.unpublish(); }, [&member] { member.publish(13); }});
  } else {
    for (Member& member : cluster.second) all.push_back({[&member] { member.publish(13); }});
  }
  for (Member& member : cluster.rollout) {
    if (story == Story::kUpdate)
      all.push_back(
          {[&member] { member.update(latest()); }, [&member] { member.update(latest()); }});
    else
      all.push_back({[&member] { member.replicate(latest()); }});
  }
  return all;
}

// Everybody reads what it was told to.
void finish(Cluster& cluster) {
  for (int round = 0; round < 4; ++round) {
    cluster.drain_news();
    for (auto& [member, assigned] : std::exchange(cluster.reading, {}))
      member->release(assigned.assignment, net::ReleaseKind::kComplete);
  }
}

void expect_one_version(Cluster& cluster, uint32_t shards, const std::string& order) {
  ASSERT_EQ(Invariants(cluster.desk.directory).broken(), "") << order;
  ASSERT_EQ(cluster.decisions.size() % shards, 0u) << order;
  std::map<uint64_t, net::DecidedEvent> by_call;
  for (const net::DecidedEvent& decided : cluster.decisions) {
    ASSERT_TRUE(decided.ok) << order << decided.message;
    const auto [known, fresh] = by_call.emplace(decided.number.value, decided);
    ASSERT_EQ(known->second, decided) << order;
    const uint64_t version = decided.content.version.value;
    ASSERT_TRUE(version == 12 || version == 13 || decided.content.id.value == 0) << order;
  }
}

// Plays every interleaving; a call whose predecessor is undecided waits, as a handle would.
struct Explorer {
  uint32_t shards;
  Story story;
  uint64_t played = 0;
  std::map<std::string, uint64_t> outcomes;

  void explore(std::vector<size_t> order, const std::vector<size_t>& lengths) {
    bool ended = true;
    for (size_t actor = 0; actor < lengths.size(); ++actor) {
      if (static_cast<size_t>(std::count(order.begin(), order.end(), actor)) == lengths[actor])
        continue;
      ended = false;
      std::vector<size_t> longer = order;
      longer.push_back(actor);
      explore(std::move(longer), lengths);
    }
    if (ended) play(order);
  }

  void play(const std::vector<size_t>& order) {
    if (::testing::Test::HasFatalFailure()) return;
    ++played;
    Cluster cluster(shards);
    std::vector<Script> all = scripts(cluster, story);
    std::vector<size_t> next(all.size());
    std::string text = "order";
    std::vector<size_t> late;  // second calls of a rollout that still waits for the first
    for (const size_t actor : order) {
      text += " " + std::to_string(actor);
      const bool rollout = actor >= all.size() - shards;
      if (rollout && next[actor] > 0) {
        late.push_back(actor);
        continue;
      }
      all[actor][next[actor]++]();
      ASSERT_EQ(Invariants(cluster.desk.directory).broken(), "") << text;
    }
    finish(cluster);
    for (const size_t actor : late) all[actor][next[actor]++]();
    finish(cluster);
    expect_one_version(cluster, shards, text);
    std::string outcome;
    std::map<uint64_t, uint64_t> versions;
    for (const net::DecidedEvent& decided : cluster.decisions)
      versions[decided.number.value] = decided.content.version.value;
    for (const auto& [number, version] : versions) outcome += std::to_string(version) + " ";
    ++outcomes[outcome];
  }
};

std::map<std::string, uint64_t> explore(uint32_t shards, Story story) {
  Explorer explorer{shards, story, 0, {}};
  Cluster sample(shards);
  std::vector<size_t> lengths;
  for (const Script& script : scripts(sample, story)) lengths.push_back(script.size());
  explorer.explore({}, lengths);
  EXPECT_GT(explorer.played, 5u);
  ::testing::Test::RecordProperty("interleavings", static_cast<int>(explorer.played));
  return explorer.outcomes;
}

TEST(Figure6, FieldReport23_TwoShardsWhileASecondTrainerPublishes) {
  const auto outcomes = explore(2, Story::kSecondTrainerPublishes);
  EXPECT_EQ(outcomes.size(), 2u);  // both versions happen, by order
  EXPECT_EQ(outcomes.count("12 "), 1u);
  EXPECT_EQ(outcomes.count("13 "), 1u);
}

TEST(Figure6, FieldReport23_ThreeShardsWhileASecondTrainerPublishes) {
  const auto outcomes = explore(3, Story::kSecondTrainerPublishes);
  EXPECT_EQ(outcomes.size(), 2u);
}

TEST(Figure6, FieldReport23_TwoShardsWhileTheOnlyTrainerMovesOn) {
  const auto outcomes = explore(2, Story::kTrainerMovesOn);
  EXPECT_EQ(outcomes.count("12 "), 1u);
  EXPECT_EQ(outcomes.count("13 "), 1u);
}

TEST(Figure6, FieldReport23_TwoShardsThatUpdateTwice) {
  const auto outcomes = explore(2, Story::kUpdate);
  EXPECT_EQ(outcomes.count("12 13 "), 1u);  // first the old, then the new
  EXPECT_GE(outcomes.size(), 2u);
}

}  // namespace
}  // namespace weightlane::ros::testing
