// An address that answers nothing may use only its share of the time, so that the next gets a
// chance.
#include "prod/tcp_connect.h"

#include <algorithm>
#include <utility>

namespace weightlane::prod {

using std::chrono::steady_clock;

void TcpConnectAttempt::give_up() {
  std::lock_guard lock(mutex_);
  given_up_ = true;
  for (const std::shared_ptr<TcpSocket>& socket : open_) socket->stop();
}

Result<std::shared_ptr<TcpSocket>> TcpConnectAttempt::open(TcpSockets& sockets,
                                                           const TcpAddress& to,
                                                           SteadyTime deadline) {
  Result<std::shared_ptr<TcpSocket>> socket = TcpSocket::create(to.family());
  if (!socket) return socket;
  {
    std::lock_guard lock(mutex_);
    if (given_up_ || !sockets.add(*socket)) return Error{ErrorCode::kClosed, "given up"};
    open_.push_back(*socket);
  }
  const Result<Done> connected = (*socket)->connect(to, deadline);
  if (!connected) return connected.error();
  return socket;
}

Result<TcpReply> TcpConnectAttempt::introduce(TcpSocket& socket, TcpKind kind, uint64_t id,
                                              std::span<const uint8_t> hello) {
  TcpHello frame;
  frame.kind = kind;
  frame.id = id;
  frame.length = hello.size();
  TcpReply reply;
  if (!socket.send_all(frame_bytes(frame), deadline_) || !socket.send_all(hello, deadline_) ||
      !socket.receive_all(writable_frame(reply), deadline_)) {
    return Error{ErrorCode::kUnreachable, "it did not answer the hello"};
  }
  if (reply.magic != kTcpMagic || reply.length > kTcpPayloadMax) {
    return Error{ErrorCode::kUnreachable, "what answers there is no weightlane data port"};
  }
  return reply;
}

Result<TcpConnected> TcpConnectAttempt::talk(TcpSockets& sockets, std::shared_ptr<TcpSocket> first,
                                             const TcpAddress& to) {
  const Result<TcpReply> reply = introduce(*first, TcpKind::kPair, service_, hello_);
  if (!reply) return Error{reply.error().code, to.text() + ": " + reply.error().message};
  TcpConnected connected;
  if (!first->receive_blob(connected.payload, reply->length, deadline_)) {
    return Error{ErrorCode::kUnreachable, to.text() + ": it went away while it answered"};
  }
  if (reply->verdict != TcpVerdict::kAccepted) {
    const std::string why(connected.payload.begin(), connected.payload.end());
    const bool exhausted = reply->verdict == TcpVerdict::kExhausted;
    return Error{exhausted ? ErrorCode::kResourceExhausted : ErrorCode::kRefused,
                 to.text() + ": " + why};
  }
  connected.sockets.push_back(std::move(first));
  while (connected.sockets.size() < streams_) {
    Result<std::shared_ptr<TcpSocket>> further = open(sockets, to, deadline_);
    if (!further) return further.error();
    const Result<TcpReply> joined = introduce(**further, TcpKind::kStream, reply->token, {});
    if (!joined) return Error{joined.error().code, to.text() + ": " + joined.error().message};
    connected.sockets.push_back(std::move(*further));
  }
  return connected;
}

Result<TcpConnected> TcpConnectAttempt::run(TcpSockets& sockets) {
  Result<TcpConnected> result = Error{ErrorCode::kUnreachable, "no address to connect to"};
  for (size_t i = 0; i < addresses_.size(); ++i) {
    const SteadyTime now = steady_clock::now();
    const auto share = (deadline_ - now) / static_cast<int64_t>(addresses_.size() - i);
    Result<std::shared_ptr<TcpSocket>> first = open(sockets, addresses_[i], now + share);
    if (!first) {
      result = first.error();
      continue;
    }
    result = talk(sockets, std::move(*first), addresses_[i]);
    if (result.ok() || result.error().code != ErrorCode::kUnreachable) break;
  }
  // The reader's threads answer for these sockets from now on.
  std::lock_guard lock(mutex_);
  for (const std::shared_ptr<TcpSocket>& socket : open_) sockets.remove(socket);
  open_.clear();
  return result;
}

}  // namespace weightlane::prod
