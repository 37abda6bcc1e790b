// The codec's lower half, for those who have a Cap'n Proto message in hand: prod's RPC fills the
// parameters of a call directly. Everyone else uses net/codec.h and stays free of kj.
#pragma once

#include "flow/result.h"
#include "net/messages.h"
#include "net/weightlane.capnp.h"

namespace weightlane::net {

void to_wire(const Request& request, wire::Request::Builder builder);
void to_wire(const Response& response, wire::Response::Builder builder);

// kCorrupt for what cannot be a message; never throws. The reader's limits bound what is allocated.
Result<Request> from_wire(wire::Request::Reader reader);
Result<Response> from_wire(wire::Response::Reader reader);

}  // namespace weightlane::net
