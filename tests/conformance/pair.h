// What the suite's tests are written with: a world, a source that accepts whom it is told to, links
// from the reader to it, and bytes whose every position is recognised.
//
// A test's body is a coroutine that takes a pointer to the fixture; REQUIRE ends it early, since
// gtest's ASSERT macros can't leave a coroutine.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "flow/signal.h"
#include "tests/conformance/conformance.h"

#define REQUIRE(condition)                         \
  do {                                             \
    if (!(condition)) {                            \
      ADD_FAILURE() << "required: " << #condition; \
      co_return;                                   \
    }                                              \
  } while (false)

namespace weightlane::conformance {

using flow::Task;
using net::Completion;
using net::CompletionStatus;
using net::MemoryRange;
using net::PostResult;
using net::ReadWork;
using net::RegionId;
using net::RemoteRegion;

// Bytes [offset, offset + length) of an endless stream that differs for every seed.
Bytes pattern(uint64_t seed, uint64_t offset, uint64_t length);

// Keeps what it accepted, until told to drop it.
class TestAcceptor final : public net::Acceptor {
 public:
  net::AcceptDecision on_connect(std::span<const uint8_t> hello,
                                 std::unique_ptr<net::PassiveQueuePair> pair) override;

  std::optional<Error> refusal;
  Bytes payload;  // for those accepted
  Bytes last_hello;
  std::vector<std::unique_ptr<net::PassiveQueuePair>> pairs;
};

// One connection, the reader's side and the source's.
struct Link {
  std::unique_ptr<flow::Signal> wake;
  std::unique_ptr<net::QueuePair> pair;
  net::PassiveQueuePair* passive = nullptr;  // the acceptor's
  Bytes payload;
};

// Registered application memory of one host.
struct Memory {
  MemoryRange range;
  RegionId region;
};

class Conformance : public ::testing::TestWithParam<Factory> {
 protected:
  void SetUp() override;
  void TearDown() override;

 public:
  // Runs the body, which must end within `limit` of the world's time.
  void run(Task<void> (*body)(Conformance*), Nanos limit = seconds(60));

  Host& source() { return world_->source(); }
  Host& reader() { return world_->reader(); }
  World& world() { return *world_; }
  TestAcceptor& acceptor() { return acceptor_; }
  const std::string& endpoint() const { return endpoint_; }
  const Factory& factory() const { return GetParam(); }
  Nanos soon() { return deadline_after(reader().runtime().now(), seconds(10)); }

  // All of these report a failure themselves, and return something empty then.
  static Task<Memory> memory(Host* host, uint64_t bytes);
  static Task<Link> connect(Conformance* self);
  static Task<std::optional<Completion>> next(Conformance* self, Link* link);
  static Task<Completion> read(Conformance* self, Link* link, ReadWork work);
  static Task<void> destroy(Conformance* self, Link* link);

 private:
  std::unique_ptr<World> world_;
  TestAcceptor acceptor_;
  std::string endpoint_;
};

}  // namespace weightlane::conformance
