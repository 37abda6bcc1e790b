// Fixed fields first, then the one variable part to the end of the frame.
#include "prod/verbs_wire.h"

#include <algorithm>
#include <cstring>

namespace weightlane::prod {
namespace {

constexpr uint32_t kRequestMagic = 0x31515657;  // "WVQ1"
constexpr uint32_t kReplyMagic = 0x31525657;    // "WVR1"

class Writer {
 public:
  explicit Writer(uint32_t magic) {
    number<uint32_t>(0);
    number(magic);
  }
  template <typename T>
  void number(T value) {
    for (size_t i = 0; i < sizeof(T); ++i) bytes_.push_back(static_cast<uint8_t>(value >> (8 * i)));
  }
  void raw(std::span<const uint8_t> data) { bytes_.insert(bytes_.end(), data.begin(), data.end()); }
  void address(const PairAddress& a) {
    raw(a.gid);
    number(a.lid);
    number(a.queue_pair);
    number(a.packet_sequence);
  }
  void limits(const PairLimits& l) {
    number(l.mtu);
    number(l.reads_at_once);
    number(l.max_message);
  }
  Bytes finish() {
    const auto length = static_cast<uint32_t>(bytes_.size() - kVerbsFrameHeader);
    for (size_t i = 0; i < kVerbsFrameHeader; ++i)
      bytes_[i] = static_cast<uint8_t>(length >> (8 * i));
    return std::move(bytes_);
  }

 private:
  Bytes bytes_;
};

// Reads as far as there is; `good` turns false for ever when there is too little.
class Reader {
 public:
  explicit Reader(std::span<const uint8_t> bytes) : rest_(bytes) {}
  template <typename T>
  T number() {
    if (rest_.size() < sizeof(T)) {
      good_ = false;
      rest_ = {};
      return 0;
    }
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) value |= static_cast<uint64_t>(rest_[i]) << (8 * i);
    rest_ = rest_.subspan(sizeof(T));
    return static_cast<T>(value);
  }
  PairAddress address() {
    PairAddress a;
    for (uint8_t& byte : a.gid) byte = number<uint8_t>();
    a.lid = number<uint16_t>();
    a.queue_pair = number<uint32_t>();
    a.packet_sequence = number<uint32_t>();
    good_ = good_ && a.queue_pair < (1u << 24) && a.packet_sequence < (1u << 24);
    return a;
  }
  PairLimits limits() {
    PairLimits l;
    l.mtu = number<uint8_t>();
    l.reads_at_once = number<uint8_t>();
    l.max_message = number<uint64_t>();
    good_ = good_ && l.mtu >= 1 && l.mtu <= 5 && l.reads_at_once >= 1 && l.max_message >= 1;
    return l;
  }
  Bytes rest() const { return Bytes(rest_.begin(), rest_.end()); }
  bool good() const { return good_; }

 private:
  std::span<const uint8_t> rest_;
  bool good_ = true;
};

}  // namespace

PairLimits narrower(const PairLimits& a, const PairLimits& b) {
  return {std::min(a.mtu, b.mtu), std::min(a.reads_at_once, b.reads_at_once),
          std::min(a.max_message, b.max_message)};
}

Bytes encode(const ConnectRequest& request) {
  Writer writer(kRequestMagic);
  writer.number(request.acceptor);
  writer.address(request.address);
  writer.limits(request.limits);
  writer.raw(request.hello);
  return writer.finish();
}

Bytes encode(const ConnectReply& reply) {
  Writer writer(kReplyMagic);
  writer.number<uint8_t>(reply.refusal ? 1 : 0);
  if (reply.refusal) {
    writer.number(static_cast<uint8_t>(reply.refusal->code));
    const std::string& text = reply.refusal->message;
    writer.raw({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
    return writer.finish();
  }
  writer.address(reply.address);
  writer.limits(reply.limits);
  writer.raw(reply.payload);
  return writer.finish();
}

Result<ConnectRequest> decode_connect_request(std::span<const uint8_t> frame) {
  Reader reader(frame);
  const auto magic = reader.number<uint32_t>();
  ConnectRequest request;
  request.acceptor = reader.number<uint32_t>();
  request.address = reader.address();
  request.limits = reader.limits();
  request.hello = reader.rest();
  if (magic != kRequestMagic || !reader.good()) {
    return Error{ErrorCode::kCorrupt,
                 "what arrived on the verbs port is no connect request of this version"};
  }
  return request;
}

Result<ConnectReply> decode_connect_reply(std::span<const uint8_t> frame) {
  Reader reader(frame);
  const auto magic = reader.number<uint32_t>();
  const auto refused = reader.number<uint8_t>();
  ConnectReply reply;
  if (refused == 1) {
    const auto code = reader.number<uint8_t>();
    const Bytes text = reader.rest();
    // Only what a caller of connect() can react to; any other code is a refusal.
    reply.refusal = Error{code == static_cast<uint8_t>(ErrorCode::kResourceExhausted)
                              ? ErrorCode::kResourceExhausted
                              : ErrorCode::kRefused,
                          std::string(text.begin(), text.end())};
  } else {
    reply.address = reader.address();
    reply.limits = reader.limits();
    reply.payload = reader.rest();
  }
  if (magic != kReplyMagic || refused > 1 || !reader.good()) {
    return Error{ErrorCode::kCorrupt, "what answered is no verbs plane of this version"};
  }
  return reply;
}

}  // namespace weightlane::prod
