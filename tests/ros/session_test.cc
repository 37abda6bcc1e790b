// Goal: one incarnation's conversation with the server survives everything a network does: requests
// are carried out in order though connections break, a lost reply is asked again under the same
// number (P10), events come once and in order, and whatever ends the session ends it in a bounded
// time (P6).
// Method: ServerSession against a server and a network made by hand (fake_control.h), on a clock
// moved by hand.
#include "ros/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "flow/random.h"
#include "tests/ros/fake_control.h"

namespace weightlane::ros::testing {
namespace {

using ::testing::HasSubstr;

class Listener final : public SessionListener {
 public:
  void on_event(const net::Event& event) override { events.push_back(event); }
  void on_rejected(const net::RequestBody& body, const net::Failure& failure) override {
    rejected.push_back(failure.message);
    rejected_bodies.push_back(body);
  }
  net::Announcement announcement() override {
    net::Announcement told;
    told.resumed = true;
    told.last_call = {++announced};
    return told;
  }
  void on_reopened(const net::OpenedResponse&) override { ++reopened; }
  void on_left(const std::string& why) override { left.push_back(why); }
  void on_session_ended() override { ++ended; }
  uint64_t sealed_bytes() const override { return 4711; }

  std::vector<net::Event> events;
  std::vector<std::string> rejected;
  std::vector<net::RequestBody> rejected_bodies;
  std::vector<std::string> left;
  int ended = 0;
  int reopened = 0;
  uint64_t announced = 0;
};

net::AbortRequest numbered(uint64_t number) {
  return {CallNumber{number}, ErrorCode::kTimeout, "n" + std::to_string(number)};
}
uint64_t number_of(const net::Request& request) {
  return std::get<net::AbortRequest>(request.body).number.value;
}

struct Session : ::testing::Test {
  Session() : session(environment(), {"server:1"}, {}, &listener) {}

  Environment environment() { return {&runtime, &control, nullptr, nullptr}; }
  Result<net::OpenedResponse> open(Nanos span = seconds(5)) {
    return runtime.run(
        session.open({"m", "g", ShardIndex{0}, 1, "node", "endpoint"}, runtime.now() + span));
  }
  void pass(Nanos span) { runtime.run_until(runtime.now() + span); }

  flow::ManualRuntime runtime;
  FakeServer server{&runtime};
  FakeControl control{&server};
  Listener listener;
  ServerSession session;
};

TEST_F(Session, OpensAndIsHeardEveryHeartbeat) {
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(session.state(), ServerSession::State::kOpen);
  pass(seconds(10));
  EXPECT_GE(server.served_of<net::PollRequest>().size(), 9u);
  EXPECT_EQ(server.connections, 1u);
}

TEST_F(Session, ALostReplyIsAskedAgainUnderTheSameNumber) {
  ASSERT_TRUE(open().ok());
  server.request_fates = {Fate::kReplyLost, Fate::kServed};
  session.post(numbered(1));
  session.post(numbered(2));
  pass(seconds(3));
  const auto served = server.served_of<net::AbortRequest>();
  ASSERT_EQ(served.size(), 3u);
  EXPECT_EQ(number_of(served[0]), 1u);
  EXPECT_EQ(number_of(served[1]), 1u);
  EXPECT_EQ(number_of(served[2]), 2u);
  EXPECT_EQ(served[0].header.sequence, served[1].header.sequence);
  EXPECT_LT(served[0].header.session, served[1].header.session);
  EXPECT_LT(served[1].header.sequence, served[2].header.sequence);
  EXPECT_EQ(served[0].header.incarnation, session.incarnation());
}

TEST_F(Session, RequestsStayInOrderWhateverBreaks) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    flow::ManualRuntime clock(seed + 1);
    FakeServer flaky(&clock);
    FakeControl network(&flaky);
    Listener heard;
    ServerSession under_test({&clock, &network, nullptr, nullptr}, {"server:1"}, {}, &heard);
    flow::Rng rng(seed);
    for (int i = 0; i < 60; ++i) {
      const uint64_t fates = rng.below(16);  // every other one is lost, either way
      flaky.request_fates.push_back(fates % 4 > 2 ? Fate::kServed : static_cast<Fate>(fates % 4));
      flaky.poll_fates.push_back(fates / 4 > 2 ? Fate::kServed : static_cast<Fate>(fates / 4));
    }
    ASSERT_TRUE(
        clock.run(under_test.open({"m", "g", ShardIndex{0}, 1, "n", "e"}, seconds(60))).ok());
    for (uint64_t number = 1; number <= 12; ++number) {
      under_test.post(numbered(number));
      flaky.send(net::DrainedEvent{CallNumber{number}});
      clock.run_until(clock.now() + millis(static_cast<int64_t>(rng.below(400))));
    }
    clock.run_until(clock.now() + seconds(90));
    ASSERT_EQ(under_test.state(), ServerSession::State::kOpen) << seed << under_test.why_ended();
    // Carried out at least once each; new numbers only in order.
    uint64_t last = 0;
    uint64_t last_sequence = 0;
    for (const net::Request& request : flaky.served_of<net::AbortRequest>()) {
      ASSERT_TRUE(number_of(request) == last || number_of(request) == last + 1);
      ASSERT_EQ(number_of(request) == last, request.header.sequence == last_sequence);
      last = number_of(request);
      last_sequence = request.header.sequence;
    }
    ASSERT_EQ(last, 12u);
    // Events once and in order.
    ASSERT_EQ(heard.events.size(), 12u);
    for (uint64_t i = 0; i < 12; ++i) ASSERT_EQ(heard.events[i].number, i + 1);
    uint64_t newest = 0;
    for (const net::Request& request : flaky.served) {
      ASSERT_GE(request.header.session, newest);  // one connection at a time
      newest = request.header.session;
    }
  }
}

