// Desk: a Directory with a hand-moved clock and clients without a network, for tables of requests.
//
// A Member is one open handle as the server sees it: it numbers its calls and requests the way
// ServerSession does, and takes its events by polling. Nothing moves but by the test's word.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ros/directory.h"

namespace weightlane::ros::testing {

inline net::LayoutSummary layout_of(uint64_t kind = 1) { return {kind, kind * 7, 3, 4096}; }
inline net::VersionSpec exact(uint64_t version) {
  return {net::VersionKind::kExact, VersionId{version}, 0};
}
inline net::VersionSpec latest(uint32_t back = 0) { return {net::VersionKind::kLatest, {}, back}; }

using Events = std::vector<net::EventBody>;

// The events of one kind, in order.
template <typename T>
std::vector<T> all_of(const Events& events) {
  std::vector<T> found;
  for (const net::EventBody& event : events)
    if (const T* body = std::get_if<T>(&event)) found.push_back(*body);
  return found;
}
// The one event of a kind; fails the test when there is none or more.
template <typename T>
T only(const Events& events) {
  std::vector<T> found = all_of<T>(events);
  EXPECT_EQ(found.size(), 1u);
  return found.empty() ? T{} : found.front();
}

class Desk;

struct Member {
  Desk* desk = nullptr;
  Incarnation who;
  uint64_t session = 1;
  uint64_t sequence = 0;
  uint64_t acknowledged = 0;
  uint64_t next_call = 1;
  ShardIndex shard;

  net::ResponseBody ask(net::RequestBody body);
  // The same request again, as after a lost reply.
  net::ResponseBody repeat();
  // Makes the next numbered call.
  CallNumber call(net::CallKind kind, net::VersionSpec version, Nanos timeout, uint64_t layout);
  CallNumber publish(uint64_t version, uint64_t layout = 1) {
    return call(net::CallKind::kPublish, exact(version), kZeroNanos, layout);
  }
  CallNumber unpublish() { return call(net::CallKind::kUnpublish, {}, kZeroNanos, 1); }
  CallNumber replicate(net::VersionSpec version, Nanos timeout = seconds(100),
                       uint64_t layout = 1) {
    return call(net::CallKind::kReplicate, version, timeout, layout);
  }
  CallNumber update(net::VersionSpec version, Nanos timeout = seconds(100)) {
    return call(net::CallKind::kUpdate, version, timeout, 1);
  }
  void release(AssignmentId assignment, net::ReleaseKind kind) {
    net::ResponseBody answer = ask(net::ReleaseRequest{assignment, kind, 0, "said the test"});
    EXPECT_TRUE(std::holds_alternative<net::AcceptedResponse>(answer));
  }
  // Polls and acknowledges what comes.
  Events news();
  net::Request last;
};

class Desk {
 public:
  explicit Desk(ServerOptions options = {}, ServerObserver* observer = nullptr)
      : now(seconds(100)),
        directory(options, BootId{77}, now, observer != nullptr ? observer : &silent_) {}

