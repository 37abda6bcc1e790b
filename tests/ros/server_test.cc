// Goal: the shell around the Directory holds Polls as it promises (until there is news, a heartbeat
// at most, one per client), keeps time by itself, and forgets who is gone.
// Method: a real Server behind a control plane that only hands its handler to the test.
#include "ros/server.h"

#include <gtest/gtest.h>

#include <optional>

#include "flow/loop.h"
#include "flow/task_set.h"
#include "ros/directory.h"

namespace weightlane::ros::testing {
namespace {

class Doorstep final : public net::ControlPlane {
 public:
  class Open final : public net::Serving {
   public:
    std::string address() const override { return "here:1"; }
  };
  flow::Task<Result<std::unique_ptr<net::Connection>>> connect(std::string, Nanos) override {
    co_return Error{ErrorCode::kUnreachable, "this one only serves"};
  }
  Result<std::unique_ptr<net::Serving>> serve(std::string address,
                                              net::RequestHandler* served) override {
    if (address == "taken:1") return Error{ErrorCode::kResourceExhausted, "port 1 is in use"};
    handler = served;
    return std::unique_ptr<net::Serving>(new Open());
  }
  net::RequestHandler* handler = nullptr;
};

flow::Task<void> ask(net::RequestHandler* handler, net::Request request,
                     std::optional<net::Response>* answer) {
  net::Response response = co_await handler->handle(std::move(request));
  *answer = std::move(response);
}

struct ServerShell : ::testing::Test {
  ServerShell() {
    Result<std::unique_ptr<Server>> started =
        Server::start(&runtime, &control, "here:0", {}, nullptr);
    EXPECT_TRUE(started.ok());
    server = std::move(started).value();
  }
  // `answer` outlives the call.
  void spawn(net::Request request, std::optional<net::Response>* answer) {
    tasks.spawn(ask(control.handler, std::move(request), answer), "test.ask");
    pass(kZeroNanos);
  }
  net::ResponseBody now(uint64_t who, net::RequestBody body) {
    return runtime
        .run(control.handler->handle({{Incarnation{who}, 1, ++sequence}, std::move(body)}))
        .body;
  }
  void open(uint64_t who, std::string replica) {
    EXPECT_TRUE(std::holds_alternative<net::OpenedResponse>(
        now(who, net::OpenRequest{"m", std::move(replica), ShardIndex{0}, 1, "n", "e"})));
  }
  net::Request poll(uint64_t who, uint64_t acknowledged = 0, Nanos hold = seconds(1)) {
    return {{Incarnation{who}, 1, ++sequence}, net::PollRequest{acknowledged, 0, hold}};
  }
  void publish(uint64_t who, uint64_t number) {
    now(who, net::GroupCallRequest{CallNumber{number},
                                   net::CallKind::kPublish,
                                   {net::VersionKind::kExact, VersionId{number}, 0},
                                   {},
                                   {1, 1, 1, 1}});
  }
  void pass(Nanos span) { runtime.run_until(runtime.now() + span); }

