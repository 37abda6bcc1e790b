// Goal: a seed is all that a run depends on: not what ran before it in the process, not where the
// loader puts things. And the constant by which a campaign tells heartbeats' events apart is what
// an idle cluster shows.
// Method: seeds run in a fresh child each, then again here after a thousand others; this program
// runs itself without address randomisation; an idle cluster is watched for a minute.
#include <gtest/gtest.h>
#include <sys/personality.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "ros/server.h"
#include "ros/shard_handle.h"
#include "sim/schedule.h"

namespace weightlane::sim {
namespace {

constexpr std::array<uint64_t, 6> kSeeds = {3, 17, 1'000, 4'711, 123'456, 9'999'999};
constexpr uint64_t kOthers = 1'000;
constexpr const char* kPrintOnly = "WL_PRINT_HASHES";

uint64_t hash_of(uint64_t seed) { return run_plan(draw_plan(Scenario::kDefault, seed)).hash; }

// What `work` writes into the pipe's end that it is given, from a child of its own.
template <typename Work>
std::string output_of_child(Work work) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    work(ends[1]);
    _exit(1);
  }
  close(ends[1]);
  std::string text;
  char buffer[256];
  for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return text;
}

void write_text(int to, const std::string& text) {
  if (write(to, text.data(), text.size()) < 0) _exit(2);
}

std::string all_hashes() {
  std::string text;
  for (uint64_t seed : kSeeds) text += std::to_string(hash_of(seed)) + "\n";
  return text;
}

TEST(Determinism, AloneAndAfterAThousandOthers) {
  std::vector<std::string> alone;
  for (uint64_t seed : kSeeds) {
    alone.push_back(output_of_child([seed](int to) {
      write_text(to, std::to_string(hash_of(seed)));
      _exit(0);
    }));
  }
  for (uint64_t seed = 0; seed < kOthers; ++seed)
    run_plan(draw_plan(Scenario::kDefault, 500'000 + seed));
  for (size_t i = 0; i < kSeeds.size(); ++i)
    EXPECT_EQ(alone[i], std::to_string(hash_of(kSeeds[i]))) << "seed " << kSeeds[i];
}

TEST(Determinism, WithAndWithoutAddressRandomisation) {
  if (std::getenv(kPrintOnly) != nullptr) return;
  const std::string fixed = output_of_child([](int to) {
    if (personality(ADDR_NO_RANDOMIZE) == -1) {
      write_text(to, "not allowed");
      _exit(0);
    }
    setenv(kPrintOnly, std::to_string(to).c_str(), 1);
    execl("/proc/self/exe", "determinism_test", static_cast<char*>(nullptr));
  });
  if (fixed == "not allowed") GTEST_SKIP() << "personality() is not allowed here";
  EXPECT_EQ(fixed, all_hashes());
}

// ---------------------------------------------------------------- what heartbeats cost

constexpr uint32_t kShards = 4;

flow::Task<void> serve(Host* host) {
  auto server = ros::Server::start(host, &host->control(), host->address(7000), {}, nullptr);
  EXPECT_TRUE(server.ok());
  co_await host->sleep_until(kForever);
}

flow::Task<void> hold_open(Host* host, uint32_t shard, std::string server) {
  ros::OpenOptions options;
  options.model = "m";
  options.replica = "r";
  options.shard = {shard};
  options.num_shards = kShards;
  options.servers = {server};
  ros::Environment environment{host, &host->control(), &host->data(), nullptr};
  const Nanos deadline = deadline_after(host->now(), seconds(10));
  auto handle = co_await ros::ShardHandle::open(environment, options, deadline);
  EXPECT_TRUE(handle.ok());
  co_await host->sleep_until(kForever);
}

TEST(Heartbeats, CostWhatTheCampaignTakesOff) {
  ChoiceSource choices(1);
  World world(WorldConfig{}, choices);
  HostPlace place;
  place.name = "server";
  Host& server = world.add_host(place);
  server.start(serve(&server), "server");
  for (uint32_t shard = 0; shard < kShards; ++shard) {
    place.name = "w" + std::to_string(shard);
    Host& host = world.add_host(place);
    host.start(hold_open(&host, shard, server.address(7000)), "worker");
  }
  world.run_until(seconds(20), 1'000'000);
  const EventCounts before = world.counts();
  world.run_until(seconds(80), 1'000'000);
  const EventCounts after = world.counts();
  const uint64_t polls = after.polls - before.polls;
  const uint64_t events = after.total() - before.total();
  ASSERT_GT(polls, 400u);
  // What a campaign takes off is never too little, and not much too much.
  EXPECT_LE(events, polls * kEventsPerPollMessage);
  EXPECT_GE(events, polls * (kEventsPerPollMessage - 1));
}

}  // namespace
}  // namespace weightlane::sim

int main(int count, char** words) {
  if (const char* to = std::getenv(weightlane::sim::kPrintOnly)) {
    weightlane::sim::write_text(std::atoi(to), weightlane::sim::all_hashes());
    return 0;
  }
  testing::InitGoogleTest(&count, words);
  return RUN_ALL_TESTS();
}
