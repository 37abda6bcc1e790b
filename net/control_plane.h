// ControlPlane: how workers talk to the reference server.
//
// Implemented by sim/ (simulated network) and prod/ (Cap'n Proto RPC). A call has three ends and
// callers handle all of them: a response, an error that says the request was not executed, or
// *outcome unknown* (the connection broke, or the deadline passed: it may or may not have been
// executed).
//
// What an implementation promises: requests of one connection arrive in the order of calling, each
// at most once; requests of different connections are not ordered; a broken connection stays
// broken; what was sent on a connection may still arrive after the caller saw it break. Every call
// ends by its deadline.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <variant>

#include "flow/result.h"
#include "flow/runtime.h"
#include "flow/task.h"
#include "net/messages.h"

namespace weightlane::net {

struct OutcomeUnknown {
  std::string why;  // "connection to [::1]:7000 broke", "no answer from ... within 2 s"
};
// Response, or not executed (Error: kUnreachable, kClosed), or nobody knows.
using CallOutcome = std::variant<Response, Error, OutcomeUnknown>;

class Connection {
 public:
  virtual ~Connection() = default;
  virtual flow::Task<CallOutcome> call(Request request, Nanos deadline) = 0;
  virtual bool broken() const = 0;
};

class RequestHandler {
 public:
  virtual ~RequestHandler() = default;
  // Runs until it returns a response; dropped when the connection breaks or the server stops.
  virtual flow::Task<Response> handle(Request request) = 0;
};

// Destroying it stops serving and breaks its connections.
class Serving {
 public:
  virtual ~Serving() = default;
  virtual std::string address() const = 0;  // as bound: port 0 has become a real one
};

class ControlPlane {
 public:
  virtual ~ControlPlane() = default;
  // Addresses: "host:port", "[::1]:port", "unix:/path". kInvalidArgument for others, kUnreachable
  // by the deadline.
  virtual flow::Task<Result<std::unique_ptr<Connection>>> connect(std::string address,
                                                                  Nanos deadline) = 0;
  // `handler` outlives the Serving. kInvalidArgument, kResourceExhausted ("port 7000 is in use").
  virtual Result<std::unique_ptr<Serving>> serve(std::string address, RequestHandler* handler) = 0;
};

}  // namespace weightlane::net
