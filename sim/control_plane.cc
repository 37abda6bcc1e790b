// A process's ends of its connections. Delays, losses and breaks happen in between, in
// control_net.cc.
#include "sim/control_plane.h"

#include <algorithm>

#include "sim/world.h"

namespace weightlane::sim {
namespace {

constexpr SpanRange kSynRetry{millis(100), seconds(3)};

std::string name_of(World& world, HostId host) { return world.host(host).place().name; }

bool parse_address(const std::string& address, std::string& name, uint32_t& port) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size()) return false;
  if (address.size() - colon > 6) return false;
  port = 0;
  for (size_t i = colon + 1; i < address.size(); ++i) {
    if (address[i] < '0' || address[i] > '9') return false;
    port = port * 10 + static_cast<uint32_t>(address[i] - '0');
  }
  name = address.substr(0, colon);
  return true;
}

}  // namespace

// ---------------------------------------------------------------- the caller's side

CallAwaiter::CallAwaiter(flow::Runtime& runtime, flow::IntrusiveList<CallAwaiter>& pending,
                         uint64_t id, Nanos deadline)
    : TimedWaiter(runtime), id_(id), deadline_(deadline) {
  on_fire = [](flow::TimerNode& node) {
    auto& self = static_cast<CallAwaiter&>(node);
    self.leave_list();
    self.settled_ = true;
    self.wake();
  };
  pending.push_back(*this);
}

void CallAwaiter::answer(net::Response response) {
  WL_ASSERT(!settled_);
  leave_list();
  settled_ = true;
  response_.emplace(std::move(response));
  wake();
}

void CallAwaiter::give_up() {
  WL_ASSERT(!settled_);
  leave_list();
  settled_ = true;
  broke_ = true;
  wake();
}

SimConnection::~SimConnection() {
  while (!pending_.empty()) pending_.front().give_up();
  if (pipe_ != nullptr) net_.drop_connection(*this);
}

flow::Task<net::CallOutcome> SimConnection::call(net::Request request, Nanos deadline) {
  if (pipe_ == nullptr) {
    co_return Error{ErrorCode::kClosed, "the connection is broken"};
  }
  World& world = net_.world();
  const HostId server = pipe_->server.host;
  const bool poll = std::holds_alternative<net::PollRequest>(request.body);
  const uint64_t id = pipe_->next_call++;
  Message& message = net_.allocate(*pipe_, Side::kServer, id, poll);
  message.body.emplace<net::Request>(std::move(request));
  net_.send(*pipe_, message);

  CallAwaiter awaiter(host_, pending_, id, deadline);
  std::optional<net::Response> response = co_await awaiter;
  // The connection may be gone by now: only the frame and the world are touched.
  if (response) co_return std::move(*response);
  if (awaiter.broke()) {
    co_return net::OutcomeUnknown{"connection to " + name_of(world, server) + " broke"};
  }
  co_return net::OutcomeUnknown{"no answer from " + name_of(world, server) + " in time"};
}

void SimConnection::on_broken() {
  broken_ = true;
  pipe_ = nullptr;
  while (!pending_.empty()) pending_.front().give_up();
}

flow::Task<Result<std::unique_ptr<net::Connection>>> SimControlPlane::connect(std::string address,
                                                                              Nanos deadline) {
  World& world = host_.world();
  ControlNet& net = world.control_net();
  const StreamId stream = stream_of(host_.id(), Subsystem::kControl);
  std::string name;
  uint32_t port = 0;
  if (!parse_address(address, name, port)) {
    co_return Error{ErrorCode::kInvalidArgument, "address '" + address + "' is not host:port"};
  }
  Host* server = net.host_named(address);
  const bool hangs = world.fault(stream, Fault::kConnectHangs);
  if (hangs) world.fault_happened(Fault::kConnectHangs, host_.id(), kWorldHost);
  while (!hangs && server != nullptr) {
    const Nanos there = net.draw_delay(host_.id(), server->id(), "connect.there");
    co_await host_.sleep_for(there);
    if (host_.now() >= deadline) break;
    const bool silent = world.network().cut_off(Plane::kControl, host_.id(), server->id()) ||
                        server->machine_gone();
    if (!silent) {
      const Nanos back = net.draw_delay(server->id(), host_.id(), "connect.back");
      co_await host_.sleep_for(back);
      SimServing* serving = net.find(address);
      if (serving == nullptr) {
        co_return Error{ErrorCode::kUnreachable, "connection to " + address + " refused"};
      }
      Pipe& pipe = net.open(host_, *serving);
      auto connection = std::make_unique<SimConnection>(net, host_, pipe);
      pipe.connection = connection.get();
      co_return std::unique_ptr<net::Connection>(std::move(connection));
    }
    const int64_t again = world.choices().log_uniform(stream, "connect.again",
                                                      kSynRetry.least.count, kSynRetry.most.count);
    const Nanos next = host_.now() + nanos(again);
    if (next >= deadline) break;
    co_await host_.sleep_until(next);
  }
  if (server != nullptr) co_await host_.sleep_until(deadline);
  co_return Error{ErrorCode::kUnreachable, "no answer from " + address + " in time"};
}

// ---------------------------------------------------------------- the server's side

SimServing::SimServing(ControlNet& net, Host& host, std::string address,
                       net::RequestHandler* handler)
    : net_(net), host_(host), address_(std::move(address)), handler_(handler) {
  net_.servings_.push_back(this);
}

SimServing::~SimServing() {
  if (registered_) net_.drop_serving(*this);
}

Result<std::unique_ptr<net::Serving>> SimControlPlane::serve(std::string address,
                                                             net::RequestHandler* handler) {
  std::string name;
  uint32_t port = 0;
  if (!parse_address(address, name, port) || name != host_.place().name) {
    return Error{ErrorCode::kInvalidArgument,
                 "address '" + address + "' is not " + host_.place().name + ":port"};
  }
  ControlNet& net = host_.world().control_net();
  if (port == 0) {
    while (net.find(host_.address(next_port_)) != nullptr) ++next_port_;
    address = host_.address(next_port_);
  }
  if (net.find(address) != nullptr) {
    return Error{ErrorCode::kResourceExhausted, "port " + std::to_string(port) + " is in use"};
  }
  return std::unique_ptr<net::Serving>(
      std::make_unique<SimServing>(net, host_, std::move(address), handler));
}

void SimControlPlane::end_life(CrashKind kind) {
  host_.world().control_net().end_life(host_.id(), kind);
  next_port_ = 7000;
}

// By value and with the net as a pointer: both outlive the task, which the pipe's TaskSet owns.
flow::Task<void> ControlNet::serve_one(ControlNet* net, Pipe* pipe, net::RequestHandler* handler,
                                       net::Request request, uint64_t call, bool poll) {
  const bool lost = net->reply_is_lost(request, pipe->server.host);
  net::Response response = co_await handler->handle(std::move(request));
  if (lost) {
    net->world_.fault_happened(Fault::kReplyLost, pipe->server.host, pipe->client.host);
    net->break_soon(*pipe);
    co_return;
  }
  Message& message = net->allocate(*pipe, Side::kClient, call, poll);
  message.body.emplace<net::Response>(std::move(response));
  net->send(*pipe, message);
}

}  // namespace weightlane::sim
