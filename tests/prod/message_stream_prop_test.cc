// Goal: any messages, cut into any pieces on their way, arrive whole and in order; a peer that does
// not read is not read from, and in the end given up.
// Method: the stream at one end of a socket pair; RapidCheck writes the other end in pieces of
// drawn sizes, and the loop runs between them.
#include "prod/message_stream.h"

#include <capnp/serialize.h>
#include <gtest/gtest.h>
#include <kj/io.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>
#include <sys/socket.h>

#include <array>

#include "net/codec_wire.h"

namespace weightlane::prod {
namespace {

using flow::Task;

struct Fixture {
  explicit Fixture(SocketMessageStream::Limits limits = {}) {
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) != 0) abort();
    peer = FileDescriptor(ends[1]);
    stream = std::make_unique<SocketMessageStream>(loop, FileDescriptor(ends[0]), buffer, limits);
  }
  static Task<int> few_turns(flow::Runtime* runtime) {
    for (int i = 0; i < 4; ++i) co_await runtime->sleep_for(nanos(1));
    co_return 0;
  }
  void turn() { (void)loop.run(few_turns(&loop.runtime())); }

  EventLoop loop;
  ReadBuffer buffer;
  FileDescriptor peer;
  std::unique_ptr<SocketMessageStream> stream;
};

// A request in several segments, which encode() would not make.
Bytes scattered(const net::Request& request, unsigned first_segment_words) {
  capnp::MallocMessageBuilder builder(first_segment_words, capnp::AllocationStrategy::FIXED_SIZE);
  net::to_wire(request, builder.initRoot<net::wire::Request>());
  Bytes bytes(capnp::computeSerializedSizeInWords(builder) * sizeof(capnp::word));
  kj::ArrayOutputStream out(kj::arrayPtr(bytes.data(), bytes.size()));
  capnp::writeMessage(out, builder);
  return bytes;
}

