// A control plane and a reference server made by hand, for tests of ServerSession: every request is
// written down, and the test decides what happens to it. Nothing here knows the protocol.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "flow/loop.h"
#include "flow/signal.h"
#include "net/control_plane.h"

namespace weightlane::ros::testing {

enum class Fate : uint8_t {
  kServed,
  kRequestLost,  // never carried out, and the connection breaks
  kReplyLost,    // carried out, and the connection breaks
};

class FakeServer {
 public:
  explicit FakeServer(flow::Runtime* clock) : runtime(clock), filled(*clock) {}

  // The answer to a request that arrives; Polls are answered with `mailbox`.
  net::ResponseBody carry_out(const net::Request& request) {
    served.push_back(request);
    if (special)
      if (std::optional<net::ResponseBody> answer = special(request)) return *answer;
    if (std::holds_alternative<net::OpenRequest>(request.body))
      return net::OpenedResponse{CallNumber{1}, seconds(1), seconds(10), seconds(30)};
    return net::AcceptedResponse{};
  }
  net::EventsResponse events(const net::PollRequest& poll) {
    while (!mailbox.empty() && mailbox.front().number <= poll.acknowledged) mailbox.pop_front();
    return {{mailbox.begin(), mailbox.end()}};
  }
  void send(net::EventBody body) {
    mailbox.push_back({next_event++, std::move(body)});
    filled.notify_all();
  }
  template <typename T>
  std::vector<net::Request> served_of() const {
    std::vector<net::Request> found;
    for (const net::Request& request : served)
      if (std::holds_alternative<T>(request.body)) found.push_back(request);
    return found;
  }
  Fate next_fate(bool poll) {
    std::deque<Fate>& fates = poll ? poll_fates : request_fates;
    if (fates.empty()) return Fate::kServed;
    const Fate fate = fates.front();
    fates.pop_front();
    return fate;
  }

  flow::Runtime* runtime;
  BootId boot{1};
  bool reachable = true;             // for new connections
  bool silent = false;               // takes requests and never answers
  std::deque<Nanos> answers_travel;  // of the next answers; none left: no time
  std::deque<Fate> request_fates;
  std::deque<Fate> poll_fates;
  std::function<std::optional<net::ResponseBody>(const net::Request&)> special;
  std::vector<net::Request> served;
  std::deque<net::Event> mailbox;  // not acknowledged
  uint64_t next_event = 1;
  flow::Signal filled;
  uint64_t connections = 0;
};

class FakeConnection final : public net::Connection {
 public:
  explicit FakeConnection(FakeServer* server) : server_(server) {}

  // The caller keeps the connection as long as the call.
  flow::Task<net::CallOutcome> call(net::Request request, Nanos deadline) override {
    flow::Runtime& runtime = *server_->runtime;
    co_await runtime.sleep_for(millis(1));
    const auto* poll = std::get_if<net::PollRequest>(&request.body);
    const Fate fate = broken_ ? Fate::kRequestLost : server_->next_fate(poll != nullptr);
    if (server_->silent) {
      co_await runtime.sleep_until(deadline);
      co_return net::OutcomeUnknown{"no answer in time"};
    }
    if (fate == Fate::kRequestLost) {
      broken_ = true;
      co_return net::OutcomeUnknown{"connection broke"};
    }
    net::ResponseBody body = server_->carry_out(request);
    if (poll != nullptr && std::holds_alternative<net::AcceptedResponse>(body)) {
      const Nanos until = std::min(deadline, runtime.now() + poll->hold);
      body = server_->events(*poll);
      while (std::get<net::EventsResponse>(body).events.empty() && runtime.now() < until) {
        co_await server_->filled.wait_until(until);
        body = server_->events(*poll);
      }
    }
    if (fate == Fate::kReplyLost) {
      broken_ = true;
      co_return net::OutcomeUnknown{"connection broke"};
    }
    if (!server_->answers_travel.empty()) {
      const Nanos travel = server_->answers_travel.front();
      server_->answers_travel.pop_front();
      co_await runtime.sleep_for(travel);
    }
    co_return net::Response{server_->boot, std::move(body)};
  }
  bool broken() const override { return broken_; }

 private:
  FakeServer* server_;
  bool broken_ = false;
};

class FakeControl final : public net::ControlPlane {
 public:
  explicit FakeControl(FakeServer* server) : server_(server) {}

  flow::Task<Result<std::unique_ptr<net::Connection>>> connect(std::string address,
                                                               Nanos deadline) override {
    auto other = others.find(address);
    FakeServer* server = other == others.end() ? server_ : other->second;
    co_await server->runtime->sleep_for(millis(1));
    if (!server->reachable) {
      co_await server->runtime->sleep_until(deadline);
      co_return Error{ErrorCode::kUnreachable, address + " does not answer"};
    }
    ++server->connections;
    co_return std::unique_ptr<net::Connection>(new FakeConnection(server));
  }
  std::map<std::string, FakeServer*> others;  // at addresses of their own

  Result<std::unique_ptr<net::Serving>> serve(std::string, net::RequestHandler*) override {
    return Error{ErrorCode::kInvalidArgument, "this one only connects"};
  }

 private:
  FakeServer* server_;
};

}  // namespace weightlane::ros::testing