  // Opens, and expects that to succeed.
  Member open(std::string replica, uint32_t shard = 0, uint32_t num_shards = 1,
              std::string node = "node-a", std::string model = "m") {
    Member member;
    net::ResponseBody answer =
        try_open(member, {std::move(model), std::move(replica), ShardIndex{shard}, num_shards,
                          std::move(node), "endpoint-" + std::to_string(next_)});
    const auto* opened = std::get_if<net::OpenedResponse>(&answer);
    EXPECT_NE(opened, nullptr);
    if (opened != nullptr) member.next_call = opened->next_call.value;
    return member;
  }
  // In a datacenter; every replica on a node of its own.
  Member open_in(std::string datacenter, std::string replica, bool spot = false, uint32_t shard = 0,
                 uint32_t num_shards = 1) {
    Member member;
    net::OpenRequest request;
    request.model = "m";
    request.node = "node-" + replica;
    request.replica = std::move(replica);
    request.shard = {shard};
    request.num_shards = num_shards;
    request.endpoint = "endpoint-" + std::to_string(next_);
    request.datacenter = std::move(datacenter);
    request.spot = spot;
    net::ResponseBody answer = try_open(member, request);
    const auto* opened = std::get_if<net::OpenedResponse>(&answer);
    EXPECT_NE(opened, nullptr);
    if (opened != nullptr) member.next_call = opened->next_call.value;
    return member;
  }
  net::ResponseBody try_open(Member& member, net::OpenRequest request) {
    member.desk = this;
    member.who = Incarnation{next_++};
    member.shard = request.shard;
    return member.ask(std::move(request));
  }
  std::vector<Member> open_group(std::string replica, uint32_t num_shards,
                                 std::string node = "node-a") {
    std::vector<Member> members;
    for (uint32_t shard = 0; shard < num_shards; ++shard)
      members.push_back(open(replica, shard, num_shards, node));
    return members;
  }
  // A replica of one shard that has published.
  Member publisher(std::string replica, uint64_t version, std::string node = "node-a") {
    Member member = open(std::move(replica), 0, 1, std::move(node));
    member.publish(version);
    EXPECT_TRUE(only<net::DecidedEvent>(member.news()).ok);
    return member;
  }

  // Time goes on in steps of a heartbeat; `alive` are heard at each, nobody else.
  void pass(Nanos span, std::vector<Member*> alive) {
    const Nanos until = now + span;
    while (now < until) {
      now = std::min(until, now + directory.options().heartbeat);
      for (Member* member : alive)
        member->ask(net::PollRequest{member->acknowledged, 0, kZeroNanos});
      directory.tick(now);
      EXPECT_GT(directory.next_deadline(), now) << "the server would never sleep";
    }
  }

  net::ListResponse list(std::string model = "") {
    net::Response response = directory.apply({{}, net::ListRequest{std::move(model)}}, now);
    const auto* rows = std::get_if<net::ListResponse>(&response.body);
    EXPECT_NE(rows, nullptr);
    return rows != nullptr ? *rows : net::ListResponse{};
  }
  // "replica:version:state" of each line.
  std::vector<std::string> shown(std::string model = "") {
    std::vector<std::string> lines;
    for (const net::ListedReplica& row : list(std::move(model)).replicas)
      lines.push_back(row.replica + ":" + std::to_string(row.content.version.value) + ":" +
                      net::replica_state_name(row.state));
    return lines;
  }
  const Group* group(const std::string& replica, const std::string& model = "m") const {
    auto found = directory.groups().find({model, replica});
    return found == directory.groups().end() ? nullptr : &found->second;
  }

 private:
  ServerObserver silent_;

 public:
  Nanos now;
  Directory directory;

 private:
  uint64_t next_ = 1;
};

inline net::ResponseBody Member::ask(net::RequestBody body) {
  if (!std::holds_alternative<net::PollRequest>(body)) ++sequence;
  last = net::Request{{who, session, sequence}, std::move(body)};
  return repeat();
}
inline net::ResponseBody Member::repeat() { return desk->directory.apply(last, desk->now).body; }

inline CallNumber Member::call(net::CallKind kind, net::VersionSpec version, Nanos timeout,
                               uint64_t layout) {
  const CallNumber number{next_call++};
  net::ResponseBody answer =
      ask(net::GroupCallRequest{number, kind, version, timeout, layout_of(layout)});
  EXPECT_TRUE(std::holds_alternative<net::AcceptedResponse>(answer));
  return number;
}

inline Events Member::news() {
  net::ResponseBody answer = ask(net::PollRequest{acknowledged, 0, kZeroNanos});
  const auto* response = std::get_if<net::EventsResponse>(&answer);
  EXPECT_NE(response, nullptr);
  Events events;
  if (response == nullptr) return events;
  for (const net::Event& event : response->events) {
    EXPECT_EQ(event.number, acknowledged + 1);
    acknowledged = event.number;
    events.push_back(event.body);
  }
  return events;
}

}  // namespace weightlane::ros::testing