RC_GTEST_PROP(MessageStream, MessagesCutAnywhereArrive, ()) {
  Fixture fixture;
  const int count = *rc::gen::inRange(1, 12);
  std::vector<net::Request> sent;
  Bytes bytes;
  for (int i = 0; i < count; ++i) {
    net::OpenRequest open;
    open.model = std::string(*rc::gen::inRange<size_t>(0, 3'000), 'm');
    open.replica = *rc::gen::arbitrary<std::string>();
    sent.push_back({{Incarnation{static_cast<uint64_t>(i)}, 1, 2}, open});
    const Bytes message = scattered(sent.back(), *rc::gen::inRange(1U, 64U));
    bytes.insert(bytes.end(), message.begin(), message.end());
  }
  std::vector<net::Request> received;
  const auto keep = [&](kj::Maybe<kj::Own<capnp::MessageReader>> message) {
    KJ_IF_MAYBE (reader, message) {
      received.push_back(net::from_wire((*reader)->getRoot<net::wire::Request>()).value());
    }
  };
  kj::Promise<void> reading = nullptr;
  const std::function<void()> read_next = [&] {
    reading = fixture.stream->tryReadMessage()
                  .then([&](auto message) { keep(kj::mv(message)); })
                  .eagerlyEvaluate(nullptr);
  };
  size_t at = 0;
  size_t asked = 0;
  for (int i = 0; i < 20'000 && received.size() < sent.size(); ++i) {
    if (received.size() == asked) {
      read_next();
      ++asked;
    }
    if (at < bytes.size()) {
      const size_t piece = *rc::gen::inRange<size_t>(1, 2'000);
      const ssize_t written =
          send(fixture.peer.get(), bytes.data() + at, std::min(piece, bytes.size() - at), 0);
      if (written > 0) at += static_cast<size_t>(written);
    }
    fixture.turn();
  }
  RC_ASSERT(received == sent);
}

void write_message(SocketMessageStream& stream, size_t text_bytes) {
  capnp::MallocMessageBuilder builder;
  net::to_wire(net::Request{{}, net::ListRequest{std::string(text_bytes, 'x')}},
               builder.initRoot<net::wire::Request>());
  stream.writeMessage(nullptr, builder.getSegmentsForOutput()).detach([](kj::Exception&&) {});
}

// Whether the next message has come, and what it was.
struct Heard {
  bool message = false;
  bool end = false;
  std::string error;
};
kj::Promise<void> listen(SocketMessageStream& stream, Heard* heard) {
  return stream.tryReadMessage()
      .then(
          [heard](kj::Maybe<kj::Own<capnp::MessageReader>> message) {
            heard->message = message != nullptr;
            heard->end = message == nullptr;
          },
          [heard](kj::Exception&& exception) { heard->error = exception.getDescription().cStr(); })
      .eagerlyEvaluate(nullptr);
}

TEST(MessageStream, APeerThatDoesNotReadIsNotReadFrom) {
  SocketMessageStream::Limits limits;
  limits.unread_bytes = 1 << 20;
  Fixture fixture(limits);
  fixture.turn();
  write_message(*fixture.stream, 8 << 20);  // more than the kernel takes
  fixture.turn();
  const Bytes request = scattered({{}, net::CloseRequest{}}, 64);
  ASSERT_EQ(send(fixture.peer.get(), request.data(), request.size(), 0),
            static_cast<ssize_t>(request.size()));
  Heard heard;
  const kj::Promise<void> listening = listen(*fixture.stream, &heard);
  fixture.turn();
  EXPECT_FALSE(heard.message);
  Bytes sink(1 << 20);
  for (int i = 0; i < 10'000 && !heard.message; ++i) {
    (void)recv(fixture.peer.get(), sink.data(), sink.size(), 0);
    fixture.turn();
  }
  EXPECT_TRUE(heard.message);
}

TEST(MessageStream, APeerThatNeverReadsIsGivenUp) {
  SocketMessageStream::Limits limits;
  limits.backlog_bytes = 4 << 20;
  Fixture fixture(limits);
  fixture.turn();
  Heard heard;
  const kj::Promise<void> listening = listen(*fixture.stream, &heard);
  for (int i = 0; i < 32 && heard.error.empty(); ++i) {
    write_message(*fixture.stream, 1 << 20);
    fixture.turn();
  }
  EXPECT_EQ(heard.error, "the peer does not read what it is sent");
}

TEST(MessageStream, AnEndInsideAMessageIsNoCleanEnd) {
  for (const size_t bytes_sent : {size_t{0}, size_t{24}, size_t{3}, size_t{20}}) {
    Fixture fixture;
    const Bytes request = scattered({{}, net::CloseRequest{}}, 64);
    const Bytes part(request.begin(), request.begin() + static_cast<ptrdiff_t>(bytes_sent));
    (void)send(fixture.peer.get(), part.data(), part.size(), 0);
    fixture.peer.reset();
    Heard heard;
    const kj::Promise<void> listening = listen(*fixture.stream, &heard);
    fixture.turn();
    EXPECT_EQ(heard.end, bytes_sent == 0);
    EXPECT_EQ(heard.error.empty(), bytes_sent == 0);
  }
}

// What is heard after a frame's header that claims so many words.
Heard heard_after_header(uint32_t words) {
  Fixture fixture;
  const std::array<uint32_t, 2> header{0, words};
  (void)send(fixture.peer.get(), header.data(), sizeof header, 0);
  Heard heard;
  const kj::Promise<void> listening = listen(*fixture.stream, &heard);
  fixture.turn();
  return heard;
}

TEST(MessageStream, MessagesOverTheLimitEndTheConnection) {
  EXPECT_EQ(heard_after_header((64 << 20) / 8 - 1).error, "");
  EXPECT_EQ(heard_after_header((64 << 20) / 8).error,
            "a message of 67108872 bytes is over the limit of 67108864");
}

}  // namespace
}  // namespace weightlane::prod
