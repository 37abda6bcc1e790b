// Goal: the best transport that both sides have is taken, what was passed over is told, and a
// forced one is never replaced silently (FIELD 26). Method: composites of different parts on one
// loop, endpoints with parts taken out or spoilt.
#include "prod/composite_plane.h"
#include "prod/same_host_plane.h"
#include "prod/tcp_plane.h"
#include "tests/prod/plane_test_kit.h"

namespace weightlane::prod {
namespace {

struct Composite : ::testing::Test {
  EventLoop loop;
  SharedArenas arenas;
  std::vector<TransportChoice> choices;

  std::unique_ptr<CompositePlane> make(bool same_host, bool tcp) {
    CompositeOptions options;
    options.on_choice = [this](const TransportChoice& choice) { choices.push_back(choice); };
    auto plane = std::make_unique<CompositePlane>(loop, arenas, options);
    if (same_host) {
      SameHostOptions part;
      part.arenas = &arenas;
      plane->add("same-host", std::move(*SameHostPlane::create(loop, part)));
    }
    if (tcp) {
      TcpOptions part;
      part.host = "127.0.0.1";
      plane->add("tcp", std::make_unique<TcpPlane>(loop, part));
    }
    return plane;
  }
};

TEST_F(Composite, TheBestInCommonIsTaken) {
  const auto source = make(true, true);
  const auto reader = make(true, true);
  KeepingAcceptor acceptor;
  const std::string endpoint = *source->listen(&acceptor);
  EXPECT_EQ(endpoint.rfind("same-host=", 0), 0u) << endpoint;
  EXPECT_NE(endpoint.find(";tcp=127.0.0.1:"), std::string::npos) << endpoint;
  TestLink link(loop);
  ASSERT_TRUE(connect_link(loop, *reader, endpoint, link).ok());
  EXPECT_EQ(link.pair->transport(), "same-host");
  EXPECT_EQ(acceptor.pairs.back()->transport(), "same-host");
  ASSERT_EQ(choices.size(), 1u);
  EXPECT_EQ(choices[0].transport, "same-host");
  EXPECT_EQ(choices[0].passed_over, "");
  EXPECT_TRUE(destroy_link(loop, link));
  acceptor.pairs.clear();
}

TEST_F(Composite, FieldReport26_WhatWasPassedOverIsTold) {
  const auto source = make(true, true);
  const auto reader = make(true, true);
  KeepingAcceptor acceptor;
  std::string endpoint = *source->listen(&acceptor);
  endpoint.replace(sizeof "same-host=" - 1, 4, "zzzz");  // another machine's boot id
  TestLink link(loop);
  ASSERT_TRUE(connect_link(loop, *reader, endpoint, link).ok());
  EXPECT_EQ(link.pair->transport(), "tcp");
  ASSERT_EQ(choices.size(), 1u);
  EXPECT_EQ(choices[0].transport, "tcp");
  EXPECT_NE(choices[0].passed_over.find("same-host"), std::string::npos);
  EXPECT_NE(choices[0].passed_over.find("another machine"), std::string::npos);
  EXPECT_TRUE(destroy_link(loop, link));
  acceptor.pairs.clear();
}

TEST_F(Composite, FieldReport26_AForcedTransportIsNotReplaced) {
  const auto source = make(true, false);
  const auto reader = make(false, true);
  KeepingAcceptor acceptor;
  TestLink link(loop);
  const Result<Done> refused = connect_link(loop, *reader, *source->listen(&acceptor), link);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnreachable);
  EXPECT_EQ(refused.error().message, "no transport in common: here tcp; the peer offers same-host");
  EXPECT_TRUE(choices.empty());
}

TEST_F(Composite, ARefusalIsNotTriedElsewhere) {
  struct Refusing final : net::Acceptor {
    net::AcceptDecision on_connect(std::span<const uint8_t>,
                                   std::unique_ptr<net::PassiveQueuePair>) override {
      ++asked;
      return Error{ErrorCode::kRefused, "another incarnation"};
    }
    int asked = 0;
  } acceptor;
  const auto source = make(true, true);
  const auto reader = make(true, true);
  TestLink link(loop);
  const Result<Done> refused = connect_link(loop, *reader, *source->listen(&acceptor), link);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kRefused);
  EXPECT_NE(refused.error().message.find("another incarnation"), std::string::npos);
  EXPECT_EQ(acceptor.asked, 1);
}

TEST_F(Composite, OneControlBlockServesReadersOfEveryTransport) {
  const auto source = make(true, true);
  const auto near = make(true, false);
  const auto far = make(false, true);
  KeepingAcceptor acceptor;
  const std::string endpoint = *source->listen(&acceptor);
  const net::RegionId block = *source->allocate_words(2);
  source->store_word(block, 1, 0x1234'5678'9abc'def0);
  for (CompositePlane* reader : {near.get(), far.get()}) {
    const net::RegionId landing = *reader->allocate_words(2);
    TestLink link(loop);
    ASSERT_TRUE(connect_link(loop, *reader, endpoint, link).ok());
    net::ReadWork work;
    work.into = landing;
    work.from = acceptor.pairs.back()->describe(block);
    work.length = 16;
    ASSERT_EQ(link.pair->post_read(work), net::PostResult::kPosted);
    const std::optional<net::Completion> completion = next_of(loop, link);
    ASSERT_TRUE(completion.has_value());
    EXPECT_EQ(completion->status, net::CompletionStatus::kSuccess);
    EXPECT_EQ(reader->load_word(landing, 0), 0u);
    EXPECT_EQ(reader->load_word(landing, 1), 0x1234'5678'9abc'def0u);
    EXPECT_TRUE(destroy_link(loop, link));
    reader->free_words(landing);
  }
  source->free_words(block);
  acceptor.pairs.clear();
}

TEST_F(Composite, WhatOnePartCannotHaveIsRegisteredByNone) {
  const auto plane = make(true, true);
  net::MemoryRange range;
  range.address = 0x1000;
  range.length = 4096;
  const Result<net::RegionId> region = loop.run(plane->register_memory(range));
  ASSERT_FALSE(region.ok());
  EXPECT_NE(region.error().message.find("not mapped"), std::string::npos) << region.error().message;
}

}  // namespace
}  // namespace weightlane::prod
