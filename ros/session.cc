// Both loops outlive any number of connections, and whichever finds the link broken makes the next
// one while the other waits. An open that meets a live holder gives up; one that meets a dead
// holder waits for the lease.
#include "ros/session.h"

#include <algorithm>

#include "ros/probes.h"

namespace weightlane::ros {

namespace {

constexpr Nanos kOccupiedPause = millis(500);  // before asking again whether a shard is free

Nanos earlier(Nanos a, Nanos b) { return a < b ? a : b; }

}  // namespace

ServerSession::ServerSession(Environment environment, std::string server, HandleOptions options,
                             SessionListener* listener)
    : environment_(environment),
      server_(std::move(server)),
      options_(options),
      listener_(listener),
      changed_(*environment.runtime),
      tasks_(*environment.runtime) {}

ServerSession::~ServerSession() = default;

Nanos ServerSession::next_pause(Nanos pause) const {
  return earlier(pause * 2, options_.rpc_retry_max);
}

flow::Task<ServerSession::Link> ServerSession::connected(Nanos deadline) {
  flow::Runtime& runtime = *environment_.runtime;
  while (true) {
    if (link_.connection != nullptr && !link_.connection->broken()) co_return link_;
    if (!connecting_) break;
    if (!co_await changed_.wait_until(deadline)) co_return Link{};
  }
  connecting_ = true;
  const Nanos until = earlier(deadline, deadline_after(runtime.now(), options_.connect));
  Result<std::unique_ptr<net::Connection>> made =
      co_await environment_.control->connect(server_, until);
  connecting_ = false;
  changed_.notify_all();
  if (!made) {
    last_trouble_ = made.error().message;
    co_return Link{};
  }
  if (session_ > 0) runtime.probe(probes::kReconnected);
  ++session_;
  link_ = Link{std::shared_ptr<net::Connection>(std::move(made).value()), session_};
  co_return link_;
}

flow::Task<std::optional<net::Response>> ServerSession::attempt(net::RequestBody body,
                                                                uint64_t sequence, Nanos deadline) {
  Link link = co_await connected(deadline);
  if (link.connection == nullptr) co_return std::nullopt;
  net::Request request{{incarnation_, link.session, sequence}, std::move(body)};
  net::CallOutcome outcome = co_await link.connection->call(std::move(request), deadline);
  if (auto* response = std::get_if<net::Response>(&outcome)) {
    last_answer_ = environment_.runtime->now();
    co_return std::move(*response);
  }
  if (auto* unknown = std::get_if<net::OutcomeUnknown>(&outcome)) {
    environment_.runtime->probe(probes::kOutcomeUnknown);
    last_trouble_ = unknown->why;
  } else {
    last_trouble_ = std::get<Error>(outcome).message;
  }
  // An answer that did not come leaves the connection in doubt: the next attempt takes a new one.
  if (link_.session == link.session) link_ = {};
  co_return std::nullopt;
}

// A holder that was heard again since we first asked is alive. The server looked at its clock some
// time between our question and its answer, so each answer bounds the time from both sides; an
// answer that travelled long proves nothing.
bool ServerSession::held_by_the_living(const net::Failure& occupied, Nanos asked) {
  const Nanos earliest = asked - occupied.heard_ago;
  const Nanos latest = environment_.runtime->now() - occupied.heard_ago;
  if (occupant_ != occupied.holder) {
    occupant_ = occupied.holder;
    occupant_heard_ = latest;
    return false;
  }
  if (earliest > occupant_heard_) return true;
  occupant_heard_ = std::min(occupant_heard_, latest);
  return false;
}

flow::Task<Result<net::OpenedResponse>> ServerSession::open(net::OpenRequest request,
                                                            Nanos deadline) {
  flow::Runtime& runtime = *environment_.runtime;
  stop_loops();
  state_ = State::kClosed;
  incarnation_ = {runtime.random() | 1};
  outbox_.clear();
  session_ = 0;
  last_event_ = 0;
  next_sequence_ = 1;
  link_ = {};
  occupant_ = {};
  const uint64_t sequence = next_sequence_++;
  const std::string shard = "shard " + std::to_string(request.shard.value) + " of " +
                            request.model + "/" + request.replica;
  Nanos pause = options_.rpc_retry_first;
  while (true) {
    const Nanos asked = runtime.now();
    const Nanos until = earlier(deadline, deadline_after(asked, options_.rpc_attempt));
    std::optional<net::Response> response = co_await attempt(request, sequence, until);
    if (response.has_value()) {
      if (auto* opened = std::get_if<net::OpenedResponse>(&response->body)) {
        boot_ = response->server;
        heartbeat_ = opened->heartbeat;
        state_ = State::kOpen;
        tasks_.spawn(poll_loop(this), "session.poll");
        tasks_.spawn(send_loop(this), "session.send");
        co_return *opened;
      }
      auto* failed = std::get_if<net::Failure>(&response->body);
      if (failed == nullptr)
        co_return Error{ErrorCode::kCorrupt,
                        "server " + server_ + " answered open with something else"};
      if (failed->kind == net::FailureKind::kUnknownIncarnation) {
        // Our first open was carried out, its answer lost, and the lease ran out meanwhile.
        incarnation_ = {runtime.random() | 1};
      } else if (failed->code != ErrorCode::kAlreadyOpen) {
        co_return Error{failed->code, failed->message};
      } else {
        pause = kOccupiedPause;
        if (held_by_the_living(*failed, asked) || runtime.now() + pause >= deadline)
          co_return Error{ErrorCode::kAlreadyOpen, failed->message};
      }
    }
    if (runtime.now() + pause >= deadline)
      co_return Error{ErrorCode::kServerLost, "no reference server at " + server_ + " to open " +
                                                  shard + ": " + last_trouble_};
    co_await runtime.sleep_for(pause);
    pause = next_pause(pause);
  }
}

void ServerSession::post(net::RequestBody body) {
  if (state_ != State::kOpen) return;
  outbox_.push_back({next_sequence_++, std::move(body)});
  changed_.notify_all();
}

flow::Task<void> ServerSession::flush(Nanos deadline) {
  while (state_ == State::kOpen && !outbox_.empty()) {
    if (!co_await changed_.wait_until(deadline)) co_return;
  }
}

flow::Task<void> ServerSession::close(Nanos deadline) {
  post(net::CloseRequest{});
  co_await flush(deadline);
  stop_loops();
  state_ = State::kClosed;
  link_ = {};
}

bool ServerSession::check(const net::Response& response) {
  if (state_ != State::kOpen) return false;
  if (response.server != boot_) {
    end(State::kServerLost,
        "the reference server at " + server_ + " was restarted and knows nothing of this shard");
    return false;
  }
  const auto* failed = std::get_if<net::Failure>(&response.body);
  if (failed == nullptr || failed->kind != net::FailureKind::kUnknownIncarnation) return true;
  end(State::kEvicted, "the reference server at " + server_ +
                           " had not heard this process for its lease and let it go");
  return false;
}

bool ServerSession::server_gone() {
  if (state_ != State::kOpen) return true;
  const Nanos silent = environment_.runtime->now() - last_answer_;
  if (silent < options_.server_lost) return false;
  end(State::kServerLost, "the reference server at " + server_ + " did not answer for " +
                              std::to_string(silent.count / 1'000'000'000) +
                              " s: " + last_trouble_);
  return true;
}

void ServerSession::end(State state, std::string why) {
  if (state_ != State::kOpen) return;
  if (state == State::kServerLost) environment_.runtime->probe(probes::kServerLost);
  state_ = state;
  why_ended_ = std::move(why);
  outbox_.clear();
  changed_.notify_all();
  listener_->on_session_ended();
}

void ServerSession::stop_loops() {
  tasks_.cancel_all();
  connecting_ = false;
}

flow::Task<void> ServerSession::poll_loop(ServerSession* self) {
  flow::Runtime& runtime = *self->environment_.runtime;
  Nanos pause = self->options_.rpc_retry_first;
  while (self->state_ == State::kOpen) {
    const uint64_t sequence = self->next_sequence_++;
    net::PollRequest poll{self->last_event_, self->listener_->sealed_bytes(), self->heartbeat_};
    const Nanos until =
        deadline_after(runtime.now(), self->heartbeat_ + self->options_.rpc_attempt);
    std::optional<net::Response> response =
        co_await self->attempt(std::move(poll), sequence, until);
    if (!response.has_value()) {
      if (self->server_gone()) co_return;
      co_await runtime.sleep_for(pause);
      pause = self->next_pause(pause);
      continue;
    }
    if (!self->check(*response)) co_return;
    pause = self->options_.rpc_retry_first;
    const auto* news = std::get_if<net::EventsResponse>(&response->body);
    if (news == nullptr) {  // an older session's answer
      runtime.probe(probes::kStaleAnswer);
      co_await runtime.sleep_for(pause);
      continue;
    }
    for (const net::Event& event : news->events) {
      if (event.number <= self->last_event_) continue;  // repeated until acknowledged
      self->last_event_ = event.number;
      self->listener_->on_event(event);
    }
  }
}

flow::Task<void> ServerSession::send_loop(ServerSession* self) {
  flow::Runtime& runtime = *self->environment_.runtime;
  while (self->state_ == State::kOpen) {
    if (self->outbox_.empty()) {
      co_await self->changed_.wait();
      continue;
    }
    const Posted posted = self->outbox_.front();
    Nanos pause = self->options_.rpc_retry_first;
    while (true) {
      const Nanos until = deadline_after(runtime.now(), self->options_.rpc_attempt);
      std::optional<net::Response> response =
          co_await self->attempt(posted.body, posted.sequence, until);
      if (response.has_value()) {
        const bool closing = std::holds_alternative<net::CloseRequest>(posted.body);
        const auto* failed = std::get_if<net::Failure>(&response->body);
        const bool stale = failed != nullptr && failed->kind == net::FailureKind::kStaleSession;
        if (!closing && !self->check(*response)) co_return;
        if (!stale) {
          if (failed != nullptr && !closing) self->listener_->on_rejected(posted.body, *failed);
          break;
        }
      }
      if (self->server_gone()) co_return;
      co_await runtime.sleep_for(pause);
      pause = self->next_pause(pause);
    }
    if (self->state_ != State::kOpen) co_return;
    self->outbox_.pop_front();
    self->changed_.notify_all();
  }
}

}  // namespace weightlane::ros
