// RpcControlPlane: net::ControlPlane over Cap'n Proto RPC, on TCP (IPv4, IPv6) and Unix sockets.
//
// What it adds to the contract in net/control_plane.h:
//   - a connection that breaks drops the handlers of its requests at the server;
//   - the deadline of a call is the caller's: the server is not told, and its handler goes on;
//   - whatever arrives on the port, only that connection suffers: bytes that are no messages, too
//     large a message, a request that cannot be decoded (this one is answered with an error);
//   - a peer whose machine has gone is noticed by the kernel within `dead_peer` when something is
//     to be sent, by the call's deadline in any case.
//
// Loop's thread only; outlived by nothing it made.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "net/control_plane.h"
#include "prod/event_loop.h"
#include "prod/log.h"

namespace weightlane::prod {

struct RpcShared;

struct RpcOptions {
  size_t request_bytes_max = 8 << 20;    // one message, at the server
  size_t response_bytes_max = 64 << 20;  // one message, at the client
  size_t requests_bytes_max = 1 << 20;   // of one connection being handled; more wait unread
  size_t unread_bytes = 4 << 20;         // answers not taken: the server stops reading
  size_t backlog_bytes_max = 128 << 20;  // answers not taken: the server gives up the connection
  size_t connections_max = 10'000;       // to one server
  Nanos dead_peer = seconds(10);
};

class RpcControlPlane final : public net::ControlPlane {
 public:
  // `loop` and `log` outlive it.
  RpcControlPlane(EventLoop* loop, Log* log, RpcOptions options = {});
  ~RpcControlPlane() override;

  flow::Task<Result<std::unique_ptr<net::Connection>>> connect(std::string address,
                                                               Nanos deadline) override;
  Result<std::unique_ptr<net::Serving>> serve(std::string address,
                                              net::RequestHandler* handler) override;

 private:
  std::shared_ptr<RpcShared> shared_;
};

}  // namespace weightlane::prod
