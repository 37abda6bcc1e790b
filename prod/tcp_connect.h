// One attempt to connect over TCP: addresses in turn, then further streams to the one that
// answered. Blocking, on a thread of its own; the loop waits for it, or gives it up.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "flow/result.h"
#include "prod/tcp_shared.h"
#include "prod/tcp_wire.h"

namespace weightlane::prod {

struct TcpConnected {
  std::vector<std::shared_ptr<TcpSocket>> sockets;
  Bytes payload;
};

class TcpConnectAttempt {
 public:
  TcpConnectAttempt(std::vector<TcpAddress> addresses, uint64_t service, Bytes hello,
                    unsigned streams, SteadyTime deadline)
      : addresses_(std::move(addresses)),
        service_(service),
        hello_(std::move(hello)),
        streams_(streams),
        deadline_(deadline) {}

  // kUnreachable, kRefused, kResourceExhausted; by the deadline.
  Result<TcpConnected> run(TcpSockets& sockets);
  // From any thread: run() returns soon.
  void give_up();

 private:
  Result<std::shared_ptr<TcpSocket>> open(TcpSockets& sockets, const TcpAddress& to,
                                          SteadyTime deadline);
  Result<TcpReply> introduce(TcpSocket& socket, TcpKind kind, uint64_t id,
                             std::span<const uint8_t> hello);
  Result<TcpConnected> talk(TcpSockets& sockets, std::shared_ptr<TcpSocket> first,
                            const TcpAddress& to);

  const std::vector<TcpAddress> addresses_;
  const uint64_t service_;
  const Bytes hello_;
  const unsigned streams_;
  const SteadyTime deadline_;

  std::mutex mutex_;
  std::vector<std::shared_ptr<TcpSocket>> open_;  // guarded by mutex_
  bool given_up_ = false;                         // guarded by mutex_
};

}  // namespace weightlane::prod
