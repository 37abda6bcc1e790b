// Goal: a connection is made with whom was asked for or not at all, says why, and takes no longer
// than it was given. Method: real connections with small and large words from both sides; places
// where nobody is, nobody answers, somebody else is; attempts dropped halfway.
#include "flow/combinators.h"
#include "tests/conformance/pair.h"

namespace weightlane::conformance {
namespace {

Task<Result<net::Connected>> attempt(Conformance* self, std::string endpoint, Bytes hello,
                                     flow::Signal* wake, Nanos span) {
  const Nanos deadline = deadline_after(self->reader().runtime().now(), span);
  Result<net::Connected> connected = co_await self->reader().plane().connect(
      std::move(endpoint), std::move(hello), wake, deadline);
  co_return connected;
}

Task<void> hello_and_payload(Conformance* self) {
  struct Sizes {
    size_t hello;
    size_t payload;
  };
  for (const Sizes sizes :
       {Sizes{0, 0}, Sizes{1, 1}, Sizes{40'000, 65'537}, Sizes{100, 2u << 20}}) {
    self->acceptor().payload = pattern(21, 0, sizes.payload);
    const Bytes hello = pattern(22, 0, sizes.hello);
    flow::Signal wake(self->reader().runtime());
    Result<net::Connected> connected =
        co_await attempt(self, self->endpoint(), hello, &wake, seconds(10));
    REQUIRE(connected.ok());
    EXPECT_TRUE(self->acceptor().last_hello == hello);
    EXPECT_TRUE(connected->payload == self->acceptor().payload);
    const Result<Done> destroyed = co_await connected->pair->destroy(self->soon());
    EXPECT_TRUE(destroyed.ok());
  }
}

TEST_P(Conformance, HelloAndPayloadArriveWhole) { run(&hello_and_payload); }

Task<void> refusal(Conformance* self) {
  self->acceptor().refusal = Error{ErrorCode::kRefused, "stamp 7 is not this publication's"};
  flow::Signal wake(self->reader().runtime());
  const Result<net::Connected> refused =
      co_await attempt(self, self->endpoint(), Bytes{1, 2, 3}, &wake, seconds(10));
  REQUIRE(!refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kRefused);
  EXPECT_NE(refused.error().message.find("stamp 7 is not this publication's"), std::string::npos)
      << refused.error().message;
  EXPECT_EQ(self->acceptor().last_hello, (Bytes{1, 2, 3}));
  self->acceptor().refusal.reset();
  Link link = co_await Conformance::connect(self);
  REQUIRE(link.pair != nullptr);
  co_await Conformance::destroy(self, &link);
}

TEST_P(Conformance, ARefusalCarriesTheAcceptorsReason) { run(&refusal); }

Task<void> stopped(Conformance* self) {
  self->source().plane().stop_listening(&self->acceptor());
  flow::Signal wake(self->reader().runtime());
  const Result<net::Connected> nobody =
      co_await attempt(self, self->endpoint(), Bytes{1}, &wake, seconds(3));
  EXPECT_FALSE(nobody.ok());
  // Another acceptor of the same process is not the one that was asked for.
  TestAcceptor other;
  const Result<std::string> elsewhere = self->source().plane().listen(&other);
  REQUIRE(elsewhere.ok());
  EXPECT_NE(*elsewhere, self->endpoint());
  const Result<net::Connected> still_nobody =
      co_await attempt(self, self->endpoint(), Bytes{1}, &wake, seconds(3));
  EXPECT_FALSE(still_nobody.ok());
  EXPECT_TRUE(other.last_hello.empty());
  Result<net::Connected> found = co_await attempt(self, *elsewhere, Bytes{2}, &wake, seconds(10));
  REQUIRE(found.ok());
  EXPECT_EQ(other.last_hello, Bytes{2});
  const Result<Done> destroyed = co_await found->pair->destroy(self->soon());
  EXPECT_TRUE(destroyed.ok());
  self->source().plane().stop_listening(&other);
}

TEST_P(Conformance, FieldReport12_OnlyTheAcceptorThatWasAskedForAnswers) { run(&stopped); }

Task<void> silent(Conformance* self) {
  flow::Signal wake(self->reader().runtime());
  const Nanos before = self->reader().runtime().now();
  const Result<net::Connected> nobody =
      co_await attempt(self, self->world().silent_endpoint(), Bytes{1}, &wake, millis(300));
  const Nanos after = self->reader().runtime().now();
  REQUIRE(!nobody.ok());
  EXPECT_EQ(nobody.error().code, ErrorCode::kUnreachable) << nobody.error().message;
  EXPECT_LT(after - before, seconds(4));
}

TEST_P(Conformance, FieldReport06_ASilentAddressEndsByTheDeadline) {
  if (world().silent_endpoint().empty()) GTEST_SKIP() << "no such place on this transport";
  run(&silent);
}

Task<void> refused_at_once(Conformance* self) {
  flow::Signal wake(self->reader().runtime());
  const Result<net::Connected> nobody =
      co_await attempt(self, self->world().refused_endpoint(), Bytes{1}, &wake, seconds(10));
  REQUIRE(!nobody.ok());
  EXPECT_EQ(nobody.error().code, ErrorCode::kUnreachable) << nobody.error().message;
  EXPECT_FALSE(nobody.error().message.empty());
}

TEST_P(Conformance, NobodyThereIsUnreachable) {
  if (world().refused_endpoint().empty()) GTEST_SKIP() << "no such place on this transport";
  run(&refused_at_once);
}

Task<void> garbage(Conformance* self) {
  flow::Signal wake(self->reader().runtime());
  for (const char* text :
       {"", "/", "nonsense", "127.0.0.1", "[::1]:x/1", "2605:340:1::9/zz", ";;=;"}) {
    const Result<net::Connected> connected =
        co_await attempt(self, text, Bytes{1}, &wake, seconds(5));
    EXPECT_FALSE(connected.ok()) << text;
  }
}

TEST_P(Conformance, FieldReport27_AnEndpointThatIsNoneIsAnErrorNotACrash) { run(&garbage); }

Task<void> dropped_halfway(Conformance* self) {
  flow::Signal wake(self->reader().runtime());
  flow::Runtime& runtime = self->reader().runtime();
  for (int i = 0; i < 20; ++i) {
    const Nanos give_up = deadline_after(runtime.now(), micros(i * 40));
    auto connected = co_await flow::with_timeout(
        runtime, give_up, attempt(self, self->endpoint(), Bytes(1000), &wake, seconds(10)));
    if (connected && connected->ok()) {
      const Result<Done> destroyed = co_await (*connected)->pair->destroy(self->soon());
      EXPECT_TRUE(destroyed.ok());
    }
  }
  // What was dropped may still arrive at the source, beside this one.
  Result<net::Connected> last =
      co_await attempt(self, self->endpoint(), Bytes{1}, &wake, seconds(10));
  REQUIRE(last.ok());
  const Result<Done> destroyed = co_await last->pair->destroy(self->soon());
  EXPECT_TRUE(destroyed.ok());
}

TEST_P(Conformance, AnAttemptMayBeDroppedHalfway) { run(&dropped_halfway); }

Task<void> many_times(Conformance* self) {
  const Memory from = co_await Conformance::memory(&self->source(), 4096);
  const Memory into = co_await Conformance::memory(&self->reader(), 4096);
  for (int i = 0; i < 60; ++i) {
    Link link = co_await Conformance::connect(self);
    REQUIRE(link.pair != nullptr);
    ReadWork work;
    work.work_id = 5;
    work.into = into.region;
    work.from = link.passive->describe(from.region);
    work.length = 4096;
    EXPECT_EQ((co_await Conformance::read(self, &link, work)).status, CompletionStatus::kSuccess);
    co_await Conformance::destroy(self, &link);
    self->acceptor().pairs.clear();
  }
}

TEST_P(Conformance, PairsComeAndGo) { run(&many_times); }

}  // namespace
}  // namespace weightlane::conformance
