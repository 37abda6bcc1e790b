// What goes over the TCP plane's connections. Little endian, as the machines are.
//
//   reader -> source   TcpHello, then the hello's bytes (kind kPair), or nothing more (kind
//   kStream) source -> reader   TcpReply, then the payload, or the reason of a refusal as text
//   reader -> source   TcpRequest ...
//   source -> reader   TcpResponse, then `length` bytes, for each request in their order
//
// The first connection makes the pair and is told a random token; further ones name it and join. A
// request names (region, offset, length); the source checks them against its registrations, and no
// number of the peer's is ever used as an address (FIELD 31, 32). After a response that isn't
// success the source answers nothing more on that connection.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace weightlane::prod {

static_assert(std::endian::native == std::endian::little);

constexpr uint64_t kTcpMagic = 0x3150'4354'656e'616cull;  // "laneTCP1"
constexpr uint32_t kTcpRequestMagic = 0x5145'5257;        // "WREQ"
constexpr uint32_t kTcpResponseMagic = 0x5052'5357;       // "WSRP"
constexpr uint64_t kTcpHelloMax = 4ull << 20;             // bytes
constexpr uint64_t kTcpPayloadMax = 256ull << 20;         // bytes: names the place of every tensor
constexpr uint64_t kTcpReadMax = 1ull << 30;              // bytes in one READ
constexpr unsigned kTcpStreamsMax = 16;

enum class TcpKind : uint32_t { kPair = 1, kStream = 2 };
enum class TcpVerdict : uint32_t { kAccepted = 0, kRefused = 1, kExhausted = 2, kNobody = 3 };

struct TcpHello {
  uint64_t magic = kTcpMagic;
  TcpKind kind = TcpKind::kPair;
  uint32_t unused = 0;
  uint64_t id = 0;  // the service asked for (kPair), the pair's token (kStream)
  uint64_t length = 0;
};
struct TcpReply {
  uint64_t magic = kTcpMagic;
  TcpVerdict verdict = TcpVerdict::kAccepted;
  uint32_t unused = 0;
  uint64_t token = 0;
  uint64_t length = 0;
};
struct TcpRequest {
  uint32_t magic = kTcpRequestMagic;
  uint32_t unused = 0;
  uint64_t sequence = 0;
  uint64_t region = 0;
  uint64_t offset = 0;
  uint64_t length = 0;
};
struct TcpResponse {
  uint32_t magic = kTcpResponseMagic;
  uint32_t status = 0;  // net::CompletionStatus
  uint64_t sequence = 0;
  uint64_t length = 0;
};
static_assert(sizeof(TcpHello) == 32 && sizeof(TcpReply) == 32);
static_assert(sizeof(TcpRequest) == 40 && sizeof(TcpResponse) == 24);

// The bytes of one of the above.
template <typename Frame>
  requires std::is_trivially_copyable_v<Frame>
std::span<const uint8_t> frame_bytes(const Frame& frame) {
  return {reinterpret_cast<const uint8_t*>(&frame), sizeof frame};
}
template <typename Frame>
  requires std::is_trivially_copyable_v<Frame>
std::span<uint8_t> writable_frame(Frame& frame) {
  return {reinterpret_cast<uint8_t*>(&frame), sizeof frame};
}

}  // namespace weightlane::prod
