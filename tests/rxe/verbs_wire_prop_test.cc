// Goal: what two verbs planes tell each other survives the wire, and nothing else is taken for it.
// Needs no device. Method: RapidCheck makes messages; each must come back equal. Any truncation of
// one, and bytes at random, must be refused or decode to something that encodes to the same bytes:
// there are no two readings of one frame. Endpoints likewise.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <string>

#include "prod/verbs_plane.h"
#include "prod/verbs_wire.h"

namespace weightlane::prod {
namespace {

Bytes arbitrary_bytes() { return *rc::gen::arbitrary<Bytes>(); }

PairAddress arbitrary_address() {
  PairAddress address;
  for (uint8_t& byte : address.gid) byte = *rc::gen::arbitrary<uint8_t>();
  address.lid = *rc::gen::arbitrary<uint16_t>();
  address.queue_pair = *rc::gen::inRange<uint32_t>(0, 1u << 24);
  address.packet_sequence = *rc::gen::inRange<uint32_t>(0, 1u << 24);
  return address;
}

PairLimits arbitrary_limits() {
  PairLimits limits;
  limits.mtu = *rc::gen::inRange<uint8_t>(1, 6);
  limits.reads_at_once = std::max<uint8_t>(*rc::gen::arbitrary<uint8_t>(), 1);
  limits.max_message = std::max<uint64_t>(*rc::gen::arbitrary<uint64_t>(), 1);
  return limits;
}

std::span<const uint8_t> without_length(const Bytes& frame) {
  return std::span(frame).subspan(kVerbsFrameHeader);
}

RC_GTEST_PROP(VerbsWire, RequestsComeBack, ()) {
  const ConnectRequest request{*rc::gen::arbitrary<uint32_t>(), arbitrary_address(),
                               arbitrary_limits(), arbitrary_bytes()};
  const Bytes frame = encode(request);
  Result<ConnectRequest> decoded = decode_connect_request(without_length(frame));
  RC_ASSERT(decoded.ok());
  RC_ASSERT(*decoded == request);
  const size_t fixed = frame.size() - kVerbsFrameHeader - request.hello.size();
  const size_t cut = *rc::gen::inRange<size_t>(0, fixed);
  RC_ASSERT(!decode_connect_request(without_length(frame).first(cut)).ok());
  RC_ASSERT(!decode_connect_reply(without_length(frame)).ok());
}

RC_GTEST_PROP(VerbsWire, RepliesComeBack, ()) {
  ConnectReply reply;
  reply.address = arbitrary_address();
  reply.limits = arbitrary_limits();
  reply.payload = arbitrary_bytes();
  const Bytes frame = encode(reply);
  Result<ConnectReply> decoded = decode_connect_reply(without_length(frame));
  RC_ASSERT(decoded.ok());
  RC_ASSERT(!decoded->refusal.has_value());
  RC_ASSERT(decoded->address == reply.address);
  RC_ASSERT(decoded->limits == reply.limits);
  RC_ASSERT(decoded->payload == reply.payload);
  const size_t fixed = frame.size() - kVerbsFrameHeader - reply.payload.size();
  const size_t cut = *rc::gen::inRange<size_t>(0, fixed);
  RC_ASSERT(!decode_connect_reply(without_length(frame).first(cut)).ok());
  RC_ASSERT(!decode_connect_request(without_length(frame)).ok());
}

RC_GTEST_PROP(VerbsWire, RefusalsComeBack, (const std::string& reason, bool exhausted)) {
  ConnectReply reply;
  reply.refusal = Error{exhausted ? ErrorCode::kResourceExhausted : ErrorCode::kRefused, reason};
  Result<ConnectReply> decoded = decode_connect_reply(without_length(encode(reply)));
  RC_ASSERT(decoded.ok());
  RC_ASSERT(decoded->refusal.has_value());
  RC_ASSERT(decoded->refusal->code == reply.refusal->code);
  RC_ASSERT(decoded->refusal->message == reason);
}

RC_GTEST_PROP(VerbsWire, RandomBytesHaveOneReadingOrNone, (const Bytes& bytes, bool with_magic)) {
  Bytes frame = bytes;
  if (with_magic && frame.size() >= 4) std::copy_n("WVQ1", 4, frame.begin());
  Result<ConnectRequest> request = decode_connect_request(frame);
  if (request.ok()) {
    const Bytes again = encode(*request);
    RC_ASSERT(std::ranges::equal(without_length(again), frame));
  }
  RC_ASSERT(!decode_connect_reply(frame).ok());
}

RC_GTEST_PROP(VerbsEndpoint, TextsComeBack, (uint32_t acceptor)) {
  const VerbsEndpoint endpoint{
      *rc::gen::element<std::string>("10.0.0.1", "::1", "fe80::1%eth0", "fd00::2"),
      *rc::gen::inRange<uint16_t>(1, 65535), acceptor};
  Result<VerbsEndpoint> parsed = VerbsEndpoint::parse(endpoint.text());
  RC_ASSERT(parsed.ok());
  RC_ASSERT(parsed->host == endpoint.host);
  RC_ASSERT(parsed->port == endpoint.port);
  RC_ASSERT(parsed->acceptor == endpoint.acceptor);
}

TEST(VerbsEndpoint, RefusesWhatIsNoEndpoint) {
  for (const char* text :
       {"", "verbs://", "verbs://10.0.0.1", "verbs://10.0.0.1:7000", "verbs://10.0.0.1:7000/",
        "verbs://:7000/1", "verbs://10.0.0.1:0/1", "verbs://10.0.0.1:70000/1",
        "verbs://10.0.0.1:7000/x", "tcp://10.0.0.1:7000/1", "verbs://2605:340::1:7000/1",
        "verbs://[]:7000/1", "verbs://10.0.0.1:7000/1 "}) {
    Result<VerbsEndpoint> parsed = VerbsEndpoint::parse(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(parsed.error().message.find(text), std::string::npos);
  }
}

TEST(VerbsWire, TheNarrowerOfBothIsTakenFieldByField) {
  const PairLimits a{.mtu = 5, .reads_at_once = 1, .max_message = 100};
  const PairLimits b{.mtu = 3, .reads_at_once = 16, .max_message = 99};
  EXPECT_EQ(narrower(a, b), (PairLimits{.mtu = 3, .reads_at_once = 1, .max_message = 99}));
  EXPECT_EQ(narrower(a, b), narrower(b, a));
}

}  // namespace
}  // namespace weightlane::prod