TEST_F(Session, EventsAreAcknowledgedByTheNextPoll) {
  ASSERT_TRUE(open().ok());
  server.poll_fates = {Fate::kServed, Fate::kReplyLost, Fate::kReplyLost};
  pass(millis(100));
  server.send(net::DrainedEvent{CallNumber{1}});
  server.send(net::DrainedEvent{CallNumber{2}});
  pass(seconds(5));
  ASSERT_EQ(listener.events.size(), 2u);
  EXPECT_TRUE(server.mailbox.empty());
}

const net::OpenRequest& open_of(const net::Request& request) {
  return std::get<net::OpenRequest>(request.body);
}

TEST_F(Session, AfterAnEvictionItOpensAgainAsSomebodyElseAndAnnounces) {
  ASSERT_TRUE(open().ok());
  const Incarnation first = session.incarnation();
  server.special = [first](const net::Request& request) -> std::optional<net::ResponseBody> {
    if (request.header.incarnation != first) return std::nullopt;
    net::Failure unknown;
    unknown.kind = net::FailureKind::kUnknownIncarnation;
    return unknown;
  };
  server.next_event = 1;
  session.post(numbered(1));
  session.post(numbered(2));
  pass(seconds(2));
  EXPECT_EQ(session.state(), ServerSession::State::kOpen);
  EXPECT_EQ(listener.reopened, 1);
  EXPECT_EQ(listener.ended, 0);
  EXPECT_NE(session.incarnation(), first);
  const auto opens = server.served_of<net::OpenRequest>();
  ASSERT_EQ(opens.size(), 2u);
  EXPECT_FALSE(open_of(opens[0]).announced.resumed);
  EXPECT_TRUE(open_of(opens[1]).announced.resumed);
  EXPECT_EQ(open_of(opens[0]).handle, open_of(opens[1]).handle);
  EXPECT_LT(open_of(opens[0]).opening, open_of(opens[1]).opening);
  // What was posted before is part of what is announced.
  for (const net::Request& request : server.served_of<net::AbortRequest>())
    EXPECT_EQ(request.header.incarnation, first);
  server.send(net::DrainedEvent{CallNumber{7}});
  session.post(numbered(4));
  pass(seconds(1));
  EXPECT_EQ(number_of(server.served_of<net::AbortRequest>().back()), 4u);
  ASSERT_EQ(listener.events.size(), 1u);
}

TEST_F(Session, AnotherBootOfTheServerIsToldEverythingWithinAHeartbeat) {
  ASSERT_TRUE(open().ok());
  pass(seconds(1));
  server.boot = BootId{2};
  const Nanos before = runtime.now();
  while (listener.reopened == 0) ASSERT_TRUE(runtime.step());
  EXPECT_LE(runtime.now() - before, seconds(1) + millis(200));
  EXPECT_EQ(session.state(), ServerSession::State::kOpen);
  EXPECT_EQ(listener.ended, 0);
}

