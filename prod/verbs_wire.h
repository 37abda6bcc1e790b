// What the two ends of a verbs connection tell each other over TCP before the first READ.
//
//   reader -> source   ConnectRequest: where its queue pair is, what it can do, which acceptor it
//   means, the hello source -> reader   ConnectReply: the same of its own and what both will do; or
//   a refusal
//
// Each is one frame: a 32-bit length (of what follows), a magic that names this format, fields in
// little endian. The TCP connection then stays open and silent: its end tells each side that the
// other has gone. Whatever does not decode to the last byte is refused; nothing is allocated on a
// length that has not arrived.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "flow/result.h"
#include "net/ids.h"

namespace weightlane::prod {

constexpr uint32_t kVerbsFrameHeader = 4;                // bytes: the length
constexpr uint32_t kMaxConnectRequest = 256 * 1024;      // bytes
constexpr uint32_t kMaxConnectReply = 64 * 1024 * 1024;  // bytes: names the place of every tensor
constexpr uint32_t kMaxFixedFields = 1024;  // bytes of either, beside the hello or the payload

struct PairAddress {
  std::array<uint8_t, 16> gid{};
  uint16_t lid = 0;              // InfiniBand only
  uint32_t queue_pair = 0;       // 24 bits
  uint32_t packet_sequence = 0;  // 24 bits
  bool operator==(const PairAddress&) const = default;
};

// What one end can do; `narrower` of both is what the connection does.
struct PairLimits {
  uint8_t mtu = 0;  // ibv_mtu: 1 = 256 bytes ... 5 = 4096 bytes
  uint8_t reads_at_once =
      0;  // READs in flight on the wire: the lesser of initiator and responder (S8)
  uint64_t max_message = 0;  // bytes in one READ (S10)
  bool operator==(const PairLimits&) const = default;
};
PairLimits narrower(const PairLimits& a, const PairLimits& b);

struct ConnectRequest {
  uint32_t acceptor = 0;
  PairAddress address;
  PairLimits limits;
  Bytes hello;
  bool operator==(const ConnectRequest&) const = default;
};

struct ConnectReply {
  std::optional<Error> refusal;  // then nothing else counts
  PairAddress address;
  PairLimits limits;  // already the narrower of both
  Bytes payload;
};

// With the length in front.
Bytes encode(const ConnectRequest& request);
Bytes encode(const ConnectReply& reply);
// Without the length. kCorrupt.
Result<ConnectRequest> decode_connect_request(std::span<const uint8_t> frame);
Result<ConnectReply> decode_connect_reply(std::span<const uint8_t> frame);

}  // namespace weightlane::prod