  flow::ManualRuntime runtime;
  Doorstep control;
  std::unique_ptr<Server> server;
  uint64_t sequence = 0;
  flow::TaskSet tasks{runtime};
};

size_t events_in(const std::optional<net::Response>& answer) {
  const auto* events = answer ? std::get_if<net::EventsResponse>(&answer->body) : nullptr;
  return events != nullptr ? events->events.size() : 0;
}

TEST_F(ServerShell, APollIsHeldUntilThereIsNews) {
  open(1, "g");
  std::optional<net::Response> answer;
  spawn(poll(1), &answer);
  pass(millis(300));
  EXPECT_FALSE(answer.has_value());
  publish(1, 1);
  pass(kZeroNanos);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(events_in(answer), 1u);
  std::optional<net::Response> again;  // not acknowledged: at once
  spawn(poll(1), &again);
  EXPECT_EQ(events_in(again), 1u);
}

TEST_F(ServerShell, APollIsHeldForAHeartbeatAtMost) {
  open(1, "g");
  for (const auto& [hold, ends] : {std::pair{seconds(100), seconds(1)},
                                   {millis(200), millis(200)},
                                   {kZeroNanos, kZeroNanos},
                                   {nanos(-5), kZeroNanos}}) {
    std::optional<net::Response> answer;
    spawn(poll(1, 0, hold), &answer);
    if (ends > kZeroNanos) {
      pass(ends - nanos(1));
      EXPECT_FALSE(answer.has_value());
    }
    pass(nanos(1));
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(events_in(answer), 0u);
  }
}

TEST_F(ServerShell, ANewerPollEndsTheOlderOne) {
  open(1, "g");
  std::optional<net::Response> older;
  std::optional<net::Response> newer;
  spawn(poll(1), &older);
  spawn(poll(1), &newer);
  EXPECT_TRUE(older.has_value());
  EXPECT_EQ(events_in(older), 0u);
  EXPECT_FALSE(newer.has_value());
  publish(1, 1);
  pass(kZeroNanos);
  EXPECT_EQ(events_in(newer), 1u);
}

TEST_F(ServerShell, APollThatIsDroppedLosesNothing) {
  open(1, "g");
  std::optional<net::Response> answer;
  spawn(poll(1), &answer);
  tasks.cancel_all();  // its connection broke
  publish(1, 1);
  spawn(poll(1), &answer);
  EXPECT_EQ(events_in(answer), 1u);
}

TEST_F(ServerShell, WhoeverIsClosedOrEvictedHearsItAtOnce) {
  open(1, "g");
  std::optional<net::Response> answer;
  spawn(poll(1), &answer);
  now(1, net::CloseRequest{});
  pass(kZeroNanos);
  ASSERT_TRUE(answer.has_value());
  const auto* failed = std::get_if<net::Failure>(&answer->body);
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->kind, net::FailureKind::kUnknownIncarnation);
}

TEST_F(ServerShell, KeepsTimeByItselfAndThenSleeps) {
  open(1, "g");
  open(2, "h");
  publish(1, 1);
  pass(seconds(9));
  EXPECT_EQ(server->directory().clients(), 2u);
  pass(seconds(3));
  EXPECT_EQ(server->directory().clients(), 0u);
  EXPECT_TRUE(server->directory().groups().empty());
  pass(seconds(60));
  EXPECT_EQ(runtime.loop().timer_count(), 0u);  // nobody there: nothing to wake up for
  open(3, "g");
  pass(kZeroNanos);
  EXPECT_GT(runtime.loop().timer_count(), 0u);
}

// A thousand processes are killed while their Poll is held: nothing of them stays.
TEST_F(ServerShell, FieldReport7_HeldPollsOfTheDead) {
  for (uint64_t who = 1; who <= 1000; ++who) {
    open(who, "g" + std::to_string(who));
    std::optional<net::Response> answer;
    spawn(poll(who), &answer);
    tasks.cancel_all();
    if (who % 100 == 0) pass(seconds(11));
  }
  pass(seconds(60));
  EXPECT_EQ(server->directory().clients(), 0u);
  EXPECT_EQ(runtime.loop().timer_count(), 0u);
}

TEST_F(ServerShell, IsDroppedWithPollsHeld) {
  open(1, "g");
  std::optional<net::Response> answer;
  spawn(poll(1), &answer);
  tasks.cancel_all();  // Serving's destructor does this in a real plane
  server.reset();
  pass(seconds(5));
  EXPECT_EQ(runtime.loop().timer_count(), 0u);
}

TEST(ServerStart, APortInUseIsSaid) {
  flow::ManualRuntime runtime;
  Doorstep control;
  Result<std::unique_ptr<Server>> started =
      Server::start(&runtime, &control, "taken:1", {}, nullptr);
  ASSERT_FALSE(started.ok());
  EXPECT_EQ(started.error().message, "port 1 is in use");
}

}  // namespace
}  // namespace weightlane::ros::testing