TEST_F(Session, TheOnlyServerIsWaitedForUntilItIsGivenUp) {
  for (const bool connects : {true, false}) {
    SCOPED_TRACE(connects);
    server.silent = false;
    server.reachable = true;
    ASSERT_TRUE(open().ok());
    pass(seconds(3));
    listener.ended = 0;
    server.silent = true;
    server.reachable = connects;
    const Nanos heard = session.last_answer();
    pass(seconds(60));
    EXPECT_EQ(session.state(), ServerSession::State::kOpen);
    EXPECT_LE(session.last_answer(), heard + seconds(2));
    session.give_up();
    EXPECT_EQ(session.state(), ServerSession::State::kServerLost);
    EXPECT_EQ(listener.ended, 1);
    session.give_up();
    EXPECT_EQ(listener.ended, 1);
  }
}

// ---------------------------------------------------------------- several servers

struct Servers : Session {
  Servers() : pair(environment(), {"server:1", "server:2"}, {}, &listener) {
    control.others["server:2"] = &second;
    second.boot = BootId{2};
  }
  Result<net::OpenedResponse> open_pair() {
    return runtime.run(
        pair.open({"m", "g", ShardIndex{0}, 1, "node", "endpoint"}, runtime.now() + seconds(30)));
  }
  FakeServer second{&runtime};
  ServerSession pair;
};

TEST_F(Servers, ASilentServerIsLeftForTheNext) {
  for (const bool connects : {true, false}) {
    SCOPED_TRACE(connects);
    server.silent = false;
    server.reachable = true;
    ASSERT_TRUE(open_pair().ok());
    pass(seconds(3));
    EXPECT_EQ(pair.server(), "server:1");
    server.silent = true;
    server.reachable = connects;
    const int before = listener.reopened;
    const HandleOptions options;
    pass(options.server_silent * 2 + seconds(2));
    EXPECT_EQ(listener.reopened, before + 1);
    EXPECT_EQ(pair.server(), "server:2");
    EXPECT_EQ(pair.state(), ServerSession::State::kOpen);
    pair.post(numbered(1));
    pass(seconds(1));
    EXPECT_FALSE(second.served_of<net::AbortRequest>().empty());
    runtime.run(pair.close(runtime.now() + seconds(1)));
  }
}

TEST_F(Servers, TheFirstThatAnswersIsOpenedAt) {
  server.reachable = false;
  ASSERT_TRUE(open_pair().ok());
  EXPECT_EQ(pair.server(), "server:2");
  EXPECT_FALSE(open_of(second.served_of<net::OpenRequest>().front()).announced.resumed);
}

TEST_F(Servers, ItGoesBackWhenTheServerSaysSo) {
  server.reachable = false;
  ASSERT_TRUE(open_pair().ok());
  pass(seconds(5));
  const auto homesick = [this] {
    return std::get<net::PollRequest>(second.served_of<net::PollRequest>().back().body).homesick;
  };
  EXPECT_FALSE(homesick());
  second.send(net::MoveEvent{});  // says one who does not know: nobody is there
  pass(seconds(3));
  EXPECT_EQ(pair.server(), "server:2");
  server.reachable = true;
  pass(seconds(4));
  EXPECT_TRUE(homesick());
  EXPECT_EQ(pair.server(), "server:2");  // not alone
  second.send(net::MoveEvent{});
  pass(seconds(1));
  EXPECT_EQ(pair.server(), "server:1");
  EXPECT_EQ(listener.reopened, 1);
  EXPECT_TRUE(open_of(server.served_of<net::OpenRequest>().back()).announced.resumed);
}

TEST_F(Servers, BothSilentAreAskedInTurnForAsLongAsItTakes) {
  ASSERT_TRUE(open_pair().ok());
  server.silent = second.silent = true;
  pass(seconds(100));
  EXPECT_EQ(pair.state(), ServerSession::State::kSearching);
  second.silent = false;
  pass(seconds(8));
  EXPECT_EQ(pair.server(), "server:2");
  EXPECT_EQ(pair.state(), ServerSession::State::kOpen);
  // Every announcement was written when it was sent.
  const auto opens = second.served_of<net::OpenRequest>();
  EXPECT_EQ(open_of(opens.back()).announced.last_call.value, listener.announced);
}

TEST_F(Servers, WhatIsPostedWhileItAnnouncesFollows) {
  ASSERT_TRUE(open_pair().ok());
  server.reachable = false;
  server.silent = true;
  while (pair.state() == ServerSession::State::kOpen) ASSERT_TRUE(runtime.step());
  pair.post(numbered(1));  // before the announcement is written: part of it
  while (listener.announced == 0) ASSERT_TRUE(runtime.step());
  pair.post(numbered(2));
  pass(seconds(3));
  const auto told = second.served_of<net::AbortRequest>();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(number_of(told[0]), 2u);
}

