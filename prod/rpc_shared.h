// What the two sides of the RPC control plane have in common; private to prod/rpc*.cc.
#pragma once

#include <memory>
#include <string>

#include "net/control_plane.h"
#include "prod/control_address.h"
#include "prod/message_stream.h"
#include "prod/rpc.h"

namespace weightlane::prod {

struct RpcShared {
  EventLoop* loop = nullptr;
  Log* log = nullptr;
  RpcOptions options;
  ReadBuffer buffer;
};

// Small messages leave at once; a peer that has gone is found out.
void set_socket_options(int fd, int family, Nanos dead_peer);

flow::Task<Result<std::unique_ptr<net::Connection>>> rpc_connect(std::shared_ptr<RpcShared> shared,
                                                                 std::string address,
                                                                 Nanos deadline);
Result<std::unique_ptr<net::Serving>> rpc_serve(std::shared_ptr<RpcShared> shared,
                                                std::string address, net::RequestHandler* handler);

}  // namespace weightlane::prod
