// Goal: field report 23, Figure 6 of the paper: two shards of one replica see versions 12 and 13.
// Method: every interleaving of the requests of 2 and 3 shards, one after the other applied to a
// Directory: each trainer shard withdraws version 12 and publishes 13 while each shard of a rollout
// asks for the latest. In each interleaving all shards must be told the same (P3), and what they
// are told must have been whole (P4). Then the same with mismatched calls.
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "ros/directory.h"

namespace weightlane::ros {
namespace {

constexpr Nanos kNow = seconds(100);

class World {
 public:
  explicit World(uint32_t shards)
      : shards_(shards),
        directory_(ServerOptions{}, BootId{7}, kNow, &observer_),
        sequences_(2 * shards),
        done_(2 * shards) {
    for (uint32_t client = 0; client < 2 * shards_; ++client) {
      net::OpenRequest open;
      open.model = "m";
      open.replica = client < shards_ ? "trainer" : "rollout";
      open.shard = {client % shards_};
      open.num_shards = shards_;
      send(client, open);
    }
  }

  void call(uint32_t client, net::CallKind kind, net::VersionSpec version) {
    net::GroupCallRequest request;
    request.number = {++calls_[client]};
    request.kind = kind;
    request.version = version;
    request.timeout = seconds(60);
    request.layout = {1, 2, 1, 4096};
    send(client, request);
  }
  // Takes the client's events, and does what a shard does with them: it seals at once.
  void listen(uint32_t client) {
    net::PollRequest poll;
    poll.acknowledged = acknowledged_[client];
    const net::Response response = send(client, poll);
    const auto* events = std::get_if<net::EventsResponse>(&response.body);
    ASSERT_NE(events, nullptr);
    for (const net::Event& event : events->events) {
      acknowledged_[client] = event.number;
      if (const auto* assigned = std::get_if<net::AssignedEvent>(&event.body)) {
        assigned_.insert(assigned->content.version.value);
        ASSERT_TRUE(assigned->source.complete);
        send(client,
             net::ReleaseRequest{assigned->assignment, net::ReleaseKind::kComplete, 4096, ""});
      } else if (const auto* decided = std::get_if<net::DecidedEvent>(&event.body)) {
        decisions_[client].push_back(*decided);
      }
    }
  }
  void settle() {
    for (int round = 0; round < 6; ++round) {
      for (uint32_t client = 0; client < 2 * shards_; ++client) listen(client);
    }
  }
  // Versions that any rollout shard was told to read.
  const std::set<uint64_t>& assigned() const { return assigned_; }
  const std::vector<net::DecidedEvent>& decisions(uint32_t client) const {
    return decisions_[client];
  }
  uint32_t shards() const { return shards_; }

 private:
  net::Response send(uint32_t client, net::RequestBody body) {
    const net::Request request{{{client + 1}, 1, ++sequences_[client]}, std::move(body)};
    return directory_.apply(request, kNow);
  }

  uint32_t shards_;
  ServerObserver observer_;
  Directory directory_;
  std::vector<uint64_t> sequences_;
  std::vector<bool> done_;
  std::array<uint64_t, 8> calls_{};
  std::array<uint64_t, 8> acknowledged_{};
  std::set<uint64_t> assigned_;
  std::array<std::vector<net::DecidedEvent>, 8> decisions_;
};

struct Op {
  net::CallKind kind;
  net::VersionSpec version;
};
using Program = std::vector<Op>;  // of one client

net::VersionSpec exactly(uint64_t version) { return {net::VersionKind::kExact, {version}, 0}; }

// Calls visit(order) for every interleaving: order[i] is the client that makes the i-th call.
template <typename Visit>
void interleave(const std::vector<Program>& programs, std::vector<size_t>& at,
                std::vector<uint32_t>& order, Visit visit) {
  bool any = false;
  for (uint32_t client = 0; client < programs.size(); ++client) {
    if (at[client] == programs[client].size()) continue;
    any = true;
    ++at[client];
    order.push_back(client);
    interleave(programs, at, order, visit);
    order.pop_back();
    --at[client];
  }
  if (!any) visit(order);
}

uint64_t check_all(uint32_t shards, const std::vector<Program>& programs, bool mismatch) {
  uint64_t interleavings = 0;
  std::set<uint64_t> seen;
  std::vector<size_t> start(programs.size());
  std::vector<uint32_t> order;
  interleave(programs, start, order, [&](const std::vector<uint32_t>& calls) {
    if (::testing::Test::HasFatalFailure()) return;
    ++interleavings;
    World world(shards);
    for (uint32_t shard = 0; shard < shards; ++shard)
      world.call(shard, net::CallKind::kPublish, exactly(12));
    world.settle();
    std::vector<size_t> at(programs.size());
    for (const uint32_t client : calls) {
      const Op op = programs[client][at[client]++];
      world.call(client, op.kind, op.version);
    }
    world.settle();
    ASSERT_LE(world.assigned().size(), 1u) << "shards of one replica read different versions";
    const auto& first = world.decisions(shards);
    ASSERT_EQ(first.size(), 1u);
    for (uint32_t shard = 1; shard < shards; ++shard) {
      const auto& other = world.decisions(shards + shard);
      ASSERT_EQ(other.size(), 1u);
      ASSERT_EQ(other[0].ok, first[0].ok);
      ASSERT_EQ(other[0].content, first[0].content);
      if (!first[0].ok) {
        ASSERT_EQ(other[0].code, first[0].code);
      }
    }
    ASSERT_EQ(first[0].ok, !mismatch) << first[0].message;
    if (mismatch) {
      ASSERT_EQ(first[0].code, ErrorCode::kCallMismatch);
    } else {
      seen.insert(first[0].content.version.value);
    }
  });
  if (!mismatch) {
    // Both outcomes happen, or the interleavings were none.
    EXPECT_EQ(seen, (std::set<uint64_t>{12, 13}));
  }
  return interleavings;
}

std::vector<Program> figure_six(uint32_t shards) {
  std::vector<Program> programs;
  for (uint32_t shard = 0; shard < shards; ++shard) {
    programs.push_back({{net::CallKind::kUnpublish, {}}, {net::CallKind::kPublish, exactly(13)}});
  }
  for (uint32_t shard = 0; shard < shards; ++shard)
    programs.push_back({{net::CallKind::kReplicate, {}}});
  return programs;
}

TEST(FieldReport23, AllInterleavingsOfTwoShardsDecideOnce) {
  EXPECT_EQ(check_all(2, figure_six(2), false), 180u);
}

TEST(FieldReport23, AllInterleavingsOfThreeShardsDecideOnce) {
  EXPECT_EQ(check_all(3, figure_six(3), false), 45360u);
}

TEST(FieldReport23, MismatchedCallsFailOnEveryShardInAllInterleavings) {
  for (const uint32_t shards : {2u, 3u}) {
    std::vector<Program> programs = figure_six(shards);
    programs.back() = {{net::CallKind::kReplicate, exactly(12)}};
    EXPECT_GT(check_all(shards, programs, true), 0u);
  }
}

}  // namespace
}  // namespace weightlane::ros