TEST_F(Session, ASilenceThatEndsIsForgotten) {
  ASSERT_TRUE(open().ok());
  server.silent = true;
  pass(seconds(9));
  server.silent = false;
  pass(seconds(9));
  server.silent = true;
  pass(seconds(9));
  server.silent = false;
  session.post(numbered(1));
  pass(seconds(5));
  EXPECT_EQ(session.state(), ServerSession::State::kOpen);
  EXPECT_EQ(server.served_of<net::AbortRequest>().size(), 1u);
}

TEST_F(Session, ARefusalIsTold) {
  ASSERT_TRUE(open().ok());
  server.special = [](const net::Request& request) -> std::optional<net::ResponseBody> {
    if (!std::holds_alternative<net::AbortRequest>(request.body)) return std::nullopt;
    net::Failure failure;
    failure.message = "no such call";
    return failure;
  };
  session.post(numbered(1));
  session.post(numbered(2));
  pass(seconds(1));
  EXPECT_EQ(listener.rejected, (std::vector<std::string>{"no such call", "no such call"}));
  EXPECT_EQ(session.state(), ServerSession::State::kOpen);
}

TEST_F(Session, AStaleAnswerIsAskedAgain) {
  ASSERT_TRUE(open().ok());
  int stale_answers = 2;
  server.special = [&](const net::Request& request) -> std::optional<net::ResponseBody> {
    if (!std::holds_alternative<net::AbortRequest>(request.body) || stale_answers-- <= 0)
      return std::nullopt;
    net::Failure failure;
    failure.kind = net::FailureKind::kStaleSession;
    return failure;
  };
  session.post(numbered(1));
  pass(seconds(3));
  EXPECT_EQ(server.served_of<net::AbortRequest>().size(), 3u);
  EXPECT_TRUE(listener.rejected.empty());
}

// ---------------------------------------------------------------- open

net::Failure occupied(Nanos heard_ago) {
  net::Failure failure;
  failure.code = ErrorCode::kAlreadyOpen;
  failure.message = "shard 0 of m/g is open in another process, at endpoint-x";
  failure.heard_ago = heard_ago;
  failure.holder = Incarnation{99};
  return failure;
}

TEST_F(Session, OpenOfAShardThatALiveProcessHas) {
  server.special = [this](const net::Request&) -> std::optional<net::ResponseBody> {
    return occupied(Nanos{runtime.now().count % 1'000'000'000});  // heard every second
  };
  const Nanos before = runtime.now();
  Result<net::OpenedResponse> opened = open(seconds(30));
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ErrorCode::kAlreadyOpen);
  EXPECT_THAT(opened.error().message, HasSubstr("endpoint-x"));
  EXPECT_LE(runtime.now() - before, seconds(3));
}

TEST_F(Session, OpenWaitsForADeadHoldersLease) {
  const Nanos last_heard = runtime.now();
  server.special = [&](const net::Request& request) -> std::optional<net::ResponseBody> {
    if (!std::holds_alternative<net::OpenRequest>(request.body)) return std::nullopt;
    if (runtime.now() > seconds(10)) return std::nullopt;
    return occupied(runtime.now() - last_heard);
  };
  EXPECT_TRUE(open(seconds(30)).ok());
  EXPECT_LE(runtime.now(), seconds(12));
}

// On a machine that is short of processors answers take their time, one more, one less.
TEST_F(Session, OpenIsNotMisledByAnswersThatTravelLong) {
  const Nanos last_heard = runtime.now();
  for (const int64_t ms : {0, 700, 30, 1500, 2900, 10, 400})
    server.answers_travel.push_back(millis(ms));
  server.special = [&](const net::Request& request) -> std::optional<net::ResponseBody> {
    if (!std::holds_alternative<net::OpenRequest>(request.body)) return std::nullopt;
    if (runtime.now() > seconds(10)) return std::nullopt;
    return occupied(runtime.now() - last_heard);
  };
  Result<net::OpenedResponse> opened = open(seconds(30));
  EXPECT_TRUE(opened.ok()) << opened.error().message;
}

TEST_F(Session, OpenNearItsDeadlineStillSaysThatItIsOccupied) {
  for (const int64_t span : {20, 60, 200, 400, 700, 1500, 2300}) {
    server.special = [&](const net::Request&) -> std::optional<net::ResponseBody> {
      return occupied(runtime.now());
    };
    Result<net::OpenedResponse> opened = open(millis(span));
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(opened.error().code, ErrorCode::kAlreadyOpen) << span;
  }
}

TEST_F(Session, OpenWithoutAServerEndsByItsDeadline) {
  for (const bool reachable : {true, false}) {
    server.reachable = reachable;
    server.silent = true;
    const Nanos before = runtime.now();
    Result<net::OpenedResponse> opened = open(seconds(7));
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(opened.error().code, ErrorCode::kServerLost);
    EXPECT_THAT(opened.error().message, HasSubstr("server:1"));
    EXPECT_THAT(opened.error().message, HasSubstr("shard 0 of m/g"));
    EXPECT_LE(runtime.now() - before, seconds(7));
  }
}

TEST_F(Session, OpenTakesAnotherNameWhenItsFirstOneIsBuried) {
  std::vector<Incarnation> asked;
  server.special = [&](const net::Request& request) -> std::optional<net::ResponseBody> {
    if (!std::holds_alternative<net::OpenRequest>(request.body)) return std::nullopt;
    asked.push_back(request.header.incarnation);
    if (asked.size() > 2) return std::nullopt;
    net::Failure unknown;
    unknown.kind = net::FailureKind::kUnknownIncarnation;
    return unknown;
  };
  ASSERT_TRUE(open().ok());
  ASSERT_EQ(asked.size(), 3u);
  EXPECT_NE(asked[0], asked[1]);
  EXPECT_NE(asked[1], asked[2]);
  EXPECT_EQ(session.incarnation(), asked[2]);
}

TEST_F(Session, OpenIsRefusedAtOnceWhenTheServerSaysSo) {
  server.special = [](const net::Request&) -> std::optional<net::ResponseBody> {
    net::Failure failure;
    failure.message = "shard 4 is out of range";
    return failure;
  };
  Result<net::OpenedResponse> opened = open();
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(opened.error().message, HasSubstr("out of range"));
  EXPECT_EQ(server.served.size(), 1u);
}

// ---------------------------------------------------------------- going

TEST_F(Session, CloseTellsTheServer) {
  ASSERT_TRUE(open().ok());
  session.post(numbered(1));
  runtime.run(session.close(runtime.now() + seconds(3)));
  EXPECT_EQ(session.state(), ServerSession::State::kClosed);
  EXPECT_TRUE(std::holds_alternative<net::CloseRequest>(server.served.back().body));
  const size_t before = server.served.size();
  pass(seconds(20));
  EXPECT_EQ(server.served.size(), before);
  EXPECT_EQ(listener.ended, 0);
}

TEST_F(Session, CloseEndsByItsDeadlineWithoutAServer) {
  ASSERT_TRUE(open().ok());
  server.silent = true;
  const Nanos before = runtime.now();
  runtime.run(session.close(runtime.now() + seconds(3)));
  EXPECT_LE(runtime.now() - before, seconds(3));
}

// The process is let go while everything is under way: nothing leaks, nothing is touched
// afterwards.
TEST(SessionLifetime, IsDroppedAtAnyMoment) {
  for (int steps = 0; steps < 120; ++steps) {
    flow::ManualRuntime clock(7);
    FakeServer server(&clock);
    FakeControl network(&server);
    Listener listener;
    server.request_fates = {Fate::kServed, Fate::kReplyLost, Fate::kRequestLost};
    auto session =
        std::make_unique<ServerSession>(Environment{&clock, &network, nullptr, nullptr},
                                        std::vector<std::string>{"s"}, HandleOptions{}, &listener);
    {
      flow::TaskSet tasks(clock);
      tasks.spawn(
          [](ServerSession* opened) -> flow::Task<void> {
            Result<net::OpenedResponse> answer =
                co_await opened->open({"m", "g", ShardIndex{0}, 1, "n", "e"}, seconds(9));
            EXPECT_TRUE(answer.ok());
            opened->post(numbered(1));
            opened->post(numbered(2));
          }(session.get()),
          "test.open");
      server.send(net::DrainedEvent{CallNumber{1}});
      for (int i = 0; i < steps; ++i) clock.step();
    }
    session.reset();
    clock.run_until(clock.now() + seconds(1));
  }
}

}  // namespace
}  // namespace weightlane::ros::testing
